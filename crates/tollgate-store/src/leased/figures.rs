//! What leasing does, in numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Beyond so many rules, the rest are measured together.
const MAX_RULES: usize = 4096;

/// The name under which the rest are measured.
const OTHERS: &str = "other";

/// One in a ratio.
const WHOLE: u64 = 1_000_000_000;

/// How far leasing made one rule stray from its limits, at most.
#[derive(Debug, Default)]
pub(super) struct Strayed {
    over: AtomicU64,
    under: AtomicU64,
}

impl Strayed {
    /// So much of one chunk was spent after the counter had stopped counting it.
    pub(super) fn over(&self, amount: u64, quota: u64) {
        self.over.fetch_max(ratio(amount, quota), Ordering::Relaxed);
    }

    /// A request was refused while other nodes held so much on lease.
    pub(super) fn under(&self, amount: u64, quota: u64) {
        self.under.fetch_max(ratio(amount, quota), Ordering::Relaxed);
    }
}

fn ratio(amount: u64, quota: u64) -> u64 {
    let scaled = u128::from(amount) * u128::from(WHOLE);
    u64::try_from(scaled / u128::from(quota.max(1))).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for people and dashboards")]
fn fraction(ratio: &AtomicU64) -> f64 {
    ratio.load(Ordering::Relaxed) as f64 / WHOLE as f64
}

/// How far one rule strayed from its limits because of leases on this node: the largest values seen.
#[derive(Debug, Clone, PartialEq)]
pub struct Overshoot {
    /// The rule.
    pub rule_id: Arc<str>,
    /// What was spent of one chunk after the window it was charged in had ended, as a part of the
    /// quota.
    pub over: f64,
    /// What other nodes had on lease when a request was refused, as a part of the quota.
    pub under: f64,
}

/// Counts since the start, and what strayed how far.
#[derive(Debug, Default)]
pub struct LeaseFigures {
    /// Fetches that were granted something.
    pub taken: AtomicU64,
    /// Quota that they were granted, what was spent at once included.
    pub granted: AtomicU64,
    /// Quota that went back unspent.
    pub returned: AtomicU64,
    /// Quota that was neither spent nor returned: its window ended, or the store did not answer for too long.
    pub lost: AtomicU64,
    /// Fetches that were refused.
    pub refused: AtomicU64,
    /// Fetches that failed.
    pub failed: AtomicU64,
    /// Charges that could have been leased and were decided on the shared counter: no chunk could
    /// serve them soon enough.
    pub passed_on: AtomicU64,
    rules: Mutex<Vec<(Arc<str>, Arc<Strayed>)>>,
}

impl LeaseFigures {
    pub(super) fn add(counter: &AtomicU64, amount: u64) {
        if amount > 0 {
            counter.fetch_add(amount, Ordering::Relaxed);
        }
    }

    /// The measure of a rule. Looked up when a counter is first leased, not when it is spent.
    pub(super) fn of_rule(&self, rule_id: &str) -> Arc<Strayed> {
        let mut rules = self.rules.lock();
        let name = if rules.len() < MAX_RULES { rule_id } else { OTHERS };
        let found = rules
            .iter()
            .find(|(known, _)| &**known == rule_id)
            .or_else(|| rules.iter().find(|(known, _)| &**known == name));
        if let Some((_, strayed)) = found {
            return Arc::clone(strayed);
        }
        let strayed = Arc::new(Strayed::default());
        rules.push((name.into(), Arc::clone(&strayed)));
        strayed
    }

    /// How far every leased rule strayed.
    pub fn overshoot(&self) -> Vec<Overshoot> {
        let rules = self.rules.lock();
        let overshoot_of = |(rule_id, strayed): &(Arc<str>, Arc<Strayed>)| Overshoot {
            rule_id: Arc::clone(rule_id),
            over: fraction(&strayed.over),
            under: fraction(&strayed.under),
        };
        rules.iter().map(overshoot_of).collect()
    }

    /// The largest part of a quota that was admitted beyond it, over all rules.
    pub fn over_admission_ratio(&self) -> f64 {
        self.overshoot().iter().map(|rule| rule.over).fold(0.0, f64::max)
    }

    /// The largest part of a quota that other nodes held on lease when a request was refused, over
    /// all rules.
    pub fn under_admission_ratio(&self) -> f64 {
        self.overshoot().iter().map(|rule| rule.under).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_each_rule_is_kept() {
        let figures = LeaseFigures::default();
        figures.of_rule("a").over(5, 100);
        figures.of_rule("a").over(2, 100);
        figures.of_rule("b").under(1, 4);
        figures.of_rule("b").over(1, 0);
        let ratios: Vec<_> = figures.overshoot().into_iter().map(|o| (o.over, o.under)).collect();
        assert_eq!(ratios, [(0.05, 0.0), (1.0, 0.25)]);
        assert!((figures.over_admission_ratio() - 1.0).abs() < 1e-9);
        assert!((figures.under_admission_ratio() - 0.25).abs() < 1e-9);
    }

    #[test]
    fn rules_without_number_are_measured_together() {
        let figures = LeaseFigures::default();
        for rule in 0..MAX_RULES + 10 {
            figures.of_rule(&format!("rule {rule}")).over(1, 10);
        }
        figures.of_rule("rule 7").over(1, 2);
        let rules = figures.overshoot();
        assert_eq!(rules.len(), MAX_RULES + 1);
        assert!(rules.iter().any(|rule| &*rule.rule_id == "rule 7" && rule.over > 0.4));
    }
}
