//! `grpc.health.v1.Health`: serving until the process drains.

use std::pin::Pin;

use futures_util::Stream;
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// The name under which envoyproxy/ratelimit reports its health. Envoys that came from there ask for it,
/// and take a server that does not know the name out of their cluster.
const RATELIMIT_SERVICE: &str = "ratelimit";

/// The services that can be asked about; the empty name is the whole server.
const SERVICES: [&str; 4] = ["", super::SERVICE, super::ENVOY_SERVICE, RATELIMIT_SERVICE];

/// Reports whether this process still takes requests.
#[derive(Debug, Clone)]
pub(crate) struct HealthOf {
    pub(crate) draining: watch::Receiver<bool>,
}

fn response(is_draining: bool) -> HealthCheckResponse {
    let status = if is_draining { ServingStatus::NotServing } else { ServingStatus::Serving };
    HealthCheckResponse { status: status as i32 }
}

#[tonic::async_trait]
impl Health for HealthOf {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !SERVICES.contains(&request.get_ref().service.as_str()) {
            return Err(Status::not_found("there is no such service here"));
        }
        Ok(Response::new(response(*self.draining.borrow())))
    }

    type WatchStream =
        Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send + 'static>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        if !SERVICES.contains(&request.get_ref().service.as_str()) {
            // The protocol demands SERVICE_UNKNOWN, not an error, for a watch of an unknown service.
            let status = ServingStatus::ServiceUnknown as i32;
            let unknown = futures_util::stream::iter([Ok(HealthCheckResponse { status })]);
            return Ok(Response::new(Box::pin(unknown)));
        }
        // Sends the status at once, and once more when the process drains; then the stream ends, so that
        // it does not hold the process up.
        let draining = self.draining.clone();
        let statuses =
            futures_util::stream::unfold((draining, None), |(mut draining, sent)| async move {
                let now = match sent {
                    None => *draining.borrow(),
                    Some(true) => return None,
                    Some(false) => draining.wait_for(|draining| *draining).await.is_ok(),
                };
                Some((Ok(response(now)), (draining, Some(now))))
            });
        Ok(Response::new(Box::pin(statuses)))
    }
}
