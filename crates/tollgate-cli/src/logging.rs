//! The log, on standard error.

use std::io::{self, IsTerminal as _};

use anyhow::Context as _;
use tollgate_server::config::{LogConfig, LogFormat};
use tracing_subscriber::EnvFilter;

use crate::failure::Failure;

/// Starts the log. `RUST_LOG` comes before the configured level, since it can say more.
pub(crate) fn start(log: LogConfig) -> Result<(), Failure> {
    let level = std::env::var("RUST_LOG").ok().filter(|level| !level.is_empty());
    let filter = match level {
        Some(level) => EnvFilter::try_new(level).context("RUST_LOG").map_err(Failure::Usage)?,
        None => EnvFilter::new(log.level.name()),
    };
    let is_terminal = io::stderr().is_terminal();
    let is_colourful =
        is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let started = match log.format {
        LogFormat::Text => builder.with_ansi(is_colourful).try_init(),
        LogFormat::Auto if is_terminal => builder.with_ansi(is_colourful).try_init(),
        LogFormat::Json | LogFormat::Auto => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| Failure::Failed(anyhow::anyhow!("the log cannot be started: {error}")))
}
