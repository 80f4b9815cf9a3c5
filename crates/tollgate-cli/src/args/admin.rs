//! Flags of the commands that see and change what a server knows beside its rules.

use clap::{Subcommand, ValueEnum};

use super::reach::{Reach, TlsArgs};

/// A client, as `TYPE:VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) kind: String,
    pub(crate) name: String,
}

impl std::fmt::Display for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.kind, self.name)
    }
}

const CLIENT_KINDS: [&str; 4] = ["user_id", "api_key", "tenant_id", "ip"];

fn client(text: &str) -> Result<Client, String> {
    let (kind, name) = text.split_once(':').unwrap_or((text, ""));
    // People say user, and mean its id.
    let kind = match kind {
        "user" => "user_id",
        "tenant" => "tenant_id",
        other => other,
    };
    if name.is_empty() || !CLIENT_KINDS.contains(&kind) {
        return Err(format!(
            "must be a type and a value such as user_id:ann; types are {}",
            CLIENT_KINDS.join(", ")
        ));
    }
    Ok(Client { kind: kind.to_owned(), name: name.to_owned() })
}

/// One of both lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListName {
    /// Clients that no limit holds for.
    Allow,
    /// Clients that are always refused.
    Deny,
}

/// What to do with the lists.
#[derive(Debug, Subcommand)]
pub(crate) enum ListsCommand {
    /// Show the lists.
    #[command(after_help = "Examples:
  tollgate lists show
  tollgate lists show deny --json")]
    Show {
        /// Only this one.
        list: Option<ListName>,
        /// Print them as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Let clients through without limits.
    #[command(after_help = "Example: tollgate lists allow ip:10.0.0.0/8 --reason monitoring")]
    Allow(ListedArgs),
    /// Refuse clients altogether.
    #[command(
        after_help = "Example: tollgate lists deny user_id:mallory --until 7d --reason abuse"
    )]
    Deny(ListedArgs),
    /// Take clients off a list.
    #[command(after_help = "Example: tollgate lists remove deny user_id:mallory ip:192.0.2.0/24")]
    Remove {
        /// The list.
        list: ListName,
        /// The clients.
        #[arg(required = true, value_name = "TYPE:VALUE", value_parser = client)]
        clients: Vec<Client>,
        #[command(flatten)]
        reach: Reach,
    },
}

/// Clients that go on a list.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ListedArgs {
    /// The clients: `user_id:ann`, `api_key:k1`, `tenant_id:acme`, `ip:10.0.0.0/8`.
    #[arg(required = true, value_name = "TYPE:VALUE", value_parser = client)]
    pub(crate) clients: Vec<Client>,
    /// Why, for those who come after you.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Until when: an instant such as 2027-01-31T12:00:00Z, or how long from now, such as 30d.
    #[arg(long, value_name = "WHEN")]
    pub(crate) until: Option<String>,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

/// What to do with tiers.
#[derive(Debug, Subcommand)]
pub(crate) enum TiersCommand {
    /// List the tiers.
    #[command(after_help = "Example: tollgate tiers list")]
    List {
        /// Print them as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Make a tier, or replace it: what is not given is taken away.
    #[command(after_help = "Example: tollgate tiers set free --description 'Not paying' --default")]
    Set {
        /// Its name.
        name: String,
        /// What it is.
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        /// Clients without a tier have this one.
        #[arg(long)]
        default: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Delete a tier that no client has.
    #[command(after_help = "Example: tollgate tiers delete trial")]
    Delete {
        /// Its name.
        name: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Give clients a tier.
    #[command(after_help = "Example: tollgate tiers assign user_id:ann tenant_id:acme --tier pro")]
    Assign {
        /// The clients: `user_id:ann`, `api_key:k1`, `tenant_id:acme`.
        #[arg(required = true, value_name = "TYPE:VALUE", value_parser = client)]
        clients: Vec<Client>,
        /// The tier.
        #[arg(long, value_name = "NAME")]
        tier: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Take clients' tiers away.
    #[command(after_help = "Example: tollgate tiers unassign user_id:ann")]
    Unassign {
        /// The clients.
        #[arg(required = true, value_name = "TYPE:VALUE", value_parser = client)]
        clients: Vec<Client>,
        #[command(flatten)]
        reach: Reach,
    },
    /// Print the tier that a client's requests have, and nothing else. Exit code 1 if there is none.
    #[command(after_help = "Example: tollgate tiers of user_id:ann")]
    Of {
        /// The client.
        #[arg(value_name = "TYPE:VALUE", value_parser = client)]
        client: Client,
        #[command(flatten)]
        reach: Reach,
    },
}

/// What to do with grants.
#[derive(Debug, Subcommand)]
pub(crate) enum GrantsCommand {
    /// List the grants.
    #[command(after_help = "Example: tollgate grants list")]
    List {
        /// Print them as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Give a client extra quota on a rule, or change what it was given.
    #[command(after_help = "Example:
  tollgate grants add user_id:ann --rule api-default --extra 5000 --until 7d --reason launch")]
    Add {
        /// The client.
        #[arg(value_name = "TYPE:VALUE", value_parser = client)]
        client: Client,
        /// The rule.
        #[arg(long, value_name = "ID")]
        rule: String,
        /// How much more than its limit.
        #[arg(long, value_name = "N")]
        extra: u64,
        /// Until when: an instant such as 2027-01-31T12:00:00Z, or how long from now, such as 30d.
        #[arg(long, value_name = "WHEN")]
        until: String,
        /// Why.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        #[command(flatten)]
        reach: Reach,
    },
    /// End grants before their time.
    #[command(after_help = "Example: tollgate grants remove grant_1f0c6b2d7a9e4c35")]
    Remove {
        /// The grants.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
        #[command(flatten)]
        reach: Reach,
    },
}

/// What to do with requests that a gateway keeps for later.
#[derive(Debug, Subcommand)]
pub(crate) enum QueueCommand {
    /// List requests that wait, were answered, or are dead letters.
    #[command(after_help = "Examples:
  tollgate queue list
  tollgate queue list --state dead --json")]
    List {
        /// Which: waiting, done or dead.
        #[arg(long, value_name = "STATE", default_value = "waiting", value_parser = ["waiting", "done", "dead"])]
        state: String,
        /// How many at most.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: u32,
        /// Print them as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Put dead letters back into the queue.
    #[command(after_help = "Example: tollgate queue retry 4d82d5831be5c7915a5dcfc614125d95")]
    Retry {
        /// Their tickets.
        #[arg(required = true, value_name = "TICKET")]
        tickets: Vec<String>,
        #[command(flatten)]
        reach: Reach,
    },
    /// Remove requests that are not being sent at this moment.
    #[command(after_help = "Example: tollgate queue drop 4d82d5831be5c7915a5dcfc614125d95")]
    Drop {
        /// Their tickets.
        #[arg(required = true, value_name = "TICKET")]
        tickets: Vec<String>,
        #[command(flatten)]
        reach: Reach,
    },
}

/// Ask a server whether it is well, for probes.
///
/// Exit code 0: it answers. With --ready: it also takes requests, and is not about to end. Without
/// --url and `$TOLLGATE_URL` it is the server on this machine that the configuration describes
/// (`$TOLLGATE_CONFIG`, `$TOLLGATE_HTTP`, `$TOLLGATE_TLS_CERT_FILE` and so on), with TLS if that has it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tollgate health --ready
  tollgate health --config /etc/tollgate/tollgate.yaml
  tollgate health --ready --url https://10.0.0.5:8080 --ca ca.pem")]
pub(crate) struct HealthArgs {
    /// Whether it takes requests, instead of whether it lives.
    #[arg(long)]
    pub(crate) ready: bool,
    /// The server (default: `$TOLLGATE_URL`, else the one that the configuration describes).
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// The server's configuration file (default: `$TOLLGATE_CONFIG`).
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    pub(crate) config: Option<std::path::PathBuf>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

/// Watch a node: rates, refusals, latencies, and who consumes or is refused most.
///
/// On a terminal it is a live view; otherwise, or with --once, it is printed once. A node reports only its own
/// traffic.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tollgate top
  tollgate top --hours --rule api-default
  tollgate top --json")]
pub(crate) struct TopArgs {
    /// Only this rule.
    #[arg(long, value_name = "ID")]
    pub(crate) rule: Option<String>,
    /// Of the last one to two hours, instead of minutes.
    #[arg(long)]
    pub(crate) hours: bool,
    /// How many keys.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) limit: u16,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) interval: u64,
    /// Print it once, as a table.
    #[arg(long)]
    pub(crate) once: bool,
    /// Print it once, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

/// Change the level of a node's log while it runs, or show it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: tollgate log-level debug")]
pub(crate) struct LogLevelArgs {
    /// The level; without it the present one is shown.
    #[arg(value_parser = ["off", "error", "warn", "info", "debug", "trace"])]
    pub(crate) level: Option<String>,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

/// What to do with what a client has used.
#[derive(Debug, Subcommand)]
pub(crate) enum UsageCommand {
    /// Show the limits of a client and what it has used of them. Charges nothing.
    #[command(after_help = "Example: tollgate usage show user_id:ann --model gpt4")]
    Show {
        /// The client.
        #[arg(value_name = "TYPE:VALUE", value_parser = client)]
        client: Client,
        #[command(flatten)]
        known: KnownArgs,
        /// Only of this rule.
        #[arg(long, value_name = "ID")]
        rule: Option<String>,
        /// Print it as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Reset the counters of a client.
    #[command(after_help = "Example: tollgate usage reset user_id:ann --rule api-default --yes")]
    Reset {
        /// The client.
        #[arg(value_name = "TYPE:VALUE", value_parser = client)]
        client: Client,
        #[command(flatten)]
        known: KnownArgs,
        /// Only of this rule.
        #[arg(long, value_name = "ID")]
        rule: Option<String>,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        reach: Reach,
    },
}

/// What else is known of the requests that are asked about.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct KnownArgs {
    /// Of requests for this model.
    #[arg(long, value_name = "ID")]
    pub(crate) model: Option<String>,
    /// Of requests of this tenant.
    #[arg(long, value_name = "ID")]
    pub(crate) tenant: Option<String>,
    /// Of requests to this path.
    #[arg(long, value_name = "PATH")]
    pub(crate) endpoint: Option<String>,
    /// Of requests of this method.
    #[arg(long, value_name = "NAME")]
    pub(crate) method: Option<String>,
}

/// What to do with tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// List the tokens. Their secrets are not kept anywhere.
    #[command(after_help = "Example: tollgate token list")]
    List {
        /// Print them as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Make a token and print it, alone, on standard output. It is shown once.
    #[command(after_help = "Examples:
  tollgate token create --name deploy --role operator --expires 90d
  export TOLLGATE_TOKEN=$(tollgate token create --name acme --role tenant_admin --tenant acme)")]
    Create {
        /// Whose it is.
        #[arg(long, value_name = "TEXT")]
        name: String,
        /// What it may do.
        #[arg(long, value_name = "ROLE", value_parser = ["viewer", "operator", "admin", "tenant_admin"])]
        role: String,
        /// The tenant of a tenant admin.
        #[arg(long, value_name = "ID")]
        tenant: Option<String>,
        /// Until when: an instant such as 2027-01-31T12:00:00Z, or how long from now, such as 30d.
        #[arg(long, value_name = "WHEN")]
        expires: Option<String>,
        /// Print all of it as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Give a token a new secret and print it; the old one ends at once.
    #[command(after_help = "Example: tollgate token rotate tok_1f0c6b2d7a9e4c35")]
    Rotate {
        /// The token's id.
        id: String,
        /// Print all of it as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// End a token at once.
    #[command(after_help = "Example: tollgate token revoke tok_1f0c6b2d7a9e4c35 --yes")]
    Revoke {
        /// The token's id.
        id: String,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        reach: Reach,
    },
}

/// What to do with settings.
#[derive(Debug, Subcommand)]
pub(crate) enum SettingsCommand {
    /// Show the settings that are set.
    #[command(after_help = "Example: tollgate settings show")]
    Show {
        /// Print them as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Set one.
    #[command(after_help = "Examples:
  tollgate settings set enforcement shadow
  tollgate settings set no_match deny
  tollgate settings set default '{limit: 100, window: 1m}'")]
    Set {
        /// Which: `enforcement` (on, shadow, off), `no_match` (allow, deny) or `default` (a rule, or
        /// false).
        #[arg(value_parser = ["enforcement", "no_match", "default"])]
        name: String,
        /// To what, as YAML or JSON.
        value: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Go back to what holds without it.
    #[command(after_help = "Example: tollgate settings unset enforcement")]
    Unset {
        /// Which.
        #[arg(value_parser = ["enforcement", "no_match", "default"])]
        name: String,
        #[command(flatten)]
        reach: Reach,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_a_type_and_a_value() {
        let read = |text: &str| client(text).map(|client| client.to_string());
        assert_eq!(read("user:ann").as_deref(), Ok("user_id:ann"));
        assert_eq!(read("ip:2001:db8::/32").as_deref(), Ok("ip:2001:db8::/32"));
        for wrong in ["ann", "user_id:", ":ann", "mac:00", ""] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
