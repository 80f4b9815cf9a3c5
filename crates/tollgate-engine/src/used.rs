//! What counters held before a replay begins.

use tollgate_core::{Refundable, SlotId};
use tollgate_policy::{Rule, RuleLimit};
use tollgate_store::{Mode, Outcomes, Store, check_outcomes};

use crate::decide::Charges;
use crate::decision::{Decision, applied};
use crate::limit_checks::{LimitChecks, Stores, charge};
use crate::request::Request;
use crate::{ActiveRules, Engine, EngineError};

impl<S: Store> Engine<S> {
    /// Charges the counters of a request with what was used of them before, whether or not there is room, and does not
    /// decide the request. `used` says how much, by rule, limit and key; slots cannot be charged this way. `None`: the store
    /// has to be awaited, and nothing was charged.
    pub fn charge_used_now<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        mut used: impl FnMut(&Rule, &RuleLimit, &[&str]) -> u64,
    ) -> Option<Result<(), EngineError>> {
        let store = self.store.as_sync()?;
        let mut decision = Decision::pending(rules.version);
        let mut checks = LimitChecks::new();
        self.prepare(rules, request, &mut decision, &mut checks);
        let resolution = &decision.resolution;
        checks.retain(|line| {
            line.cost = match applied(resolution, line.applied) {
                Some(one) if !line.quota.holds_slots() => used(line.rule, line.limit, &one.key),
                _ => 0,
            };
            line.refundable = Refundable::No;
            line.cost > 0
        });
        if checks.is_empty() {
            return Some(Ok(()));
        }
        let stores = Stores::new(&self.store, request);
        let of = |line| charge(&decision.resolution, line, SlotId::default(), &stores);
        let charges: Charges<'_> = checks.iter().filter_map(of).collect();
        let asked = [tollgate_store::Request { charges: &charges, mode: Mode::Owe }];
        let mut outcomes = Outcomes::new();
        let charged = store.decide_sync(&asked, decision.now, &mut outcomes);
        let charged = charged.and_then(|_| check_outcomes(&asked, 0, &mut outcomes));
        Some(charged.map_err(EngineError::from))
    }
}
