//! Envoy's rate limit protocol: `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`.
//!
//! Each descriptor of a request resolves by itself (`descriptor`); all are decided and charged
//! together (`tollgate_engine::Engine::decide_together`); then Envoy gets its response (`answer`).

mod answer;
mod descriptor;
mod json;
mod stats;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use prost::Message;
use tollgate_engine::{ActiveRules, Engine, EngineError, MAX_VALUE_BYTES, Part, Together};
use tollgate_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollgate_store::Store;
use tollgate_tower::headers::HeaderFamilies;
use tonic::Status;

use crate::callers::CallerId;
use crate::http::virtual_keys::resolve_key;
use descriptor::Described;

pub(crate) use json::{RequestBody, ResponseBody};

pub use descriptor::{MAX_DESCRIPTORS, MAX_ENTRIES, MAX_KEYS_BYTES};
pub use stats::{DescriptorStats, MAX_SERIES, MAX_VALUES_PER_LIMIT};
pub(crate) use stats::{FIGURES, Series};

/// Answers Envoy.
pub struct EnvoyService<S> {
    engine: Arc<Engine<S>>,
    headers: HeaderFamilies,
    stats: Arc<DescriptorStats>,
}

impl<S> Clone for EnvoyService<S> {
    fn clone(&self) -> Self {
        let (engine, stats) = (Arc::clone(&self.engine), Arc::clone(&self.stats));
        Self { engine, headers: self.headers, stats }
    }
}

impl<S: Store + 'static> EnvoyService<S> {
    /// Decides by this engine; `headers` are those that Envoy is asked to add, and statistics of imported
    /// limits go to `stats`.
    pub const fn new(
        engine: Arc<Engine<S>>,
        headers: HeaderFamilies,
        stats: Arc<DescriptorStats>,
    ) -> Self {
        Self { engine, headers, stats }
    }

    pub(crate) async fn answer(
        &self,
        message: &[u8],
        caller: CallerId<'_>,
    ) -> Result<RateLimitResponse, Status> {
        self.should_rate_limit(&decode(message)?, caller).await
    }

    /// The same without a future. `None`: the store has to be awaited, and nothing was decided.
    pub(crate) fn answer_now(
        &self,
        message: &[u8],
        caller: CallerId<'_>,
    ) -> Option<Result<RateLimitResponse, Status>> {
        if !self.engine.answers_now() {
            return None;
        }
        let request = match decode(message) {
            Ok(request) => request,
            Err(status) => return Some(Err(status)),
        };
        let described = match describe(&request) {
            Ok(described) => described,
            Err(status) => return Some(Err(status)),
        };
        let rules = self.engine.rules();
        let parts = self.parts(&request, &described, caller, &rules);
        let together = self.engine.decide_together_now(&rules, &parts)?;
        Some(self.respond(&request, &described, together))
    }

    /// Whether a request is over a limit. `caller` is who asks.
    pub async fn should_rate_limit(
        &self,
        request: &RateLimitRequest,
        caller: impl Into<CallerId<'_>>,
    ) -> Result<RateLimitResponse, Status> {
        let described = describe(request)?;
        let rules = self.engine.rules();
        let parts = self.parts(request, &described, caller.into(), &rules);
        let together = self.engine.decide_together(&rules, &parts).await;
        self.respond(request, &described, together)
    }

    fn parts<'a>(
        &self,
        request: &'a RateLimitRequest,
        described: &'a [Described<'_>],
        caller: CallerId<'a>,
        rules: &'a ActiveRules,
    ) -> Vec<Part<'a>> {
        let part = |one: &'a Described<'_>| {
            let part = one.part(&request.domain, caller);
            let resolved = resolve_key(part.request, &rules.set, self.engine.clock());
            Part { request: resolved, ..part }
        };
        described.iter().map(part).collect()
    }

    fn respond(
        &self,
        request: &RateLimitRequest,
        described: &[Described<'_>],
        together: Result<Together<'_>, EngineError>,
    ) -> Result<RateLimitResponse, Status> {
        // Whether a request goes on without its limits is for Envoy to say: `failure_mode_deny`.
        let together = together.map_err(|error| Status::unavailable(error.to_string()))?;
        for (described, decision) in described.iter().zip(&together.parts) {
            if let Some(scope) = answer::reported(decision) {
                self.stats.record(&request.domain, described, scope);
            }
        }
        Ok(answer::response(&together, self.headers))
    }
}

fn decode(message: &[u8]) -> Result<RateLimitRequest, Status> {
    RateLimitRequest::decode(message)
        .map_err(|error| Status::invalid_argument(format!("not a valid message: {error}")))
}

/// The descriptors of a request, checked.
fn describe(request: &RateLimitRequest) -> Result<Vec<Described<'_>>, Status> {
    let RateLimitRequest { domain, descriptors, hits_addend } = request;
    let wrong = |message: String| Err(Status::invalid_argument(message));
    if domain.is_empty() {
        return wrong("domain: must not be empty".to_owned());
    }
    if domain.len() > MAX_VALUE_BYTES {
        return wrong(format!("domain: must not be longer than {MAX_VALUE_BYTES} bytes"));
    }
    if descriptors.is_empty() || descriptors.len() > MAX_DESCRIPTORS {
        return wrong(format!("descriptors: must be 1 to {MAX_DESCRIPTORS}"));
    }
    let described = descriptors.iter().enumerate();
    described.map(|(index, one)| Described::new(one, index, *hits_addend)).collect()
}
