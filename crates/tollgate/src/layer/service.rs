//! The service that a layered service becomes.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::{Either, Full};
use tollgate_tower::{Format, LimitedBody};
use tower_service::Service;

use super::Shared;
use super::admit::{Admitted, Rejected};
use crate::Hold;

/// A service that asks a gate before it answers, made by a [`GateLayer`](crate::GateLayer).
///
/// ```
/// # use tollgate::{Gate, GateService, Quota, Rule};
/// # use axum::Router;
/// use tower_layer::Layer;
///
/// # let gate = Gate::builder().rule(Rule::per("ip").quota(Quota::per_minute(60))).build()?;
/// let service: GateService<Router> = gate.tower_layer().layer(Router::new());
/// # let _ = service;
/// # Ok::<(), tollgate::Error>(())
/// ```
pub struct GateService<S, R = Full<Bytes>> {
    shared: Arc<Shared<R>>,
    inner: S,
}

impl<S, R> GateService<S, R> {
    pub(super) const fn new(shared: Arc<Shared<R>>, inner: S) -> Self {
        Self { shared, inner }
    }
}

impl<S: Clone, R> Clone for GateService<S, R> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), inner: self.inner.clone() }
    }
}

impl<S: fmt::Debug, R> fmt::Debug for GateService<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// What a request holds, for the handler that takes it. Dropped with the request otherwise.
#[derive(Clone)]
pub(super) struct HeldForHandler(Arc<Mutex<Option<Hold>>>);

impl HeldForHandler {
    /// The hold. A second call finds none.
    #[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "handlers are axum's"))]
    pub(super) fn take(&self) -> Option<Hold> {
        let mut hold = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        hold.follow_gate();
        Some(hold)
    }
}

/// The service's own body, or that of a refusal.
type Answered<B, R> = Response<Either<LimitedBody<B>, R>>;

type Answering<B, R, E> = Pin<Box<dyn Future<Output = Result<Answered<B, R>, E>> + Send>>;

impl<S, R, A, B> Service<Request<A>> for GateService<S, R>
where
    S: Service<Request<A>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    R: From<Bytes> + Send + 'static,
    A: Send + 'static,
    B: Send + 'static,
{
    type Response = Answered<B, R>;
    type Error = S::Error;
    type Future = Answering<B, R, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        // The service that was polled ready is the one to call; its clone stays for the next request.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let (mut head, body) = request.into_parts();
            let Admitted { headers, hold, slots, .. } = match shared.admit(&head).await {
                Ok(admitted) => admitted,
                Err(rejected) => return Ok(shared.refuse(rejected, &head).map(Either::Right)),
            };
            head.extensions.insert(HeldForHandler(Arc::new(Mutex::new(Some(hold)))));
            let mut response = inner.call(Request::from_parts(head, body)).await?;
            headers.put_into(response.headers_mut());
            Ok(response.map(|body| Either::Left(LimitedBody::inner(body, slots))))
        })
    }
}

impl<R: From<Bytes>> Shared<R> {
    fn refuse(&self, rejected: Rejected, head: &Parts) -> Response<R> {
        let Rejected { rejection, denial } = rejected;
        match (&self.on_refusal, denial) {
            (Some(answer), Some(denial)) => {
                let mut response = answer(&denial);
                rejection.headers.add_missing_to(response.headers_mut());
                response
            }
            _ => rejection.into_response(Format::of(&head.headers)).map(R::from),
        }
    }
}
