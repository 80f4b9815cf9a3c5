//! `active_when`: rules and limits that hold in recurring windows of time.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::sync::Arc;

use tollgate_core::SECOND;
use tollgate_engine::{Engine, ManualClock, Request};
use tollgate_policy::RuleSet;
use tollgate_store::{MemoryStore, Mode};

const HOUR: u64 = 3_600 * SECOND;

/// 2026-07-10T12:00:00Z, a Friday.
const NOON: u64 = 1_783_684_800 * SECOND;

struct Node {
    engine: Engine<MemoryStore>,
    clock: Arc<ManualClock>,
}

impl Node {
    fn new(rules: &str) -> Self {
        let clock = Arc::new(ManualClock::new(NOON));
        let rules = RuleSet::from_yaml(rules, "rules").unwrap();
        let engine = Engine::new(MemoryStore::new(1_000), Arc::clone(&clock) as _, rules);
        Self { engine, clock }
    }

    /// How many of five requests pass.
    fn passing(&self) -> usize {
        let rules = self.engine.rules();
        let request = Request::default();
        let decide = || self.engine.decide_now(&rules, &request, Mode::Charge).unwrap().unwrap();
        (0..5).filter(|_| decide().is_allowed()).count()
    }
}

#[test]
fn a_rule_holds_in_its_windows_and_its_counter_stays() {
    let node = Node::new(
        "{default: none, rules: [{rule_id: night, limit: 7, window: 30d, algorithm: fixed_window, \
         active_when: [{from: '22:00', to: '06:00'}]}]}",
    );
    assert_eq!(node.passing(), 5, "at noon it does not apply");
    node.clock.advance(10 * HOUR);
    assert_eq!(node.passing(), 5, "what passed at noon was not counted");
    node.clock.advance(8 * HOUR);
    assert_eq!(node.passing(), 5, "at 06:00 the window is over");
    node.clock.advance(16 * HOUR);
    assert_eq!(node.passing(), 2, "in the next night, what was counted is still there");
}

#[test]
fn one_limit_of_a_rule_holds_in_its_windows() {
    let node = Node::new(
        "{default: none, rules: [{rule_id: a, limits: [{limit: 13, window: 30d, algorithm: fixed_window}, \
         {limit: 2, window: 1h, algorithm: fixed_window, active_when: [{days: [fri], from: '13:00', to: '15:00'}]}]}]}",
    );
    assert_eq!(node.passing(), 5);
    node.clock.advance(HOUR);
    assert_eq!(node.passing(), 2, "both hold");
    node.clock.advance(2 * HOUR);
    assert_eq!(node.passing(), 5);
    assert_eq!(node.passing(), 1, "the other limit counted all that passed");
}

#[test]
fn an_alternative_of_the_scope_applies_outside_the_windows() {
    let node = Node::new(
        "{default: none, rules: [{rule_id: usual, scope: s, limit: 3, window: 1h, algorithm: fixed_window}, \
         {rule_id: evening, scope: s, priority: 1, limit: 1, window: 1h, algorithm: fixed_window, \
         active_when: [{from: '18:00'}]}]}",
    );
    assert_eq!(node.passing(), 3);
    node.clock.advance(6 * HOUR);
    assert_eq!(node.passing(), 1);
    node.clock.advance(6 * HOUR);
    assert_eq!(node.passing(), 3, "at midnight the day is over");
}
