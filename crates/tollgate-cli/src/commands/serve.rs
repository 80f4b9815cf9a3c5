//! `tollgate serve`

use crate::args::ServeArgs;
use crate::failure::{Ended, Failure, Outcome};
use crate::logging;
use crate::ready::Ready;

pub(super) fn run(args: &ServeArgs) -> Ended {
    let Ready { config, warnings } = Ready::require(&args.config)?;
    logging::start(config.log)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    match tollgate_server::run(config) {
        Ok(()) => Ok(Outcome::Done),
        Err(error) if error.is_usage() => Err(Failure::usage(error)),
        Err(error) => Err(Failure::Failed(error.into())),
    }
}
