//! Finds the rules that may apply to a request without looking at the others.
//!
//! Each rule is filed under one of its constrained fields, its pivot: the one whose values the
//! fewest other rules share. A request then meets only the rules filed under its own values, and
//! those that constrain nothing that can be filed.

use hashbrown::HashMap;

use crate::matcher::{Matcher, Seen, Wanted};
use crate::trie::Trie;
use crate::{Known, Rule};

type Bucket = Vec<u32>;

/// The rules of a set, filed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Index {
    /// Only the known attributes that some rule is filed under.
    known: Vec<(Known, HashMap<Box<str>, Bucket>)>,
    named: HashMap<Box<str>, HashMap<Box<str>, Bucket>>,
    trie: Trie,
    has_patterns: bool,
    /// Rules that every request meets.
    always: Bucket,
}

impl Index {
    pub(crate) fn new(rules: &[Rule]) -> Self {
        let mut counts = Counts::default();
        for rule in rules {
            counts.add(&rule.matcher);
        }
        let mut index = Self::default();
        for (place, rule) in rules.iter().enumerate() {
            index.file(place as u32, &rule.matcher, counts.pivot(&rule.matcher));
        }
        index.has_patterns = !index.trie.is_empty();
        index
    }

    fn file(&mut self, rule: u32, matcher: &Matcher, pivot: Pivot) {
        match pivot {
            Pivot::Known(place) => {
                let Some((known, values)) = matcher.known.get(place) else { return };
                let found = self.known.iter().position(|(have, _)| have == known);
                let at = found.unwrap_or_else(|| {
                    self.known.push((*known, HashMap::new()));
                    self.known.len() - 1
                });
                if let Some((_, map)) = self.known.get_mut(at) {
                    for value in values {
                        map.entry(value.clone()).or_default().push(rule);
                    }
                }
            }
            Pivot::Named(place) => {
                let Some((name, wanted)) = matcher.named.get(place) else { return };
                let map = self.named.entry(name.clone()).or_default();
                for wanted in wanted {
                    if let Wanted::Exact(value) = wanted {
                        map.entry(value.clone()).or_default().push(rule);
                    }
                }
            }
            Pivot::Endpoints => {
                for pattern in &matcher.endpoints {
                    self.trie.insert(pattern, rule);
                }
            }
            Pivot::None => self.always.push(rule),
        }
    }

    /// Calls `found` for every rule that may apply; possibly more than once for one rule.
    #[inline]
    pub(crate) fn candidates(&self, seen: &Seen<'_, '_>, mut found: impl FnMut(u32)) {
        for (known, map) in &self.known {
            if let Some(bucket) = seen.attributes.get(*known).and_then(|value| map.get(value)) {
                bucket.iter().copied().for_each(&mut found);
            }
        }
        if !self.named.is_empty() {
            for (name, value) in seen.attributes.extras() {
                if let Some(bucket) = self.named.get(*name).and_then(|map| map.get(*value)) {
                    bucket.iter().copied().for_each(&mut found);
                }
            }
        }
        if self.has_patterns
            && let Some(path) = seen.path()
        {
            self.trie.walk(path, &mut found);
        }
        self.always.iter().copied().for_each(found);
    }
}

/// Where a rule is filed: the place of a field in its matcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pivot {
    Known(usize),
    Named(usize),
    Endpoints,
    None,
}

/// How many rules want each value.
#[derive(Default)]
struct Counts {
    known: HashMap<(Known, Box<str>), usize>,
    named: HashMap<(Box<str>, Box<str>), usize>,
    patterns: HashMap<crate::pattern::Pattern, usize>,
    rules: usize,
}

impl Counts {
    fn add(&mut self, matcher: &Matcher) {
        self.rules += 1;
        for (known, values) in &matcher.known {
            for value in values {
                *self.known.entry((*known, value.clone())).or_default() += 1;
            }
        }
        for (name, wanted) in &matcher.named {
            for wanted in wanted {
                if let Wanted::Exact(value) = wanted {
                    *self.named.entry((name.clone(), value.clone())).or_default() += 1;
                }
            }
        }
        for pattern in &matcher.endpoints {
            *self.patterns.entry(pattern.clone()).or_default() += 1;
        }
    }

    /// The field whose most wanted value is wanted least.
    fn pivot(&self, matcher: &Matcher) -> Pivot {
        let mut best = (usize::MAX, Pivot::None);
        let mut offer = |shared: Option<usize>, pivot| {
            if let Some(shared) = shared
                && shared < best.0
            {
                best = (shared, pivot);
            }
        };
        for (place, (known, values)) in matcher.known.iter().enumerate() {
            let shared = values.iter().filter_map(|value| self.known.get(&(*known, value.clone())));
            offer(shared.max().copied(), Pivot::Known(place));
        }
        for (place, (name, wanted)) in matcher.named.iter().enumerate() {
            let of = |wanted: &Wanted| match wanted {
                Wanted::Exact(value) => self.named.get(&(name.clone(), value.clone())).copied(),
                Wanted::Prefix(_) | Wanted::Pattern(_) => None,
            };
            // A captured value is not among the request's attributes, nor is a prefix a value.
            let exact: Option<Vec<usize>> = wanted.iter().map(of).collect();
            let exact = exact.filter(|_| !matcher.captures(name));
            offer(exact.and_then(|shared| shared.into_iter().max()), Pivot::Named(place));
        }
        // A pattern without a literal narrows nothing down, however rare it is.
        let shared = matcher.endpoints.iter().map(|pattern| match pattern.literals {
            0 => self.rules,
            _ => self.patterns.get(pattern).copied().unwrap_or(self.rules),
        });
        offer(shared.max(), Pivot::Endpoints);
        best.1
    }
}
