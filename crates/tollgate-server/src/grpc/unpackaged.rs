//! `RateLimiterService` without a package, for clients whose protocol has none: `Allow` alone, with small messages.
//!
//! ```protobuf
//! message AllowRequest { string userId = 1; string modelId = 2; optional string apiKey = 3;
//!     optional string tenantId = 4; optional string modelTier = 5; optional string clientType = 6; }
//! message AllowResponse { bool allowed = 1; int32 remaining = 2; string resetAt = 3; string scopeHit = 4;
//!     repeated ScopeStatus scopes = 5; }
//! message ScopeStatus { string name = 1; int32 limit = 2; int32 current = 3; int32 remaining = 4; }
//! ```
//!
//! The request is the beginning of `tollgate.v1.AllowRequest`.

use tollgate_engine::Decision;

use super::frame::{close, open};
use super::service::BYTES_PER_DECISION;
use super::write::{Message, Size};
use crate::http::time::Rfc3339;

/// The service.
pub(super) const SERVICE: &str = "RateLimiterService";

/// A decision as a whole answer.
pub(super) fn framed(decision: &Decision<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(BYTES_PER_DECISION);
    let start = open(&mut out);
    write_decision(&mut Message(&mut out), decision);
    close(&mut out, start);
    out
}

fn write_decision(message: &mut Message<'_>, decision: &Decision<'_>) {
    let allowed = decision.is_allowed();
    message.number(1, u64::from(allowed));
    if let Some(scope) = decision.deciding() {
        let status = &scope.outcome.status;
        message.number(2, small(status.remaining)).text(3, &Rfc3339(status.reset_at).to_string());
        if !allowed {
            message.text(4, &scope.rule.scope);
        }
    }
    for scope in decision.scopes() {
        let status = &scope.outcome.status;
        message.message(5, Size::Small, |message| {
            message.text(1, &scope.rule.scope).number(2, small(scope.quota));
            message.number(3, small(status.used)).number(4, small(status.remaining));
        });
    }
}

/// A number that an `int32` can hold.
fn small(number: u64) -> u64 {
    number.min(i32::MAX.unsigned_abs().into())
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use tollgate_engine::{Engine, ManualClock, Request};
    use tollgate_policy::{Known, RuleSet};
    use tollgate_store::{MemoryStore, Mode};

    #[derive(Clone, PartialEq, prost::Message)]
    struct AllowResponse {
        #[prost(bool, tag = "1")]
        allowed: bool,
        #[prost(int32, tag = "2")]
        remaining: i32,
        #[prost(string, tag = "3")]
        reset_at: String,
        #[prost(string, tag = "4")]
        scope_hit: String,
        #[prost(message, repeated, tag = "5")]
        scopes: Vec<ScopeStatus>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct ScopeStatus {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(int32, tag = "2")]
        limit: i32,
        #[prost(int32, tag = "3")]
        current: i32,
        #[prost(int32, tag = "4")]
        remaining: i32,
    }

    #[tokio::test]
    async fn decisions_are_messages_of_the_small_protocol() {
        let rules = "default: false\nrules: [{rule_id: r, scope: USER, identifier_type: user_id, \
                     limit: 2, window: 1h, algorithm: fixed_window}]";
        let rules = RuleSet::from_yaml(rules, "t").unwrap();
        let clock = std::sync::Arc::new(ManualClock::new(1_700_000_000_000_000_000));
        let engine = Engine::new(MemoryStore::new(100), clock, rules);
        let rules = engine.rules();
        let mut request = Request::default();
        request.attributes.set(Known::UserId, "ann");
        for (allowed, current, remaining, hit) in
            [(true, 1, 1, ""), (true, 2, 0, ""), (false, 2, 0, "USER")]
        {
            let decision = engine.decide(&rules, &request, Mode::Charge).await.unwrap();
            let framed = super::framed(&decision);
            let answer = AllowResponse::decode(&framed[super::super::frame::HEAD_BYTES..]).unwrap();
            let scope = ScopeStatus { name: "USER".to_owned(), limit: 2, current, remaining };
            let expected = AllowResponse {
                allowed,
                remaining,
                reset_at: "2023-11-14T23:00:00.000Z".to_owned(),
                scope_hit: hit.to_owned(),
                scopes: vec![scope],
            };
            assert_eq!(answer, expected);
        }
    }
}
