//! Answers of upstreams, on their way to the client.

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use super::meter::Meter;
use crate::body::GatewayBody;
use crate::decode::Coding;
use crate::forward::Answered;
use crate::respond::Fault;
use crate::routes::Route;
use crate::worker::plain_answer;

/// What an upstream says of the account that it is called with, which is not the client's: how much of it is left
/// (by the beginning of the name), and what would be taken for our own word ...
const LIMITS: [&str; 5] =
    ["x-ratelimit", "x-rate-limit", "ratelimit", "anthropic-ratelimit-", "x-tollgate-"];

/// ... whose it is, and by what the upstream knows it again. `retry-after` and its like pass: they are about the
/// request.
const ACCOUNT: [HeaderName; 4] = [
    HeaderName::from_static("anthropic-organization-id"),
    HeaderName::from_static("openai-organization"),
    HeaderName::from_static("openai-project"),
    SET_COOKIE,
];

/// Takes out what is between us and the upstream.
pub(crate) fn hide_account(headers: &mut HeaderMap) {
    for name in &ACCOUNT {
        headers.remove(name);
    }
    let is_limit = |name: &&HeaderName| LIMITS.iter().any(|it| name.as_str().starts_with(it));
    let limits: Vec<HeaderName> = headers.keys().filter(is_limit).cloned().collect();
    for name in limits {
        headers.remove(name);
    }
}

/// Statuses with which a server refuses a request before a model has read it.
const REFUSALS: [u16; 18] =
    [401, 403, 404, 405, 406, 407, 410, 411, 413, 414, 415, 417, 421, 426, 428, 429, 431, 501];

/// Statuses of a server that is overloaded, where it also says when to come back. Without that a proxy may have
/// answered for a server that broke down at work.
const OVERLOADED: [u16; 2] = [503, 529];

/// Whether an error shows that no model has worked on the request. All others may come after work, such as a 400 for an
/// answer that does not fit its schema: clients could make models work for nothing by provoking them.
fn did_no_work(status: StatusCode, headers: &HeaderMap) -> bool {
    let is_overloaded = OVERLOADED.contains(&status.as_u16()) && headers.contains_key(RETRY_AFTER);
    REFUSALS.contains(&status.as_u16()) || status.is_redirection() || is_overloaded
}

/// The answer, decoded and measured on its way.
pub(super) fn metered(
    answered: Answered,
    mut meter: Box<Meter>,
    route: &Route,
) -> Result<Response<GatewayBody>, Fault> {
    let mut response = plain_answer(answered, None, route.timeouts.response_idle);
    hide_account(response.headers_mut());
    let is_good = response.status().is_success();
    if !is_good {
        if did_no_work(response.status(), response.headers()) {
            meter.not_served();
        } else {
            meter.fails();
        }
    }
    match Coding::of(response.headers()) {
        Coding::Known(decoder) => {
            response.headers_mut().remove(CONTENT_ENCODING);
            response.headers_mut().remove(CONTENT_LENGTH);
            response.body_mut().decode(decoder);
        }
        // What cannot be read cannot be counted.
        Coding::Unknown if is_good => {
            meter.breaks();
            return Err(Fault::UpstreamEncoding);
        }
        Coding::Plain | Coding::Unknown => {}
    }
    if !is_good {
        response.body_mut().measure(meter);
        return Ok(response);
    }
    let kind = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let is_stream = |kind: &[u8]| {
        let name = b"text/event-stream";
        kind.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
    };
    meter.begins(kind.is_some_and(is_stream));
    if meter.may_change() {
        response.headers_mut().remove(CONTENT_LENGTH);
    }
    response.body_mut().measure(meter);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_free_only_where_no_model_can_have_worked() {
        let came_back = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static("1"))]);
        for (status, is_free, is_free_with_retry_after) in [
            (302, true, true),
            (400, false, false),
            (401, true, true),
            (404, true, true),
            (408, false, false),
            (413, true, true),
            (422, false, false),
            (429, true, true),
            (500, false, false),
            (501, true, true),
            (502, false, false),
            (503, false, true),
            (504, false, false),
            (529, false, true),
        ] {
            let code = StatusCode::from_u16(status).unwrap();
            assert_eq!(did_no_work(code, &HeaderMap::new()), is_free, "{status}");
            assert_eq!(did_no_work(code, &came_back), is_free_with_retry_after, "{status}");
        }
    }

    #[test]
    fn what_is_the_upstreams_own_affair_stays_here() {
        let mut headers = HeaderMap::new();
        for name in [
            "x-ratelimit-limit-requests",
            "x-ratelimit-remaining-images",
            "ratelimit",
            "ratelimit-policy",
            "anthropic-ratelimit-tokens-reset",
            "anthropic-organization-id",
            "x-rate-limit-remaining",
            "x-tollgate-model",
            "openai-organization",
            "openai-project",
            "set-cookie",
            "retry-after",
            "retry-after-ms",
            "x-should-retry",
            "x-request-id",
            "openai-version",
        ] {
            headers.append(name, HeaderValue::from_static("1"));
            headers.append(name, HeaderValue::from_static("2"));
        }
        hide_account(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        let passing =
            ["openai-version", "retry-after", "retry-after-ms", "x-request-id", "x-should-retry"];
        assert_eq!(left, passing);
    }
}
