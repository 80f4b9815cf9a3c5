//! `tollgate serve` and `tollgate gateway`

use tollgate_server::config::Config;
use tollgate_server::{EarlySignals, ServeError};

use crate::args::{GatewayArgs, ServeArgs};
use crate::failure::{Ended, Failure, Outcome};
use crate::logging;
use crate::ready::Ready;

type Run = fn(Config, EarlySignals) -> Result<(), ServeError>;

pub(super) fn run(args: &ServeArgs, signals: Option<EarlySignals>) -> Ended {
    start(Ready::require(&args.config)?, signals, tollgate_server::run)
}

pub(super) fn run_gateway(args: &GatewayArgs, signals: Option<EarlySignals>) -> Ended {
    start(Ready::require_gateway(args)?, signals, tollgate_server::run_gateway)
}

fn start(ready: Ready, signals: Option<EarlySignals>, run: Run) -> Ended {
    let Ready { config, warnings } = ready;
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
