//! The log, on standard error.

use std::io::{self, IsTerminal as _};

use anyhow::Context as _;
use tollgate_server::config::{LogConfig, LogFormat, LogLevel, TracesConfig};
use tollgate_server::telemetry::Traces;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, fmt, reload};

use crate::failure::Failure;
use crate::output::{escaped, without_controls};

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
    let is_json = match log.format {
        LogFormat::Text => false,
        LogFormat::Json => true,
        LogFormat::Auto => !is_terminal,
    };
    let writer = move || SafeLines { to: io::stderr(), is_json, is_colourful };
    let lines = fmt::layer().with_writer(writer);
    let lines = if is_json {
        lines.json().flatten_event(true).boxed()
    } else {
        lines.with_ansi(is_colourful).boxed()
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

/// Writes lines of the log, of which each call gets whole ones, with everything escaped that a terminal would obey:
/// names of clients and rules are in them.
struct SafeLines<W> {
    to: W,
    is_json: bool,
    /// Then sequences of the log's own colours are in the lines.
    is_colourful: bool,
}

/// What lines are coloured with. None of it hides text.
const COLOURS: [&str; 9] = [
    "\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[3m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[34m",
    "\x1b[35m",
];

impl<W: io::Write> io::Write for SafeLines<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let (line, end) = match text.strip_suffix('\n') {
            Some(line) => (line, "\n"),
            None => (&*text, ""),
        };
        let mut safe = if self.is_json {
            without_controls(line)
        } else {
            escaped(line, &[], if self.is_colourful { &COLOURS } else { &[] }).into_owned()
        };
        safe.push_str(end);
        self.to.write_all(safe.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tollgate_policy::terminal::is_obeyed;

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

    /// A name must not forge a line, nor make one read as another.
    #[test]
    fn lines_hold_nothing_that_terminals_obey() {
        const NAME: &str = "a\u{202e}b\u{2066}\u{200f}\u{2028}\u{9b}2J\u{1b}[2J\r\nc";
        for (is_json, is_colourful) in [(true, false), (false, false), (false, true)] {
            let lines = Lines::default();
            let to = lines.clone();
            let writer = move || SafeLines { to: to.clone(), is_json, is_colourful };
            let layer = fmt::layer().with_writer(writer);
            let layer = if is_json {
                layer.json().flatten_event(true).boxed()
            } else {
                layer.with_ansi(is_colourful).boxed()
            };
            tracing::subscriber::with_default(Registry::default().with(layer), || {
                tracing::error!(name = NAME, shown = %NAME, "of {NAME}");
            });
            let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
            let line = text.strip_suffix('\n').unwrap();
            let bare = COLOURS.iter().fold(line.to_owned(), |line, code| line.replace(code, ""));
            assert!(!bare.contains(is_obeyed), "{line:?}");
            assert_eq!(bare.len() < line.len(), is_colourful, "{line:?}");
            if is_json {
                let read: serde_json::Value = serde_json::from_str(line).unwrap();
                assert_eq!((&read["name"], &read["shown"]), (&NAME.into(), &NAME.into()));
            }
        }
    }
}
