//! `tollgate serve` and `tollgate gateway`

use std::io::IsTerminal as _;

use tollgate_server::config::{Config, LogLevel};
use tollgate_server::{EarlySignals, ServeError};

use crate::args::{ConfigArgs, GatewayArgs, ServeArgs};
use crate::failure::{Ended, Failure, Outcome};
use crate::logging;
use crate::ready::{Ready, variable};

type Run = fn(Config, EarlySignals) -> Result<(), ServeError>;

pub(super) fn run(args: &ServeArgs, signals: Option<EarlySignals>) -> Ended {
    start(Ready::require(&args.config)?, &args.config, signals, tollgate_server::run)
}

pub(super) fn run_gateway(args: &GatewayArgs, signals: Option<EarlySignals>) -> Ended {
    start(Ready::require_gateway(args)?, &args.config, signals, tollgate_server::run_gateway)
}

pub(super) fn start(
    ready: Ready,
    args: &ConfigArgs,
    signals: Option<EarlySignals>,
    run: Run,
) -> Ended {
    let Ready { mut config, warnings } = ready;
    if is_quiet(args) {
        config.log.level = LogLevel::Warn;
    }
    let traces = logging::start(config.log, &config.telemetry.traces)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let signals = signals.map_or_else(EarlySignals::install, Ok);
    let signals = signals.map_err(|error| Failure::Failed(error.into()))?;
    let ended = run(config, signals);
    if let Some(traces) = traces {
        traces.stop();
    }
    match ended {
        Ok(()) => Ok(Outcome::Done),
        Err(error) if error.is_usage() => Err(Failure::usage(error)),
        Err(error) => Err(Failure::Failed(error.into())),
    }
}

/// A person at a terminal who has not asked for a level sees the server's greeting, and what goes wrong.
fn is_quiet(args: &ConfigArgs) -> bool {
    let is_asked = args.log_level.is_some()
        || args.config.is_some()
        || ["TOLLGATE_LOG_LEVEL", "TOLLGATE_CONFIG"].iter().any(|name| variable(name).is_some());
    !is_asked && std::io::stdout().is_terminal() && std::io::stderr().is_terminal()
}
