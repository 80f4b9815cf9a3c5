//! Requests whose path can be read in several ways ([`crate::RequestPath`]).
//!
//! Each reading is resolved alone, and the request meets the rules of all. Only that holds for an upstream of any
//! kind: if the rules of several readings competed for their scopes, a client could pick a spelling whose other reading
//! meets a more generous rule of the scope, or one that overrides it.

use smallvec::{Array, SmallVec};

use crate::explain::Explained;
use crate::resolve::{Applied, Resolution};
use crate::{Rule, RuleVerdict};

impl Resolution<'_, '_> {
    /// Adds what applies to another reading of the request. A rule with the same key in both applies once, at the
    /// higher cost; with another key it applies to both counters.
    pub(crate) fn add_reading(&mut self, other: Self) {
        let is_unmatched = self.has_unmatched_reading() || other.has_unmatched_reading();
        self.has_quota_groups |= !has_same_quota_group(&self.enforced, &other.enforced);
        merge(&mut self.enforced, other.enforced);
        merge(&mut self.observed, other.observed);
        self.is_partly_unmatched = is_unmatched;
    }

    /// Whether nothing that admits requests applies to the request, or to one of the readings of its path. Rules
    /// of tenants and of virtual keys may only tighten, and rules that are only reported admit nobody.
    pub fn has_unmatched_reading(&self) -> bool {
        let only_tightens = |rule: &Rule| rule.is_of_tenant() || rule.is_of_virtual_key();
        self.is_partly_unmatched || self.enforced.iter().all(|applied| only_tightens(applied.rule))
    }

    /// Whether this rule in `quota_mode` refuses by itself. Its group refuses when all members are exhausted; where the
    /// readings of the path have different groups, each must have room, and one group of all would let a client add
    /// members by its spelling of the path. So each member must have room then.
    pub const fn is_quota_enforced_alone(&self) -> bool {
        self.has_quota_groups
    }
}

/// Whether two readings meet the same rules in `quota_mode`, with the same keys, or one of them meets none.
fn has_same_quota_group(one: &[Applied<'_, '_>], other: &[Applied<'_, '_>]) -> bool {
    let is_in = |group: &[Applied<'_, '_>], member: &Applied<'_, '_>| {
        group
            .iter()
            .any(|applied| std::ptr::eq(applied.rule, member.rule) && applied.key == member.key)
    };
    let covers = |group: &[Applied<'_, '_>], members: &[Applied<'_, '_>]| {
        let mut members = members.iter().filter(|applied| applied.rule.quota_mode);
        members.all(|member| is_in(group, member))
    };
    let is_empty = |group: &[Applied<'_, '_>]| group.iter().all(|applied| !applied.rule.quota_mode);
    is_empty(one) || is_empty(other) || (covers(one, other) && covers(other, one))
}

fn merge<'s, 'a, A: Array<Item = Applied<'s, 'a>>>(
    list: &mut SmallVec<A>,
    others: impl IntoIterator<Item = Applied<'s, 'a>>,
) {
    for other in others {
        let same =
            |one: &&mut Applied<'s, 'a>| std::ptr::eq(one.rule, other.rule) && one.key == other.key;
        if let Some(one) = list.iter_mut().find(same) {
            one.listed_cost = higher_cost(one.listed_cost, other.listed_cost);
            continue;
        }
        let place = list.partition_point(|one| order(one.rule) <= order(other.rule));
        list.insert(place, other);
    }
}

/// The standard scopes in their order, then the others by name.
fn order(rule: &Rule) -> (u8, &str) {
    (rule.standard_scope_rank.unwrap_or(u8::MAX), rule.scope.as_str())
}

/// A request that no entry of `costs` matches costs 1.
fn higher_cost(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (None, None) => None,
        (one, other) => Some(one.unwrap_or(1).max(other.unwrap_or(1))),
    }
}

/// The explanations of two readings as one: what applies to either applies, and a rule that applies to neither
/// stands as in the reading that it comes closer to matching.
pub(crate) fn merge_explained<'s>(
    mut rules: Vec<Explained<'s>>,
    others: Vec<Explained<'s>>,
) -> Vec<Explained<'s>> {
    for other in others {
        let rank = rank_of(&other);
        let is_same = |one: &Explained<'s>| std::ptr::eq(one.rule, other.rule);
        let is_known = |one: &Explained<'s>| match rank_of(one) {
            0 if rank == 0 => one.key == other.key,
            known => known < rank || (known == rank && rank > 0),
        };
        if rules.iter().any(|one| is_same(one) && is_known(one)) {
            continue;
        }
        // One rule may apply with two keys; otherwise it stands in one place.
        rules.retain(|one| !is_same(one) || rank_of(one) == 0);
        let place = if rank == 0 {
            let key = (other.rule.is_log_only(), order(other.rule));
            let is_before = |one: &Explained<'s>| (one.rule.is_log_only(), order(one.rule)) <= key;
            rules.partition_point(|one| rank_of(one) == 0 && is_before(one))
        } else {
            rules.partition_point(|one| rank_of(one) <= rank)
        };
        rules.insert(place, other);
    }
    rules
}

/// Rules that apply come first, then those that match, then those that miss.
fn rank_of(explained: &Explained<'_>) -> u8 {
    match explained.verdict {
        RuleVerdict::Applies => 0,
        RuleVerdict::Misses { .. } => 2,
        _ => 1,
    }
}
