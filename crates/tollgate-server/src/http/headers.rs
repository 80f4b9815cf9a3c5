//! The headers that describe the deciding limit.

use std::fmt::Write as _;

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use tollgate_engine::{Decision, Scope};

use super::time::seconds_up;
use super::wire::warning_text;
use crate::config::HeaderFamilies;

const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const X_POLICY: HeaderName = HeaderName::from_static("x-ratelimit-policy");
const X_WARNING: HeaderName = HeaderName::from_static("x-ratelimit-warning");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Adds the families that are switched on.
pub(crate) fn describe(headers: &mut HeaderMap, decision: &Decision<'_>, on: HeaderFamilies) {
    if let Some(scope) = decision.deciding() {
        if on.x_ratelimit {
            x_ratelimit(headers, scope);
        }
        if on.ratelimit {
            ratelimit(headers, decision, scope);
        }
    }
    if on.retry_after
        && let Some(after) = decision.retry_after()
    {
        headers.insert(RETRY_AFTER, number(seconds_up(after).max(1)));
    }
    if on.x_ratelimit {
        for warning in decision.warnings() {
            if let Ok(value) = HeaderValue::try_from(ascii(&warning_text(&warning))) {
                headers.append(X_WARNING, value);
            }
        }
    }
}

fn number(value: u64) -> HeaderValue {
    HeaderValue::from(value)
}

fn x_ratelimit(headers: &mut HeaderMap, scope: &Scope<'_>) {
    let status = &scope.outcome.status;
    headers.insert(X_LIMIT, number(scope.quota));
    headers.insert(X_REMAINING, number(status.remaining));
    headers.insert(X_RESET, number(seconds_up(status.reset_at)));
    let mut policy = String::with_capacity(24);
    let _ = write!(policy, "{};w={}", scope.quota, scope.limit.window_seconds);
    if let Ok(policy) = HeaderValue::try_from(policy) {
        headers.insert(X_POLICY, policy);
    }
}

/// Structured fields: `"api";r=50;t=30` and `"api";q=1000;w=3600`.
fn ratelimit(headers: &mut HeaderMap, decision: &Decision<'_>, scope: &Scope<'_>) {
    let status = &scope.outcome.status;
    let until_reset = seconds_up(status.reset_at.saturating_sub(decision.now));
    let name = &scope.rule.id;
    let mut state = String::with_capacity(name.len() + 32);
    quoted(&mut state, name);
    let _ = write!(state, ";r={};t={until_reset}", status.remaining);
    let mut policy = String::with_capacity(name.len() + 32);
    quoted(&mut policy, name);
    let _ = write!(policy, ";q={};w={}", scope.quota, scope.limit.window_seconds);
    if let (Ok(state), Ok(policy)) = (HeaderValue::try_from(state), HeaderValue::try_from(policy)) {
        headers.insert(RATE_LIMIT, state);
        headers.insert(RATE_LIMIT_POLICY, policy);
    }
}

/// A structured-field string: printable ASCII, with quotes and backslashes escaped. Other characters
/// become question marks.
fn quoted(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                out.push('\\');
                out.push(character);
            }
            ' '..='~' => out.push(character),
            _ => out.push('?'),
        }
    }
    out.push('"');
}

fn ascii(text: &str) -> String {
    text.chars().map(|c| if matches!(c, ' '..='~') { c } else { '?' }).collect()
}
