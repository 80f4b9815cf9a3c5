//! Flags of `tollgate audit`.

use std::path::PathBuf;

use super::Reach;

/// Show who changed what; or, with --decisions, which requests were refused. The newest come last.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  tollgate audit --since 1h
  tollgate audit --entry rule/api-default
  tollgate audit --decisions --user ann --action rejected --follow
  tollgate audit verify"
)]
pub(crate) struct AuditArgs {
    #[command(subcommand)]
    pub(crate) command: Option<AuditCommand>,
    /// Show decisions instead of changes.
    #[arg(long)]
    pub(crate) decisions: bool,
    /// From then on: an instant such as 2027-01-31T12:00:00Z, or how long ago, such as 90m or 7d.
    #[arg(long, value_name = "WHEN")]
    pub(crate) since: Option<String>,
    /// Until then.
    #[arg(long, value_name = "WHEN", conflicts_with = "follow")]
    pub(crate) until: Option<String>,
    /// Only of this tenant.
    #[arg(long, value_name = "ID")]
    pub(crate) tenant: Option<String>,
    /// Only of this request.
    #[arg(long, value_name = "ID")]
    pub(crate) request_id: Option<String>,
    /// Only changes by the token of this name.
    #[arg(long, value_name = "NAME", conflicts_with = "decisions")]
    pub(crate) actor: Option<String>,
    /// Only changes of this entry, or of this kind: rule/api-default, or tier.
    #[arg(long, value_name = "KIND[/ID]", conflicts_with = "decisions")]
    pub(crate) entry: Option<String>,
    /// Only decisions of this user.
    #[arg(long, value_name = "ID", requires = "decisions")]
    pub(crate) user: Option<String>,
    /// Only decisions by this rule.
    #[arg(long, value_name = "ID", requires = "decisions")]
    pub(crate) rule: Option<String>,
    /// Only decisions about this client, as the log names it.
    #[arg(long, value_name = "ID", requires = "decisions")]
    pub(crate) client: Option<String>,
    /// Only decisions that ended so.
    #[arg(long, value_name = "ACTION", requires = "decisions",
        value_parser = ["allowed", "rejected", "throttled", "queued", "would_deny"])]
    pub(crate) action: Option<String>,
    /// How many, the newest of all that fit.
    #[arg(long, value_name = "N", default_value_t = 50,
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) limit: u32,
    /// Go on and show what comes.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Print them as JSON: a list, or one on each line with --follow.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

/// What is done with the signed history of changes.
#[derive(Debug, Clone, clap::Subcommand)]
pub(crate) enum AuditCommand {
    /// Check that no change was altered, removed or inserted, on a server or in an export. Exit code 1 names the first
    /// broken record.
    #[command(after_help = "Examples:
  tollgate audit verify
  tollgate audit verify --file history.jsonl --public-key d75a98…
  tollgate audit verify --head 1204:9f86d0…")]
    Verify {
        /// An export, instead of a server. - is the standard input.
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// A key that is trusted, in hex; as often as there are keys. Without one, the keys that signed are reported.
        #[arg(long, value_name = "KEY")]
        public_key: Vec<String>,
        /// A head that was noted earlier, as NUMBER:HASH: it must still be part of the history. This finds a history that
        /// was cut off.
        #[arg(long, value_name = "NUMBER:HASH")]
        head: Option<String>,
        /// Print the result as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Write the signed history of changes, one JSON object on each line, oldest first.
    #[command(after_help = "Example: tollgate audit export --output history.jsonl")]
    Export {
        /// Where to; without it, to the standard output.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        reach: Reach,
    },
    /// Print the public key with which the server signs changes.
    #[command(after_help = "Example: tollgate audit key > tollgate.pub")]
    Key {
        #[command(flatten)]
        reach: Reach,
    },
}
