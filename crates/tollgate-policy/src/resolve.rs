//! Which rules a request meets.

use std::cmp::Reverse;

use smallvec::SmallVec;
use tollgate_core::Nanos;

use crate::matcher::{Fit, Seen};
use crate::{Attributes, Rule, RuleSet};

/// The rules that apply to a request: one per scope, for each reading of its path ([`crate::RequestPath`]).
#[derive(Debug, Clone, Default)]
pub struct Resolution<'s, 'a> {
    /// The rules that decide, in the order of the standard scopes, then by scope name.
    pub enforced: SmallVec<[Applied<'s, 'a>; 8]>,
    /// The `log_only` rules, in the same order.
    pub observed: SmallVec<[Applied<'s, 'a>; 2]>,
    /// Whether nothing that admits requests applies to one of the readings of the path.
    pub(crate) is_partly_unmatched: bool,
    /// Whether the readings of the path meet different rules in `quota_mode`.
    pub(crate) has_quota_groups: bool,
}

/// A rule that applies to a request.
#[derive(Debug, Clone)]
pub struct Applied<'s, 'a> {
    /// The rule.
    pub rule: &'s Rule,
    /// The values of its key attributes, in order. A client is two values, its kind and its name,
    /// so that kinds never collide.
    pub key: SmallVec<[&'a str; 4]>,
    /// What the rule's `costs` say the request costs.
    pub listed_cost: Option<u64>,
}

/// A rule that matches, with all that competition needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Match<'s> {
    pub(crate) rule: &'s Rule,
    pub(crate) rank: &'s Rank,
    pub(crate) fit: Fit<'s>,
}

/// The place of a rule among the others, computed once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rank {
    /// The place of its scope: standard ones first, then by name.
    pub(crate) scope: u32,
    /// The place of its scope among those of all rules, the `log_only` ones last: of each there is
    /// one winner.
    pub(crate) contest: u64,
    pub(crate) constrained_fields: u32,
    pub(crate) priority: i64,
    /// The place of its id in ascending order.
    pub(crate) id: u32,
    pub(crate) is_log_only: bool,
    /// The places of the scopes it replaces.
    pub(crate) overrides: Vec<u32>,
    /// The places of the ids of single rules it replaces.
    pub(crate) replaced_rules: Vec<u32>,
}

impl Rank {
    /// Whether this rule, where it applies, replaces the other.
    pub(crate) fn replaces(&self, other: &Self) -> bool {
        self.overrides.contains(&other.scope) || self.replaced_rules.contains(&other.id)
    }

    fn replaces_nothing(&self) -> bool {
        self.overrides.is_empty() && self.replaced_rules.is_empty()
    }
}

impl Match<'_> {
    /// Ascending: the most specific first.
    pub(crate) fn specificity(&self) -> (Reverse<u32>, Reverse<u16>, Reverse<i64>, u32) {
        let Rank { constrained_fields, priority, id, .. } = self.rank;
        (Reverse(*constrained_fields), Reverse(self.fit.literals()), Reverse(*priority), *id)
    }
}

type Matches<'s> = SmallVec<[Match<'s>; 12]>;

impl RuleSet {
    /// The rules that apply to the request at `now`. The endpoint must be normalised and the tier
    /// resolved, see [`Attributes`]. Where the path has several readings, the rules of all apply.
    pub fn resolve<'s, 'a>(&'s self, request: &Attributes<'a>, now: Nanos) -> Resolution<'s, 'a> {
        let mut resolution = Resolution::default();
        self.resolve_into(request, now, &mut resolution);
        resolution
    }

    /// [`RuleSet::resolve`] into an empty resolution, which is large enough that it should stay
    /// where it is.
    pub fn resolve_into<'s, 'a>(
        &'s self,
        request: &Attributes<'a>,
        now: Nanos,
        resolution: &mut Resolution<'s, 'a>,
    ) {
        self.resolve_reading(request, now, resolution);
        if !request.other_endpoints().is_empty() {
            self.resolve_other_readings(request, now, resolution);
        }
        self.add_key_rules(request, resolution);
    }

    #[cold]
    fn resolve_other_readings<'s, 'a>(
        &'s self,
        request: &Attributes<'a>,
        now: Nanos,
        resolution: &mut Resolution<'s, 'a>,
    ) {
        for other in request.other_readings() {
            let mut of_other = Resolution::default();
            self.resolve_reading(&other, now, &mut of_other);
            resolution.add_reading(of_other);
        }
    }

    /// The rules that apply to the endpoint as it is set.
    #[inline]
    pub(crate) fn resolve_reading<'s, 'a>(
        &'s self,
        request: &Attributes<'a>,
        now: Nanos,
        resolution: &mut Resolution<'s, 'a>,
    ) {
        let seen = Seen::new(request, now);
        let mut matches = Matches::new();
        self.index.candidates(&seen, |place| {
            let (Some(rule), Some(rank)) =
                (self.rules.get(place as usize), self.ranks.get(place as usize))
            else {
                return;
            };
            if let Some(fit) = rule.fit(&seen) {
                matches.push(Match { rule, rank, fit });
            }
        });
        if matches.len() > 1 {
            matches.sort_unstable_by(|one, other| {
                let contest = one.rank.contest.cmp(&other.rank.contest);
                contest.then_with(|| one.specificity().cmp(&other.specificity()))
            });
            matches.dedup_by_key(|one| one.rank.contest);
        }
        let split = matches.partition_point(|one| !one.rank.is_log_only);
        let (enforced, observed) = matches.split_at(split);
        settle(enforced, &seen, |applied| resolution.enforced.push(applied));
        settle(observed, &seen, |applied| resolution.observed.push(applied));
        self.add_default(resolution, &seen);
    }

    /// Adds the system default unless an enforcing rule keyed by an identity applies, or one that
    /// replaces its scope. Rules of tenants may only tighten, so they count for neither.
    pub(crate) fn add_default<'s, 'a>(
        &'s self,
        resolution: &mut Resolution<'s, 'a>,
        seen: &Seen<'_, 'a>,
    ) {
        let Some(rule) = &self.default_rule else { return };
        if resolution.enforced.iter().any(|applied| applied.rule.displaces_default(rule)) {
            return;
        }
        let Some(fit) = rule.fit(seen) else { return };
        let applied = apply(rule, fit, seen);
        if rule.is_log_only() {
            insert_by_scope(&mut resolution.observed, applied);
        } else {
            insert_by_scope(&mut resolution.enforced, applied);
        }
    }
}

#[inline]
pub(crate) fn apply<'s, 'a>(rule: &'s Rule, fit: Fit<'_>, seen: &Seen<'_, 'a>) -> Applied<'s, 'a> {
    Applied { rule, key: rule.key_values(fit, seen), listed_cost: rule.costs.of(seen) }
}

pub(crate) fn insert_by_scope<'s, 'a, const N: usize>(
    list: &mut SmallVec<[Applied<'s, 'a>; N]>,
    applied: Applied<'s, 'a>,
) where
    [Applied<'s, 'a>; N]: smallvec::Array<Item = Applied<'s, 'a>>,
{
    let order = |rule: &'s Rule| (rule.standard_scope_rank.unwrap_or(u8::MAX), rule.scope.as_str());
    let place = list.partition_point(|other| order(other.rule) < order(applied.rule));
    list.insert(place, applied);
}

/// Passes on the winners whose scope no other winner replaces.
fn settle<'s, 'a>(
    winners: &[Match<'s>],
    seen: &Seen<'_, 'a>,
    mut keep: impl FnMut(Applied<'s, 'a>),
) {
    if winners.iter().all(|winner| winner.rank.replaces_nothing()) {
        for winner in winners {
            keep(apply(winner.rule, winner.fit, seen));
        }
        return;
    }
    let stays = without_overridden(winners);
    for (winner, stays) in winners.iter().zip(stays) {
        if stays {
            keep(apply(winner.rule, winner.fit, seen));
        }
    }
}

/// Which winners stay. A winner goes if one that stays replaces its scope; a rule that is itself
/// replaced does not apply, and so replaces nothing. Where rules replace each other in a circle, the
/// most specific of them stays.
pub(crate) fn without_overridden(winners: &[Match<'_>]) -> SmallVec<[bool; 12]> {
    let mut stays: SmallVec<[Option<bool>; 12]> = SmallVec::from_elem(None, winners.len());
    loop {
        let mut changed = false;
        for (place, winner) in winners.iter().enumerate() {
            if stays.get(place).copied().flatten().is_some() {
                continue;
            }
            let mut replaced_by = winners
                .iter()
                .zip(&stays)
                .filter(|(other, _)| other.rank.replaces(winner.rank))
                .map(|(_, stays)| *stays);
            let verdict = if replaced_by.clone().any(|stays| stays == Some(true)) {
                Some(false)
            } else if replaced_by.all(|stays| stays == Some(false)) {
                Some(true)
            } else {
                None
            };
            if let (Some(_), Some(slot)) = (verdict, stays.get_mut(place)) {
                *slot = verdict;
                changed = true;
            }
        }
        if !changed {
            let undecided = winners.iter().zip(&mut stays).filter(|(_, stays)| stays.is_none());
            match undecided.min_by_key(|(winner, _)| winner.specificity()) {
                Some((_, slot)) => *slot = Some(true),
                None => return stays.into_iter().map(|stays| stays == Some(true)).collect(),
            }
        }
    }
}
