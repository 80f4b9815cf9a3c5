//! Whether two rules can meet on one request, and which of them would win there.
//!
//! Answers are conservative: two rules may meet unless it is certain that they cannot.

use crate::matcher::{Matcher, Wanted};
use crate::pattern::{Pattern, Step};
use crate::{KeyPart, Known, Rule};

/// Who can win where both apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Outcomes {
    pub(crate) may_win: bool,
    pub(crate) may_lose: bool,
}

/// Whether some request may meet both rules.
pub(crate) fn may_meet(one: &Rule, other: &Rule) -> bool {
    let apart = |first: &Rule, second: &Rule| matches!((first.ends_at, second.starts_at), (Some(end), Some(start)) if end <= start);
    !apart(one, other) && !apart(other, one) && matchers_may_meet(&one.matcher, &other.matcher)
}

fn matchers_may_meet(one: &Matcher, other: &Matcher) -> bool {
    let known = one.known.iter().all(|(known, values)| {
        let theirs = other.known.iter().find(|(name, _)| name == known);
        theirs.is_none_or(|(_, theirs)| share_a_value(values, theirs))
    });
    let methods = one.methods.is_empty()
        || other.methods.is_empty()
        || one.methods.iter().any(|m| other.methods.iter().any(|o| m.eq_ignore_ascii_case(o)));
    let named = || {
        one.named.iter().all(|(name, wanted)| {
            // What a path captures is seen by its own rule only.
            let captured = one.captures(name) || other.captures(name);
            let theirs = other.named.iter().find(|(theirs, _)| theirs == name);
            let share = |theirs: &[Wanted]| {
                wanted.iter().any(|one| theirs.iter().any(|other| wanted_may_meet(one, other)))
            };
            captured || theirs.is_none_or(|(_, theirs)| share(theirs))
        })
    };
    let endpoints = || {
        one.endpoints.is_empty()
            || other.endpoints.is_empty()
            || one.endpoints.iter().any(|p| other.endpoints.iter().any(|q| patterns_may_meet(p, q)))
    };
    known && methods && named() && endpoints()
}

/// Both are sorted.
fn share_a_value(one: &[Box<str>], other: &[Box<str>]) -> bool {
    let (few, many) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    few.iter().any(|value| many.binary_search(value).is_ok())
}

fn wanted_may_meet(one: &Wanted, other: &Wanted) -> bool {
    match (one, other) {
        (Wanted::Exact(one), Wanted::Exact(other)) => one == other,
        (Wanted::Exact(exact), Wanted::Prefix(prefix))
        | (Wanted::Prefix(prefix), Wanted::Exact(exact)) => exact.starts_with(&**prefix),
        (Wanted::Prefix(one), Wanted::Prefix(other)) => {
            one.starts_with(&**other) || other.starts_with(&**one)
        }
        (Wanted::Exact(exact), pattern @ Wanted::Pattern(_))
        | (pattern @ Wanted::Pattern(_), Wanted::Exact(exact)) => pattern.accepts(exact),
        (Wanted::Pattern(_), _) | (_, Wanted::Pattern(_)) => true,
    }
}

fn patterns_may_meet(one: &Pattern, other: &Pattern) -> bool {
    let (short, long) =
        if one.steps.len() <= other.steps.len() { (one, other) } else { (other, one) };
    let lengths_fit = short.steps.len() == long.steps.len() || short.rest;
    lengths_fit
        && short.steps.iter().zip(&long.steps).all(|steps| match steps {
            (Step::Literal(one), Step::Literal(other)) => one == other,
            _ => true,
        })
}

/// How the first rule can fare against the second, both of one scope, where both apply.
pub(crate) fn outcomes(rule: &Rule, other: &Rule) -> Outcomes {
    let (own, theirs) = (rule.matcher.constrained_fields(), other.matcher.constrained_fields());
    if own != theirs {
        return Outcomes { may_win: own > theirs, may_lose: own < theirs };
    }
    let mut found = Outcomes::default();
    let mut compare = |own: u16, theirs: u16| {
        let wins = if own == theirs { beats_on_equal_terms(rule, other) } else { own > theirs };
        found.may_win |= wins;
        found.may_lose |= !wins;
    };
    match (rule.matcher.endpoints.as_slice(), other.matcher.endpoints.as_slice()) {
        ([], []) => compare(0, 0),
        (own, []) => own.iter().for_each(|pattern| compare(pattern.literals, 0)),
        ([], theirs) => theirs.iter().for_each(|pattern| compare(0, pattern.literals)),
        (own, theirs) => {
            for own in own {
                for theirs in theirs.iter().filter(|theirs| patterns_may_meet(own, theirs)) {
                    compare(own.literals, theirs.literals);
                }
            }
        }
    }
    found
}

/// Between two equally specific rules: higher priority, then lower id.
pub(crate) fn beats_on_equal_terms(rule: &Rule, other: &Rule) -> bool {
    (rule.priority, &other.id) > (other.priority, &rule.id)
}

/// Whether the first rule has all it needs of a request wherever the second applies, given that its
/// matcher accepts the request too: the attributes of its key, and the time.
pub(crate) fn applies_wherever(rule: &Rule, other: &Rule) -> bool {
    let starts = rule.starts_at.is_none_or(|start| other.starts_at.is_some_and(|s| start <= s));
    let ends = rule.ends_at.is_none_or(|end| other.ends_at.is_some_and(|e| e <= end));
    let is_active = rule.active_when.is_none() || rule.active_when == other.active_when;
    starts && ends && is_active && rule.key.iter().all(|part| is_present(part, other))
}

/// Whether every request that the rule applies to has this part of a key.
fn is_present(part: &KeyPart, rule: &Rule) -> bool {
    let matcher = &rule.matcher;
    let has = |known: Known| {
        rule.key.contains(&KeyPart::Known(known))
            || matcher.known.iter().any(|(constrained, _)| *constrained == known)
            || (known == Known::Endpoint && !matcher.endpoints.is_empty())
            || (known == Known::Method && !matcher.methods.is_empty())
    };
    match part {
        KeyPart::Known(known) => has(*known),
        KeyPart::Client => {
            rule.key.contains(part)
                || [Known::ApiKey, Known::UserId, Known::Ip].into_iter().any(has)
        }
        // Captured values are seen by their own rule only; further attributes by all.
        KeyPart::Named(name) => {
            let wanted = matcher.named.iter().any(|(constrained, _)| **constrained == **name);
            (wanted || rule.key.contains(part)) && !matcher.captures(name)
        }
    }
}
