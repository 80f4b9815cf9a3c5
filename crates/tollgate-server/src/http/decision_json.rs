//! A decision as JSON, written straight into the response.
//!
//! This is the one body that is written for every request, so it is written by hand; its shape is
//! [`DecisionBody`](super::wire::DecisionBody), and a test holds the two together.

use tollgate_engine::{Decision, Reason, Scope, Verdict};
use tollgate_policy::prices::format_nanos;
use tollgate_tower::headers::warning_text;

use super::time::Rfc3339;
use super::wire::millis_up;

/// Appends the decision.
pub(crate) fn write_decision(out: &mut Vec<u8>, decision: &Decision<'_>) {
    let allowed = decision.is_allowed();
    let deciding = decision.deciding();
    let mut json = Json(out);
    json.raw(if allowed { "{\"allowed\":true" } else { "{\"allowed\":false" });
    json.raw(",\"reason\":").text(decision.reason_code());
    let hit = deciding.filter(|_| !allowed);
    json.raw(",\"scopeHit\":").or_null(hit, |json, scope| json.text(&scope.rule.scope));
    json.raw(",\"ruleId\":").or_null(deciding, |json, scope| json.text(&scope.rule.id));
    json.raw(",\"effectiveLimit\":").or_null(decision.effective_limit(), Json::number);
    let status = deciding.map(|scope| scope.outcome.status);
    json.raw(",\"remaining\":").or_null(status, |json, status| json.number(status.remaining));
    json.raw(",\"resetAt\":").or_null(status, |json, status| json.instant(status.reset_at));
    let retry = decision.retry_after().map(millis_up);
    json.raw(",\"retryAfterMs\":").or_null(retry, Json::number);
    json.raw(",\"waitMs\":").number(millis_up(decision.wait));
    json.raw(",\"warnings\":[");
    json.list(decision.warnings(), |json, warning| json.text(&warning_text(&warning)));
    match decision.degraded_reason() {
        None => json.raw("],\"degraded\":false"),
        Some(reason) => json.raw("],\"degraded\":true,\"degradedReason\":").text(&reason),
    };
    if decision.would_deny().next().is_some() {
        json.raw(",\"wouldDeny\":[");
        json.list(decision.would_deny(), |json, scope| {
            json.raw("{\"name\":").text(&scope.rule.scope);
            json.raw(",\"ruleId\":").text(&scope.rule.id);
            json.raw(",\"reason\":").text(&scope.rule.reason).raw("}")
        });
        json.raw("]");
    }
    match decision.verdict {
        Verdict::Denied => json.raw(",\"action\":\"reject\""),
        Verdict::Queued => json.raw(",\"action\":\"queue\""),
        Verdict::Allowed | Verdict::Throttled => &mut json,
    };
    if !allowed {
        json.raw(",\"explanation\":").text(&decision.explain());
    }
    if let Some(id) = decision.reservation_id() {
        json.raw(",\"reservationId\":").text(&format!("{id:032x}"));
    }
    if let Some(held) = decision.reservation {
        json.raw(",\"expiresAt\":").instant(held.expires_at);
    }
    json.raw(",\"rulesVersion\":").number(decision.rules_version);
    if decision.reason == Reason::StoreUnavailable {
        json.raw(",\"error\":{\"code\":\"STORE_UNAVAILABLE\",\"message\":");
        json.text(&decision.explain()).raw("}");
    }
    json.raw(",\"scopes\":[");
    json.list(decision.scopes(), |json, scope| json.scope(scope));
    json.raw("]}");
}

struct Json<'a>(&'a mut Vec<u8>);

impl Json<'_> {
    /// Text that is JSON already.
    fn raw(&mut self, text: &str) -> &mut Self {
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    /// A string. Nearly none needs an escape.
    fn text(&mut self, text: &str) -> &mut Self {
        if is_plain(text.as_bytes()) {
            self.0.push(b'"');
            self.0.extend_from_slice(text.as_bytes());
            self.0.push(b'"');
        } else if serde_json::to_writer(&mut *self.0, text).is_err() {
            // Writing a string to memory does not fail.
            self.raw("null");
        }
        self
    }

    fn number(&mut self, value: u64) -> &mut Self {
        let mut buffer = itoa::Buffer::new();
        self.raw(buffer.format(value))
    }

    fn instant(&mut self, at: u64) -> &mut Self {
        self.0.push(b'"');
        self.0.extend_from_slice(&Rfc3339(at).text());
        self.0.push(b'"');
        self
    }

    fn or_null<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T) -> &mut Self) {
        match value {
            Some(value) => write(self, value),
            None => self.raw("null"),
        };
    }

    fn list<T>(
        &mut self,
        items: impl Iterator<Item = T>,
        mut write: impl FnMut(&mut Self, T) -> &mut Self,
    ) {
        for (index, item) in items.enumerate() {
            if index > 0 {
                self.raw(",");
            }
            write(self, item);
        }
    }

    fn scope(&mut self, scope: &Scope<'_>) -> &mut Self {
        let status = &scope.outcome.status;
        self.raw("{\"name\":").text(&scope.rule.scope);
        self.raw(",\"ruleId\":").text(&scope.rule.id);
        self.raw(",\"limit\":").number(scope.quota);
        if scope.capacity != scope.quota {
            self.raw(",\"burst\":").number(scope.capacity);
        }
        self.raw(",\"current\":").number(status.used);
        self.raw(",\"remaining\":").number(status.remaining);
        self.raw(",\"resetAt\":").instant(status.reset_at);
        self.raw(",\"windowSeconds\":").number(scope.limit.window_seconds);
        if let Some(currency) = scope.rule.currency {
            self.raw(",\"money\":{\"currency\":").text(currency.code());
            self.raw(",\"limit\":").text(&format_nanos(scope.quota));
            self.raw(",\"current\":").text(&format_nanos(status.used));
            self.raw(",\"remaining\":").text(&format_nanos(status.remaining)).raw("}");
        }
        self.raw("}")
    }
}

/// The same byte in all places of a word.
const fn everywhere(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// Whether no byte needs an escape: no quote, no backslash, nothing below a space. Eight at a time.
fn is_plain(text: &[u8]) -> bool {
    // As their high bits; exact as long as it is only asked whether there are any.
    let below =
        |word: u64, bound: u8| word.wrapping_sub(everywhere(bound)) & !word & everywhere(0x80);
    let special = |word: u64| {
        below(word, b' ') | below(word ^ everywhere(b'"'), 1) | below(word ^ everywhere(b'\\'), 1)
    };
    let (words, rest) = text.as_chunks();
    let mut last = [b' '; 8];
    for (place, byte) in last.iter_mut().zip(rest) {
        *place = *byte;
    }
    let all = words.iter().fold(special(u64::from_le_bytes(last)), |found, word| {
        found | special(u64::from_le_bytes(*word))
    });
    all == 0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_engine::{Amounts, Engine, ManualClock, Request};
    use tollgate_policy::{Known, RuleSet};
    use tollgate_store::MemoryStore;

    use super::{is_plain, write_decision};
    use crate::http::wire::DecisionBody;

    const RULES: &str = r#"
deny_list: [{type: user_id, value: mallory, reason: "quotes \" and \\ and ü"}]
rules:
  - {rule_id: 'odd "id" \ ü', scope: 'S "x"', identifier_type: user_id, limit: 3, window: 1m, soft_limit: 0.3}
  - {rule_id: burst, scope: B, identifier_type: user_id, limit: 60, burst: 2, window: 1m, algorithm: gcra}
  - {rule_id: watch, identifier_type: user_id, limit: 1, window: 1h, algorithm: fixed_window, action: log_only}
  - {rule_id: slots, identifier_type: user_id, limit: 5, unit: concurrency}
  - {rule_id: budget, identifier_type: user_id, unit: money, currency: USD, limit: "5.25", calendar: month}
"#;

    #[test]
    fn every_byte_is_plain_or_escaped_wherever_it_stands() {
        for length in 1..20 {
            for place in 0..length {
                for byte in 0..=u8::MAX {
                    let mut text = vec![b'a'; length];
                    text[place] = byte;
                    let expected = !matches!(byte, b'"' | b'\\' | 0..0x20);
                    assert_eq!(is_plain(&text), expected, "{byte} at {place} of {length}");
                }
            }
        }
        assert!(is_plain(b""));
    }

    /// What is written by hand is what serde would write.
    #[tokio::test]
    async fn the_two_shapes_are_one() {
        let rules = RuleSet::from_yaml(RULES, "rules").unwrap();
        let clock = Arc::new(ManualClock::new(1_794_740_000_123_456_789));
        let engine = Engine::new(MemoryStore::new(1_000), clock, rules)
            .with_missing_key(tollgate_engine::MissingKey::Allow);
        let mut seen_refused = false;
        for (user, cost, reserve) in [
            ("ann", 1, None),
            ("ann", 1, Some(60_000_000_000)),
            ("ann", 1, None),
            ("ann", 9, None),
            ("mallory", 1, None),
            ("", 1, Some(1)),
        ] {
            let rules = engine.rules();
            let mut request =
                Request { amounts: Amounts::cost(cost), reserve, ..Request::default() };
            request.attributes.set(Known::UserId, user);
            let show = |decision: &tollgate_engine::Decision<'_>| {
                let mut written = Vec::new();
                write_decision(&mut written, decision);
                let expected = serde_json::to_string(&DecisionBody::new(decision)).unwrap();
                assert_eq!(String::from_utf8(written).unwrap(), expected);
                decision.is_allowed()
            };
            seen_refused |= !engine.decide_once(&rules, &request, show).await.unwrap();
        }
        assert!(seen_refused);
    }
}
