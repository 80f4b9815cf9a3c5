//! `GET /v1/usage` and `GET /v1/budget`: what the holder of a virtual key has used of the key's own limits. The key itself
//! is the credential. Charges nothing.

use http::Method;
use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tollgate_engine::{ActiveRules, Engine, Request, Scope};
use tollgate_policy::{KEY_RULE_PREFIX, Unit};
use tollgate_store::{Mode, Store};

use super::respond::ApiError;
use super::time::Rfc3339;

const X_API_KEY: &str = "x-api-key";

/// Which figures are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HolderCall {
    Usage,
    Budget,
}

impl HolderCall {
    /// The call that this path and method name.
    pub(crate) fn of(method: &Method, path: &str) -> Option<Self> {
        let call = match path {
            "/v1/usage" => Self::Usage,
            "/v1/budget" => Self::Budget,
            _ => return None,
        };
        (*method == Method::GET || *method == Method::HEAD).then_some(call)
    }

    /// The answer, in JSON, to the holder of the virtual key among these headers.
    pub(crate) async fn answer<S: Store>(
        self,
        engine: &Engine<S>,
        headers: &HeaderMap,
    ) -> Result<Vec<u8>, ApiError> {
        let rules = engine.rules();
        let mut request = Request::default();
        let is_identified = identify(engine, &rules, headers, &mut request);
        if !is_identified {
            return Err(ApiError::InvalidKey);
        }
        let decision = engine.decide(&rules, &request, Mode::Peek).await?;
        if decision.reason.is_unauthorized() {
            return Err(ApiError::InvalidKey);
        }
        let mut own = decision.scopes().filter(|scope| scope.rule.is_of_virtual_key());
        let body = match self {
            Self::Usage => json!({
                "object": "usage",
                "key_id": request.attributes.get(tollgate_policy::Known::ApiKey),
                "limits": own.map(limit).collect::<Vec<Value>>(),
            }),
            Self::Budget => {
                let is_budget = |scope: &&Scope<'_>| {
                    scope.rule.id.strip_prefix(KEY_RULE_PREFIX) == Some("budget")
                };
                let budget = own.find(is_budget).map(limit);
                json!({ "object": "budget", "budget": budget })
            }
        };
        serde_json::to_vec(&body).map_err(|_| ApiError::Internal)
    }
}

/// Whether the headers show the secret of a virtual key.
pub(crate) fn shows_virtual_key<S: Store>(engine: &Engine<S>, headers: &HeaderMap) -> bool {
    let rules = engine.rules();
    let secrets = secrets(headers);
    secrets.into_iter().flatten().any(|secret| {
        let digest = Sha256::digest(secret).into();
        rules.set.virtual_keys().find(&digest, engine.clock().now()).is_some()
    })
}

fn secrets(headers: &HeaderMap) -> [Option<&[u8]>; 2] {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, rest) = value.as_bytes().split_at_checked("bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii())
    });
    [bearer, headers.get(X_API_KEY).map(HeaderValue::as_bytes)]
}

/// Makes the request one of the key that the headers show.
fn identify<'a, S: Store>(
    engine: &Engine<S>,
    rules: &'a ActiveRules,
    headers: &HeaderMap,
    request: &mut Request<'a>,
) -> bool {
    let now = engine.clock().now();
    for secret in secrets(headers).into_iter().flatten() {
        let digest = Sha256::digest(secret).into();
        if let Some(key) = rules.set.virtual_keys().find(&digest, now) {
            key.identify(&mut request.attributes);
            return true;
        }
    }
    false
}

/// One limit of the key. Money is stated as a decimal.
fn limit(scope: &Scope<'_>) -> Value {
    let (rule, status) = (scope.rule, &scope.outcome.status);
    let reset_at = Rfc3339(status.reset_at);
    let mut limit = json!({
        "unit": rule.unit.name(),
        "window_seconds": scope.limit.window_seconds,
        "reset_at": reset_at,
    });
    let figures = [("limit", scope.quota), ("used", status.used), ("remaining", status.remaining)];
    if let Some(limit) = limit.as_object_mut() {
        for (name, amount) in figures {
            let figure =
                if rule.unit == Unit::Money { json!(rule.figure(amount)) } else { json!(amount) };
            limit.insert(name.to_owned(), figure);
        }
        if let Some(currency) = &rule.currency {
            limit.insert("currency".to_owned(), json!(currency.to_string()));
        }
    }
    limit
}
