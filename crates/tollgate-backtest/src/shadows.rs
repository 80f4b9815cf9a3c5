//! Which rules others keep from deciding.

use hashbrown::HashMap;
use serde::Serialize;
use tollgate_core::Nanos;
use tollgate_policy::{Attributes, RuleSet, RuleVerdict};

/// One in so many requests is explained.
const SAMPLING: u64 = 16;

/// So many rules of one request are looked at.
const MAX_EXPLAINED: usize = 64;

/// The most pairs of rules that are counted.
const MAX_PAIRS: usize = 1_000;

/// A rule that matched requests and did not decide them, because another rule came before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shadow {
    /// The rule that did not decide.
    pub rule_id: String,
    /// The rule that came before it.
    pub by: String,
    /// `less_specific`, `replaced` or `default_yields`.
    pub why: &'static str,
    /// On how many of the requests that were looked at, one in 16.
    pub sampled_requests: u64,
    /// Whether the rule decided none of the requests that were looked at.
    pub is_complete: bool,
}

/// Counts which rules others keep from deciding.
#[derive(Default)]
pub(crate) struct Shadows {
    seen: u64,
    pairs: HashMap<(String, String, &'static str), u64, foldhash::fast::RandomState>,
    applied: HashMap<String, u64, foldhash::fast::RandomState>,
}

impl Shadows {
    pub(crate) fn add(&mut self, rules: &RuleSet, attributes: &Attributes<'_>, now: Nanos) {
        self.seen += 1;
        if !self.seen.is_multiple_of(SAMPLING) && self.seen != 1 {
            return;
        }
        for explained in rules.explain(attributes, now, MAX_EXPLAINED).rules {
            let (by, why) = match explained.verdict {
                RuleVerdict::Applies => {
                    count(&mut self.applied, &explained.rule.id);
                    continue;
                }
                RuleVerdict::LessSpecific { than } => (than, "less_specific"),
                RuleVerdict::Replaced { by } => (by, "replaced"),
                RuleVerdict::DefaultYields { to } => (to, "default_yields"),
                RuleVerdict::Misses { .. } => continue,
            };
            let pair = (explained.rule.id.clone(), by.to_owned(), why);
            if self.pairs.len() < MAX_PAIRS || self.pairs.contains_key(&pair) {
                *self.pairs.entry(pair).or_default() += 1;
            }
        }
    }

    pub(crate) fn finish(self) -> Vec<Shadow> {
        let applied = self.applied;
        let shadow = |((rule_id, by, why), sampled_requests): ((String, String, _), u64)| {
            let is_complete = !applied.contains_key(&rule_id);
            Shadow { rule_id, by, why, sampled_requests, is_complete }
        };
        let mut shadows: Vec<Shadow> = self.pairs.into_iter().map(shadow).collect();
        shadows.sort_by(|one, other| {
            let order = other.sampled_requests.cmp(&one.sampled_requests);
            order.then_with(|| (&one.rule_id, &one.by).cmp(&(&other.rule_id, &other.by)))
        });
        shadows
    }
}

fn count(counts: &mut HashMap<String, u64, foldhash::fast::RandomState>, name: &str) {
    match counts.get_mut(name) {
        Some(count) => *count += 1,
        None => {
            counts.insert(name.to_owned(), 1);
        }
    }
}
