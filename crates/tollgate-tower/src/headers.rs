//! The headers that describe the deciding limit.

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use tollgate_core::{Nanos, SECOND};
use tollgate_engine::{Decision, Scope};

/// Which families of headers a decision carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderFamilies {
    /// `X-RateLimit-Limit` and its siblings.
    pub x_ratelimit: bool,
    /// `RateLimit` and `RateLimit-Policy`.
    pub ratelimit: bool,
    /// `Retry-After`.
    pub retry_after: bool,
}

impl Default for HeaderFamilies {
    fn default() -> Self {
        Self { x_ratelimit: true, ratelimit: true, retry_after: true }
    }
}

/// Whole seconds, rounded up.
pub const fn seconds_up(nanos: Nanos) -> u64 {
    nanos.div_ceil(SECOND)
}

/// A soft limit in words.
pub fn warning_text(warning: &tollgate_engine::Warning<'_>) -> String {
    format!("{} of {} used (rule {})", warning.used, warning.capacity, warning.rule.id)
}

pub(crate) const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(crate) const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(crate) const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
pub(crate) const X_POLICY: HeaderName = HeaderName::from_static("x-ratelimit-policy");
pub(crate) const X_WARNING: HeaderName = HeaderName::from_static("x-ratelimit-warning");
pub(crate) const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(crate) const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Adds the families that are switched on.
pub fn describe(headers: &mut HeaderMap, decision: &Decision<'_>, on: HeaderFamilies) {
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
    push_pair(&mut policy, "", scope.quota);
    push_pair(&mut policy, ";w=", scope.limit.window_seconds);
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
    push_pair(&mut state, ";r=", status.remaining);
    push_pair(&mut state, ";t=", until_reset);
    let mut policy = String::with_capacity(name.len() + 32);
    quoted(&mut policy, name);
    push_pair(&mut policy, ";q=", scope.quota);
    push_pair(&mut policy, ";w=", scope.limit.window_seconds);
    if let (Ok(state), Ok(policy)) = (HeaderValue::try_from(state), HeaderValue::try_from(policy)) {
        headers.insert(RATE_LIMIT, state);
        headers.insert(RATE_LIMIT_POLICY, policy);
    }
}

fn push_pair(out: &mut String, name: &str, number: u64) {
    out.push_str(name);
    out.push_str(itoa::Buffer::new().format(number));
}

/// A structured-field string: printable ASCII, with quotes and backslashes escaped. Other characters
/// become question marks.
pub(crate) fn quoted(out: &mut String, text: &str) {
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

pub(crate) fn ascii(text: &str) -> String {
    text.chars().map(|c| if matches!(c, ' '..='~') { c } else { '?' }).collect()
}
