//! The API described, from the types that it is made of. The functions only carry descriptions.

#![expect(dead_code, reason = "the macro reads their attributes; nobody calls them")]

use std::sync::LazyLock;

use bytes::Bytes;
use tollgate_policy::Known;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::{IntoParams, OpenApi, PartialSchema as _};

use crate::admin::ProblemBody;

use super::amounts_body::{MoneyBody, MoneyFigure, MoneyFigures, OtherUnits, UsageBody};
use super::wire::{
    AllowBody, BatchAnswer, BatchBody, CheckBody, CheckedBody, DecisionBody, ErrorBody,
    RefusalBody, ReleaseBody, ReleasedBody, RenewBody, RenewedBody, ScopeBody, SettleBody,
    SettledBody, StatusBody, WouldDenyBody,
};

/// The query of the status call: the known attributes by their names.
struct StatusQuery;

impl IntoParams for StatusQuery {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let parameter = |known: Known| {
            ParameterBuilder::new()
                .name(known.name())
                .parameter_in(ParameterIn::Query)
                .description(Some(known.help()))
                .schema(Some(<Option<String>>::schema()))
                .build()
        };
        Known::ALL.map(parameter).to_vec()
    }
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tollgate",
        description = "A rate limiter that explains itself.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    paths(
        allow, peek, check, batch, reserve, settle, release, renew, auth, status, usage, budget,
        healthz, readyz, metrics, openapi
    ),
    components(schemas(
        AllowBody,
        BatchAnswer,
        BatchBody,
        CheckBody,
        CheckedBody,
        DecisionBody,
        ErrorBody,
        MoneyBody,
        MoneyFigure,
        MoneyFigures,
        OtherUnits,
        ProblemBody,
        RefusalBody,
        ReleaseBody,
        ReleasedBody,
        RenewBody,
        RenewedBody,
        ScopeBody,
        SettleBody,
        SettledBody,
        StatusBody,
        UsageBody,
        WouldDenyBody
    ))
)]
struct Document;

/// The API's description, made when it is first asked for: few ask.
pub(crate) fn bytes() -> Bytes {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(document()));
    DOCUMENT.clone()
}

/// The API's description as JSON.
pub fn document() -> String {
    // Structs of plain values always serialise.
    let mut document = serde_json::to_value(Document::openapi()).unwrap_or_default();
    crate::admin::openapi::describe(&mut document);
    format!("{document:#}")
}

/// Decide and charge.
#[utoipa::path(post, path = "/rate-limit/allow", request_body = AllowBody, responses(
    (status = 200, description = "The decision, allowed or not, with the headers of the deciding limit", body = DecisionBody),
    (status = 400, description = "A field is wrong; nothing was charged", body = ErrorBody),
    (status = 401, description = "A token is needed", body = ErrorBody),
    (status = 405, description = "Only POST", body = ErrorBody),
    (status = 408, description = "The body did not arrive in time", body = ErrorBody),
    (status = 409, description = "The requestId was used for another request", body = ErrorBody),
    (status = 413, description = "The body is too large", body = ErrorBody),
    (status = 503, description = "The store is unavailable", body = ErrorBody)))]
fn allow() {}

/// Decide and charge nothing.
#[utoipa::path(post, path = "/rate-limit/peek", request_body = AllowBody, responses(
    (status = 200, description = "The decision that would be made", body = DecisionBody),
    (status = 400, description = "A field is wrong", body = ErrorBody),
    (status = 401, description = "A token is needed", body = ErrorBody),
    (status = 405, description = "Only POST", body = ErrorBody),
    (status = 408, description = "The body did not arrive in time", body = ErrorBody),
    (status = 413, description = "The body is too large", body = ErrorBody),
    (status = 503, description = "The store is unavailable", body = ErrorBody)))]
fn peek() {}

/// The small form: decide and charge for a user and a model.
#[utoipa::path(post, path = "/rate-limit/check", request_body = CheckBody, responses(
    (status = 200, description = "The deciding limit", body = CheckedBody),
    (status = 400, description = "A field is wrong; nothing was charged", body = ErrorBody),
    (status = 401, description = "A token is needed", body = ErrorBody),
    (status = 405, description = "Only POST", body = ErrorBody),
    (status = 408, description = "The body did not arrive in time", body = ErrorBody),
    (status = 409, description = "A rule of unit concurrency applies: use reserve; nothing was charged", body = ErrorBody),
    (status = 413, description = "The body is too large", body = ErrorBody),
    (status = 503, description = "The store is unavailable", body = ErrorBody)))]
fn check() {}

/// Decide up to 1,000 requests in order, each for itself.
#[utoipa::path(post, path = "/rate-limit/allow/batch", request_body = BatchBody, responses(
    (status = 200, description = "One decision, or error, per request", body = BatchAnswer),
    (status = 400, description = "The batch is wrong; nothing was charged", body = ErrorBody),
    (status = 401, description = "A token is needed", body = ErrorBody),
    (status = 405, description = "Only POST", body = ErrorBody),
    (status = 408, description = "The body did not arrive in time", body = ErrorBody),
    (status = 413, description = "The body is too large", body = ErrorBody)))]
fn batch() {}

/// Hold quota for a request whose true cost is known only later: `tokens` and `cost` are estimates.
#[utoipa::path(post, path = "/rate-limit/reserve", request_body = AllowBody, responses(
    (status = 200, description = "The decision; if allowed, with reservationId and expiresAt", body = DecisionBody),
    (status = 400, description = "A field is wrong; nothing was charged", body = ErrorBody),
    (status = 401, description = "A token is needed", body = ErrorBody),
    (status = 405, description = "Only POST", body = ErrorBody),
    (status = 408, description = "The body did not arrive in time", body = ErrorBody),
    (status = 409, description = "The requestId was used for another request", body = ErrorBody),
    (status = 413, description = "The body is too large", body = ErrorBody),
    (status = 503, description = "The store is unavailable, or there is no room for another reservation; nothing was charged", body = ErrorBody)))]
fn reserve() {}

/// Say what a reservation truly cost. The first answer is given again, however often it is asked for.
#[utoipa::path(post, path = "/rate-limit/settle", request_body = SettleBody, responses(
    (status = 200, description = "What was given back, or charged beyond the estimate", body = SettledBody),
    (status = 400, description = "A field is wrong", body = ErrorBody),
    (status = 401, description = "A token is needed", body = ErrorBody),
    (status = 404, description = "It has expired, and stays as estimated, or never was", body = ErrorBody),
    (status = 405, description = "Only POST", body = ErrorBody),
    (status = 408, description = "The body did not arrive in time", body = ErrorBody),
    (status = 409, description = "It was released before", body = ErrorBody),
    (status = 413, description = "The body is too large", body = ErrorBody),
    (status = 503, description = "The store is unavailable: ask again", body = ErrorBody)))]
fn settle() {}

/// Give a reservation back, or the slot of an allowed request. The first answer is given again.
#[utoipa::path(post, path = "/rate-limit/release", request_body = ReleaseBody, responses(
    (status = 200, description = "It is given back", body = ReleasedBody),
    (status = 400, description = "A field is wrong", body = ErrorBody),
    (status = 401, description = "A token is needed", body = ErrorBody),
    (status = 404, description = "It has expired, and stays as estimated, or never was", body = ErrorBody),
    (status = 405, description = "Only POST", body = ErrorBody),
    (status = 408, description = "The body did not arrive in time", body = ErrorBody),
    (status = 409, description = "It was settled before", body = ErrorBody),
    (status = 413, description = "The body is too large", body = ErrorBody),
    (status = 503, description = "The store is unavailable: ask again", body = ErrorBody)))]
fn release() {}

/// Hold a reservation, or the slot of an allowed request, for longer.
#[utoipa::path(post, path = "/rate-limit/renew", request_body = RenewBody, responses(
    (status = 200, description = "When it expires now", body = RenewedBody),
    (status = 400, description = "A field is wrong", body = ErrorBody),
    (status = 401, description = "A token is needed", body = ErrorBody),
    (status = 404, description = "It has expired, or never was", body = ErrorBody),
    (status = 405, description = "Only POST", body = ErrorBody),
    (status = 408, description = "The body did not arrive in time", body = ErrorBody),
    (status = 409, description = "It was settled or released before", body = ErrorBody),
    (status = 413, description = "The body is too large", body = ErrorBody),
    (status = 503, description = "The store is unavailable: ask again", body = ErrorBody)))]
fn renew() {}

/// For proxies: attributes from `X-Tollgate-…` headers, the answer as a status.
#[utoipa::path(get, path = "/rate-limit/auth",
    params(("refuse_status" = Option<u16>, Query, minimum = 400, maximum = 499,
            description = "The status of a refusal, for proxies that know only some; X-Tollgate-Status has the true one")),
    responses(
    (status = 200, description = "Allowed"),
    (status = 400, description = "A header is wrong; nothing was charged", body = ErrorBody),
    (status = 401, description = "A token is needed", body = ErrorBody),
    (status = 403, description = "On the deny list", body = RefusalBody),
    (status = 429, description = "A limit was hit", body = RefusalBody),
    (status = "4XX", description = "Refused, with the status asked for", body = RefusalBody),
    (status = 503, description = "The store is unavailable", body = ErrorBody)))]
fn auth() {}

/// The limits of a client now. Charges nothing.
#[utoipa::path(get, path = "/api/v1/rate-limits/status",
    params(StatusQuery),
    responses(
    (status = 200, description = "The limits", body = StatusBody),
    (status = 400, description = "No identity, or an unknown parameter", body = ErrorBody),
    (status = 401, description = "A token is needed", body = ErrorBody),
    (status = 405, description = "Only GET", body = ErrorBody),
    (status = 503, description = "The store is unavailable", body = ErrorBody)))]
fn status() {}

/// What the holder of a virtual key has used of the key's own limits. The key is the credential. Charges nothing.
#[utoipa::path(get, path = "/v1/usage", responses(
    (status = 200, description = "The limits of the key", body = serde_json::Value),
    (status = 401, description = "A valid virtual key is needed", body = ErrorBody),
    (status = 405, description = "Only GET", body = ErrorBody),
    (status = 503, description = "The store is unavailable", body = ErrorBody)))]
fn usage() {}

/// What the holder of a virtual key has spent of its budget. The key is the credential. Charges nothing.
#[utoipa::path(get, path = "/v1/budget", responses(
    (status = 200, description = "The budget of the key, or null", body = serde_json::Value),
    (status = 401, description = "A valid virtual key is needed", body = ErrorBody),
    (status = 405, description = "Only GET", body = ErrorBody),
    (status = 503, description = "The store is unavailable", body = ErrorBody)))]
fn budget() {}

/// Alive.
#[utoipa::path(get, path = "/healthz", responses((status = 200, description = "The process is alive"),
    (status = 405, description = "Only GET", body = ErrorBody)))]
fn healthz() {}

/// Ready for traffic.
#[utoipa::path(get, path = "/readyz", responses(
    (status = 200, description = "Send traffic"),
    (status = 405, description = "Only GET", body = ErrorBody),
    (status = 503, description = "Shutting down")))]
fn readyz() {}

/// What happened so far, for Prometheus.
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, description = "OpenMetrics text", body = String,
     content_type = "application/openmetrics-text"),
))]
fn metrics() {}

/// This document.
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, description = "This document"),
    (status = 405, description = "Only GET", body = ErrorBody)))]
fn openapi() {}
