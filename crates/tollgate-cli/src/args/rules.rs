//! Flags of `tollgate rules`.

use std::path::PathBuf;

use clap::Subcommand;

use super::{Reach, RequestArgs};

/// What to do with rules.
#[derive(Debug, Subcommand)]
pub(crate) enum RulesCommand {
    /// List the rules of a server.
    #[command(after_help = "Examples:
  tollgate rules list
  tollgate rules list --tenant acme --json")]
    List {
        /// Only those whose id begins so.
        #[arg(long, value_name = "TEXT")]
        prefix: Option<String>,
        /// Only those that this tenant's admins made.
        #[arg(long, value_name = "ID")]
        tenant: Option<String>,
        /// Print them as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Print one rule of a server, in the form of rule files.
    // Its --version is that of a rule, not of this program.
    #[command(
        disable_version_flag = true,
        after_help = "Examples:
  tollgate rules get api-default > rule.yaml
  tollgate rules get api-default --version 3 --json"
    )]
    Get {
        /// The rule.
        #[arg(value_name = "ID")]
        id: String,
        /// As it was in this version.
        #[arg(long, value_name = "N")]
        version: Option<u64>,
        /// Print it as JSON, with who changed it and when.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// List every version of a rule, the newest first.
    #[command(after_help = "Example: tollgate rules versions api-default")]
    Versions {
        /// The rule.
        #[arg(value_name = "ID")]
        id: String,
        /// Print them as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Delete rules of a server. Their versions stay, and `rules rollback` brings them back.
    #[command(after_help = "Example: tollgate rules delete trial-a trial-b --yes")]
    Delete {
        /// The rules.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Put a rule back to an earlier version, as a new version.
    #[command(
        after_help = "Examples:
  tollgate rules versions api-default
  tollgate rules rollback api-default --to 3 --dry-run",
        disable_version_flag = true
    )]
    Rollback {
        /// The rule.
        #[arg(value_name = "ID")]
        id: String,
        /// The version.
        #[arg(long, visible_alias = "version", value_name = "N")]
        to: u64,
        /// Only show what would change.
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Show, widen, halt or promote the candidate of a rule.
    #[command(after_help = "Examples:
  tollgate rules candidate api-default
  tollgate rules candidate api-default --percent 25
  tollgate rules candidate api-default --halt
  tollgate rules candidate api-default --promote")]
    Candidate {
        /// The rule.
        #[arg(value_name = "ID")]
        id: String,
        /// Let it enforce for this share of the keys, in per cent.
        #[arg(long, value_name = "N", conflicts_with_all = ["halt", "promote"])]
        percent: Option<f64>,
        /// Let it enforce for nobody; it is still tried.
        #[arg(long, conflicts_with = "promote")]
        halt: bool,
        /// Put its limits in force, with what it has counted.
        #[arg(long)]
        promote: bool,
        #[command(flatten)]
        reach: Reach,
    },
    Apply(ApplyArgs),
    /// Show what `rules apply` would change. Exit code 1 if that is anything, as diff has it.
    #[command(after_help = "Example: tollgate rules diff -f rules/ --prune")]
    Diff {
        /// Rule files, or folders of them; - is standard input.
        #[arg(short, long = "file", required = true, value_name = "PATH")]
        files: Vec<PathBuf>,
        /// Count as deleted what the files do not name, of the kinds that they have a part for.
        #[arg(long)]
        prune: bool,
        /// Print it as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
    Explain(Box<ExplainArgs>),
    /// Check rule files and print everything that is wrong with them.
    #[command(after_help = "Examples:
  tollgate rules validate rules.yaml
  generate-rules | tollgate rules validate --json -")]
    Validate {
        /// The files; - is standard input.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Print the findings as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Turn configuration files of envoyproxy/ratelimit into a rule file with the same meaning.
    ///
    /// It is printed; `tollgate serve --rules` takes it. What cannot be expressed in rules is refused,
    /// with its place. Envoy then asks this server's gRPC port as it asked the other.
    #[command(after_help = "Examples:
  tollgate rules import-envoy config/*.yaml > rules.yaml
  tollgate rules import-envoy config.yaml | tollgate rules apply -f -")]
    ImportEnvoy {
        /// The files; - is standard input.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Let several files share a domain, as `MERGE_DOMAIN_CONFIG` does there.
        #[arg(long)]
        merge_domains: bool,
        /// Charge all descriptors of a call or none, also where they carry their own `hits_addend`.
        #[arg(long)]
        all_or_nothing: bool,
        /// Refuse a descriptor that only checks (`hits_addend` 0) when its limit is used up exactly.
        #[arg(long)]
        refuse_check_at_limit: bool,
        /// Let months be those of the calendar in UTC, as `USE_CALENDAR_MONTH_RATE_LIMIT` does there.
        #[arg(long)]
        calendar_months: bool,
    },
    /// Print the JSON Schema of a rule file, for editors.
    #[command(after_help = "Example: tollgate rules schema > rules.schema.json")]
    Schema,
}

/// Make the rules of a server as files say.
///
/// The files are checked here first. Then the server says what would change, which is shown, and on
/// a terminal you are asked. What is then done is what was shown: if the rules changed meanwhile,
/// nothing is done. All of it takes effect at once, or nothing does; only `client_tiers` are sent
/// before, in parts, since there may be millions.
///
/// What the files do not name stays as it is, unless --prune is given.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(after_help = "Examples:
  tollgate rules apply -f rules.yaml
  tollgate rules apply -f rules/ --prune --dry-run
  tollgate rules apply -f base.yaml -f production.yaml --yes")]
#[expect(clippy::struct_excessive_bools, reason = "flags are what people switch on")]
pub(crate) struct ApplyArgs {
    /// Rule files, or folders of them (their *.yaml, *.yml and *.json, by name); - is standard input.
    #[arg(short, long = "file", required = true, value_name = "PATH")]
    pub(crate) files: Vec<PathBuf>,
    /// Delete what the files do not name, of the kinds that they have a part for. Rules of tenants'
    /// own admins stay.
    #[arg(long)]
    pub(crate) prune: bool,
    /// Only show what would change.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print what was done as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

/// Say which rules a request meets, and why not others. Charges nothing.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(after_help = "Examples:
  tollgate rules explain --user ann --model gpt4
  tollgate rules explain --rules rules.yaml --api-key k1 --endpoint /api/search")]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) reach: Reach,
    /// Look into this rule file instead of asking a server.
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    pub(crate) rules: Option<PathBuf>,
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    // Last, since its heading would hold for what comes after it too.
    #[command(flatten)]
    pub(crate) request: RequestArgs,
}
