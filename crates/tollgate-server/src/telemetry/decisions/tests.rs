//! What is made of decisions, tested with an engine on a clock of its own.

use std::collections::{BTreeSet, HashMap};
use std::io::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::Value;
use tollgate_core::SECOND;
use tollgate_engine::{Engine, ManualClock, Request};
use tollgate_policy::{Known, RuleSet};
use tollgate_store::MemoryStore;

use super::sketch::Sketch;
use super::*;

const START: Nanos = 1_700_000_000 * SECOND;
pub(super) const BOUNDS: WitnessBounds = WitnessBounds {
    labels: LabelBounds { scopes: 8, models: 4, tenants: 10, label_sets: 40 },
    top: TopBounds { keys: 100, rules: 8 },
};

const RULES: &str = "
rules:
  - {rule_id: per-tenant, identifier_type: tenant_id, limit: 100, window: 1h, scope: TENANT}
  - {rule_id: per-key, identifier_type: api_key, limit: 3, window: 1h, scope: KEY}
  - {rule_id: everyone, identifier_type: global, limit: 1000000, window: 1h, scope: ALL}
default: false
";

pub(super) fn engine(witness: &Arc<Witness>) -> Engine<MemoryStore> {
    let rules = RuleSet::from_yaml(RULES, "t").unwrap();
    Engine::new(MemoryStore::new(100_000), Arc::new(ManualClock::new(START)), rules)
        .with_missing_key(tollgate_engine::MissingKey::Allow)
        .with_observer(Arc::<Witness>::clone(witness))
}

pub(super) fn witness(bounds: WitnessBounds) -> Arc<Witness> {
    Arc::new(Witness::new(bounds, 7, b"a secret of some length", START))
}

pub(super) fn ask(engine: &Engine<MemoryStore>, attributes: &[(Known, &str)]) -> bool {
    let rules = engine.rules();
    let mut request = Request::default();
    for (name, value) in attributes {
        request.attributes.set(*name, value);
    }
    let decided = engine.decide(&rules, &request, tollgate_store::Mode::Charge);
    let decision = futures_util::FutureExt::now_or_never(decided).unwrap().unwrap();
    decision.is_allowed()
}

fn counts(witness: &Witness) -> HashMap<(String, String, String), [u64; 5]> {
    let key = |one: &Series| (one.scope.to_string(), one.model.to_string(), one.tenant.to_string());
    witness.tally().read().iter().map(|one| (key(one), one.counts)).collect()
}

fn labels(scope: &str, model: &str, tenant: &str) -> (String, String, String) {
    (scope.to_owned(), model.to_owned(), tenant.to_owned())
}

#[test]
fn every_decision_is_counted_once_under_the_scope_that_decided() {
    let witness = witness(BOUNDS);
    let engine = engine(&witness);
    let asked = [(Known::TenantId, "acme"), (Known::ModelId, "gpt4"), (Known::ApiKey, "k")];
    let allowed = (0..5).filter(|_| ask(&engine, &asked)).count();
    assert_eq!(allowed, 3);
    assert!(ask(&engine, &[]));
    let counts = counts(&witness);
    assert_eq!(counts[&labels("KEY", "gpt4", "acme")], [3, 2, 0, 0, 0]);
    assert_eq!(counts[&labels("ALL", "none", "none")], [1, 0, 0, 0, 0]);
    let total: u64 = counts.values().flatten().sum();
    assert_eq!(total, 6);
    let full = |one: &&Series| one.scope.as_ref() == "KEY" && (one.highest - 1.0).abs() < 1e-6;
    assert_eq!(witness.tally().read().iter().filter(full).count(), 1, "the key's limit is used up");
    // Reported shares cover this period and the one before, and no more.
    witness.tally().turn();
    assert_eq!(witness.tally().read().iter().filter(full).count(), 1);
    witness.tally().turn();
    assert_eq!(witness.tally().read().iter().filter(full).count(), 0);
}

#[test]
fn labels_are_bounded_and_nothing_is_lost() {
    let witness = witness(BOUNDS);
    let engine = engine(&witness);
    for number in 0..1_000 {
        let tenant = format!("t{}", number % 20);
        let model = format!("m{}", number / 20 % 7);
        ask(&engine, &[(Known::TenantId, &tenant), (Known::ModelId, &model)]);
    }
    let counts = counts(&witness);
    // 40 combinations, and the rest of each scope.
    assert!(counts.len() <= 40 + 8 + 2, "{}", counts.len());
    assert_eq!(counts.values().flatten().sum::<u64>(), 1_000);
    let (sets, refused) = witness.tally().sets();
    assert!(sets <= 50 && refused > 0);
    let of_own = |(_, _, tenant): &&(String, String, String)| tenant.starts_with('t');
    let own: std::collections::HashSet<_> =
        counts.keys().filter(of_own).map(|key| &key.2).collect();
    assert!(own.len() <= 10, "{own:?}");
}

#[test]
fn two_series_never_have_the_same_labels() {
    let witness = witness(BOUNDS);
    let engine = engine(&witness);
    for number in 0..50 {
        ask(&engine, &[(Known::TenantId, &format!("t{number}"))]);
    }
    for tenant in ["other", "none"] {
        ask(&engine, &[(Known::TenantId, tenant)]);
    }
    ask(&engine, &[]);
    let series = witness.tally().read();
    assert_eq!(series.len(), counts(&witness).len());
}

#[test]
fn the_busiest_tenants_get_labels_of_their_own() {
    let witness = witness(BOUNDS);
    let engine = engine(&witness);
    for number in 0..20 {
        ask(&engine, &[(Known::TenantId, &format!("early{number}"))]);
    }
    for _ in 0..50 {
        ask(&engine, &[(Known::TenantId, "late")]);
    }
    assert!(counts(&witness).keys().all(|key| key.2 != "late"));
    let round = || {
        witness.tally().reclaim();
        let (busiest, floor) = witness.tops().busiest(Known::TenantId, 5);
        let seen: Vec<(&str, u64)> =
            busiest.iter().map(|one| (one.name.as_str(), one.count)).collect();
        assert_eq!(seen.first().map(|one| one.0), Some("late"));
        witness.tally().prefer(Label::Tenant, &seen, floor);
    };
    round();
    assert_eq!(witness.tally().totals(), [70, 0, 0, 0, 0], "nothing is lost when a label goes");
    for _ in 0..30 {
        ask(&engine, &[(Known::TenantId, "late")]);
    }
    let after = counts(&witness);
    assert_eq!(after[&labels("TENANT", "none", "late")], [30, 0, 0, 0, 0]);
    assert!(after.len() <= 50);
    // Those who are seen no more often than the others stay where they are.
    let early = || -> BTreeSet<String> {
        let tenants = counts(&witness).into_keys().map(|(_, _, tenant)| tenant);
        tenants.filter(|tenant| tenant.starts_with("early")).collect()
    };
    let before = early();
    round();
    assert_eq!((before.len(), early()), (9, before));
    // The places that were given up are used again, empty.
    ask(&engine, &[(Known::TenantId, "late"), (Known::ModelId, "new")]);
    assert_eq!(counts(&witness)[&labels("TENANT", "new", "late")], [1, 0, 0, 0, 0]);
    assert_eq!(witness.tally().totals(), [101, 0, 0, 0, 0]);
}

#[test]
fn combinations_without_a_place_are_never_counted_under_another() {
    let labels_of = LabelBounds { scopes: 1, models: 100, tenants: 2, label_sets: 5 };
    let witness = witness(WitnessBounds { labels: labels_of, ..BOUNDS });
    let engine = engine(&witness);
    ask(&engine, &[]);
    for round in 0_u64..50 {
        for number in 0..20 {
            let model = format!("m{}", (round * 7 + number) % 60);
            ask(&engine, &[(Known::ModelId, &model), (Known::TenantId, &format!("t{round}"))]);
        }
        witness.tally().reclaim();
        let busy = format!("t{round}");
        witness.tally().prefer(Label::Tenant, &[(&busy, 1_000_000)], 0);
        let first = counts(&witness)[&labels("ALL", "none", "none")];
        assert_eq!(first, [1, 0, 0, 0, 0], "round {round}");
        assert!(counts(&witness).len() <= 5 + 1 + 2);
    }
    assert_eq!(witness.tally().totals(), [1_001, 0, 0, 0, 0]);
}

#[test]
fn top_keys_name_who_consumes_and_who_is_refused_and_hide_api_keys() {
    let witness = witness(BOUNDS);
    let engine = engine(&witness);
    for (key, times) in [("greedy-secret", 20), ("modest-secret", 2)] {
        for _ in 0..times {
            ask(&engine, &[(Known::ApiKey, key), (Known::TenantId, "acme")]);
        }
    }
    let report = witness.tops().read(Window::Minutes, None);
    assert_eq!(totals(&report, "per-key"), [5, 17, 0]);
    let refused = report.rules["per-key"][1].top(10);
    assert_eq!(refused.len(), 1);
    assert_eq!((refused[0].count, refused[0].at_least), (17, 17));
    assert!(refused[0].name.starts_with("api_key_id="));
    let text = format!("{report:?}");
    assert!(!text.contains("greedy") && !text.contains("modest"), "{text}");
    // Requests that the tenant's rule let pass, but another refused, consumed nothing of it.
    assert_eq!(totals(&report, "per-tenant"), [5, 0, 0]);
    assert_eq!(report.rules["per-tenant"][0].top(1)[0].count, 5);
    // A rule for everyone has no keys to report.
    assert!(!report.rules.contains_key("everyone"));
    // After a minute the report covers two periods; after two it is empty, but the hours still have it.
    witness.tops().turn(START + 61 * SECOND);
    let read = |window| witness.tops().read(window, Some("per-key"));
    assert_eq!(totals(&read(Window::Minutes), "per-key"), [5, 17, 0]);
    witness.tops().turn(START + 122 * SECOND);
    assert!(read(Window::Minutes).rules.is_empty());
    assert_eq!(totals(&read(Window::Hours), "per-key"), [5, 17, 0]);
}

fn totals(figures: &TopFigures, rule: &str) -> [u64; 3] {
    figures.rules[rule].each_ref().map(|keys| keys.total)
}

const WATCHED: &str = "
rules:
  - {rule_id: enforced, identifier_type: user_id, limit: 3, window: 1h, scope: USER}
  - {rule_id: watched, identifier_type: user_id, limit: 1, window: 1h, scope: TRIAL, action: log_only}
  - {rule_id: watched-2, identifier_type: user_id, limit: 2, window: 1h, scope: TRIAL_2, action: log_only}
deny_list: ['user_id:mallory']
default: false
";

#[test]
fn would_deny_outcomes_are_counted_apart_from_refusals() {
    let paper = Paper::default();
    let options = DecisionLogOptions { sample_allowed: 0, ..ALL };
    let log = DecisionLog::start(options, b"secret", Box::new(paper.clone())).unwrap().unwrap();
    let log = Arc::new(log);
    let witness = Witness::new(BOUNDS, 7, b"secret", START).with_log(Some(Arc::clone(&log)));
    let witness = Arc::new(witness);
    let rules = RuleSet::from_yaml(WATCHED, "t").unwrap();
    let engine = Engine::new(MemoryStore::new(1_000), Arc::new(ManualClock::new(START)), rules)
        .with_observer(Arc::<Witness>::clone(&witness));
    let asked = [(Known::UserId, "ann"), (Known::TenantId, "acme")];
    assert_eq!((0..4).filter(|_| ask(&engine, &asked)).count(), 3);
    // The second would be refused by one rule, the third by two; the fourth is refused, and would be by two.
    let seen = counts(&witness);
    assert_eq!(seen[&labels("USER", "none", "acme")], [3, 1, 0, 0, 0]);
    assert_eq!(seen[&labels("TRIAL", "none", "acme")], [0, 0, 0, 0, 3]);
    assert_eq!(seen[&labels("TRIAL_2", "none", "acme")], [0, 0, 0, 0, 2]);
    // In shadow nothing is refused: neither by a rule nor by a list.
    engine.set_enforcement(tollgate_engine::Enforcement::Shadow);
    assert!(ask(&engine, &asked) && ask(&engine, &[(Known::UserId, "mallory")]));
    let seen = counts(&witness);
    assert_eq!(seen[&labels("USER", "none", "acme")], [4, 1, 0, 0, 1]);
    assert_eq!(seen[&labels("none", "none", "none")], [1, 0, 0, 0, 1]);
    let top = witness.tops().read(Window::Minutes, None);
    assert_eq!((totals(&top, "enforced"), totals(&top, "watched")), ([3, 1, 1], [1, 0, 4]));
    log.stop();
    let text = String::from_utf8(paper.0.lock().clone()).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let denied = |line: &Value| (line["result"].clone(), line["wouldDeny"].clone());
    assert_eq!(lines.len(), 5, "{text}");
    assert_eq!(denied(&lines[0]), ("allowed".into(), serde_json::json!(["watched"])));
    assert_eq!(denied(&lines[2]), ("denied".into(), serde_json::json!(["watched", "watched-2"])));
    let all = serde_json::json!(["enforced", "watched", "watched-2"]);
    assert_eq!(denied(&lines[3]), ("allowed".into(), all));
    assert_eq!(
        (&lines[4]["reason"], &lines[4]["wouldDeny"]),
        (&"DENY_LISTED".into(), &Value::Null)
    );
}

/// Where a log is written, for tests.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn logged(options: DecisionLogOptions, asks: usize) -> (String, (u64, u64)) {
    let paper = Paper::default();
    let log = DecisionLog::start(options, b"a secret of some length", Box::new(paper.clone()));
    let log = Arc::new(log.unwrap().unwrap());
    let witness = Witness::new(BOUNDS, 7, b"secret", START).with_log(Some(Arc::clone(&log)));
    let engine = engine(&Arc::new(witness));
    for _ in 0..asks {
        let asked = [
            (Known::ApiKey, "sk-very-secret"),
            (Known::TenantId, "acme"),
            (Known::UserId, "ann\u{1b}[31m\n"),
            (Known::ModelId, "gpt4"),
        ];
        ask(&engine, &asked);
    }
    log.stop();
    let text = String::from_utf8(paper.0.lock().clone()).unwrap();
    (text, log.figures())
}

const ALL: DecisionLogOptions = DecisionLogOptions {
    sample_allowed: 1,
    sample_refused: 1,
    max_per_second: 1_000,
    is_text: false,
};

#[test]
fn a_decision_is_a_line_with_every_field_and_no_secret() {
    let (text, figures) = logged(ALL, 4);
    assert_eq!(figures, (4, 0));
    assert!(!text.contains("sk-very-secret"));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4);
    let refused = &lines[3];
    assert_eq!(refused["allowed"], false);
    assert_eq!(refused["reason"], "HIT_KEY_LIMIT");
    assert_eq!(refused["tenantId"], "acme");
    assert_eq!(refused["modelId"], "gpt4");
    assert_eq!(refused["remaining"], 0);
    assert_eq!(refused["scopes"].as_array().unwrap().len(), 3);
    assert_eq!(refused["timestamp"], "2023-11-14T22:13:20.000Z");
    assert_eq!(refused["level"], "WARN");
    assert!(refused["apiKeyId"].is_string() && refused["latencyMs"].is_number());
    assert!(refused["windowResetAt"].is_string());
    assert_eq!(lines[0]["allowed"], true);
}

#[test]
fn lines_for_people_hold_no_control_characters() {
    let (text, _) = logged(DecisionLogOptions { is_text: true, ..ALL }, 4);
    assert_eq!(text.lines().count(), 4);
    assert!(!text.contains('\u{1b}') && text.contains("HIT_KEY_LIMIT"), "{text}");
}

#[test]
fn a_log_is_sampled_and_its_rate_bounded() {
    let (text, _) = logged(DecisionLogOptions { sample_allowed: 0, ..ALL }, 10);
    assert_eq!(text.lines().count(), 7, "refusals alone");
    let (text, figures) = logged(DecisionLogOptions { max_per_second: 5, ..ALL }, 10);
    assert_eq!((text.lines().count(), figures), (5, (5, 5)));
}

#[test]
fn a_flood_is_sampled_without_bias() {
    let bounds = WitnessBounds { top: TopBounds { keys: 1_000, rules: 8 }, ..BOUNDS };
    let witness = witness(bounds);
    let engine = engine(&witness);
    // As if there had been 80,000 decisions in the last second.
    witness.tune(80_000);
    let asks = 40_000;
    for number in 0..asks {
        let tenant = if number % 4 == 0 { "quarter" } else { "rest" };
        ask(&engine, &[(Known::TenantId, tenant)]);
    }
    let report = witness.tops().read(Window::Minutes, None);
    assert_eq!(report.sampled, 20);
    let of = |name: &str| report.tenants.keys.iter().find(|one| one.0 == name).unwrap().1;
    let (quarter, rest) = (of("quarter"), of("rest"));
    // 2,000 looks at 20 each: a twentieth is more than three standard deviations.
    assert!((quarter + rest).abs_diff(asks) < asks / 10, "{quarter} + {rest}");
    assert!(quarter.abs_diff(asks / 4) < asks / 16, "{quarter}");
    // When it is over, everything is looked at again.
    witness.tune(80_001);
    let before = witness.tops().read(Window::Minutes, None).tenants.keys.len();
    ask(&engine, &[(Known::TenantId, "single")]);
    ask(&engine, &[(Known::TenantId, "single")]);
    let after = witness.tops().read(Window::Minutes, None).tenants.keys.len();
    assert_eq!(after, before + 1);
}

/// A draw from zipf(exponent) over so many ranks, by the inverse of its sums.
fn zipf(ranks: usize, exponent: f64) -> Vec<f64> {
    let mut sums = Vec::with_capacity(ranks);
    let mut sum = 0.0;
    for rank in 1..=ranks {
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let share = (rank as f64).powf(-exponent);
        sum += share;
        sums.push(sum);
    }
    for one in &mut sums {
        *one /= sum;
    }
    sums
}

#[test]
fn the_top_ten_of_a_million_keys_are_the_true_top_ten() {
    let sums = zipf(1_000_000, 1.1);
    let mut sketch = Sketch::new(1_000);
    let mut truth: HashMap<usize, u64> = HashMap::new();
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..2_000_000 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        #[expect(clippy::cast_precision_loss, reason = "53 bits of it")]
        let draw = (random >> 11) as f64 / (1_u64 << 53) as f64;
        let rank = sums.partition_point(|sum| *sum < draw);
        *truth.entry(rank).or_default() += 1;
        let hash = xxhash_rust::xxh3::xxh3_64(&rank.to_le_bytes());
        sketch.add(hash, 1, || rank.to_string());
    }
    let mut true_top: Vec<(usize, u64)> =
        truth.iter().map(|(rank, count)| (*rank, *count)).collect();
    true_top.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let top = sketch.top(10);
    let names: Vec<String> = top.iter().map(|one| one.name.clone()).collect();
    let true_names: Vec<String> =
        true_top.iter().take(10).map(|(rank, _)| rank.to_string()).collect();
    assert_eq!(names, true_names);
    for (one, (_, count)) in top.iter().zip(&true_top) {
        assert!(one.at_least <= *count && *count <= one.count, "{one:?} {count}");
    }
    assert_eq!(sketch.total(), 2_000_000);
}

proptest! {
    #[test]
    fn a_sketch_never_undercounts_and_bounds_its_overcount(
        stream in proptest::collection::vec((0_u64..40, 1_u64..5), 1..400),
        most in 1_usize..20,
        split in 0_usize..400,
    ) {
        let mut truth: HashMap<u64, u64> = HashMap::new();
        let mut halves = [Sketch::new(most), Sketch::new(most)];
        let mut whole = Sketch::new(most);
        for (place, (key, weight)) in stream.iter().enumerate() {
            *truth.entry(*key).or_default() += weight;
            let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            halves[usize::from(place >= split)].add(hash, *weight, || key.to_string());
            whole.add(hash, *weight, || key.to_string());
        }
        let [mut merged, second] = halves;
        merged.merge(&second);
        let total: u64 = truth.values().sum();
        for sketch in [&whole, &merged] {
            prop_assert_eq!(sketch.total(), total);
            prop_assert!(sketch.len() <= most);
            let reported: HashMap<u64, (u64, u64)> = sketch
                .top(usize::MAX)
                .into_iter()
                .map(|one| (one.name.parse().unwrap(), (one.at_least, one.count)))
                .collect();
            for (key, count) in &truth {
                match reported.get(key) {
                    Some((least, at_most)) => prop_assert!(least <= count && count <= at_most),
                    None => prop_assert!(*count <= sketch.floor(), "{} {}", count, sketch.floor()),
                }
            }
        }
    }
}
