//! Endpoint patterns: literal segments, `*` and `{name}`.

use smallvec::SmallVec;

use crate::Known;
use crate::path::{push_segment, without_parameters};

/// The most segments a pattern may have.
pub const MAX_PATTERN_SEGMENTS: usize = 64;

/// The segments of a normalised path. A trailing slash makes no segment.
pub(crate) type Segments<'a> = SmallVec<[&'a str; 16]>;

/// Splits a normalised path.
#[expect(clippy::inline_always, reason = "it is large: made where it stays, it is not moved")]
#[inline(always)]
pub(crate) fn segments(path: &str) -> Segments<'_> {
    let mut segments = Segments::new();
    let mut push = |start: usize, end: usize| {
        if start < end
            && let Some(segment) = path.get(start..end)
        {
            segments.push(segment);
        }
    };
    // Segments are short: looking at bytes is faster than setting up a search for each.
    let mut start = 0;
    for (place, byte) in path.bytes().enumerate() {
        if byte == b'/' {
            push(start, place);
            start = place + 1;
        }
    }
    push(start, path.len());
    segments
}

/// One step of a pattern.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// This segment.
    Literal(Box<str>),
    /// Any one segment.
    One,
    /// Any one segment, captured under a name.
    Capture(Box<str>),
}

/// A pattern, parsed. It matches from the beginning of the path, to its end unless `rest`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pattern {
    pub(crate) steps: Vec<Step>,
    /// Whether anything, or nothing, may follow the steps.
    pub(crate) rest: bool,
    /// How many steps are literal: the more, the more specific.
    pub(crate) literals: u16,
}

impl Pattern {
    /// Parses a pattern; the error says what to write instead.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > crate::MAX_PATH_BYTES {
            return Err(format!("must not be longer than {} bytes", crate::MAX_PATH_BYTES));
        }
        if text.contains(['?', '#']) {
            return Err("must not hold ? or #: patterns match the path without its query".into());
        }
        if text != "*" && !text.starts_with('/') {
            return Err("must start with / (or be * for every path)".into());
        }
        // As in paths: an encoded slash separates.
        let text = text.replace("%2F", "/").replace("%2f", "/");
        let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty()).collect();
        if parts.len() > MAX_PATTERN_SEGMENTS {
            return Err(format!("must not have more than {MAX_PATTERN_SEGMENTS} segments"));
        }
        let mut pattern = Self { steps: Vec::new(), rest: false, literals: 0 };
        for (index, part) in parts.iter().enumerate() {
            let is_last = index + 1 == parts.len();
            if *part == "*" && is_last {
                pattern.rest = true;
            } else {
                let step = parse_step(part)?;
                pattern.literals += u16::from(matches!(step, Step::Literal(_)));
                if pattern.captures_twice(&step) {
                    return Err(format!("captures {part} twice; give each capture its own name"));
                }
                pattern.steps.push(step);
            }
        }
        Ok(pattern)
    }

    fn captures_twice(&self, step: &Step) -> bool {
        matches!(step, Step::Capture(_)) && self.steps.contains(step)
    }

    /// Whether the path matches. Linear in the pattern.
    #[inline]
    pub(crate) fn matches(&self, path: &[&str]) -> bool {
        let length_fits =
            if self.rest { path.len() >= self.steps.len() } else { path.len() == self.steps.len() };
        length_fits
            && self.steps.iter().zip(path).all(|(step, segment)| match step {
                Step::Literal(literal) => **literal == **segment,
                Step::One | Step::Capture(_) => true,
            })
    }

    /// The segment that this name captures in a matching path.
    pub(crate) fn captured<'a>(&self, name: &str, path: &[&'a str]) -> Option<&'a str> {
        let place = self
            .steps
            .iter()
            .position(|step| matches!(step, Step::Capture(capture) if **capture == *name))?;
        path.get(place).copied()
    }

    /// The names it captures.
    pub(crate) fn captures(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().filter_map(|step| match step {
            Step::Capture(name) => Some(&**name),
            _ => None,
        })
    }
}

fn parse_step(part: &str) -> Result<Step, String> {
    if part == "*" {
        return Ok(Step::One);
    }
    if let Some(name) = part.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        return parse_capture(name);
    }
    if part.contains(['*', '{', '}']) {
        return Err(format!("segment {part:?}: * and {{name}} must stand for a whole segment"));
    }
    let mut literal = String::with_capacity(part.len());
    push_segment(&mut literal, without_parameters(part))
        .map_err(|error| format!("segment {part:?}: {error}"))?;
    if literal.is_empty() {
        return Err(format!("segment {part:?}: paths are matched without their parameters"));
    }
    if literal == "." || literal == ".." {
        return Err("must not hold dot segments: paths are normalised before matching".into());
    }
    Ok(Step::Literal(literal.into()))
}

fn parse_capture(name: &str) -> Result<Step, String> {
    let mut chars = name.chars();
    let starts_well = chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_');
    if !starts_well || !chars.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-') {
        return Err(format!(
            "capture {{{name}}}: a name has letters, digits, _ and -, and starts with a letter or _"
        ));
    }
    if Known::from_name(name).is_some() || name == "client" {
        return Err(format!(
            "capture {{{name}}} has the name of a built-in attribute; choose another"
        ));
    }
    Ok(Step::Capture(name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matching() {
        for (pattern, path, expected) in [
            ("/api/*", "/api", true),
            ("/api/*", "/api/", true),
            ("/api/*", "/api/x/y", true),
            ("/api/*", "/apix", false),
            ("/api/*/x", "/api/1/x", true),
            ("/api/*/x", "/api/x", false),
            ("/api/*/x", "/api/1/2/x", false),
            ("/a/{id}", "/a/7", true),
            ("/a/{id}", "/a", false),
            ("/a/", "/a", true),
            ("/a", "/a/", true),
            ("/", "/", true),
            ("/", "/a", false),
            ("*", "/", true),
            ("/*", "/a/b", true),
            ("/caf\u{e9}", "/caf%C3%A9", true),
            ("/login;v=1", "/login", true),
            ("/a%2Fb", "/a/b", true),
        ] {
            let pattern = Pattern::parse(pattern).unwrap();
            assert_eq!(pattern.matches(&segments(path)), expected, "{pattern:?} {path}");
        }
    }

    #[test]
    fn refused() {
        for pattern in [
            "",
            "a",
            "/a*",
            "/**",
            "/{",
            "/{}",
            "/x{y}",
            "/{user_id}",
            "/{client}",
            "/{a}/{a}",
            "/a/../b",
            "/%2e",
            "/%zz",
            "/a?b",
            "/{1}",
            "/;x",
        ] {
            assert!(Pattern::parse(pattern).is_err(), "{pattern:?}");
        }
    }
}
