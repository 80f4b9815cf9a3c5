//! Flags of `tollgate backtest`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use tollgate_backtest::{Aim, Extract, Format, Guard};

/// Replay recorded traffic through rules, and report who would be refused.
///
/// Recorded decisions and lines of access logs are decided by the real engine on the time that they state, once by
/// --rules and once by --baseline. Files may be compressed with gzip or zstd; several are merged by time. Lines that cannot be read are
/// counted and shown, and never stop the replay. Nothing is connected to, and nothing is changed.
///
/// Exit codes: 0 done, 1 if a condition of --fail-if is true, 2 wrong usage, rules or files.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  tollgate backtest --rules draft.yaml --traffic /var/log/nginx/access.log
  tollgate backtest --rules draft.yaml --baseline rules.yaml --traffic /var/lib/tollgate/recording
  tollgate backtest --rules draft.yaml --baseline rules.yaml --traffic access.log access.log.*.gz --html report.html
  tollgate backtest --rules draft.yaml --traffic calls.csv --map org=tenant_id --map when=time
  tollgate backtest --rules draft.yaml --traffic access.log --extract 'request=* /t/{tenant_id}/* HTTP/*'
  tollgate backtest --rules draft.yaml --traffic access.log --fail-if 'refused_share>0.01' --json")]
pub(crate) struct BacktestArgs {
    /// The rules to test.
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: PathBuf,
    /// The rules to compare with, such as those in force; without them, everything that is refused is new.
    #[arg(long, value_name = "FILE")]
    pub(crate) baseline: Option<PathBuf>,
    /// Recordings of nodes, folders of them, and access logs; may be repeated.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub(crate) traffic: Vec<PathBuf>,
    /// The format of the files. auto finds it out for each file: recordings of `serve --record`, combined and common of nginx and Apache, JSON lines
    /// of nginx, Envoy, Caddy and Traefik, logs of AWS load balancers, CSV with a header.
    #[arg(long, value_name = "FORMAT", value_parser = format(), default_value = "auto")]
    pub(crate) format: Format,
    /// A field of the log that is an attribute of requests, such as `org=tenant_id`; time, cost, tokens and duration
    /// are attributes, too. Fields in JSON objects are named with dots. May be repeated.
    #[arg(long, value_name = "FIELD=ATTRIBUTE")]
    pub(crate) map: Vec<String>,
    /// Attributes that are part of a field, such as `path=/t/{tenant_id}/*`: `{name}` becomes the attribute of this
    /// name, `*` is anything. May be repeated.
    #[arg(long, value_name = "FIELD=PATTERN", value_parser = Extract::parse)]
    pub(crate) extract: Vec<Extract>,
    /// Write the report as a page with charts, in one file that needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Exit with 1 if this is true. Figures: `refused_share`, `refused`, `refused_share_change`,
    /// `client_refused_share`, `refused_clients`, `newly_refused_clients`, `throttled_share`, `malformed_share`. May be
    /// repeated.
    #[arg(long, value_name = "CONDITION", value_parser = Guard::parse)]
    pub(crate) fail_if: Vec<Guard>,
    /// What recommended limits keep to: the share of requests that they refuse, and the share of one client's.
    #[arg(long, value_name = "AIM", value_parser = Aim::parse,
          default_value = "refused_share<=0.001,client_refused_share<=0.01")]
    pub(crate) aim: Aim,
}

fn format() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(Format::ALL.map(|(name, _)| name)).map(|given| {
        let found = Format::ALL.into_iter().find(|(name, _)| *name == given);
        found.map_or(Format::Auto, |(_, format)| format)
    })
}
