//! Resolution written the slow and obvious way, to hold the fast one against.

use tollgate_core::Nanos;

use crate::matcher::{Fit, Seen};
use crate::model::STANDARD_SCOPES;
use crate::resolve::{Resolution, apply};
use crate::{Attributes, Rule, RuleSet};

impl RuleSet {
    /// As [`RuleSet::resolve`], looking at every rule for every scope. For tests.
    #[doc(hidden)]
    pub fn resolve_by_scan<'s, 'a>(
        &'s self,
        request: &Attributes<'a>,
        now: Nanos,
    ) -> Resolution<'s, 'a> {
        let mut resolution = self.scan_reading(request, now);
        for other in request.other_readings() {
            resolution.add_reading(self.scan_reading(&other, now));
        }
        resolution
    }

    fn scan_reading<'s, 'a>(&'s self, request: &Attributes<'a>, now: Nanos) -> Resolution<'s, 'a> {
        let seen = Seen::new(request, now);
        let mut resolution = Resolution::default();
        for rule in self.survivors(&seen, false) {
            resolution.enforced.extend(rule.fit(&seen).map(|fit| apply(rule, fit, &seen)));
        }
        for rule in self.survivors(&seen, true) {
            resolution.observed.extend(rule.fit(&seen).map(|fit| apply(rule, fit, &seen)));
        }
        self.add_default(&mut resolution, &seen);
        resolution
    }

    /// The winners of all scopes that no other surviving winner replaces.
    fn survivors(&self, seen: &Seen<'_, '_>, log_only: bool) -> Vec<&Rule> {
        let mut scopes: Vec<&str> = self.rules.iter().map(|rule| rule.scope.as_str()).collect();
        scopes.sort_by_key(|scope| {
            let standard = STANDARD_SCOPES.iter().position(|standard| standard == scope);
            (standard.unwrap_or(STANDARD_SCOPES.len()), scope.to_owned())
        });
        scopes.dedup();
        let winner = |scope: &&str| {
            let rivals = self.rules.iter().filter(|rule| {
                rule.scope == *scope && rule.is_log_only() == log_only && rule.fit(seen).is_some()
            });
            rivals.reduce(|best, rule| if beats(rule, best, seen) { rule } else { best })
        };
        let winners: Vec<&Rule> = scopes.iter().filter_map(winner).collect();
        let mut undecided = winners.clone();
        let mut kept: Vec<&Rule> = Vec::new();
        while !undecided.is_empty() {
            // Take one that nothing undecided replaces; in a circle the most specific one.
            let free = undecided
                .iter()
                .copied()
                .find(|rule| !undecided.iter().any(|other| other.replaces(rule)));
            let most_specific = undecided
                .iter()
                .copied()
                .reduce(|best, rule| if beats(rule, best, seen) { rule } else { best });
            let Some(rule) = free.or(most_specific) else { break };
            kept.push(rule);
            undecided.retain(|other| other.id != rule.id && !rule.replaces(other));
        }
        winners.into_iter().filter(|rule| kept.iter().any(|kept| kept.id == rule.id)).collect()
    }
}

/// The order of the specification, word for word.
fn beats(a: &Rule, b: &Rule, seen: &Seen<'_, '_>) -> bool {
    let literals = |rule: &Rule| rule.fit(seen).map_or(0, Fit::literals);
    let fields = |rule: &Rule| rule.matcher.constrained_fields();
    if fields(a) != fields(b) {
        return fields(a) > fields(b);
    }
    if literals(a) != literals(b) {
        return literals(a) > literals(b);
    }
    if a.priority != b.priority {
        return a.priority > b.priority;
    }
    a.id < b.id
}
