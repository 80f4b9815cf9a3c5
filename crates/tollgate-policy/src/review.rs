//! What a rule set says that cannot be meant, and what a rule does to others.
//!
//! Findings are certain: what depends on requests that may never come is not reported.

use hashbrown::{HashMap, HashSet};

use crate::circles::circles;
use crate::matcher::{Matcher, Wanted};
use crate::overlap::{applies_wherever, beats_on_equal_terms, may_meet, outcomes};
use crate::{Known, NoMatch, Quota, Rule, RuleSet};

/// A rule is compared with at most so many others for each kind of finding.
const MAX_RIVALS: usize = 16;

/// What is wrong with a rule beside the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindingKind {
    /// Scopes replace each other in a circle.
    OverrideCycle,
    /// No request can ever be limited by the rule, or let off by it.
    NeverApplies,
}

/// Something that a rule set says and cannot mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The rule.
    pub rule_id: String,
    /// The field to change.
    pub field: &'static str,
    /// What is wrong, naming the other rule.
    pub message: String,
    /// What kind of thing it is.
    pub kind: FindingKind,
}

/// What a rule does to others on some request, and they to it: ids in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Effect {
    /// Rules of its scope that it can win over.
    pub displaces: Vec<String>,
    /// Rules of its scope that can win over it.
    pub displaced_by: Vec<String>,
    /// Rules whose scope it overrides; the system default where that yields to it.
    pub replaces: Vec<String>,
    /// Rules that override its scope; for the system default those that it yields to.
    pub replaced_by: Vec<String>,
}

impl RuleSet {
    /// Everything that the rules say and cannot mean, in the order of the file.
    pub fn review(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for log_only in [false, true] {
            let rules: Vec<&Rule> =
                self.rules.iter().filter(|rule| rule.is_log_only() == log_only).collect();
            find_circles(&rules, &mut findings);
            find_outranked(&rules, &mut findings);
            find_replaced(&rules, &mut findings);
            self.find_idle(&rules, &mut findings);
        }
        let places: HashMap<&str, usize> =
            self.rules.iter().enumerate().map(|(place, rule)| (rule.id.as_str(), place)).collect();
        findings.sort_by_key(|finding: &Finding| places.get(finding.rule_id.as_str()).copied());
        findings
    }

    /// What this rule does to others and they to it; nothing for an unknown id.
    pub fn effect_of(&self, rule_id: &str) -> Effect {
        let Some(rule) = self.rule(rule_id) else { return Effect::default() };
        let mut effect = Effect::default();
        for other in &self.rules {
            if other.id == rule.id || !may_meet(rule, other) {
                continue;
            }
            if rule.is_default {
                if !other.is_log_only() && other.displaces_default(rule) {
                    effect.replaced_by.push(other.id.clone());
                }
                continue;
            }
            if other.is_log_only() != rule.is_log_only() {
                continue;
            }
            if rule.scope == other.scope {
                let found = outcomes(rule, other);
                if found.may_win {
                    effect.displaces.push(other.id.clone());
                }
                if found.may_lose {
                    effect.displaced_by.push(other.id.clone());
                }
            }
            if rule.overrides.contains(&other.scope) {
                effect.replaces.push(other.id.clone());
            }
            if other.overrides.contains(&rule.scope) {
                effect.replaced_by.push(other.id.clone());
            }
        }
        if let Some(default) = &self.default_rule
            && !rule.is_default
            && !rule.is_log_only()
            && rule.displaces_default(default)
        {
            effect.replaces.push(default.id.clone());
        }
        effect
    }

    /// Rules that limit nobody, and whose winning or applying makes no difference to anything else.
    fn find_idle(&self, rules: &[&Rule], findings: &mut Vec<Finding>) {
        let mut members: HashMap<&str, usize> = HashMap::new();
        for rule in rules {
            *members.entry(rule.scope.as_str()).or_default() += 1;
        }
        for rule in rules {
            let default = self.default_rule.as_ref().filter(|_| !rule.is_log_only());
            let lets_off = members.get(rule.scope.as_str()).is_some_and(|count| *count > 1)
                || !rule.overrides.is_empty()
                || default.is_some_and(|default| rule.displaces_default(default))
                || self.no_match() == NoMatch::Deny;
            if !lets_off && !limits_someone(rule) {
                let message = "limits nobody: every quota that can apply is unlimited, and there is \
                    no other rule that it takes the place of";
                findings.push(Finding {
                    rule_id: rule.id.clone(),
                    field: if rule.limits.len() > 1 { "limits" } else { "limit" },
                    message: message.to_owned(),
                    kind: FindingKind::NeverApplies,
                });
            }
        }
    }
}

/// Whether some tier that the rule applies to has a limit.
fn limits_someone(rule: &Rule) -> bool {
    let limited = |quota: Option<&Quota>| quota.is_some_and(|quota| quota.limit().is_some());
    let tiers = rule.matcher.known.iter().find(|(known, _)| *known == Known::Tier);
    rule.limits.iter().any(|limit| match tiers {
        Some((_, tiers)) => tiers.iter().any(|tier| limited(limit.for_tier(Some(tier)))),
        None => {
            limited(limit.base.as_ref())
                || limit.tiers.iter().any(|(_, quota)| limited(Some(quota)))
        }
    })
}

fn find_circles(rules: &[&Rule], findings: &mut Vec<Finding>) {
    let circles = circles(rules);
    for rule in rules {
        let Some(circle) = circles.of(&rule.scope) else { continue };
        let inside = |scope: &&String| circles.of(scope).is_some_and(|other| other == circle);
        let Some(overridden) = rule.overrides.iter().find(inside) else { continue };
        let back = circles.rule_in(overridden).unwrap_or_default();
        findings.push(Finding {
            rule_id: rule.id.clone(),
            field: "overrides",
            message: format!(
                "replaces scope {overridden:?}, whose rule {back:?} replaces it in turn: {} go in a circle",
                circles.describe(circle)
            ),
            kind: FindingKind::OverrideCycle,
        });
    }
}

/// What two rules of one scope must have in common to match the same requests equally well.
#[derive(PartialEq, Eq, Hash)]
struct Alike<'s> {
    scope: &'s str,
    known: Vec<&'s (Known, Vec<Box<str>>)>,
    methods: Vec<String>,
    named: Vec<(&'s str, Vec<&'s Wanted>)>,
    endpoints: &'s [crate::pattern::Pattern],
}

impl<'s> Alike<'s> {
    fn of(rule: &'s Rule) -> Self {
        let Matcher { known, methods, named, endpoints } = &rule.matcher;
        let mut known: Vec<_> = known.iter().collect();
        known.sort_unstable_by_key(|(known, _)| *known);
        let mut methods: Vec<_> = methods.iter().map(|m| m.to_ascii_uppercase()).collect();
        methods.sort_unstable();
        methods.dedup();
        let sorted = |wanted: &'s Vec<Wanted>| {
            let mut wanted: Vec<&Wanted> = wanted.iter().collect();
            wanted.sort_unstable();
            wanted
        };
        let mut named: Vec<_> =
            named.iter().map(|(name, wanted)| (&**name, sorted(wanted))).collect();
        named.sort_unstable();
        Self { scope: &rule.scope, known, methods, named, endpoints }
    }
}

/// Rules that match exactly what another one of their scope matches, and lose to it every time.
fn find_outranked(rules: &[&Rule], findings: &mut Vec<Finding>) {
    let mut groups: HashMap<Alike<'_>, Vec<&Rule>> = HashMap::new();
    for rule in rules {
        groups.entry(Alike::of(rule)).or_default().push(rule);
    }
    for mut group in groups.into_values().filter(|group| group.len() > 1) {
        group.sort_unstable_by_key(|rule| (std::cmp::Reverse(rule.priority), &rule.id));
        for (place, rule) in group.iter().enumerate() {
            let better = group.iter().take(place.min(MAX_RIVALS));
            let mut better = better.filter(|other| applies_wherever(other, rule));
            if let Some(winner) = better.find(|other| beats_on_equal_terms(other, rule)) {
                let why = if winner.priority == rule.priority {
                    "comes first by its id".to_owned()
                } else {
                    format!("has priority {} over {}", winner.priority, rule.priority)
                };
                findings.push(Finding {
                    rule_id: rule.id.clone(),
                    field: "applies_to",
                    message: format!(
                        "never wins: rule {:?} of the same scope matches all that it matches and {why}",
                        winner.id
                    ),
                    kind: FindingKind::NeverApplies,
                });
            }
        }
    }
}

/// Rules whose scope another rule replaces on every request that they match.
fn find_replaced(rules: &[&Rule], findings: &mut Vec<Finding>) {
    let mut members: HashMap<&str, usize> = HashMap::new();
    let mut overridden: HashSet<&str> = HashSet::new();
    for rule in rules {
        *members.entry(rule.scope.as_str()).or_default() += 1;
        overridden.extend(rule.overrides.iter().map(String::as_str));
    }
    // A rule that matches everything, has no rival and is never replaced applies wherever its key is
    // there.
    let mut by_scope: HashMap<&str, Vec<&Rule>> = HashMap::new();
    for rule in rules {
        let alone = members.get(rule.scope.as_str()) == Some(&1);
        let stays = !overridden.contains(rule.scope.as_str());
        if alone && stays && rule.matcher.constrained_fields() == 0 {
            for scope in &rule.overrides {
                by_scope.entry(scope).or_default().push(rule);
            }
        }
    }
    for rule in rules {
        let others = by_scope.get(rule.scope.as_str()).into_iter().flatten().take(MAX_RIVALS);
        if let Some(other) = others.into_iter().find(|other| applies_wherever(other, rule)) {
            findings.push(Finding {
                rule_id: rule.id.clone(),
                field: "scope",
                message: format!(
                    "never applies: rule {:?} applies wherever it does and replaces scope {:?}",
                    other.id, rule.scope
                ),
                kind: FindingKind::NeverApplies,
            });
        }
    }
}
