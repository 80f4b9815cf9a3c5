//! From flags as typed to what a command needs.

use std::path::Path;

use tollgate_server::config::{Config, ConfigProblems, HttpListener, Overrides, unknown_variables};

use crate::args::{ConfigArgs, GatewayArgs};
use crate::failure::Failure;

/// The configuration in force, and what is odd about it.
pub(crate) struct Ready {
    pub(crate) config: Config,
    pub(crate) warnings: Vec<String>,
}

impl Ready {
    /// Loads the configuration that flags, environment and file say together.
    pub(crate) fn load(args: &ConfigArgs) -> Result<Self, ConfigProblems> {
        Self::load_with(args, &overrides(args))
    }

    fn load_with(args: &ConfigArgs, overrides: &Overrides) -> Result<Self, ConfigProblems> {
        let file = args.config.clone().or_else(|| variable("TOLLGATE_CONFIG").map(Into::into));
        let config = Config::load(file.as_deref(), environment(), overrides)?;
        Ok(Self { config, warnings: warnings() })
    }

    /// Like [`Ready::load`], for commands that cannot go on without.
    pub(crate) fn require(args: &ConfigArgs) -> Result<Self, Failure> {
        Self::load(args).map_err(|problems| wrong(&problems))
    }

    /// [`Ready::require`] for the gateway, which has flags of its own.
    pub(crate) fn require_gateway(args: &GatewayArgs) -> Result<Self, Failure> {
        let listen = args.listen;
        let upstream = args.upstream.clone();
        let overrides = Overrides { listen, upstream, ..overrides(&args.config) };
        Self::load_with(&args.config, &overrides).map_err(|problems| wrong(&problems))
    }
}

/// The HTTP listener that a configuration file and the environment describe.
pub(crate) fn http_listener(file: Option<&Path>) -> Result<HttpListener, Failure> {
    let file = file.map(Path::to_owned).or_else(|| variable("TOLLGATE_CONFIG").map(Into::into));
    HttpListener::load(file.as_deref(), environment()).map_err(|problems| wrong(&problems))
}

fn wrong(problems: &ConfigProblems) -> Failure {
    let count = problems.0.len();
    let things = if count == 1 { "is a problem" } else { "are problems" };
    Failure::Usage(anyhow::anyhow!("there {things} in the configuration\n{problems}"))
}

/// The variables that look like settings and are none.
pub(crate) fn warnings() -> Vec<String> {
    let unknown = unknown_variables(environment().map(|(name, _)| name));
    unknown
        .into_iter()
        .map(|name| {
            format!("{name} is set, but there is no such setting; see `tollgate config default`")
        })
        .collect()
}

fn overrides(args: &ConfigArgs) -> Overrides {
    Overrides {
        http: args.http,
        grpc: args.grpc.clone(),
        listen: None,
        upstream: None,
        data_dir: args.data_dir.clone(),
        rules: args.rules.clone(),
        record: args.record.clone(),
        enforcement: args.enforcement,
        data_auth: args.data_auth.clone(),
        role: args.role,
        postgres: args.postgres.clone(),
        admin_http: args.admin_http,
        redis: args.redis.clone(),
        redis_cluster: args.redis_cluster,
        redis_sentinel: args.redis_sentinel.clone(),
        max_counters: args.max_counters,
        threads: args.threads,
        log_level: args.log_level,
        log_format: args.log_format,
    }
}

/// A variable, unless it is empty, which is how compose files and shells say that it is not set.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The environment. A variable that is not Unicode cannot be one of ours.
fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}
