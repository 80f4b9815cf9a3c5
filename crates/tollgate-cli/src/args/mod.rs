//! Flags as typed.

mod admin;
mod audit;
mod backtest;
mod bench;
mod decisions;
mod demo;
mod keys;
mod reach;
mod request;
mod reservations;
mod rules;
mod spend;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use tollgate_engine::Enforcement;
use tollgate_server::config::{LogFormat, LogLevel, NodeRole, parse_address};

pub(crate) use admin::{
    Client, GrantsCommand, HealthArgs, KnownArgs, ListName, ListedArgs, ListsCommand, LogLevelArgs,
    QueueCommand, SettingsCommand, TiersCommand, TokenCommand, TopArgs, UsageCommand,
};
pub(crate) use audit::{AuditArgs, AuditCommand};
pub(crate) use backtest::BacktestArgs;
pub(crate) use bench::{BenchArgs, Form};
pub(crate) use decisions::DecisionsArgs;
pub(crate) use demo::DemoArgs;
pub(crate) use keys::{KeyFields, KeysCommand};
pub(crate) use reach::{CertificateArgs, Reach, TlsArgs};
pub(crate) use request::{CheckArgs, RequestArgs, UsageArgs};
pub(crate) use reservations::{HeldArgs, RenewArgs, ReserveArgs, SettleArgs, SlotsCommand};
pub(crate) use rules::{ApplyArgs, ExplainArgs, RulesCommand};
pub(crate) use spend::SpendArgs;

/// A rate limiter: every request pays a toll out of one or more budgets, or is refused.
#[derive(Debug, Parser)]
#[command(
    name = "tollgate",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "Exit codes: 0 done, 1 refused or failed, 2 wrong usage or configuration."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(ServeArgs),
    Gateway(GatewayArgs),
    Demo(DemoArgs),
    Check(CheckArgs),
    Bench(BenchArgs),
    Backtest(BacktestArgs),
    /// See and change the rules of a server; check rule files.
    #[command(subcommand)]
    Rules(RulesCommand),
    /// Clients that are always allowed, or always denied.
    #[command(subcommand)]
    Lists(ListsCommand),
    /// Tiers, and which clients have them.
    #[command(subcommand)]
    Tiers(TiersCommand),
    /// Extra quota of a client, until a date.
    #[command(subcommand)]
    Grants(GrantsCommand),
    /// Virtual keys: API keys that Tollgate issues, with limits and budgets of their own.
    #[command(subcommand)]
    Keys(KeysCommand),
    /// What a client has used.
    #[command(subcommand)]
    Usage(UsageCommand),
    Spend(SpendArgs),
    /// Slots of concurrency rules that are held.
    #[command(subcommand)]
    Slots(SlotsCommand),
    Reserve(ReserveArgs),
    Settle(SettleArgs),
    Release(HeldArgs),
    Renew(RenewArgs),
    /// Requests that a gateway keeps for later.
    #[command(subcommand)]
    Queue(QueueCommand),
    Health(HealthArgs),
    Top(TopArgs),
    LogLevel(LogLevelArgs),
    Audit(AuditArgs),
    Decisions(DecisionsArgs),
    /// Tokens of the admin API.
    #[command(subcommand)]
    Token(TokenCommand),
    /// What holds for all rules of a server.
    #[command(subcommand)]
    Settings(SettingsCommand),
    /// Look at the configuration; prepare the database.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell.
    #[command(after_help = "Example: tollgate completions bash > /etc/bash_completion.d/tollgate")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the reference of all commands as Markdown.
    #[command(hide = true)]
    HelpMarkdown,
    /// Print the reference of the configuration as Markdown.
    #[command(hide = true)]
    ConfigMarkdown,
}

/// Serve decisions over HTTP and gRPC.
///
/// Without any configuration it serves on loopback, HTTP on port 8080 and gRPC on port 8081, by the
/// built-in default rule, and keeps its counters in ./tollgate-data. The first line on standard output says where it listens;
/// a terminal also gets a link that signs in to the console once, and only warnings of the log unless a level is set.
/// The log goes to standard error. SIGTERM and SIGINT drain and end it with exit code 0.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tollgate serve
  tollgate serve --rules rules.yaml
  tollgate serve --config tollgate.yaml --http 127.0.0.1:0
  TOLLGATE_DATA_AUTH=none tollgate serve --http 0.0.0.0:8080")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
}

/// Be a reverse proxy that asks before it forwards.
///
/// It does all that `serve` does, and forwards requests to the services behind it: limited, delayed
/// or queued as the rules say. One service is given as --upstream; several, with routes, weights and
/// health checks, in the configuration file. The first line on standard output says where it listens.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tollgate gateway --upstream http://127.0.0.1:9000
  tollgate gateway --upstream http://127.0.0.1:9000 --listen 127.0.0.1:8000 --rules rules.yaml
  tollgate gateway --config tollgate.yaml")]
pub(crate) struct GatewayArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Where the gateway listens; port 0 picks a free one.
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    pub(crate) listen: Option<SocketAddr>,
    /// The service that requests are forwarded to, such as `http://127.0.0.1:9000`.
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<String>,
}

/// Where the configuration comes from. Flags come before TOLLGATE_ variables, those before the file.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ConfigArgs {
    /// The configuration file (default: `$TOLLGATE_CONFIG`); `tollgate config default` prints one to
    /// begin with.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where HTTP is served; port 0 picks a free one.
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    pub(crate) http: Option<SocketAddr>,
    /// Where gRPC is served, Envoy's rate limit service among it; port 0 picks a free one, null serves
    /// none.
    #[arg(long, value_name = "ADDR")]
    pub(crate) grpc: Option<String>,
    /// Where counters are kept across restarts; null keeps nothing on disk.
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<String>,
    /// The rule file; changes of it take effect at once.
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<String>,
    /// Record decisions in this folder, to replay them with `tollgate backtest`.
    #[arg(long, value_name = "DIR")]
    pub(crate) record: Option<String>,
    /// Whether refusals are enforced.
    #[arg(long, value_name = "MODE", value_parser = enforcement())]
    pub(crate) enforcement: Option<Enforcement>,
    /// Who may ask for decisions.
    #[arg(long, value_name = "WHO", value_parser = ["none", "token", "mtls", "null"])]
    pub(crate) data_auth: Option<String>,
    /// What this node does: decide and serve the admin API, or one of both.
    #[arg(long, value_name = "ROLE", value_parser = named(NodeRole::ALL))]
    pub(crate) role: Option<NodeRole>,
    /// The database of rules, lists, tiers, tokens and the audit log, such as
    /// `postgres://user@host:5432/tollgate`; SQLite in the data directory if absent. A password is
    /// better put into `postgres_password_file`: others on this machine see flags.
    #[arg(long, value_name = "URL")]
    pub(crate) postgres: Option<String>,
    /// Where the admin API is served, if not beside the decisions; port 0 picks a free one.
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    pub(crate) admin_http: Option<SocketAddr>,
    /// The Redis that nodes share, such as `redis://host:6379`, `rediss://user:password@host` or
    /// `unix:///run/redis.sock` (default: `$REDIS_URL`); repeatable for a cluster or Sentinel. A
    /// password is better put into `redis.password_file`: others on this machine see flags.
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Vec<String>,
    /// It is a Redis Cluster; the URLs are some of its nodes.
    #[arg(long)]
    pub(crate) redis_cluster: bool,
    /// The URLs are Sentinels, which call the master so.
    #[arg(long, value_name = "NAME", conflicts_with = "redis_cluster")]
    pub(crate) redis_sentinel: Option<String>,
    /// How many counters are kept in memory.
    #[arg(long, value_name = "N")]
    pub(crate) max_counters: Option<u64>,
    /// Threads that serve requests; 0 is one for each core.
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<u64>,
    /// The least important level that is logged.
    #[arg(long, value_name = "LEVEL", value_parser = named(LogLevel::ALL))]
    pub(crate) log_level: Option<LogLevel>,
    /// The form of the log.
    #[arg(long, value_name = "FORMAT", value_parser = named(LogFormat::ALL))]
    pub(crate) log_format: Option<LogFormat>,
}

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the configuration and print everything that is wrong with it.
    ///
    /// The files that it names (rules, keys, certificates, key sets) are opened and read as a start would read them.
    /// Nothing is connected to.
    #[command(after_help = "Example: tollgate config check --config tollgate.yaml")]
    Check {
        #[command(flatten)]
        config: ConfigArgs,
        /// Do not open rules, registered keys, certificates and key sets: for machines that have none of them.
        #[arg(long)]
        skip_files: bool,
        /// Print the findings as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the configuration in force: defaults, file, variables and flags together.
    ///
    /// Tokens are not shown.
    #[command(after_help = "Example: tollgate config show --config tollgate.yaml --json")]
    Show {
        #[command(flatten)]
        config: ConfigArgs,
        /// Print it as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Bring the schema of the database up to date, and print its version.
    ///
    /// A server does so by itself when it starts, if it may. Run this first where its database user
    /// may not change the schema.
    #[command(after_help = "Examples:
  tollgate config migrate --config tollgate.yaml
  tollgate config migrate --postgres postgres://owner@db.example/tollgate")]
    Migrate {
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Print the commented default file.
    #[command(after_help = "Example: tollgate config default > tollgate.yaml")]
    Default,
}

fn enforcement() -> impl TypedValueParser<Value = Enforcement> {
    let modes = [Enforcement::On, Enforcement::Shadow, Enforcement::Off];
    PossibleValuesParser::new(modes.map(Enforcement::name))
        .map(|name| Enforcement::from_name(&name).unwrap_or_default())
}

/// One of some named values.
fn named<T: Copy + Default + Send + Sync + 'static>(
    all: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.iter().map(|(name, _)| *name)).map(|given| {
        all.iter().find(|(name, _)| *name == given).map(|(_, value)| *value).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn flags_do_not_contradict_each_other() {
        super::Args::command().debug_assert();
    }
}
