//! T2, T9: a whole decision, from attributes to an explained answer.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use tollgate_bench::once::poll;
use tollgate_bench::record::record;
use tollgate_bench::rules::{self, Caller};
use tollgate_bench::work::median;
use tollgate_engine::{Decision, Engine, SystemClock};
use tollgate_policy::RuleSet;
use tollgate_store::MemoryStore;

/// How many users there are.
pub const USERS: usize = 100_000;

pub fn engine(rule_count: usize) -> Engine<MemoryStore> {
    let set = RuleSet::from_yaml(&rules::file(rule_count), "bench").unwrap();
    assert_eq!(set.rules().len(), rule_count);
    engine_of(set)
}

pub fn engine_of(set: RuleSet) -> Engine<MemoryStore> {
    Engine::new(MemoryStore::new(1_000_000), Arc::new(SystemClock::new()), set)
        // As in the service.
        .with_missing_key(tollgate_engine::MissingKey::Allow)
}

/// Decides for all callers; returns how many were allowed by three scopes.
pub fn decide_all(engine: &Engine<MemoryStore>, callers: &[Caller]) -> usize {
    let rules = engine.rules();
    let mut allowed = 0;
    for caller in callers {
        // As the services ask: a decision is large, and is shown where it was made.
        let explain = |decision: &Decision<'_>| {
            // What an answer says beside yes or no.
            black_box((decision.reason_code(), decision.effective_limit(), decision.deciding()));
            let explained = decision.scopes().inspect(|scope| {
                black_box((scope.rule.id.as_str(), scope.outcome.status));
            });
            explained.count() == 3 && decision.is_allowed()
        };
        let decided = poll(engine.decide_once(&rules, &caller.request(), explain));
        allowed += usize::from(decided.unwrap());
    }
    allowed
}

pub fn run(quick: bool, rounds: usize) {
    let count = if quick { 100_000 } else { 1_000_000 };
    println!("\nT2, T9: whole decisions of three scopes, {USERS} users zipf(1.0), 1 thread");
    let callers = rules::callers(USERS, count);
    let engines = [engine(3), engine(1_000)];
    for engine in &engines {
        assert_eq!(decide_all(engine, &callers), count, "every request meets three scopes");
    }
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (engine, times) in engines.iter().zip(&mut times) {
            let start = Instant::now();
            black_box(decide_all(engine, &callers));
            times.push(start.elapsed().as_nanos() as f64 / count as f64);
        }
    }
    let [few, many] = times.map(median);
    let figure = format!("{many:.0} ns");
    let work = "decision of 3 scopes from 1,000 rules, explained";
    record("T2", work, &figure, "<= 1 µs", Some(many <= 1_000.0));
    let figure = format!("{:.2}x ({few:.0} → {many:.0} ns)", many / few);
    let work = "decision, 3 → 1,000 rules";
    record("T9", work, &figure, "<= 1.3x", Some(many / few <= 1.3));
}
