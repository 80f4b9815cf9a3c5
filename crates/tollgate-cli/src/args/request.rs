//! Flags that say what a request is.

use std::net::IpAddr;
use std::path::PathBuf;

use super::Reach;

/// Ask for a decision: of a running server, or of a rule file.
///
/// Asking a server charges the request unless --peek is given. With --rules the file is evaluated
/// here, with all counters fresh, and no server is needed. Prints ALLOWED (exit code 0) or BLOCKED
/// (exit code 1), why, and every limit.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(after_help = "Examples:
  tollgate check --user ann --model gpt4
  tollgate check --rules rules.yaml --api-key k1 --endpoint /api/search --method GET
  tollgate check --url http://10.0.0.5:8080 --tenant acme --tokens 1200 --peek --json")]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) reach: Reach,
    /// Evaluate this rule file instead of asking a server.
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    pub(crate) rules: Option<PathBuf>,
    /// Charge nothing.
    #[arg(long)]
    pub(crate) peek: bool,
    /// Print the decision as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    // Last, since its heading would hold for what comes after it too.
    #[command(flatten)]
    pub(crate) request: RequestArgs,
}

/// What is known of the request, and what it costs.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "The request")]
pub(crate) struct RequestArgs {
    /// The user.
    #[arg(long, value_name = "ID")]
    pub(crate) user: Option<String>,
    /// The model asked for.
    #[arg(long, value_name = "ID")]
    pub(crate) model: Option<String>,
    /// The API key.
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    /// The tenant.
    #[arg(long, value_name = "ID")]
    pub(crate) tenant: Option<String>,
    /// The client's address.
    #[arg(long, value_name = "ADDR")]
    pub(crate) ip: Option<IpAddr>,
    /// The caller's plan.
    #[arg(long, value_name = "NAME")]
    pub(crate) tier: Option<String>,
    /// The class of the model.
    #[arg(long, value_name = "NAME")]
    pub(crate) model_tier: Option<String>,
    /// The path that is asked for.
    #[arg(long, value_name = "PATH")]
    pub(crate) endpoint: Option<String>,
    /// The HTTP method.
    #[arg(long, value_name = "NAME")]
    pub(crate) method: Option<String>,
    /// INTERNAL, PARTNER, EXTERNAL or the like.
    #[arg(long, value_name = "NAME")]
    pub(crate) client_type: Option<String>,
    /// The domain, or host, of the request.
    #[arg(long, value_name = "NAME")]
    pub(crate) domain: Option<String>,
    /// Any further attribute; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) attribute: Vec<(String, String)>,
    /// What it costs on rules of unit requests or cost.
    #[arg(long, value_name = "N")]
    pub(crate) cost: Option<u64>,
    /// What it costs on rules of unit tokens.
    #[arg(long, value_name = "N")]
    pub(crate) tokens: Option<u64>,
}

pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("must be a name and a value such as region=eu".to_owned()),
    }
}
