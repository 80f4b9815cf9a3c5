//! Statistics of each imported limit, by the names that envoyproxy/ratelimit gives them: a domain and a part
//! for each entry of the descriptor.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use tollgate_core::Receipt;
use tollgate_engine::{Hits, Scope};

use super::descriptor::Described;

/// The most limits that statistics are kept of, values of their descriptors included. What comes later is
/// counted as `other`.
pub const MAX_SERIES: usize = 20_000;

/// The most combinations of values that one limit has statistics of its own for.
pub const MAX_VALUES_PER_LIMIT: usize = 1_000;

/// Stands for what there was no room for.
const OTHER: &str = "other";

/// Hits above this share of a limit, in percent, are near it.
const NEAR_LIMIT_PERCENT: u64 = 80;

/// The names of the figures, in the order of [`Series::figures`].
pub(crate) const FIGURES: [&str; 5] =
    ["total_hits", "over_limit", "near_limit", "within_limit", "shadow_mode"];

/// The figures of one limit.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) domain: String,
    pub(crate) parts: Vec<String>,
    counts: [AtomicU64; FIGURES.len()],
}

impl Series {
    fn new(domain: &str, parts: Vec<String>) -> Arc<Self> {
        Arc::new(Self { domain: domain.to_owned(), parts, counts: Default::default() })
    }

    pub(crate) fn figures(&self) -> [u64; FIGURES.len()] {
        self.counts.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    fn add(&self, hits: &Counted) {
        let Counted { total, over, near, within, shadow } = *hits;
        for (count, added) in self.counts.iter().zip([total, over, near, within, shadow]) {
            if added > 0 {
                count.fetch_add(added, Ordering::Relaxed);
            }
        }
    }
}

/// What one call adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Counted {
    total: u64,
    over: u64,
    near: u64,
    within: u64,
    shadow: u64,
}

impl Counted {
    /// Hits on a limit of which so much was used before. Those of one call may be within the limit, near it
    /// and over it.
    fn new(hits: u64, before: u64, quota: u64, is_shadow: bool) -> Self {
        let near = quota.saturating_mul(NEAR_LIMIT_PERCENT) / 100;
        let after = before.saturating_add(hits);
        if after > quota {
            let over = hits.min(after - quota);
            let near = if before < quota { quota - near.max(before) } else { 0 };
            let shadow = if is_shadow { over } else { 0 };
            return Self { total: hits, over, near, within: 0, shadow };
        }
        let near = hits.min(after.saturating_sub(near));
        Self { total: hits, over: 0, near, within: hits, shadow: 0 }
    }
}

#[derive(Debug, Default)]
struct Table {
    /// By domain and parts.
    series: HashMap<String, Arc<Series>>,
    /// How many combinations of values each limit has, by its name without values.
    values: HashMap<String, usize>,
}

/// The statistics of all imported limits.
#[derive(Debug, Default)]
pub struct DescriptorStats(RwLock<Table>);

impl DescriptorStats {
    /// Counts a descriptor's hits on its limit, if that limit was imported.
    pub(crate) fn record(&self, domain: &str, described: &Described<'_>, scope: &Scope<'_>) {
        let Some(envoy) = scope.rule.envoy.as_ref().filter(|envoy| !envoy.stats_key.is_empty())
        else {
            return;
        };
        let Hits::Charge(hits) = described.hits() else { return };
        let used = scope.outcome.status.used;
        let is_charged = scope.outcome.receipt != Receipt::Nothing;
        let before = if is_charged { used.saturating_sub(hits) } else { used };
        let counted = Counted::new(hits, before, scope.quota, !scope.role.can_refuse());
        let part = |(place, part): (usize, &String)| {
            if envoy.stats_values.contains(&place) {
                described.stats_part(place).unwrap_or_else(|| part.clone())
            } else {
                part.clone()
            }
        };
        let parts: Vec<String> = (1..).zip(&envoy.stats_key).map(part).collect();
        let series = if envoy.stats_values.is_empty() {
            self.series(domain, parts, None)
        } else {
            self.series(domain, parts, Some((&envoy.stats_key, &envoy.stats_values)))
        };
        series.add(&counted);
    }

    /// The series of these parts. `limit` names the limit and its places that hold values, if any.
    fn series(
        &self,
        domain: &str,
        parts: Vec<String>,
        limit: Option<(&[String], &[usize])>,
    ) -> Arc<Series> {
        let name = name(domain, &parts);
        if let Some(found) = self.0.read().series.get(&name) {
            return Arc::clone(found);
        }
        let mut table = self.0.write();
        let (mut name, mut parts, mut domain) = (name, parts, domain);
        if let Some((key, places)) = limit {
            let is_full = table.series.len() >= MAX_SERIES;
            let known = table.values.entry(self::name(domain, key)).or_default();
            if is_full || *known >= MAX_VALUES_PER_LIMIT {
                parts = without_values(key, places);
                name = self::name(domain, &parts);
            } else if !table.series.contains_key(&name) {
                *table.values.entry(self::name(domain, key)).or_default() += 1;
            }
        }
        if table.series.len() > 2 * MAX_SERIES && !table.series.contains_key(&name) {
            (domain, parts) = (OTHER, vec![OTHER.to_owned()]);
            name = self::name(domain, &parts);
        }
        Arc::clone(table.series.entry(name).or_insert_with(|| Series::new(domain, parts)))
    }

    /// All series, ordered by name.
    pub(crate) fn all(&self) -> Vec<Arc<Series>> {
        let mut all: Vec<Arc<Series>> = self.0.read().series.values().map(Arc::clone).collect();
        all.sort_unstable_by(|one, other| {
            (&one.domain, &one.parts).cmp(&(&other.domain, &other.parts))
        });
        all
    }
}

/// Parts and domain as one text that no others have.
fn name(domain: &str, parts: &[String]) -> String {
    let mut name = String::with_capacity(64);
    for part in std::iter::once(domain).chain(parts.iter().map(String::as_str)) {
        name.push_str(&part.len().to_string());
        name.push(' ');
        name.push_str(part);
    }
    name
}

/// The name of a limit with `other` for the values that there was no room for.
fn without_values(key: &[String], places: &[usize]) -> Vec<String> {
    let part = |(place, part): (usize, &String)| {
        if places.contains(&place) { format!("{part}_{OTHER}") } else { part.clone() }
    };
    (1..).zip(key).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_split_at_the_limit_and_near_it() {
        let counted = |total, over, near, within| Counted { total, over, near, within, shadow: 0 };
        for (hits, before, quota, expected) in [
            (1, 0, 10, counted(1, 0, 0, 1)),
            (1, 7, 10, counted(1, 0, 0, 1)),
            (1, 8, 10, counted(1, 0, 1, 1)),
            (3, 7, 10, counted(3, 0, 2, 3)),
            (5, 7, 10, counted(5, 2, 2, 0)),
            (1, 10, 10, counted(1, 1, 0, 0)),
            (4, 12, 10, counted(4, 4, 0, 0)),
            (1, 0, 0, counted(1, 1, 0, 0)),
            (u64::MAX, 5, 10, counted(u64::MAX, u64::MAX - 10, 2, 0)),
        ] {
            assert_eq!(Counted::new(hits, before, quota, false), expected, "{hits} {before}");
        }
        let shadow = Counted::new(2, 9, 10, true);
        assert_eq!((shadow.over, shadow.shadow), (1, 1), "only hits above the limit");
    }

    #[test]
    fn values_of_clients_do_not_grow_it_without_bound() {
        let stats = DescriptorStats::default();
        let key = ["plan".to_owned(), "user".to_owned()];
        let limit: Option<(&[String], &[usize])> = Some((&key, &[2]));
        for user in 0..MAX_VALUES_PER_LIMIT + 50 {
            let parts = vec!["plan".to_owned(), format!("user_{user}")];
            stats.series("d", parts, limit).add(&Counted::new(1, 0, 10, false));
        }
        let all = stats.all();
        assert_eq!(all.len(), MAX_VALUES_PER_LIMIT + 1);
        let other = all.iter().find(|series| series.parts == ["plan", "user_other"]).unwrap();
        assert_eq!(other.figures()[0], 50);
        // Others still have room.
        let parts = vec!["plan".to_owned(), "tool_x".to_owned()];
        let key = ["plan".to_owned(), "tool".to_owned()];
        assert_eq!(stats.series("d", parts.clone(), Some((&key, &[2]))).parts, parts);
    }
}
