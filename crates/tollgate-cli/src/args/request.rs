//! Flags that say what a request is.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use tollgate_policy::Known;

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
    #[command(flatten)]
    pub(crate) known: AttributeFlags,
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

/// A flag for each known attribute, from the table of attributes.
#[derive(Debug, Clone, Default)]
pub(crate) struct AttributeFlags([Option<String>; Known::COUNT]);

impl AttributeFlags {
    pub(crate) fn get(&self, known: Known) -> Option<&str> {
        self.0.get(known as usize)?.as_deref()
    }

    /// Those that were given.
    pub(crate) fn given(&self) -> impl Iterator<Item = (Known, &str)> {
        Known::ALL.into_iter().filter_map(|known| Some((known, self.get(known)?)))
    }
}

impl FromArgMatches for AttributeFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let value = |known: Known| match known {
            Known::Ip => matches.get_one::<IpAddr>(known.flag()).map(IpAddr::to_string),
            _ => matches.get_one::<String>(known.flag()).cloned(),
        };
        Ok(Self(Known::ALL.map(value)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for AttributeFlags {
    fn augment_args(command: Command) -> Command {
        command.args(Known::ALL.map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn flag(known: Known) -> Arg {
    let arg = Arg::new(known.flag()).long(known.flag()).help(known.help().trim_end_matches('.'));
    match known {
        Known::UserId | Known::TenantId | Known::ModelId => arg.value_name("ID"),
        Known::ApiKey => arg.value_name("KEY"),
        Known::Ip => arg.value_name("ADDR").value_parser(clap::value_parser!(IpAddr)),
        Known::Endpoint => arg.value_name("PATH"),
        _ => arg.value_name("NAME"),
    }
}
