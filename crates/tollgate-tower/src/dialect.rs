//! Whose words headers and refusals are in: our own, or those of a model API. Each API has a file of its own.

use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use tollgate_engine::{Decision, Scope};
use tollgate_policy::Unit;

use crate::headers::whole_seconds;
use crate::rejection::Rejection;
use crate::render::Format;
use crate::{anthropic, openai};

/// Whose words headers and refusals are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Dialect {
    /// Our own.
    #[default]
    Plain,
    /// Those of the OpenAI API, next to our headers.
    OpenAi,
    /// Those of the Anthropic API, next to our headers.
    Anthropic,
}

impl Dialect {
    /// Whether it is that of a model API. Its clients wait for slots, where a rule lets them.
    pub(crate) fn is_model_api(self) -> bool {
        self != Self::Plain
    }

    /// What its clients read of a decision, next to our own headers.
    pub(crate) fn each_unit(
        self,
        decision: &Decision<'_>,
        put: impl FnMut(HeaderName, HeaderValue),
    ) {
        match self {
            Self::Plain => {}
            Self::OpenAi => openai::each_unit(decision, put),
            Self::Anthropic => anthropic::each_unit(decision, put),
        }
    }

    /// A rejection as its clients read it.
    pub(crate) fn rejected(self, rejection: Rejection) -> Response<Bytes> {
        match self {
            Self::Plain => rejection.into_response(Format::Json),
            Self::OpenAi => openai::rejected(rejection),
            Self::Anthropic => anthropic::rejected(rejection),
        }
    }
}

/// The three headers of one unit: limit, remaining, reset.
pub(crate) type Names = [HeaderName; 3];

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// After how long to try again a store that does not answer.
const UNKNOWN_RETRY: Duration = Duration::from_secs(1);

/// The header that says that a retry is of no use.
pub(crate) const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Of all limits of a unit, the one of which the least share is left.
pub(crate) fn tightest<'d>(decision: &'d Decision<'_>, unit: Unit) -> Option<&'d Scope<'d>> {
    let of_unit = decision.scopes().filter(|scope| scope.rule.unit == unit);
    of_unit.reduce(|one, other| if is_tighter(other, one) { other } else { one })
}

fn is_tighter(one: &Scope<'_>, other: &Scope<'_>) -> bool {
    let share = |one: &Scope<'_>, of: &Scope<'_>| {
        u128::from(one.outcome.status.remaining) * u128::from(of.capacity.max(1))
    };
    share(one, other) < share(other, one)
}

/// States when a request is worth another attempt, or that it is not. Clients of both APIs read these headers.
pub(crate) fn advise_retry(
    headers: &mut HeaderMap,
    status: StatusCode,
    is_refused: bool,
    retry_after: Option<Duration>,
) {
    match retry_after {
        Some(after) => put_retry_after(headers, after),
        None if !is_refused => {}
        None if status == StatusCode::SERVICE_UNAVAILABLE => {
            put_retry_after(headers, UNKNOWN_RETRY);
        }
        // What can never pass, or is not let in, is not worth another attempt.
        None => {
            // A budget that is renewed in weeks is nothing to wait for.
            headers.remove(RETRY_AFTER);
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
    }
}

fn put_retry_after(headers: &mut HeaderMap, after: Duration) {
    headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(after).max(1)));
    let millis = u64::try_from(after.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    headers.insert(RETRY_AFTER_MS, HeaderValue::from(millis.max(1)));
}
