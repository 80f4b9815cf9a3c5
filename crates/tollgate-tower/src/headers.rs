//! The headers that describe the deciding limit.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use tollgate_core::{Nanos, SECOND};
use tollgate_engine::{Decision, Scope};

use crate::dialect::Dialect;

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

/// Whole seconds, rounded up: at that time it passes, not just before.
pub(crate) fn whole_seconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(u128::from(SECOND))).unwrap_or(u64::MAX)
}

/// Whole seconds, rounded up.
pub const fn seconds_up(nanos: Nanos) -> u64 {
    nanos.div_ceil(SECOND)
}

/// A soft limit in words.
pub fn warning_text(warning: &tollgate_engine::Warning<'_>) -> String {
    let rule = warning.rule;
    let (used, capacity) = (rule.figure(warning.used), rule.figure(warning.capacity));
    format!("{used} of {capacity} used (rule {})", rule.id)
}

pub(crate) const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(crate) const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(crate) const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
pub(crate) const X_POLICY: HeaderName = HeaderName::from_static("x-ratelimit-policy");
pub(crate) const X_WARNING: HeaderName = HeaderName::from_static("x-ratelimit-warning");
pub(crate) const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(crate) const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Headers that are to be put into an answer that is not there yet: noted as lines, which costs less than
/// a map of their own would.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeaderLines(Vec<(HeaderName, HeaderValue)>);

impl HeaderLines {
    /// The families that are switched on, and what clients of `dialect` read besides.
    pub fn describing(decision: &Decision<'_>, dialect: Dialect, on: HeaderFamilies) -> Self {
        let mut lines = Vec::with_capacity(if dialect.is_model_api() { 12 } else { 6 });
        each(decision, on, |name, value| lines.push((name, value)));
        dialect.each_unit(decision, |name, value| lines.push((name, value)));
        Self(lines)
    }

    /// Adds a line. Those of one name follow each other.
    pub fn push(&mut self, name: HeaderName, value: HeaderValue) {
        self.0.push((name, value));
    }

    /// Adds the lines of another decision or fault under names that are not here yet.
    pub fn extend(&mut self, others: &Self) {
        let known: Vec<HeaderName> = self.0.iter().map(|(name, _)| name.clone()).collect();
        let is_new = |(name, _): &&(HeaderName, HeaderValue)| !known.contains(name);
        self.0.extend(others.0.iter().filter(is_new).cloned());
    }

    /// Adds to a response what it does not say already.
    pub fn add_missing_to(&self, response: &mut HeaderMap) {
        for (name, value) in &self.0 {
            if !response.contains_key(name) {
                response.append(name.clone(), value.clone());
            }
        }
    }

    /// The lines, those of one name after each other.
    pub fn iter(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        self.0.iter().map(|(name, value)| (name, value))
    }

    /// Puts them in the place of what the answer says under their names.
    pub fn put_into(self, answer: &mut HeaderMap) {
        answer.reserve(self.0.len());
        let mut last = None;
        for (name, value) in self.0 {
            if last.as_ref() == Some(&name) {
                answer.append(name, value);
            } else {
                last = Some(name.clone());
                answer.insert(name, value);
            }
        }
    }
}

impl From<HeaderMap> for HeaderLines {
    fn from(map: HeaderMap) -> Self {
        let mut lines: Vec<(HeaderName, HeaderValue)> = Vec::with_capacity(map.len());
        for (name, value) in map {
            // A further value of a name comes without it.
            let name = name.or_else(|| lines.last().map(|(name, _)| name.clone()));
            lines.extend(name.map(|name| (name, value)));
        }
        Self(lines)
    }
}

/// Adds the families that are switched on.
pub fn describe(headers: &mut HeaderMap, decision: &Decision<'_>, on: HeaderFamilies) {
    each(decision, on, |name, value| {
        if name == X_WARNING {
            headers.append(name, value);
        } else {
            headers.insert(name, value);
        }
    });
}

/// Every line of the families that are switched on. Only warnings may be several.
fn each(decision: &Decision<'_>, on: HeaderFamilies, mut put: impl FnMut(HeaderName, HeaderValue)) {
    if let Some(scope) = decision.deciding() {
        if on.x_ratelimit {
            x_ratelimit(scope, &mut put);
        }
        if on.ratelimit {
            ratelimit(decision, scope, &mut put);
        }
    }
    if on.retry_after
        && let Some(after) = decision.retry_after()
    {
        put(RETRY_AFTER, number(seconds_up(after).max(1)));
    }
    if on.x_ratelimit {
        for warning in decision.warnings() {
            if let Ok(value) = HeaderValue::try_from(ascii(&warning_text(&warning))) {
                put(X_WARNING, value);
            }
        }
    }
}

/// A limit of 0 is suspended: no time passes after which it admits anything, so headers name none.
pub(crate) const fn is_ever_reset(scope: &Scope<'_>) -> bool {
    scope.quota > 0
}

fn number(value: u64) -> HeaderValue {
    HeaderValue::from(value)
}

fn x_ratelimit(scope: &Scope<'_>, put: &mut impl FnMut(HeaderName, HeaderValue)) {
    let status = &scope.outcome.status;
    put(X_LIMIT, number(scope.quota));
    put(X_REMAINING, number(status.remaining));
    if is_ever_reset(scope) {
        put(X_RESET, number(seconds_up(status.reset_at)));
    }
    let mut policy = String::with_capacity(24);
    push_pair(&mut policy, "", scope.quota);
    push_pair(&mut policy, ";w=", scope.limit.window_seconds);
    if let Ok(policy) = HeaderValue::try_from(policy) {
        put(X_POLICY, policy);
    }
}

/// Structured fields: `"api";r=50;t=30` and `"api";q=1000;w=3600`.
fn ratelimit(
    decision: &Decision<'_>,
    scope: &Scope<'_>,
    put: &mut impl FnMut(HeaderName, HeaderValue),
) {
    let status = &scope.outcome.status;
    let until_reset = seconds_up(status.reset_at.saturating_sub(decision.now));
    let name = &scope.rule.id;
    let mut state = String::with_capacity(name.len() + 32);
    quoted(&mut state, name);
    let mut policy = String::with_capacity(name.len() + 32);
    policy.push_str(&state);
    push_pair(&mut state, ";r=", status.remaining);
    if is_ever_reset(scope) {
        push_pair(&mut state, ";t=", until_reset);
    }
    push_pair(&mut policy, ";q=", scope.quota);
    push_pair(&mut policy, ";w=", scope.limit.window_seconds);
    if let (Ok(state), Ok(policy)) = (HeaderValue::try_from(state), HeaderValue::try_from(policy)) {
        put(RATE_LIMIT, state);
        put(RATE_LIMIT_POLICY, policy);
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
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\') {
        out.push_str(text);
        out.push('"');
        return;
    }
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
