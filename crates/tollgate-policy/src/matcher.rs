//! Whether a rule applies to a request, and what it would charge: the checks of one rule.

use tollgate_core::Nanos;

use crate::pattern::{Pattern, Segments, segments};
use crate::{Attributes, KeyPart, Known, Rule};

/// One value that an `applies_to.attributes` entry accepts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Wanted {
    /// This value.
    Exact(Box<str>),
    /// Any value that begins like this (`"eu-*"`; `"*"` is any value at all).
    Prefix(Box<str>),
    /// Any value that has these texts in this order, the first at its beginning and the last at its end
    /// (`"/v*/users/*/posts"`). Two at least.
    Pattern(Box<[Box<str>]>),
}

impl Wanted {
    pub(crate) fn parse(text: &str) -> Self {
        match text.split_once('*') {
            None => Self::Exact(text.into()),
            Some((prefix, "")) => Self::Prefix(prefix.into()),
            Some(_) => Self::Pattern(text.split('*').map(Into::into).collect()),
        }
    }

    pub(crate) fn accepts(&self, value: &str) -> bool {
        match self {
            Self::Exact(exact) => **exact == *value,
            Self::Prefix(prefix) => value.starts_with(&**prefix),
            Self::Pattern(parts) => accepts_parts(parts, value),
        }
    }
}

/// Whether a value has these texts in order. Each is looked for from where the one before it ends: if any
/// way to place them exists, the leftmost does.
fn accepts_parts(parts: &[Box<str>], value: &str) -> bool {
    let [first, middle @ .., last] = parts else { return false };
    let inner = value.strip_prefix(&**first).and_then(|rest| rest.strip_suffix(&**last));
    let Some(mut rest) = inner else { return false };
    for part in middle {
        let Some((_, behind)) = rest.split_once(&**part) else { return false };
        rest = behind;
    }
    true
}

/// What a rule applies to. Empty: everything.
#[derive(Debug, Clone, Default)]
pub(crate) struct Matcher {
    /// Per known attribute the values it accepts, sorted. Not the endpoint, not the method.
    pub(crate) known: Vec<(Known, Vec<Box<str>>)>,
    /// Compared without regard to case, as callers spell methods both ways.
    pub(crate) methods: Vec<Box<str>>,
    pub(crate) named: Vec<(Box<str>, Vec<Wanted>)>,
    pub(crate) endpoints: Vec<Pattern>,
}

impl Matcher {
    /// How many fields are constrained: the more, the more specific.
    pub(crate) fn constrained_fields(&self) -> u32 {
        let lists = usize::from(!self.methods.is_empty()) + usize::from(!self.endpoints.is_empty());
        (self.known.len() + self.named.len() + lists) as u32
    }

    /// Whether the request's method is among those it wants, if it wants any.
    #[inline]
    pub(crate) fn takes_method(&self, seen: &Seen<'_, '_>) -> bool {
        self.methods.is_empty()
            || seen.attributes.get(Known::Method).is_some_and(|method| {
                self.methods.iter().any(|wanted| wanted.eq_ignore_ascii_case(method))
            })
    }

    /// The pattern that the request's path matches best; also `None` where there is no pattern.
    #[inline]
    pub(crate) fn pattern_for(&self, seen: &Seen<'_, '_>) -> Option<&Pattern> {
        match self.endpoints.as_slice() {
            [] => None,
            patterns => most_literal(patterns, seen.path()?),
        }
    }

    /// Whether whatever path it matches captures an attribute of this name.
    pub(crate) fn always_captures(&self, name: &str) -> bool {
        let captures = |pattern: &Pattern| pattern.captures().any(|capture| capture == name);
        !self.endpoints.is_empty() && self.endpoints.iter().all(captures)
    }

    /// Whether one of its patterns captures an attribute of this name.
    pub(crate) fn captures(&self, name: &str) -> bool {
        self.endpoints.iter().any(|pattern| pattern.captures().any(|capture| capture == name))
    }
}

/// A request with its path taken apart, once for all rules.
pub(crate) struct Seen<'r, 'a> {
    pub(crate) attributes: &'r Attributes<'a>,
    /// Of the path; none where there is no path.
    segments: Segments<'a>,
    pub(crate) now: Nanos,
}

impl<'r, 'a> Seen<'r, 'a> {
    #[expect(clippy::inline_always, reason = "it is large: made where it stays, it is not moved")]
    #[inline(always)]
    pub(crate) fn new(attributes: &'r Attributes<'a>, now: Nanos) -> Self {
        let path = attributes.get(Known::Endpoint).unwrap_or_default();
        Self { attributes, segments: segments(path), now }
    }

    /// The segments of the path, if there is a path.
    #[inline]
    pub(crate) fn path(&self) -> Option<&[&'a str]> {
        self.attributes.get(Known::Endpoint).map(|_| &*self.segments)
    }
}

/// How a rule matched: the pattern, if it has any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fit<'s> {
    pub(crate) pattern: Option<&'s Pattern>,
}

impl Fit<'_> {
    pub(crate) fn literals(self) -> u16 {
        self.pattern.map_or(0, |pattern| pattern.literals)
    }

    /// An attribute as this rule sees it: what its path captured comes first.
    pub(crate) fn attribute<'a>(self, name: &str, seen: &Seen<'_, 'a>) -> Option<&'a str> {
        self.captured(name, seen).or_else(|| seen.attributes.extra(name))
    }

    /// The same, as it is compared with what the rule applies to: whole, where its value is shortened.
    fn compared_attribute<'a>(self, name: &str, seen: &Seen<'_, 'a>) -> Option<&'a str> {
        self.captured(name, seen).or_else(|| seen.attributes.compared_extra(name))
    }

    fn captured<'a>(self, name: &str, seen: &Seen<'_, 'a>) -> Option<&'a str> {
        self.pattern.and_then(|pattern| pattern.captured(name, &seen.segments))
    }
}

impl Rule {
    /// How this rule applies to the request, if it does.
    #[inline]
    pub(crate) fn fit<'s>(&'s self, seen: &Seen<'_, '_>) -> Option<Fit<'s>> {
        let fit = self.matched(seen)?;
        self.missing_part(fit, seen).is_none().then_some(fit)
    }

    /// How the request matches what this rule applies to, whether or not it has the rule's key.
    #[inline]
    pub(crate) fn matched<'s>(&'s self, seen: &Seen<'_, '_>) -> Option<Fit<'s>> {
        if self.starts_at.is_some_and(|start| seen.now < start)
            || self.ends_at.is_some_and(|end| end <= seen.now)
        {
            return None;
        }
        if let Some(schedule) = &self.active_when
            && !schedule.is_active(seen.now)
        {
            return None;
        }
        for (known, values) in &self.matcher.known {
            let value = seen.attributes.get(*known)?;
            values.binary_search_by(|probe| (**probe).cmp(value)).ok()?;
        }
        if !self.matcher.takes_method(seen) {
            return None;
        }
        let pattern = self.matcher.pattern_for(seen);
        if pattern.is_none() && !self.matcher.endpoints.is_empty() {
            return None;
        }
        let fit = Fit { pattern };
        for (name, wanted) in &self.matcher.named {
            let value = fit.compared_attribute(name, seen)?;
            wanted.iter().find(|wanted| wanted.accepts(value))?;
        }
        Some(fit)
    }

    /// The first part of the key that the request does not have.
    #[inline]
    pub(crate) fn missing_part(&self, fit: Fit<'_>, seen: &Seen<'_, '_>) -> Option<&KeyPart> {
        self.key.iter().find(|part| match part {
            KeyPart::Known(known) => seen.attributes.get(*known).is_none(),
            KeyPart::Named(name) => fit.attribute(name, seen).is_none(),
            KeyPart::Client => seen.attributes.client().is_none(),
        })
    }

    /// The values that name the counter of a request this rule applies to.
    #[expect(clippy::inline_always, reason = "it is large: made where it stays, it is not moved")]
    #[inline(always)]
    pub(crate) fn key_values<'a>(
        &self,
        fit: Fit<'_>,
        seen: &Seen<'_, 'a>,
    ) -> smallvec::SmallVec<[&'a str; 4]> {
        let mut key = smallvec::SmallVec::new();
        for part in &self.key {
            match part {
                KeyPart::Known(known) => {
                    if let Some(value) = seen.attributes.get(*known) {
                        key.push(value);
                    }
                }
                KeyPart::Named(name) => {
                    if let Some(value) = fit.attribute(name, seen) {
                        key.push(value);
                    }
                }
                KeyPart::Client => {
                    if let Some((kind, value)) = seen.attributes.client() {
                        key.push(kind);
                        key.push(value);
                    }
                }
            }
        }
        key
    }
}

/// The matching pattern with the most literal segments; of equals the first.
fn most_literal<'s>(patterns: &'s [Pattern], path: &[&str]) -> Option<&'s Pattern> {
    let mut best: Option<&Pattern> = None;
    for pattern in patterns {
        if best.is_none_or(|best| pattern.literals > best.literals) && pattern.matches(path) {
            best = Some(pattern);
        }
    }
    best
}

/// One entry of `costs`.
#[derive(Debug, Clone)]
pub(crate) struct Cost {
    pub(crate) endpoint: Option<Pattern>,
    pub(crate) method: Option<Box<str>>,
    pub(crate) charge: u64,
}

/// What requests cost by endpoint and method, the most specific entry first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Costs(Vec<Cost>);

impl Costs {
    /// More literal segments first, then those with a pattern, then those with a method, then as in
    /// the file.
    pub(crate) fn new(mut costs: Vec<Cost>) -> Self {
        costs.sort_by_key(|cost| {
            let literals = cost.endpoint.as_ref().map_or(0, |pattern| pattern.literals);
            let rank = (literals, cost.endpoint.is_some(), cost.method.is_some());
            std::cmp::Reverse(rank)
        });
        Self(costs)
    }

    pub(crate) fn of(&self, seen: &Seen<'_, '_>) -> Option<u64> {
        if self.0.is_empty() {
            return None;
        }
        let method = seen.attributes.get(Known::Method);
        let fits = |cost: &&Cost| {
            let method_fits = cost.method.as_ref().is_none_or(|wanted| {
                method.is_some_and(|method| wanted.eq_ignore_ascii_case(method))
            });
            let endpoint_fits = cost
                .endpoint
                .as_ref()
                .is_none_or(|pattern| seen.path().is_some_and(|path| pattern.matches(path)));
            method_fits && endpoint_fits
        };
        self.0.iter().find(fits).map(|cost| cost.charge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text_wherever_it_is() {
        for (wanted, value, expected) in [
            ("a", "a", true),
            ("a*", "abc", true),
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "acd", false),
            ("*c", "abc", true),
            ("a*a", "a", false),
            ("ab*ba", "aba", false),
            ("a*b*c", "a-c-b-c", true),
            ("a*b*c", "a-c", false),
            ("a**c", "abc", true),
            ("*é*", "café!", true),
            ("a*b*", "xab", false),
        ] {
            assert_eq!(Wanted::parse(wanted).accepts(value), expected, "{wanted} {value}");
        }
    }
}
