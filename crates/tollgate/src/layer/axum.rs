//! The layer in axum.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::IntoResponse;

use super::GateLayer;
use super::service::HeldForHandler;
use crate::{Denial, Gate, Hold};

/// A handler that takes what no layer put there is a mistake in how the service is built.
const NO_HOLD: &str = "this route has no tollgate layer, or its hold was taken before";

impl Gate {
    /// A layer for an axum service. Serve it with `into_make_service_with_connect_info::<SocketAddr>()`, so that rules by `ip` can
    /// limit: without the addresses of clients every request that such a rule applies to is answered with status 500.
    ///
    /// ```
    /// use axum::Router;
    /// use axum::routing::get;
    /// use tollgate::{Gate, Quota, Rule};
    ///
    /// let gate = Gate::builder().rule(Rule::per("ip").quota(Quota::per_hour(3))).build()?;
    /// let app: Router = Router::new().route("/", get(async || "hello")).layer(gate.axum_layer());
    /// # let _ = app;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn axum_layer(&self) -> GateLayer<Body> {
        GateLayer::new(self)
    }
}

impl GateLayer<Body> {
    /// Answers requests that rules or lists refuse with this. The headers of the limit are added where they are missing.
    /// Requests that cannot be decided are not refusals, and are answered by the layer: a missing peer, a wrong API key, a
    /// store that fails.
    ///
    /// ```
    /// # use tollgate::{Gate, Quota, Rule};
    /// use axum::http::StatusCode;
    ///
    /// # let gate = Gate::builder().rule(Rule::per("ip").quota(Quota::per_minute(60))).build()?;
    /// let layer = gate
    ///     .axum_layer()
    ///     .on_refusal(|denial| (StatusCode::TOO_MANY_REQUESTS, format!("{:?}", denial.rule_id())));
    /// # let _ = layer;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn on_refusal<A: IntoResponse>(
        self,
        answer: impl Fn(&Denial) -> A + Send + Sync + 'static,
    ) -> Self {
        let answer = move |denial: &Denial| answer(denial).into_response();
        self.change(|shared| shared.on_refusal = Some(Arc::new(answer)))
    }
}

/// What the request of this handler holds on rules of tokens, to be settled with what it truly used. Where no rule of the gate
/// counts tokens, there is nothing to settle or to release. Slots are held by the layer until the response has ended.
impl<S: Send + Sync> FromRequestParts<S> for Hold {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let held = parts.extensions.get::<HeldForHandler>().and_then(HeldForHandler::take);
        held.ok_or((StatusCode::INTERNAL_SERVER_ERROR, NO_HOLD))
    }
}
