//! Flags of `tollgate keys`.

use std::path::PathBuf;

use clap::Subcommand;

use super::Reach;

/// What to set of a key.
#[derive(Debug, clap::Args)]
pub(crate) struct KeyFields {
    /// Who holds it: the user of its requests.
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,
    /// An attribute of its requests; repeatable.
    #[arg(long = "tag", value_name = "NAME=VALUE")]
    pub(crate) tags: Vec<String>,
    /// A model that it may use, in which * stands for any text; repeatable. Without any it may use all.
    #[arg(long = "model", value_name = "NAME")]
    pub(crate) models: Vec<String>,
    /// A limit of its own, such as 60/1m or tokens:100000/1d; repeatable.
    #[arg(long = "limit", value_name = "[UNIT:]COUNT/WINDOW")]
    pub(crate) limits: Vec<String>,
    /// Its budget, such as 5.00/USD/month.
    #[arg(long, value_name = "AMOUNT/CURRENCY/CALENDAR")]
    pub(crate) budget: Option<String>,
    /// Until when: an instant such as 2027-01-31T12:00:00Z, or how long from now, such as 30d.
    #[arg(long, value_name = "WHEN")]
    pub(crate) expires: Option<String>,
}

/// What to do with virtual keys.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Create a key and print its secret, alone, on standard output. It is shown once.
    #[command(after_help = "Examples:
  tollgate keys create --name search --owner ann --tenant acme --limit 60/1m
  tollgate keys create --name batch --model 'gpt-4o*' --budget 5.00/USD/month --expires 90d")]
    Create {
        /// What it is for.
        #[arg(long, value_name = "TEXT")]
        name: String,
        /// The tenant that it belongs to.
        #[arg(long, value_name = "ID")]
        tenant: Option<String>,
        #[command(flatten)]
        fields: Box<KeyFields>,
        /// Print all of it as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// List the keys. Their secrets are not kept anywhere.
    #[command(after_help = "Example: tollgate keys list --tenant acme")]
    List {
        /// Those of this tenant.
        #[arg(long, value_name = "ID")]
        tenant: Option<String>,
        /// Those of this owner.
        #[arg(long, value_name = "ID")]
        owner: Option<String>,
        /// Those of this name.
        #[arg(long, value_name = "TEXT")]
        name: Option<String>,
        /// Print them as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Show a key.
    #[command(after_help = "Example: tollgate keys get key_1f0c6b2d7a9e4c35")]
    Get {
        /// The key's id.
        id: String,
        /// Print it as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Change a key. What is not given stays.
    #[command(after_help = "Example: tollgate keys update key_1f0c6b2d7a9e4c35 --limit 120/1m")]
    Update {
        /// The key's id.
        id: String,
        /// What it is for.
        #[arg(long, value_name = "TEXT")]
        name: Option<String>,
        #[command(flatten)]
        fields: Box<KeyFields>,
        /// Print it as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Give a key a new secret and print it.
    #[command(after_help = "Example: tollgate keys rotate key_1f0c6b2d7a9e4c35 --overlap 1h")]
    Rotate {
        /// The key's id.
        id: String,
        /// How long the secret before stays valid, such as 15m, 1h or 7d. Without it, it ends at once.
        #[arg(long, value_name = "TIME")]
        overlap: Option<String>,
        /// Print all of it as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Refuse a key from now on.
    #[command(after_help = "Example: tollgate keys disable key_1f0c6b2d7a9e4c35")]
    Disable {
        /// The key's id.
        id: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Accept a disabled key again.
    #[command(after_help = "Example: tollgate keys enable key_1f0c6b2d7a9e4c35")]
    Enable {
        /// The key's id.
        id: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Delete a key. Its secret is refused from then on.
    #[command(after_help = "Example: tollgate keys delete key_1f0c6b2d7a9e4c35 --yes")]
    Delete {
        /// The key's id.
        id: String,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Create the keys of a file: a list of keys as the API takes them, in JSON or YAML. Entries with `sha256` keep the secret
    /// that they have; the secrets of the others are printed, once.
    #[command(after_help = "Example: tollgate keys import keys.yaml --json > secrets.json")]
    Import {
        /// The file.
        file: PathBuf,
        /// Print ids and secrets as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        reach: Reach,
    },
}
