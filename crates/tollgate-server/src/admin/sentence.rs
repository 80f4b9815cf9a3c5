//! A decision as a sentence, for people.

use std::fmt::Write as _;

use tollgate_control::DecisionRecord;
use tollgate_control::draft::rfc3339;

/// What happened to whom, by which rule, and when it would pass:
/// `ann was refused by per-user: 100 of 100 used in 60 s, would pass in 12 s`.
pub(crate) fn sentence(record: &DecisionRecord) -> String {
    let who = record.user_id.as_deref().unwrap_or(&record.client_id);
    let who = if who.is_empty() { "an unnamed client" } else { who };
    let verb = match record.action.as_str() {
        "rejected" => "was refused",
        "throttled" => "was delayed",
        "queued" => "was queued",
        "would_deny" => "would have been refused",
        _ => "was allowed",
    };
    let mut text = format!("{who} {verb}");
    // Writing to memory does not fail.
    if let Some(rule) = &record.rule_id {
        let _ = write!(text, " by {rule}");
    }
    if let Some(count) = record.repeat_count {
        let _ = write!(text, " {count} times");
        if let Some(first) = record.first_at {
            let _ = write!(text, " from {} to {}", rfc3339(first), rfc3339(record.at));
        }
    }
    let mut why = Vec::new();
    why.extend(usage(record));
    if record.rule_id.is_none() || record.reason == "COST_EXCEEDS_LIMIT" {
        why.push(reason(&record.reason, record.cost));
    }
    why.extend(record.retry_after_ms.map(|millis| format!("would pass in {}", seconds(millis))));
    if let Some(kept) = record.kept_count {
        why.push(format!("{kept} kept in full"));
    }
    if record.action != "would_deny" && !record.would_deny.is_empty() {
        why.push(format!("would also be refused by {}", record.would_deny.join(", ")));
    }
    if !why.is_empty() {
        text.push_str(": ");
        text.push_str(&why.join(", "));
    }
    text
}

/// How much of the limit was used.
fn usage(record: &DecisionRecord) -> Option<String> {
    let (used, limit) = (record.request_count?, record.limit_count?);
    Some(match record.window_seconds {
        Some(0) => format!("{used} of {limit} in use"),
        Some(window) => format!("{used} of {limit} used in {window} s"),
        None => format!("{used} of {limit} used"),
    })
}

/// Why, where no limit says it.
fn reason(code: &str, cost: i64) -> String {
    match code {
        "DENY_LISTED" => "it is on the deny list".to_owned(),
        "ALLOW_LISTED" => "it is on the allow list".to_owned(),
        "NO_MATCH" => "no rule applies to it".to_owned(),
        "COST_EXCEEDS_LIMIT" => format!("its cost of {cost} can never pass"),
        "MISSING_KEY" => "it lacks the key of a rule".to_owned(),
        "ENFORCEMENT_OFF" => "enforcement is off".to_owned(),
        "STORE_UNAVAILABLE" => "the store was not available".to_owned(),
        code => code.to_owned(),
    }
}

/// Milliseconds as seconds, exact and without trailing zeros.
fn seconds(millis: i64) -> String {
    let text = format!("{}.{:03}", millis / 1_000, (millis % 1_000).abs());
    format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> DecisionRecord {
        DecisionRecord {
            action: "rejected".to_owned(),
            reason: "HIT_USER_LIMIT".to_owned(),
            client_id: "ann".to_owned(),
            rule_id: Some("per-user".to_owned()),
            request_count: Some(100),
            limit_count: Some(100),
            window_seconds: Some(60),
            retry_after_ms: Some(12_000),
            cost: 1,
            ..DecisionRecord::default()
        }
    }

    #[test]
    fn decisions_are_sentences() {
        let figures = "100 of 100 used in 60 s, would pass in 12 s";
        assert_eq!(sentence(&record()), format!("ann was refused by per-user: {figures}"));
        let watched = DecisionRecord { action: "would_deny".to_owned(), ..record() };
        assert_eq!(
            sentence(&watched),
            format!("ann would have been refused by per-user: {figures}")
        );
        let many = DecisionRecord {
            repeat_count: Some(900),
            kept_count: Some(5),
            first_at: Some(0),
            at: 1_000,
            retry_after_ms: None,
            ..record()
        };
        assert_eq!(
            sentence(&many),
            "ann was refused by per-user 900 times from 1970-01-01T00:00:00Z to \
             1970-01-01T00:00:01Z: 100 of 100 used in 60 s, 5 kept in full"
        );
        let slots = DecisionRecord {
            window_seconds: Some(0),
            retry_after_ms: Some(1_250),
            would_deny: vec!["trial".to_owned()],
            ..record()
        };
        assert_eq!(
            sentence(&slots),
            "ann was refused by per-user: 100 of 100 in use, would pass in 1.25 s, would also be \
             refused by trial"
        );
        let listed = DecisionRecord {
            action: "rejected".to_owned(),
            reason: "DENY_LISTED".to_owned(),
            client_id: "mallory".to_owned(),
            ..DecisionRecord::default()
        };
        assert_eq!(sentence(&listed), "mallory was refused: it is on the deny list");
    }
}
