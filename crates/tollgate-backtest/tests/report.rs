//! What a report says, and that nothing in it is more than text.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod support;

use std::fmt::Write as _;

use tollgate_backtest::{Aim, Guard, Mapping};

use support::{file, line, options, rules, run};

fn limit(limit: u64, algorithm: &str) -> String {
    format!(
        "default: false\nrules: [{{rule_id: api, identifier_type: user_id, limit: {limit}, window: 10s, \
         algorithm: {algorithm}}}]\n"
    )
}

/// `ann` sends 100 in ten seconds, `bob` 20, `carl` 5.
fn three_clients() -> String {
    let mut text = String::new();
    for step in 0..100 {
        text += &line(step * 100, "ann");
        if step % 5 == 0 {
            text += &line(step * 100, "bob");
        }
        if step % 20 == 0 {
            text += &line(step * 100, "carl");
        }
    }
    text
}

#[test]
fn a_change_is_said_in_words() {
    let traffic = file(three_clients());
    let mut options = options(&limit(10, "fixed_window"), &[&traffic]);
    options.baseline = Some((rules(&limit(50, "fixed_window")), "live.yaml".to_owned()));
    let report = run(&options).unwrap();
    assert_eq!((report.requests, report.clients), (125, 3));
    assert_eq!(report.before.unwrap().refused, 50);
    assert_eq!((report.after.refused, report.after.refused_clients), (100, 2));
    assert_eq!((report.newly_refused_clients, report.no_longer_refused_clients), (1, 0));
    let text = report.text();
    for sentence in [
        "With the new rules, 2 of 3 clients would be refused at least once; for 1 of them that is new.",
        "100 of 125 requests (80 %) would be refused: 50 more than by the baseline (50, 40 %).",
        "The client that would notice most is user_id ann: 90 of its 100 requests refused (90 %), up to 90 in a row",
    ] {
        assert!(text.contains(sentence), "{text}");
    }
    let [ann, bob] = report.affected_clients.as_slice() else {
        panic!("{:?}", report.affected_clients)
    };
    assert_eq!(
        (ann.client.as_str(), ann.before_refused, ann.after_refused),
        ("user_id ann", 50, 90)
    );
    assert_eq!((bob.longest_run, bob.after_refused, bob.rule_id.as_deref()), (10, 10, Some("api")));
    let endpoint = report.by_endpoint.first().unwrap();
    assert_eq!((endpoint.name.as_str(), endpoint.after_refused), ("GET /a", 100));
    let over_time: u64 = report.by_time.iter().map(|row| row.after_refused).sum();
    assert_eq!(over_time, 100);
}

#[test]
fn guards_are_tested_against_the_figures() {
    let traffic = file(three_clients());
    let mut options = options(&limit(10, "fixed_window"), &[&traffic]);
    let results = [
        ("refused_share>0.79", true),
        ("refused_share>80%", false),
        ("refused_clients>=3", false),
        ("newly_refused_clients>1", true),
        ("client_refused_share>0.89", true),
        ("malformed_share>0", false),
    ];
    options.guards = results.iter().map(|(guard, _)| Guard::parse(guard).unwrap()).collect();
    let report = run(&options).unwrap();
    for (result, (guard, is_broken)) in report.guards.iter().zip(results) {
        assert_eq!((result.guard.as_str(), result.is_broken), (guard, is_broken), "{result:?}");
    }
    assert!(report.is_guard_broken());
}

#[test]
fn recommended_limits_are_within_one_per_cent_of_the_known_answer() {
    // 100 clients, of which client n sends n times 10 requests, all in one window: a limit of
    // L refuses the sum of 10 n - L for all with 10 n > L.
    let mut text = String::new();
    for client in 1..=100_u64 {
        for request in 0..client * 10 {
            let _ = writeln!(text, "{} user{client}", request * 10_000 / (client * 10));
        }
    }
    let mut lines: Vec<(u64, &str)> = text
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(millis, user)| (millis.parse().unwrap(), user))
        .collect();
    lines.sort_by_key(|(millis, _)| *millis);
    let requests: u64 = (1..=100).map(|client| client * 10).sum();
    let traffic = file(lines.iter().map(|(millis, user)| line(*millis, user)).collect::<String>());
    let refused = |limit: u64| -> u64 {
        (1..=100_u64).map(|client| (client * 10).saturating_sub(limit)).sum()
    };
    for (aim, is_met) in [
        (
            "refused_share<=0.1",
            &(|limit: u64| refused(limit) * 10 <= requests) as &dyn Fn(u64) -> bool,
        ),
        ("refused_share<=0.001", &|limit| refused(limit) * 1_000 <= requests),
        ("client_refused_share<=0.05", &|limit| (1_000_u64.saturating_sub(limit)) * 20 <= 1_000),
        ("refused_share<=0", &|limit| refused(limit) == 0),
    ] {
        let known = (1..10_000).find(|limit| is_met(*limit)).unwrap();
        for algorithm in ["fixed_window", "sliding_window_log"] {
            let mut options = options(&limit(100, algorithm), &[&traffic]);
            options.aim = Aim::parse(aim).unwrap();
            let report = run(&options).unwrap();
            let [one] = report.recommendations.as_slice() else { panic!("{aim}") };
            let found = one.recommended.unwrap();
            assert!(
                found.abs_diff(known) * 100 <= known,
                "{algorithm} {aim}: {found}, not {known}"
            );
            assert!(one.curve.is_sorted_by_key(|point| point.limit));
            let shares: Vec<f64> = one.curve.iter().map(|point| point.refused_share).collect();
            assert!(shares.windows(2).all(|two| two[0] >= two[1]), "{shares:?}");
        }
    }
}

#[test]
fn a_recommended_rate_of_a_bucket_is_that_of_the_traffic() {
    // One request every 10 ms for 100 s: 1,000 in a window of 10 s.
    let traffic = file((0..10_000).map(|step| line(step * 10, "ann")).collect::<String>());
    let rules = "default: false\nrules: [{rule_id: api, limit: 10, window: 10s, burst: 5, algorithm: token_bucket}]\n";
    let mut options = options(rules, &[&traffic]);
    options.aim = Aim::parse("refused_share<=0").unwrap();
    let report = run(&options).unwrap();
    let found = report.recommendations.first().unwrap().recommended.unwrap();
    assert!(found.abs_diff(1_000) <= 10, "{found}");
}

#[test]
fn a_burst_that_is_too_small_is_said() {
    let traffic = file((0..50).map(|_| line(0, "ann")).collect::<String>());
    let rules = "default: false\nrules: [{rule_id: api, limit: 10, window: 10s, burst: 5, algorithm: token_bucket}]\n";
    let report = run(&options(rules, &[&traffic])).unwrap();
    let one = report.recommendations.first().unwrap();
    assert_eq!(one.recommended, None);
    assert!(one.note.as_ref().unwrap().contains("raise the burst"), "{one:?}");
}

#[test]
fn rules_that_others_come_before_are_named() {
    let rules = "\
default: false
rules:
  - {rule_id: general, scope: API, limit: 100, window: 1s}
  - {rule_id: special, scope: API, limit: 100, window: 1s, applies_to: {endpoints: [/a]}}
  - {rule_id: other, scope: OTHER, limit: 100, window: 1s, applies_to: {endpoints: [/never]}}
";
    let traffic = file(three_clients());
    let report = run(&options(rules, &[&traffic])).unwrap();
    let [shadow] = report.shadows.as_slice() else { panic!("{:?}", report.shadows) };
    assert_eq!((shadow.rule_id.as_str(), shadow.by.as_str()), ("general", "special"));
    assert!(shadow.is_complete);
    assert_eq!(report.unmet_rules, ["general", "other"]);
}

#[test]
fn nothing_of_the_traffic_is_markup_or_obeyed_by_a_terminal() {
    let hostile = "<script>alert(1)</script>\\\"'><img src=x onerror=alert(1)>\\u001b[2J\\u202e";
    let mut text = String::new();
    for millis in 0..40_u64 {
        let _ = writeln!(
            text,
            "{{\"time\":{},\"user_id\":\"{hostile}\",\"tenant_id\":\"{hostile}\",\"method\":\"<b>\",\"endpoint\":\"/<script>x</script>\"}}",
            1_000_000_000_000 + millis
        );
    }
    text += "</style><script>alert(2)</script>\u{1b}]0;x\u{7}\n";
    let traffic = file(text);
    let mut options = options(&limit(1, "fixed_window"), &[&traffic]);
    options.rules_name = "<script>.yaml\u{1b}".to_owned();
    let report = run(&options).unwrap();
    assert_eq!((report.requests, report.after.refused, report.input.malformed), (40, 39, 1));
    let html = report.html("<now>");
    for markup in ["<script", "<img", "<b>\u{20}", "<now>"] {
        assert!(!html.contains(markup), "{markup}: {html}");
    }
    assert_eq!(html.matches("</style>").count(), 1);
    for text in [html, report.text()] {
        assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()), "{text}");
        assert!(!text.contains('\u{202e}'));
    }
}

#[test]
fn api_keys_are_not_shown() {
    let mut text = String::new();
    for second in 1_000_000_000..1_000_000_005 {
        let _ = writeln!(text, "{{\"time\":{second},\"apiKey\":\"sk-live-secret\"}}");
    }
    let traffic = file(text);
    let rules =
        "default: false\nrules: [{rule_id: api, identifier_type: api_key, limit: 1, window: 1h}]\n";
    let mut options = options(rules, &[&traffic]);
    options.mapping = Mapping::default();
    let report = run(&options).unwrap();
    let everything = report.text() + &report.html("now") + &serde_json::to_string(&report).unwrap();
    assert!(
        everything.contains("api_key #") && !everything.contains("sk-live-secret"),
        "{everything}"
    );
}
