//! Rules that a request should meet and cannot, because it lacks an attribute of their key.
//!
//! Such a rule does not apply, so the request is not limited by it. That is right where rules are
//! alternatives, and a hole where an attribute was forgotten or misspelt: the engine can be asked to
//! refuse such requests.

use tollgate_core::Nanos;

use crate::fields::nearest;
use crate::matcher::Seen;
use crate::{Attributes, KeyPart, Known, Resolution, Rule, RuleSet};

/// A rule that a request should meet, and the attribute that keeps it from it.
#[derive(Debug, Clone, Copy)]
pub struct Unmet<'s> {
    /// The rule.
    pub rule: &'s Rule,
    /// The attribute of its key that the request does not have.
    pub attribute: &'s str,
}

/// Every attribute that names a counter of some enforcing rule: a request that has them all meets every
/// rule that it should.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyNeeds {
    known: Vec<Known>,
    named: Vec<Box<str>>,
    client: bool,
}

impl KeyNeeds {
    pub(crate) fn of(rules: &[Rule]) -> Self {
        let mut needs = Self::default();
        for rule in rules.iter().filter(|rule| !rule.is_log_only()) {
            for part in &rule.key {
                match part {
                    KeyPart::Client => needs.client = true,
                    KeyPart::Known(known) if !needs.known.contains(known) => {
                        needs.known.push(*known);
                    }
                    // A path that matches brings along what it captures.
                    KeyPart::Named(name) if !rule.matcher.always_captures(name) => {
                        if !needs.named.iter().any(|other| **other == **name) {
                            needs.named.push(name.as_str().into());
                        }
                    }
                    KeyPart::Known(_) | KeyPart::Named(_) => {}
                }
            }
        }
        needs
    }

    fn are_met(&self, request: &Attributes<'_>) -> bool {
        self.known.iter().all(|known| request.get(*known).is_some())
            && self.named.iter().all(|name| request.extra(name).is_some())
            && (!self.client || request.client().is_some())
    }
}

impl RuleSet {
    /// A rule that the request should meet but for an attribute of its key: an enforcing one, in whose
    /// scope no other rule applies, and that no applying rule replaces. The system default is not among
    /// them. `resolution` is that of the request, whose tier must be resolved.
    pub fn unmet<'s>(
        &'s self,
        request: &Attributes<'_>,
        now: Nanos,
        resolution: &Resolution<'_, '_>,
    ) -> Option<Unmet<'s>> {
        if self.key_needs.are_met(request) {
            return None;
        }
        if request.other_endpoints().is_empty() {
            return self.unmet_by_reading(request, now, resolution);
        }
        // A rule that applies to one reading does not stand in for what another one lacks.
        let unmet = |reading: &Attributes<'_>| {
            let mut resolution = Resolution::default();
            self.resolve_reading(reading, now, &mut resolution);
            self.unmet_by_reading(reading, now, &resolution)
        };
        unmet(request).or_else(|| request.other_readings().find_map(|reading| unmet(&reading)))
    }

    fn unmet_by_reading<'s>(
        &'s self,
        request: &Attributes<'_>,
        now: Nanos,
        resolution: &Resolution<'_, '_>,
    ) -> Option<Unmet<'s>> {
        let seen = Seen::new(request, now);
        let mut unmet: Option<Unmet<'s>> = None;
        self.index.candidates(&seen, |place| {
            let Some(rule) = self.rules.get(place as usize) else { return };
            let is_first = unmet.is_none_or(|known| rule.id < known.rule.id);
            if rule.is_log_only() || !is_first {
                return;
            }
            let Some(part) = rule.matched(&seen).and_then(|fit| rule.missing_part(fit, &seen))
            else {
                return;
            };
            let stands_in = |other: &Rule| other.scope == rule.scope || other.replaces(rule);
            if !resolution.enforced.iter().any(|applied| stands_in(applied.rule)) {
                unmet = Some(Unmet { rule, attribute: part.name() });
            }
        });
        unmet
    }

    /// Attributes that keys of rules name, that are none of the known ones, and that are spelt nearly as
    /// one of those: the rule, the attribute, and what may have been meant.
    pub fn misspelt_attributes(&self) -> impl Iterator<Item = (&Rule, &str, &'static str)> {
        self.rules.iter().flat_map(|rule| {
            rule.key.iter().filter_map(move |part| {
                let KeyPart::Named(name) = part else { return None };
                let meant = nearest(name, &Known::ALL.map(Known::name))?;
                (!rule.matcher.captures(name)).then_some((rule, name.as_str(), meant))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RequestPath;

    fn unmet(rules: &str, attributes: &[(&'static str, &'static str)]) -> Option<(String, String)> {
        let set = RuleSet::from_yaml(rules, "t").unwrap();
        let path = attributes.iter().find(|(name, _)| *name == "endpoint");
        let path = path.map(|(_, path)| RequestPath::parse(path).unwrap());
        let mut request = Attributes::default();
        for (name, value) in attributes {
            request.push_extra(name, value);
        }
        if let Some(path) = &path {
            request.set_path(path);
        }
        let resolution = set.resolve(&request, 0);
        let unmet = set.unmet(&request, 0, &resolution);
        unmet.map(|unmet| (unmet.rule.id.clone(), unmet.attribute.to_owned()))
    }

    #[expect(clippy::unnecessary_wraps, reason = "it is compared with what `unmet` returns")]
    fn is(rule: &str, attribute: &str) -> Option<(String, String)> {
        Some((rule.to_owned(), attribute.to_owned()))
    }

    #[test]
    fn a_rule_without_its_key_is_unmet_unless_another_of_its_scope_applies() {
        let apart = "rules: [
            {rule_id: by-key, identifier_type: api_key, limit: 1, window: 1s},
            {rule_id: by-ip, identifier_type: ip, limit: 1, window: 1s}]";
        assert_eq!(unmet(apart, &[("api_key", "k"), ("ip", "::1")]), None);
        assert_eq!(unmet(apart, &[("ip", "::1")]), is("by-key", "api_key"));
        assert_eq!(unmet(apart, &[]), is("by-ip", "ip"));
        let alternatives = "rules: [
            {rule_id: by-key, scope: caller, identifier_type: api_key, limit: 1, window: 1s},
            {rule_id: by-ip, scope: caller, identifier_type: ip, limit: 1, window: 1s}]";
        assert_eq!(unmet(alternatives, &[("ip", "::1")]), None);
        assert_eq!(unmet(alternatives, &[]), is("by-ip", "ip"));
        let client = "rules: [{rule_id: c, identifier_type: client, limit: 1, window: 1s}]";
        assert_eq!(unmet(client, &[("user_id", "ann")]), None);
        assert_eq!(unmet(client, &[("tenant_id", "acme")]), is("c", "client"));
    }

    #[test]
    fn what_does_not_match_is_replaced_or_only_watched_is_not_missed() {
        let rules = "rules: [
            {rule_id: a, identifier_type: user_id, limit: 1, window: 1s, applies_to: {endpoints: ['/a/*']}},
            {rule_id: watched, identifier_type: tenant_id, limit: 1, window: 1s, action: log_only},
            {rule_id: over, limit: 1, window: 1s, overrides: [a], applies_to: {attributes: {free: 'yes'}}}]";
        assert_eq!(unmet(rules, &[("endpoint", "/b")]), None, "the default is not missed either");
        assert_eq!(unmet(rules, &[("endpoint", "/a/b")]), is("a", "user_id"));
        assert_eq!(unmet(rules, &[("endpoint", "/a/b"), ("free", "yes")]), None);
    }

    #[test]
    fn what_a_path_captures_is_there() {
        let rules = "rules: [{rule_id: p, key_by: [project], limit: 1, window: 1s,
            applies_to: {endpoints: ['/p/{project}/*', '/q/*']}}]";
        assert_eq!(unmet(rules, &[("endpoint", "/p/x/y")]), None);
        assert_eq!(unmet(rules, &[("endpoint", "/q/y")]), is("p", "project"));
        assert_eq!(unmet(rules, &[("endpoint", "/q/y"), ("project", "x")]), None);
    }

    #[test]
    fn either_reading_of_an_encoded_slash_may_miss_a_key() {
        let rules = "rules: [
            {rule_id: one, scope: s, identifier_type: user_id, limit: 1, window: 1s, applies_to: {endpoints: ['/f/{n}']}},
            {rule_id: two, scope: s, limit: 1, window: 1s, applies_to: {endpoints: ['/f/*/b']}}]";
        assert_eq!(unmet(rules, &[("endpoint", "/f/a/b")]), None);
        assert_eq!(unmet(rules, &[("endpoint", "/f/a")]), is("one", "user_id"));
        assert_eq!(unmet(rules, &[("endpoint", "/f/a%2Fb")]), is("one", "user_id"));
        assert_eq!(unmet(rules, &[("endpoint", "/f/a%2Fb"), ("user_id", "ann")]), None);
    }

    #[test]
    fn attributes_that_look_misspelt_are_found() {
        let rules = "rules: [
            {rule_id: a, key_by: [usr_id], limit: 1, window: 1s},
            {rule_id: b, key_by: [tennant_id, region], limit: 1, window: 1s},
            {rule_id: c, key_by: [user_id], limit: 1, window: 1s}]";
        let set = RuleSet::from_yaml(rules, "t").unwrap();
        let found: Vec<_> =
            set.misspelt_attributes().map(|(rule, name, meant)| (&*rule.id, name, meant)).collect();
        assert_eq!(found, [("a", "usr_id", "user_id"), ("b", "tennant_id", "tenant_id")]);
    }
}
