//! Flags of reservations and slots.

use clap::Subcommand;

use super::{Reach, RequestArgs, UsageArgs};

/// What to do with slots of concurrency rules.
#[derive(Debug, Subcommand)]
pub(crate) enum SlotsCommand {
    /// List the slots that are held, by the counters that the server has seen since its start.
    #[command(after_help = "Examples:
  tollgate slots list
  tollgate slots list --rule gpu-pool --json")]
    List {
        /// Only those of this rule.
        #[arg(long, value_name = "ID")]
        rule: Option<String>,
        /// How many counters at most.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: u32,
        /// Print them as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
}

/// Hold quota for a request whose true cost is known only later.
///
/// What it costs is an estimate, to be settled by `tollgate settle`. Prints the decision as JSON, with
/// the reservation's id (exit code 0), or why it is refused (exit code 1).
#[derive(Debug, Clone, Default, clap::Args)]
#[command(
    after_help = "Example: tollgate reserve --user ann --model gpt4 --tokens 1200 --ttl-ms 120000"
)]
pub(crate) struct ReserveArgs {
    #[command(flatten)]
    pub(crate) reach: Reach,
    /// How long it is held, in milliseconds; a minute if not given.
    #[arg(long, value_name = "MS")]
    pub(crate) ttl_ms: Option<u64>,
    // Last, since its heading would hold for what comes after it too.
    #[command(flatten)]
    pub(crate) request: RequestArgs,
}

/// Say what a reservation truly cost.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(after_help = "Example: tollgate settle 5c1e0d8a9b7f46e3a2d1c0b9a8f7e6d5 --tokens 874")]
pub(crate) struct SettleArgs {
    /// The reservation.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// What it cost on rules of unit tokens; as estimated if not given.
    #[arg(long, value_name = "N")]
    pub(crate) tokens: Option<u64>,
    /// What it cost on rules of unit cost; as estimated if not given.
    #[arg(long, value_name = "N")]
    pub(crate) cost: Option<u64>,
    #[command(flatten)]
    pub(crate) usage: UsageArgs,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

/// Give a reservation back, or the slot of an allowed request.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(after_help = "Example: tollgate release 5c1e0d8a9b7f46e3a2d1c0b9a8f7e6d5")]
pub(crate) struct HeldArgs {
    /// The reservation, or the slot.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

/// Hold a reservation, or the slot of an allowed request, for longer.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(after_help = "Example: tollgate renew 5c1e0d8a9b7f46e3a2d1c0b9a8f7e6d5 --ttl-ms 60000")]
pub(crate) struct RenewArgs {
    /// How long from now on, in milliseconds; its own lifetime again if not given.
    #[arg(long, value_name = "MS")]
    pub(crate) ttl_ms: Option<u64>,
    #[command(flatten)]
    pub(crate) held: HeldArgs,
}
