//! Resets of counters.

use smallvec::SmallVec;
use tollgate_policy::Rule;
use tollgate_store::{Counter, Store};

use crate::decision::Decision;
use crate::limit_checks::{LimitChecks, Stores, charge};
use crate::request::Request;
use crate::{ActiveRules, Engine, EngineError};

impl<S: Store> Engine<S> {
    /// Resets the counters that the request would be charged to, of the rules that `wanted` picks.
    /// Returns the ids of those rules.
    pub async fn reset<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        mut wanted: impl FnMut(&Rule) -> bool,
    ) -> Result<Vec<String>, EngineError> {
        let mut decision = Decision::pending(rules.version);
        let mut checks = LimitChecks::new();
        self.prepare(rules, request, &mut decision, &mut checks);
        checks.retain(|line| wanted(line.rule));
        let stores = Stores::new(&self.store, request);
        let slot = tollgate_core::SlotId::default();
        let charges = checks.iter().filter_map(|line| {
            charge(&decision.resolution, line, slot, &stores).map(|charge| charge.counter)
        });
        let counters: SmallVec<[Counter<'_>; 8]> = charges.collect();
        self.store.reset(&counters, decision.now).await?;
        let mut ids: Vec<String> = checks.iter().map(|line| line.rule.id.clone()).collect();
        ids.dedup();
        if let Some(observer) = &self.observer {
            observer.was_reset(request, &ids, decision.now);
        }
        Ok(ids)
    }
}
