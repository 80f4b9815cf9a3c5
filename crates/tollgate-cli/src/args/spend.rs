//! Flags of `tollgate spend`.

use super::Reach;

/// What was used and spent, by day, tenant, API key, user or model.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(after_help = "Examples:
  tollgate spend
  tollgate spend --by key,model --since 7d
  tollgate spend --by day --tenant acme --since 2027-01-01 --until 2027-02-01 --json")]
pub(crate) struct SpendArgs {
    /// What to group by: some of day, tenant, key, user and model, separated by commas.
    #[arg(long, value_name = "NAMES", default_value = "key")]
    pub(crate) by: String,
    /// From this day on, such as 2027-01-31, or so long ago, such as 7d (default: the current month, in UTC).
    #[arg(long, value_name = "WHEN")]
    pub(crate) since: Option<String>,
    /// Until this day, which does not count.
    #[arg(long, value_name = "WHEN")]
    pub(crate) until: Option<String>,
    /// Only of this tenant.
    #[arg(long, value_name = "ID")]
    pub(crate) tenant: Option<String>,
    /// Only of the API key with this id.
    #[arg(long, value_name = "ID")]
    pub(crate) api_key_id: Option<String>,
    /// Only of this user.
    #[arg(long, value_name = "ID")]
    pub(crate) user: Option<String>,
    /// Only of this model.
    #[arg(long, value_name = "ID")]
    pub(crate) model: Option<String>,
    /// How many rows, the latest day first, then the dearest.
    #[arg(long, value_name = "N", default_value_t = 1_000,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) reach: Reach,
}
