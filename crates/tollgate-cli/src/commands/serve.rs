//! `tollgate serve` and `tollgate gateway`

use tollgate_server::ServeError;
use tollgate_server::config::Config;

use crate::args::{GatewayArgs, ServeArgs};
use crate::failure::{Ended, Failure, Outcome};
use crate::logging;
use crate::ready::Ready;

pub(super) fn run(args: &ServeArgs) -> Ended {
    start(Ready::require(&args.config)?, tollgate_server::run)
}

pub(super) fn run_gateway(args: &GatewayArgs) -> Ended {
    start(Ready::require_gateway(args)?, tollgate_server::run_gateway)
}

fn start(ready: Ready, run: fn(Config) -> Result<(), ServeError>) -> Ended {
    let Ready { config, warnings } = ready;
    let traces = logging::start(config.log, &config.telemetry.traces)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let ended = run(config);
    if let Some(traces) = traces {
        traces.stop();
    }
    match ended {
        Ok(()) => Ok(Outcome::Done),
        Err(error) if error.is_usage() => Err(Failure::usage(error)),
        Err(error) => Err(Failure::Failed(error.into())),
    }
}
