//! The service that a layered service becomes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::HOST;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use tower_service::Service;

use crate::body::LimitedBody;
use crate::decide::{Decide, EdgeRequest, Pass};
use crate::identity::Identity;
use crate::layer::Shared;
use crate::rejection::Rejection;
use crate::render::Format;

/// A service that asks before it answers.
pub struct TollgateService<D, S> {
    shared: Arc<Shared<D>>,
    inner: S,
}

impl<D, S> TollgateService<D, S> {
    pub(crate) const fn new(shared: Arc<Shared<D>>, inner: S) -> Self {
        Self { shared, inner }
    }
}

impl<D, S: Clone> Clone for TollgateService<D, S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), inner: self.inner.clone() }
    }
}

type Answer<B, E> = Pin<Box<dyn Future<Output = Result<Response<LimitedBody<B>>, E>> + Send>>;

impl<D, S, A, B> Service<Request<A>> for TollgateService<D, S>
where
    D: Decide,
    S: Service<Request<A>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    A: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<LimitedBody<B>>;
    type Error = S::Error;
    type Future = Answer<B, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        // The service that was polled ready is the one to call; its clone stays for the next request.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let pass = match shared.enter(&head).await {
                Ok(pass) => pass,
                Err(rejection) => {
                    let response = rejection.into_response(Format::of(&head.headers));
                    return Ok(response.map(LimitedBody::own));
                }
            };
            let Pass { headers, held, charge, .. } = pass;
            // An estimate that nothing settles stays as it is.
            drop(charge.sent());
            let mut response = inner.call(Request::from_parts(head, body)).await?;
            headers.put_into(response.headers_mut());
            Ok(response.map(|body| LimitedBody::inner(body, held)))
        })
    }
}

impl<D: Decide> Shared<D> {
    /// Lets a request through, after its wait, or says why not.
    async fn enter(&self, head: &Parts) -> Result<Pass, Box<Rejection>> {
        let asked = self.asked(head)?;
        // There is no queue here: what would be sent later is rejected now.
        let pass = self.decide.decide(&asked).await.passed()?;
        if !pass.wait.is_zero() {
            let Ok(_place) = self.waiting.try_acquire() else {
                return Err(Box::new(Rejection::too_many_waiting()));
            };
            // Holds no thread. A client that leaves drops the future, its place with it, and the
            // pass, which refunds the charge.
            tokio::time::sleep(pass.wait).await;
        }
        Ok(pass)
    }

    fn asked(&self, head: &Parts) -> Result<EdgeRequest, Box<Rejection>> {
        let peer = (self.find_peer)(head);
        let identity = self.identifier.identify(&head.headers, peer)?;
        let mut asked = edge_request(head, identity)?;
        if let Some(refine) = &self.refine {
            refine(head, &mut asked);
        }
        Ok(asked)
    }
}

/// What rules look at in a request of this caller.
pub fn edge_request(head: &Parts, identity: Identity) -> Result<EdgeRequest, Box<Rejection>> {
    let method = Some(head.method.as_str().to_owned());
    let mut asked = EdgeRequest { identity, method, domain: host(head), ..EdgeRequest::default() };
    asked.set_path(head.uri.path()).map_err(|error| {
        let message = format!("the path cannot be matched: {error}");
        Box::new(Rejection::new(StatusCode::BAD_REQUEST, "INVALID_PATH", message))
    })?;
    Ok(asked)
}

/// The host that is called, without its port, in lower case.
pub fn host(head: &Parts) -> Option<String> {
    let host = if let Some(host) = head.uri.host() {
        host
    } else {
        let text = head.headers.get(HOST)?.to_str().ok()?;
        // A bracketed IPv6 address has colons of its own.
        match text.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => text,
        }
    };
    (!host.is_empty()).then(|| host.to_ascii_lowercase())
}
