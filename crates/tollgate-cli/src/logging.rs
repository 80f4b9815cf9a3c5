//! The log, on standard error.

use std::io::{self, IsTerminal as _};

use anyhow::Context as _;
use tollgate_server::config::{LogConfig, LogFormat, LogLevel, TracesConfig};
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
        None => filter_of(log.level),
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
        let _ = handle.modify(|filter| *filter = filter_of(level));
    });
    Ok(traces)
}

/// What is logged at a level. Lines of the database driver are not: they hold statements in its own words,
/// and what matters of them the control plane says itself. `RUST_LOG` can ask for them.
fn filter_of(level: LogLevel) -> EnvFilter {
    EnvFilter::new(format!("{},sqlx=off", level.name()))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_of_the_database_driver_stay_out() {
        for (_, level) in LogLevel::ALL {
            let lines = Lines::default();
            let written = lines.clone();
            let layer = fmt::layer().with_ansi(false).with_writer(move || written.clone());
            let log = Registry::default().with(layer.with_filter(filter_of(*level)));
            tracing::subscriber::with_default(log, || {
                tracing::error!("ours");
                tracing::error!(target: "sqlx::query", "slow statement: SELECT 1");
                tracing::warn!(target: "sqlx::pool::acquire", "acquired slowly");
            });
            let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
            assert_eq!(text.contains("ours"), *level != LogLevel::Off, "{level:?}: {text}");
            assert!(!text.contains("slow"), "{level:?}: {text}");
        }
    }
}
