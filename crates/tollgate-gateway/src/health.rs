//! Asks targets how they are.

use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderValue, USER_AGENT};
use http::uri::PathAndQuery;
use http::{Request, StatusCode};
use hyper::client::conn::TrySendError;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use crate::body::RequestBody;
use crate::connect::{ConnectError, Link};
use crate::forward::address;
use crate::options::HealthOptions;
use crate::target::Target;

const NAME: HeaderValue = HeaderValue::from_static("tollgate-health-check");

/// Checks one target periodically, until it is stopped.
pub(crate) async fn watch(
    target: Arc<Target>,
    options: HealthOptions,
    first_after: Duration,
    mut stop: watch::Receiver<bool>,
) {
    let Ok(path) = options.path.parse::<PathAndQuery>() else { return };
    let mut ticks = tokio::time::interval_at(Instant::now() + first_after, options.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut in_a_row = 0_u32;
    loop {
        let probed = async {
            ticks.tick().await;
            is_well(&target, &path, &options).await
        };
        let is_well = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            is_well = probed => is_well,
        };
        if is_well == target.is_probed_well() {
            in_a_row = 0;
            continue;
        }
        in_a_row += 1;
        let enough = if is_well { options.healthy_after } else { options.unhealthy_after };
        if in_a_row >= enough && target.probed(is_well) {
            in_a_row = 0;
            if is_well {
                tracing::info!(target_url = %target.url, "an upstream target is well again");
            } else {
                tracing::warn!(target_url = %target.url, "an upstream target is not well");
            }
        }
    }
}

async fn is_well(target: &Target, path: &PathAndQuery, options: &HealthOptions) -> bool {
    match tokio::time::timeout(options.timeout, probe(target, path, options.timeout)).await {
        Ok(Ok(status)) => options.expected.contains(&status.as_u16()),
        Ok(Err(error)) => {
            tracing::debug!(%error, target_url = %target.url, "a health check failed");
            false
        }
        Err(_) => false,
    }
}

/// On a connection of its own, so that a target that takes no new ones is noticed.
async fn probe(
    target: &Target,
    path: &PathAndQuery,
    timeout: Duration,
) -> Result<StatusCode, ConnectError> {
    let link = target.connector.connect(false).await?;
    let mut request = Request::new(RequestBody::empty());
    request.headers_mut().insert(USER_AGENT, NAME);
    address(&mut request, path, None, &target.connector.origin, &link);
    let response = match link {
        Link::Http1(mut connection) => {
            let sent = connection.send(request, timeout, None).await;
            sent.ok_or(ConnectError::Timeout)?.map_err(TrySendError::into_error)?
        }
        Link::Http2(mut sender) => sender.send_request(request).await?,
    };
    Ok(response.status())
}
