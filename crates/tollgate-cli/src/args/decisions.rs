//! Flags of `tollgate decisions`.

use super::Reach;

/// Search decisions: who was refused, by which rule, and when it would have passed. The newest come last.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(after_help = "Examples:
  tollgate decisions --user ann --since 15m
  tollgate decisions --rule api-default --result denied --since 2027-01-31T09:30:00Z --until 2027-01-31T09:50:00Z
  tollgate decisions --tenant acme --follow")]
pub(crate) struct DecisionsArgs {
    /// From then on: an instant such as 2027-01-31T12:00:00Z, or how long ago, such as 90m or 7d.
    #[arg(long, value_name = "WHEN")]
    pub(crate) since: Option<String>,
    /// Until then.
    #[arg(long, value_name = "WHEN", conflicts_with = "follow")]
    pub(crate) until: Option<String>,
    /// Only of this user.
    #[arg(long, value_name = "ID")]
    pub(crate) user: Option<String>,
    /// Only of this tenant.
    #[arg(long, value_name = "ID")]
    pub(crate) tenant: Option<String>,
    /// Only of the API key with this id, as decisions show it.
    #[arg(long, value_name = "ID")]
    pub(crate) api_key_id: Option<String>,
    /// Only from this address.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) ip: Option<String>,
    /// Only by this rule.
    #[arg(long, value_name = "ID")]
    pub(crate) rule: Option<String>,
    /// Only by rules of this scope.
    #[arg(long, value_name = "NAME")]
    pub(crate) scope: Option<String>,
    /// Only for this model.
    #[arg(long, value_name = "ID")]
    pub(crate) model: Option<String>,
    /// Only for this endpoint.
    #[arg(long, value_name = "PATH")]
    pub(crate) endpoint: Option<String>,
    /// Only for this reason, such as `HIT_USER_LIMIT`.
    #[arg(long, value_name = "CODE")]
    pub(crate) reason: Option<String>,
    /// Only those that ended so.
    #[arg(long, value_name = "RESULT",
        value_parser = ["allowed", "denied", "throttled", "queued", "would_deny"])]
    pub(crate) result: Option<String>,
    /// Only of this request.
    #[arg(long, value_name = "ID")]
    pub(crate) request_id: Option<String>,
    /// How many, the newest of all that fit.
    #[arg(long, value_name = "N", default_value_t = 50,
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) limit: u32,
    /// Continue, and show decisions as they are written.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Print them as JSON, one on each line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) reach: Reach,
}
