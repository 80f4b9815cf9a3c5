use std::sync::Arc;

use tollgate_control::DecisionRecord;
use tollgate_engine::{Engine, ManualClock, Request};
use tollgate_policy::{Attributes, Known, RuleSet};
use tollgate_store::{MemoryStore, Mode, api_key_id};

use super::*;

const NOW: u64 = 1_767_225_600_000_000_000;
const SECRET: &[u8] = b"a secret of the installation";

/// An engine that reports its decisions to the trail. Everyone has one request a second.
fn engine(trail: &Arc<AuditTrail>) -> Engine<MemoryStore> {
    let text = r#"
default: false
deny_list: ["user_id:mallory"]
rules:
  - {rule_id: per-client, scope: "Api v1", identifier_type: client, limit: 1, window: 10s, algorithm: fixed_window}
  - {rule_id: slow, identifier_type: tenant_id, limit: 2, window: 1s, algorithm: leaky_bucket, action: throttle, max_delay_ms: 500}
"#;
    let set = RuleSet::from_yaml(text, "t").unwrap();
    let engine = Engine::new(MemoryStore::new(1_000), Arc::new(ManualClock::new(NOW)), set);
    engine
        .with_missing_key(tollgate_engine::MissingKey::Allow)
        .with_observer(Arc::clone(trail) as Arc<dyn Observer>)
}

fn request<'a>(pairs: &[(Known, &'a str)]) -> Request<'a> {
    let mut attributes = Attributes::default();
    for (known, value) in pairs {
        attributes.set(*known, value);
    }
    Request { attributes, ..Request::default() }
}

/// Decides the request of these attributes so many times.
fn decide(engine: &Engine<MemoryStore>, pairs: &[(Known, &str)], times: u64) {
    let rules = engine.rules();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let asked = Request { request_id: Some("id-1"), ..request(pairs) };
    for _ in 0..times {
        runtime.block_on(engine.decide(&rules, &asked, Mode::Charge)).unwrap();
    }
}

#[test]
fn a_refusal_is_reported_with_all_that_is_known_of_it() {
    let trail = Arc::new(AuditTrail::new(0, 1 << 20, SECRET));
    let engine = engine(&trail);
    let asked = [
        (Known::ApiKey, "sk-live"),
        (Known::UserId, "ann"),
        (Known::TenantId, "acme"),
        (Known::Ip, "10.0.0.1"),
        (Known::ModelId, "gpt"),
        (Known::Endpoint, "/v1/chat"),
        (Known::Method, "POST"),
    ];
    decide(&engine, &asked, 1);
    assert_eq!(trail.drain(10), []);
    decide(&engine, &asked, 1);
    let mut drained = trail.drain(10);
    let key = api_key_id(SECRET, "sk-live");
    let record = drained.pop().unwrap();
    assert_eq!(record.event_id.len(), 32);
    let text = |text: &str| Some(text.to_owned());
    let expected = DecisionRecord {
        event_id: record.event_id.clone(),
        at: 1_767_225_600_000,
        action: "rejected".into(),
        reason: "HIT_API_V1_LIMIT".into(),
        client_id: key.clone(),
        rule_id: text("per-client"),
        scope: text("Api v1"),
        request_count: Some(1),
        limit_count: Some(1),
        retry_after_ms: Some(10_000),
        window_seconds: Some(10),
        endpoint: text("/v1/chat"),
        method: text("POST"),
        ip_address: text("10.0.0.1"),
        user_id: text("ann"),
        tenant_id: text("acme"),
        api_key_id: Some(key),
        model_id: text("gpt"),
        request_id: text("id-1"),
        cost: 1,
        node: String::new(),
        revision: 1,
        ..DecisionRecord::default()
    };
    assert_eq!(record, expected);
    assert_eq!((drained.len(), trail.drain(10)), (0, Vec::new()));
}

#[test]
fn would_deny_outcomes_are_noted_apart_from_refusals() {
    let trail = Arc::new(AuditTrail::new(0, 1 << 20, SECRET));
    let text = r#"
default: false
deny_list: ["user_id:mallory"]
rules:
  - {rule_id: enforced, scope: USER, identifier_type: user_id, limit: 2, window: 10s, algorithm: fixed_window}
  - {rule_id: watched, scope: TRIAL, identifier_type: user_id, limit: 1, window: 20s, algorithm: fixed_window, action: log_only}
"#;
    let set = RuleSet::from_yaml(text, "t").unwrap();
    let engine = Engine::new(MemoryStore::new(1_000), Arc::new(ManualClock::new(NOW)), set)
        .with_observer(Arc::clone(&trail) as Arc<dyn Observer>);
    let ann = [(Known::UserId, "ann")];
    decide(&engine, &ann, 3);
    engine.set_enforcement(tollgate_engine::Enforcement::Shadow);
    decide(&engine, &ann, 1);
    decide(&engine, &[(Known::UserId, "mallory")], 1);
    let drained = trail.drain(10);
    let seen: Vec<_> = drained
        .iter()
        .map(|one| {
            let rules = one.would_deny.join(",");
            (one.action.as_str(), one.reason.as_str(), one.rule_id.as_deref(), rules)
        })
        .collect();
    let expected = [
        ("would_deny", "HIT_TRIAL_LIMIT", Some("watched"), "watched".to_owned()),
        ("rejected", "HIT_USER_LIMIT", Some("enforced"), "watched".to_owned()),
        ("would_deny", "HIT_USER_LIMIT", Some("enforced"), "enforced,watched".to_owned()),
        ("would_deny", "DENY_LISTED", None, String::new()),
    ];
    assert_eq!(seen, expected);
    let first = &drained[0];
    assert_eq!((first.request_count, first.limit_count), (Some(1), Some(1)));
    assert_eq!((first.window_seconds, first.retry_after_ms.is_some()), (Some(20), true));
}

#[test]
fn the_client_is_the_first_that_names_it() {
    let trail = Arc::new(AuditTrail::new(1, 1 << 20, SECRET));
    let engine = engine(&trail);
    let (user, ip, tenant) =
        ((Known::UserId, "ann"), (Known::Ip, "10.0.0.1"), (Known::TenantId, "t"));
    for pairs in [&[user, ip, tenant][..], &[ip, tenant], &[tenant], &[]] {
        decide(&engine, pairs, 1);
    }
    decide(&engine, &[(Known::UserId, "mallory")], 1);
    let drained = trail.drain(10);
    let clients: Vec<&str> = drained.iter().map(|record| record.client_id.as_str()).collect();
    assert_eq!(clients, ["ann", "10.0.0.1", "t", "", "mallory"]);
    // The second of the tenant's three has to wait its turn.
    let actions: Vec<&str> = drained.iter().map(|record| record.action.as_str()).collect();
    assert_eq!(actions, ["allowed", "throttled", "rejected", "allowed", "rejected"]);
    assert_eq!(
        (drained[3].reason.as_str(), &drained[3].rule_id, drained[3].limit_count),
        ("NO_MATCH", &None, None)
    );
    assert_eq!((drained[4].reason.as_str(), drained[4].retry_after_ms), ("DENY_LISTED", None));
}

#[test]
fn long_values_are_cut_between_characters() {
    let trail = Arc::new(AuditTrail::new(1, 1 << 20, SECRET));
    let engine = engine(&trail);
    let long = format!("/{}", "\u{e9}".repeat(200));
    decide(&engine, &[(Known::Endpoint, &long)], 1);
    let drained = trail.drain(1);
    let endpoint = drained[0].endpoint.as_deref().unwrap();
    assert!(long.starts_with(endpoint) && endpoint.len() == 255, "{}", endpoint.len());
}

#[test]
fn allowed_decisions_are_sampled_in_turn() {
    // The count is the thread's own, so this test has a thread of its own.
    let sampling = std::thread::spawn(|| {
        let trail = Arc::new(AuditTrail::new(4, 1 << 20, SECRET));
        let engine = engine(&trail);
        decide(&engine, &[], 40);
        assert_eq!(trail.drain(100).len(), 10);
    });
    sampling.join().unwrap();
    let never = Arc::new(AuditTrail::new(0, 1 << 20, SECRET));
    let engine = engine(&never);
    decide(&engine, &[], 1);
    assert_eq!(never.figures(), AuditFigures::default());
}

#[test]
fn a_flood_is_bounded_and_everything_is_counted() {
    const FLOOD: u64 = 1_000_000;
    for most_bytes in [1 << 16, 16 << 20] {
        let trail = Arc::new(AuditTrail::new(0, most_bytes, SECRET));
        let engine = engine(&trail);
        let asked = [(Known::UserId, "mallory"), (Known::Endpoint, "/v1/chat/completions")];
        decide(&engine, &asked, FLOOD);
        let AuditFigures { recorded, dropped, buffered, buffered_bytes } = trail.figures();
        assert_eq!(recorded, buffered);
        assert_eq!(dropped + buffered, FLOOD);
        let bytes = trail.pool.bytes();
        assert!(bytes <= most_bytes && buffered_bytes <= bytes as u64, "{bytes}");
        // The room is used, whatever the chunks.
        assert!(buffered >= most_bytes as u64 / 512, "{buffered}");
        let mut drained = 0;
        let mut ids = std::collections::HashSet::new();
        loop {
            let records = trail.drain(1_000);
            if records.is_empty() {
                break;
            }
            drained += records.len() as u64;
            assert!(records.iter().all(|record| record.client_id == "mallory"));
            ids.extend(records.into_iter().map(|record| record.event_id));
        }
        assert_eq!((drained, ids.len() as u64), (buffered, buffered));
        assert_eq!((trail.figures().buffered, trail.figures().buffered_bytes), (0, 0));
        // There is room again.
        decide(&engine, &asked, 1);
        assert_eq!(trail.drain(10).len(), 1);
    }
}

#[test]
fn threads_do_not_lose_what_is_reported_meanwhile() {
    const EACH: u64 = 20_000;
    let trail = Arc::new(AuditTrail::new(0, 16 << 20, SECRET));
    let engine = engine(&trail);
    let drained = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| decide(&engine, &[(Known::UserId, "mallory")], EACH)))
            .collect();
        let mut drained = 0;
        while writers.iter().any(|writer| !writer.is_finished()) {
            drained += trail.drain(100).len() as u64;
        }
        for writer in writers {
            writer.join().unwrap();
        }
        drained
    });
    let rest = trail.drain(usize::MAX).len() as u64;
    let figures = trail.figures();
    assert_eq!((drained + rest, figures.buffered), (figures.recorded, 0));
    assert_eq!(figures.recorded + figures.dropped, 4 * EACH);
}
