//! What the fuzz targets share: an engine with rules of every kind, a runtime, and readers of inputs.
//!
//! A target fails by panicking: the product's own panics, overflows and endless loops count, and so
//! do the target's assertions about what must hold for every input.

use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};
use tollgate_core::SECOND;
use tollgate_engine::{Engine, ManualClock};
use tollgate_policy::RuleSet;
use tollgate_store::MemoryStore;

/// So few that the store is full soon and has to throw counters out.
const MAX_COUNTERS: usize = 10_000;

/// Any time will do, as long as it is the same in every run.
pub const NOW_SECONDS: u64 = 1_800_000_000;

const RULES: &str = "
default: false
rules:
- {rule_id: user, scope: user, identifier_type: user_id, limit: 3, window: 1d, algorithm: fixed_window, soft_limit: 0.6}
- {rule_id: path, scope: path, identifier_type: client, limit: 100, window: 1h, algorithm: sliding_window_counter, applies_to: {endpoints: ['/v1/*', '/a/{b}/c'], methods: [GET, POST]}}
- {rule_id: tenant, scope: tenant, identifier_type: tenant_id, limit: 100, burst: 7, window: 1h, algorithm: token_bucket}
- {rule_id: tokens, scope: tokens, identifier_type: tenant_id, unit: tokens, limit: 1000, window: 1d, algorithm: gcra, burst: 500}
- {rule_id: paced, scope: paced, identifier_type: ip, action: throttle, max_delay_ms: 5000, limit: 1, burst: 3, window: 1s, algorithm: leaky_bucket}
- {rule_id: slots, scope: slots, identifier_type: api_key, unit: concurrency, limit: 2}
- {rule_id: later, scope: later, key_by: [region], action: queue, limit: 1, window: 1d, algorithm: fixed_window}
- {rule_id: log, scope: log, key_by: [descriptor], action: log_only, limit: 2, window: 1m, algorithm: sliding_window_log}
deny_list: ['user_id:mallory']
allow_list: ['user_id:root']
";

/// An engine that decides by rules of every kind, at one instant.
pub fn engine() -> Arc<Engine<MemoryStore>> {
    let rules = RuleSet::from_yaml(RULES, "rules").expect("the rules are right");
    let clock = ManualClock::new(NOW_SECONDS * SECOND);
    let engine = Engine::new(MemoryStore::new(MAX_COUNTERS), Arc::new(clock), rules);
    Arc::new(engine.with_missing_key(tollgate_engine::MissingKey::Allow))
}

/// A runtime on this thread.
pub fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime can be made")
}

/// The first byte as a choice, and the rest.
pub fn choice(input: &[u8]) -> Option<(u8, &[u8])> {
    input.split_first().map(|(first, rest)| (*first, rest))
}
