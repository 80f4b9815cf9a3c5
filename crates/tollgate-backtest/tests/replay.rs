//! A replay decides as the engine decided when the traffic was live, one by one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod support;

use std::fmt::Write as _;
use std::sync::Arc;

use proptest::prelude::*;
use tollgate_core::{Nanos, SECOND};
use tollgate_engine::{Amounts, Decision, Engine, ManualClock, MissingKey, Request};
use tollgate_policy::{Known, RequestPath};
use tollgate_recording::{Entry, Header, Sample, VERSION, Writer, header_bytes};
use tollgate_store::{MemoryStore, Mode};

use support::{file, options, rules};

/// Every algorithm, unit, action and kind of key.
const RULES: &str = "\
default: false
no_match: deny
deny_list: ['user_id:u7']
tiers: [{name: free, is_default: true}, {name: gold}]
client_tiers: [{type: user_id, value: u1, tier: gold}]
rules:
  - {rule_id: fixed, scope: A, identifier_type: user_id, limit: 5, window: 1s, algorithm: fixed_window,
     applies_to: {endpoints: [/fixed]}, tier_limits: {gold: 9}}
  - {rule_id: log, scope: B, identifier_type: user_id, limit: 4, window: 2s, algorithm: sliding_window_log,
     applies_to: {endpoints: [/log]}}
  - {rule_id: sliding, scope: C, identifier_type: tenant_id, limit: 6, window: 1s,
     algorithm: sliding_window_counter, applies_to: {endpoints: [/sliding]}}
  - {rule_id: token, scope: D, identifier_type: user_id, limit: 3, window: 1s, burst: 5, algorithm: token_bucket,
     applies_to: {endpoints: [/token]}}
  - {rule_id: leaky, scope: E, limit: 10, window: 1s, algorithm: leaky_bucket, action: throttle, max_delay_ms: 300,
     applies_to: {endpoints: [/leaky]}}
  - {rule_id: gcra, scope: F, identifier_type: composite, key_by: [region], limit: 7, window: 1s, algorithm: gcra,
     applies_to: {endpoints: [/gcra]}}
  - {rule_id: slots, scope: G, unit: concurrency, limit: 3, slot_ttl: 2s, applies_to: {endpoints: [/slots]}}
  - {rule_id: all, scope: ALL, limit: 40, window: 1s, algorithm: fixed_window, unit: cost,
     applies_to: {endpoints: [/fixed, /log, /sliding, /token, /leaky, /gcra, /slots]}}
  - {rule_id: tokens, scope: T, identifier_type: user_id, unit: tokens, limit: 60, window: 3s,
     algorithm: token_bucket, applies_to: {endpoints: [/token, /gcra]}}
  - {rule_id: watched, scope: W, identifier_type: user_id, limit: 2, window: 1s, algorithm: fixed_window,
     action: log_only, applies_to: {endpoints: [/fixed]}}
";

const ENDPOINTS: [&str; 8] =
    ["/fixed", "/log", "/sliding", "/token", "/leaky", "/gcra", "/slots", "/unknown"];

#[derive(Debug, Clone)]
struct Call {
    after: Nanos,
    endpoint: usize,
    user: u8,
    cost: Option<u64>,
    tokens: u64,
}

fn call() -> impl Strategy<Value = Call> {
    let after = prop_oneof![Just(0), 0..30_000_000_u64, 0..400_000_000_u64];
    (after, 0..ENDPOINTS.len(), 0..8_u8, proptest::option::of(1..4_u64), 0..20_u64).prop_map(
        |(after, endpoint, user, cost, tokens)| Call { after, endpoint, user, cost, tokens },
    )
}

/// All of a decision that a caller sees.
fn shown(decision: &Decision<'_>) -> String {
    let mut text = format!(
        "{} {:?} {} {:?} wait {} {:?}",
        decision.now,
        decision.verdict,
        decision.reason_code(),
        decision.deciding().map(|scope| (&scope.rule.id, scope.outcome.status)),
        decision.wait,
        decision.retry_after()
    );
    for scope in decision.scopes().chain(decision.observed()) {
        let _ =
            write!(text, " {} {:?} {:?}", scope.rule.id, scope.quota, scope.outcome.examination);
    }
    text
}

const BEGIN: Nanos = 1_790_000_000_000_000_000;

/// Decides live, and writes down the traffic: as lines, and as a recording.
fn live(calls: &[Call]) -> (Vec<String>, String, Vec<u8>) {
    let clock = Arc::new(ManualClock::new(BEGIN));
    let engine = Engine::new(MemoryStore::new(100_000), Arc::clone(&clock) as _, rules(RULES))
        .with_missing_key(MissingKey::Allow);
    let (mut decisions, mut traffic, mut now) = (Vec::new(), String::new(), BEGIN);
    let header =
        Header { version: VERSION, started_at: now, node: "n".to_owned(), sample: Sample::ALL };
    let (mut recording, mut writer) = (header_bytes(&header).unwrap(), Writer::default());
    for call in calls {
        clock.advance(call.after);
        now += call.after;
        let active = engine.rules();
        let (user, tenant) = (format!("u{}", call.user), format!("t{}", call.user / 3));
        let region = if call.user % 2 == 0 { "eu" } else { "us" };
        let endpoint = ENDPOINTS.get(call.endpoint).unwrap();
        let path = RequestPath::parse(endpoint).unwrap();
        let mut request = Request {
            amounts: Amounts { cost: call.cost, ..Amounts::tokens(call.tokens) },
            ..Request::default()
        };
        request.attributes.set(Known::UserId, &user);
        request.attributes.set(Known::TenantId, &tenant);
        request.attributes.set_path(&path);
        request.attributes.push_extra("region", region);
        let decision = engine.decide_now(&active, &request, Mode::Charge).unwrap().unwrap();
        decisions.push(shown(&decision));
        let entry = Entry {
            at: decision.now,
            verdict: tollgate_recording::Verdict::Allowed,
            is_degraded: false,
            amounts: tollgate_recording::Amounts {
                cost: call.cost,
                tokens: Some(call.tokens),
                ..tollgate_recording::Amounts::default()
            },
            rule_id: None,
            attributes: vec![
                ("user_id", &user),
                ("tenant_id", &tenant),
                ("endpoint", endpoint),
                ("region", region),
            ],
            ..Entry::default()
        };
        recording.extend(writer.push(&entry).unwrap_or_default());
        let cost = call.cost.map_or_else(String::new, |cost| format!(",\"cost\":{cost}"));
        let _ = writeln!(
            traffic,
            "{{\"time\":{now},\"userId\":\"{user}\",\"tenant_id\":\"{tenant}\",\"endpoint\":\"{endpoint}\",\
             \"tokens\":{},\"attributes\":{{\"region\":\"{region}\"}}{cost}}}",
            call.tokens
        );
    }
    recording.extend(writer.finish().unwrap_or_default());
    (decisions, traffic, recording)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 340, ..ProptestConfig::default() })]

    #[test]
    fn every_decision_equals_the_live_one(calls in prop::collection::vec(call(), 1..600)) {
        let (decisions, traffic, recording) = live(&calls);
        for traffic in [file(traffic), file(recording)] {
            let mut replayed = Vec::new();
            let options = options(RULES, &[&traffic]);
            let report = tollgate_backtest::run_observed(&options, &mut |_| {}, &mut |decision| {
                replayed.push(shown(decision));
            })
            .unwrap();
            prop_assert_eq!(report.requests, calls.len() as u64);
            prop_assert_eq!(report.input.malformed, 0);
            for (number, (live, replayed)) in decisions.iter().zip(&replayed).enumerate() {
                prop_assert_eq!(live, replayed, "decision {}", number);
            }
            prop_assert_eq!(decisions.len(), replayed.len());
        }
    }
}

#[test]
fn a_sample_names_the_rules_that_it_cannot_judge() {
    let sample = Sample { per_million: 250_000, by: Some("user_id".to_owned()) };
    let header = Header { version: VERSION, started_at: BEGIN, node: "n".to_owned(), sample };
    let mut writer = Writer::default();
    let entry = Entry {
        at: BEGIN,
        verdict: tollgate_recording::Verdict::Refused,
        is_degraded: false,
        amounts: tollgate_recording::Amounts::default(),
        rule_id: None,
        attributes: vec![("user_id", "ann"), ("endpoint", "/fixed")],
        ..Entry::default()
    };
    assert!(writer.push(&entry).is_none());
    writer.add_dropped(3);
    let whole = [header_bytes(&header).unwrap(), writer.finish().unwrap()].concat();
    let cut = [whole.clone(), vec![1, 2, 3]].concat();
    let traffic = file(&cut);
    let report = support::run(&options(RULES, &[&traffic])).unwrap();
    let notes = report.input.notes.join("\n");
    assert_eq!((report.requests, report.logged_429), (1, 1));
    for part in [
        "ends early: the recording ends within block 2",
        "did not record 3 decisions",
        "holds 25 % of the values of user_id",
        "cannot be judged from a sample by it: sliding, leaky, gcra, slots, all",
    ] {
        assert!(notes.contains(part), "{part} is missing from:\n{notes}");
    }
    let traffic = file(b"no recording");
    let mut options = options(RULES, &[&traffic]);
    options.format = tollgate_backtest::Format::Recording;
    let error = support::run(&options).unwrap_err().to_string();
    assert!(error.contains("this is not a recording of Tollgate"), "{error}");
}

/// Windows of `active_when` are by the time of the traffic, not by that of the replay.
#[test]
fn schedules_hold_at_the_time_of_the_traffic() {
    let rules = "
default: none
rules:
  - {rule_id: night, limit: 1, window: 30d, algorithm: fixed_window,
     active_when: [{days: [fri], from: \"22:00\", to: \"06:00\", timezone: Europe/Berlin}]}
";
    // A request an hour from Friday, 2026-07-10T12:00:00Z on; in Berlin it is two hours later.
    let noon = 1_783_684_800_u64;
    let line = |hour: u64| format!("{{\"time\":{},\"user_id\":\"ann\"}}\n", noon + hour * 3_600);
    let traffic = file((0..24).map(line).collect::<Vec<_>>().concat());
    let mut refused = Vec::new();
    let options = options(rules, &[&traffic]);
    let report = tollgate_backtest::run_observed(&options, &mut |_| {}, &mut |decision| {
        if !decision.is_allowed() {
            refused.push((decision.now / SECOND - noon) / 3_600);
        }
    })
    .unwrap();
    assert_eq!(report.requests, 24);
    // Active from 20:00 to 04:00 UTC: the first of those hours passes.
    assert_eq!(refused, (9..16).collect::<Vec<_>>());
}
