//! Why a request meets the rules that it meets, and not others.

use tollgate_core::Nanos;

use crate::matcher::{Fit, Seen};
use crate::readings::merge_explained;
use crate::resolve::{Match, without_overridden};
use crate::{Attributes, KeyPart, Known, ListKind, ListMatch, Rule, RuleSet};

/// Where the tier of a request comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TierSource {
    /// The request states it.
    Stated,
    /// The tier of its client, by what names that.
    ClientTiers(ListKind),
    /// The default tier.
    Default,
}

/// How a rule stands to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleVerdict<'s> {
    /// It applies.
    Applies,
    /// It matches, and a more specific rule of its scope wins.
    LessSpecific {
        /// The rule that wins.
        than: &'s str,
    },
    /// It matches, and its scope is replaced.
    Replaced {
        /// The rule that replaces it.
        by: &'s str,
    },
    /// It is the system default, which yields to rules that are keyed by an identity.
    DefaultYields {
        /// The first of those.
        to: &'s str,
    },
    /// One thing keeps it from matching.
    Misses {
        /// The field that says so.
        field: &'static str,
    },
}

/// A rule and how it stands to a request.
#[derive(Debug, Clone)]
pub struct Explained<'s> {
    /// The rule.
    pub rule: &'s Rule,
    /// How it stands.
    pub verdict: RuleVerdict<'s>,
    /// The names and values of its key, where it applies. A client is named by its kind.
    pub key: Vec<(&'s str, &'s str)>,
}

/// Why a request meets the rules that it meets.
#[derive(Debug, Clone)]
pub struct Explanation<'s> {
    /// The list that the request is on: rules do not count then.
    pub listed: Option<ListMatch<'s>>,
    /// Its tier, and where that comes from.
    pub tier: Option<(&'s str, TierSource)>,
    /// Rules that apply, in the order of [`crate::Resolution`], those that are enforced first; then
    /// those that match, then those that miss by one thing.
    pub rules: Vec<Explained<'s>>,
    /// How many more there would have been.
    pub left_out: usize,
}

impl RuleSet {
    /// Why the request meets the rules that it meets at `now`, in at most `limit` rules. As with
    /// [`RuleSet::resolve`], the endpoint must be normalised; the tier is found here.
    pub fn explain<'s, 'a: 's>(
        &'s self,
        request: &Attributes<'a>,
        now: Nanos,
        limit: usize,
    ) -> Explanation<'s> {
        let mut request = request.shortened();
        let tier = self.tier_and_source(&request);
        request.set(Known::Tier, tier.map_or("", |(tier, _)| tier));
        let mut rules = self.explain_reading(&request, now);
        for other in request.other_readings() {
            rules = merge_explained(rules, self.explain_reading(&other, now));
        }
        let left_out = rules.len().saturating_sub(limit);
        rules.truncate(limit);
        Explanation { listed: self.listed(&request, now), tier, rules, left_out }
    }

    fn explain_reading<'s>(&'s self, request: &Attributes<'s>, now: Nanos) -> Vec<Explained<'s>> {
        let seen = Seen::new(request, now);
        let mut matches = Vec::new();
        let mut missing = Vec::new();
        for (rule, rank) in self.rules.iter().zip(&self.ranks) {
            match (rule.fit(&seen), misses(rule, &seen)) {
                (Some(fit), _) => matches.push(Match { rule, rank, fit }),
                (None, (field, 1)) => missing.push(explained(rule, RuleVerdict::Misses { field })),
                _ => {}
            }
        }
        let (mut rules, others) = judge(matches, &seen);
        self.judge_default(&seen, &mut rules, &mut missing);
        rules.extend(others);
        rules.extend(missing);
        rules
    }

    fn tier_and_source<'s>(&'s self, request: &Attributes<'s>) -> Option<(&'s str, TierSource)> {
        if let Some(tier) = request.get(Known::Tier) {
            return Some((tier, TierSource::Stated));
        }
        let found = self.tiers.of(request).or_else(|| self.client_tiers().of(request));
        let found = found.map(|(kind, tier)| (tier, TierSource::ClientTiers(kind)));
        found.or_else(|| Some((self.tiers.default.as_deref()?, TierSource::Default)))
    }

    /// Puts the system default to its place among the rules that apply, or to those that do not.
    fn judge_default<'s>(
        &'s self,
        seen: &Seen<'_, 's>,
        applying: &mut Vec<Explained<'s>>,
        missing: &mut Vec<Explained<'s>>,
    ) {
        let Some(rule) = &self.default_rule else { return };
        let Some(fit) = rule.fit(seen) else {
            if let (field, 1) = misses(rule, seen) {
                missing.push(explained(rule, RuleVerdict::Misses { field }));
            }
            return;
        };
        let enforcing = |one: &&Explained<'s>| !one.rule.is_log_only();
        let yields_to = applying.iter().filter(enforcing).map(|one| one.rule);
        if let Some(other) = yields_to.into_iter().find(|other| other.displaces_default(rule)) {
            let verdict = if other.overrides.contains(&rule.scope) {
                RuleVerdict::Replaced { by: &other.id }
            } else {
                RuleVerdict::DefaultYields { to: &other.id }
            };
            // Before those that miss: it matches.
            missing.insert(0, explained(rule, verdict));
            return;
        }
        let order = |rule: &'s Rule| {
            (rule.is_log_only(), rule.standard_scope_rank.unwrap_or(u8::MAX), &rule.scope)
        };
        let place = applying.partition_point(|other| order(other.rule) < order(rule));
        applying.insert(place, applies(rule, fit, seen));
    }
}

fn explained<'s>(rule: &'s Rule, verdict: RuleVerdict<'s>) -> Explained<'s> {
    Explained { rule, verdict, key: Vec::new() }
}

fn applies<'s>(rule: &'s Rule, fit: Fit<'_>, seen: &Seen<'_, 's>) -> Explained<'s> {
    let mut values = rule.key_values(fit, seen).into_iter();
    let pair = |part: &'s KeyPart| match part {
        KeyPart::Client => Some((values.next()?, values.next()?)),
        named => Some((named.name(), values.next()?)),
    };
    let key = rule.key.iter().filter_map(pair).collect();
    Explained { rule, verdict: RuleVerdict::Applies, key }
}

/// The rules that apply, and those that match and do not.
fn judge<'s>(
    mut matches: Vec<Match<'s>>,
    seen: &Seen<'_, 's>,
) -> (Vec<Explained<'s>>, Vec<Explained<'s>>) {
    matches.sort_unstable_by_key(|one| (one.rank.is_log_only, one.rank.scope, one.specificity()));
    let mut winners: Vec<Match<'s>> = Vec::new();
    let mut others = Vec::new();
    for one in matches {
        match winners.last() {
            Some(best)
                if (best.rank.is_log_only, best.rank.scope)
                    == (one.rank.is_log_only, one.rank.scope) =>
            {
                let verdict = RuleVerdict::LessSpecific { than: &best.rule.id };
                others.push(explained(one.rule, verdict));
            }
            _ => winners.push(one),
        }
    }
    let split = winners.partition_point(|one| !one.rank.is_log_only);
    let (enforced, observed) = winners.split_at(split);
    let mut applying = Vec::new();
    for winners in [enforced, observed] {
        let stays = without_overridden(winners);
        let replaced_by = |replaced: &Match<'s>| {
            let staying = winners.iter().zip(&stays).filter(|(_, stays)| **stays);
            let mut by = staying.filter(|(winner, _)| winner.rank.replaces(replaced.rank));
            by.next().map(|(winner, _)| winner.rule.id.as_str())
        };
        for (winner, stays) in winners.iter().zip(&stays) {
            match replaced_by(winner) {
                Some(by) if !stays => {
                    others.push(explained(winner.rule, RuleVerdict::Replaced { by }));
                }
                _ => applying.push(applies(winner.rule, winner.fit, seen)),
            }
        }
    }
    (applying, others)
}

/// The first thing that keeps the rule from matching, and how many there are.
fn misses(rule: &Rule, seen: &Seen<'_, '_>) -> (&'static str, usize) {
    let mut missing = Missing::default();
    let matcher = &rule.matcher;
    missing.unless("starts_at", rule.starts_at.is_none_or(|start| start <= seen.now));
    missing.unless("ends_at", rule.ends_at.is_none_or(|end| seen.now < end));
    let schedule = rule.active_when.as_ref();
    missing.unless("active_when", schedule.is_none_or(|schedule| schedule.is_active(seen.now)));
    let fit = Fit { pattern: matcher.pattern_for(seen) };
    let has_path = matcher.endpoints.is_empty() || fit.pattern.is_some();
    missing.unless("applies_to.endpoints", has_path);
    missing.unless("applies_to.methods", matcher.takes_method(seen));
    for (known, values) in &matcher.known {
        let value = seen.attributes.get(*known);
        let fits = value.is_some_and(|v| values.binary_search_by(|probe| (**probe).cmp(v)).is_ok());
        missing.unless(known.rule_path(), fits);
    }
    // What the path would have captured is not a second thing.
    let excused = |name: &str| !has_path && matcher.captures(name);
    for (name, wanted) in &matcher.named {
        let value = fit.attribute(name, seen);
        let fits = value.is_some_and(|value| wanted.iter().any(|wanted| wanted.accepts(value)));
        missing.unless("applies_to.attributes", fits || excused(name));
    }
    for part in &rule.key {
        let present = match part {
            KeyPart::Known(known) => seen.attributes.get(*known).is_some(),
            KeyPart::Named(name) => fit.attribute(name, seen).is_some() || excused(name),
            KeyPart::Client => seen.attributes.client().is_some(),
        };
        // An absent attribute that the matcher also constrains was counted as missing above.
        let is_counted = matches!(part, KeyPart::Known(known)
            if matcher.known.iter().any(|(constrained, _)| constrained == known));
        missing.unless("key_by", present || is_counted);
    }
    (missing.first.unwrap_or_default(), missing.count)
}

#[derive(Default)]
struct Missing {
    first: Option<&'static str>,
    count: usize,
}

impl Missing {
    fn unless(&mut self, field: &'static str, fits: bool) {
        if !fits {
            self.first.get_or_insert(field);
            self.count += 1;
        }
    }
}
