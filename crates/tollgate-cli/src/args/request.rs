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
    #[command(flatten)]
    pub(crate) usage: UsageArgs,
}

/// What it uses by unit and kind.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct UsageArgs {
    /// What it costs on rules of unit `input_tokens`.
    #[arg(long, value_name = "N")]
    pub(crate) input_tokens: Option<u64>,
    /// What it costs on rules of unit `output_tokens`.
    #[arg(long, value_name = "N")]
    pub(crate) output_tokens: Option<u64>,
    /// What it costs on rules of unit `cached_tokens`.
    #[arg(long, value_name = "N")]
    pub(crate) cached_tokens: Option<u64>,
    /// What it costs on rules of unit money, such as 0.0123USD.
    #[arg(long, value_name = "AMOUNT", value_parser = money)]
    pub(crate) money: Option<(String, String)>,
    /// What it uses of a kind that has a price, such as input=1200; may be repeated. The server prices it by the model.
    #[arg(long, value_name = "KIND=N", value_parser = kind)]
    pub(crate) usage: Vec<(String, u64)>,
}

impl UsageArgs {
    /// Puts what was given into the body of a call.
    pub(crate) fn put_into(&self, body: &mut serde_json::Map<String, serde_json::Value>) {
        let numbers = [
            ("inputTokens", self.input_tokens),
            ("outputTokens", self.output_tokens),
            ("cachedTokens", self.cached_tokens),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                body.insert(name.to_owned(), number.into());
            }
        }
        if let Some((amount, currency)) = &self.money {
            let money = serde_json::json!({ "currency": currency, "amount": amount });
            body.insert("money".to_owned(), money);
        }
        if !self.usage.is_empty() {
            let kinds = self.usage.iter().map(|(kind, number)| (kind.clone(), (*number).into()));
            body.insert("usage".to_owned(), serde_json::Value::Object(kinds.collect()));
        }
    }
}

/// An amount and its currency.
fn money(text: &str) -> Result<(String, String), String> {
    let split = text.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(text.len());
    match text.split_at_checked(split) {
        Some((amount, currency)) if !amount.is_empty() && !currency.is_empty() => {
            Ok((amount.trim().to_owned(), currency.to_owned()))
        }
        _ => Err("must be an amount and a currency such as 0.0123USD".to_owned()),
    }
}

/// A kind of usage and its number.
fn kind(text: &str) -> Result<(String, u64), String> {
    let wrong = || "must be a kind and a number such as input=1200".to_owned();
    let (kind, number) = pair(text).map_err(|_| wrong())?;
    Ok((kind, number.parse().map_err(|_| wrong())?))
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
