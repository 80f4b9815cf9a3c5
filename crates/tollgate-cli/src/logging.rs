//! The log, on standard error.

use std::io::{self, IsTerminal as _};

use anyhow::Context as _;
use tollgate_server::config::{LogConfig, LogFormat, TracesConfig};
use tollgate_server::telemetry::Traces;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, fmt, reload};

use crate::failure::Failure;

/// Starts the log. `RUST_LOG` comes before the configured level, since it can say more. The level can
/// be changed while the process runs. Traces begin with it, where they are wanted.
pub(crate) fn start(log: LogConfig, traces: &TracesConfig) -> Result<Option<Traces>, Failure> {
    let level = std::env::var("RUST_LOG").ok().filter(|level| !level.is_empty());
    let filter = match level {
        Some(level) => EnvFilter::try_new(level).context("RUST_LOG").map_err(Failure::Usage)?,
        None => EnvFilter::new(log.level.name()),
    };
    let (filter, handle) = reload::Layer::new(filter);
    let is_terminal = io::stderr().is_terminal();
    let is_colourful =
        is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = fmt::layer().with_writer(io::stderr);
    let lines = match log.format {
        LogFormat::Text => lines.with_ansi(is_colourful).boxed(),
        LogFormat::Auto if is_terminal => lines.with_ansi(is_colourful).boxed(),
        LogFormat::Json | LogFormat::Auto => lines.json().flatten_event(true).boxed(),
    };
    let traces = Traces::start(traces).map_err(|error| Failure::Usage(error.into()))?;
    let spans = traces.as_ref().map(Traces::layer);
    let started = Registry::default().with(lines.with_filter(filter)).with(spans).try_init();
    started
        .map_err(|error| Failure::Failed(anyhow::anyhow!("the log cannot be started: {error}")))?;
    tollgate_server::on_log_level(move |level| {
        // It fails only when the log is gone.
        let _ = handle.modify(|filter| *filter = EnvFilter::new(level.name()));
    });
    Ok(traces)
}
