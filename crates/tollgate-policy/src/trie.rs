//! Patterns of many rules in one trie. The walk visits only nodes that some pattern shares with the
//! path, so it does not depend on how many patterns there are beside them.

use hashbrown::HashMap;

use crate::pattern::{Pattern, Step};

/// Up to this many children comparing is faster than hashing.
const FEW: usize = 4;

/// The children of a node by their literal segment.
#[derive(Debug, Clone, Default)]
struct Literals {
    few: Vec<(Box<str>, u32)>,
    /// All of them, once they are more than a few.
    many: HashMap<Box<str>, u32>,
}

impl Literals {
    #[inline]
    fn get(&self, segment: &str) -> Option<u32> {
        if self.many.is_empty() {
            return self.few.iter().find(|(literal, _)| **literal == *segment).map(|(_, to)| *to);
        }
        self.many.get(segment).copied()
    }

    fn get_or_insert(&mut self, segment: &str, fresh: u32) -> u32 {
        if let Some(found) = self.get(segment) {
            return found;
        }
        if self.many.is_empty() && self.few.len() < FEW {
            self.few.push((segment.into(), fresh));
        } else {
            self.many.extend(self.few.drain(..));
            self.many.insert(segment.into(), fresh);
        }
        fresh
    }
}

#[derive(Debug, Clone, Default)]
struct Node {
    literals: Literals,
    any: Option<u32>,
    /// Rules of patterns that end here.
    ends: Vec<u32>,
    /// Rules of patterns that match here whatever follows.
    rests: Vec<u32>,
}

/// Maps a path to the rules that have a pattern for it.
#[derive(Debug, Clone)]
pub(crate) struct Trie {
    nodes: Vec<Node>,
}

impl Default for Trie {
    fn default() -> Self {
        Self { nodes: vec![Node::default()] }
    }
}

impl Trie {
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.len() == 1
            && self.nodes.first().is_none_or(|root| root.ends.is_empty() && root.rests.is_empty())
    }

    pub(crate) fn insert(&mut self, pattern: &Pattern, rule: u32) {
        let mut at = 0;
        for step in &pattern.steps {
            let fresh = self.nodes.len() as u32;
            let Some(node) = self.nodes.get_mut(at as usize) else { return };
            at = match step {
                Step::Literal(literal) => node.literals.get_or_insert(literal, fresh),
                Step::One | Step::Capture(_) => *node.any.get_or_insert(fresh),
            };
            if at == fresh {
                self.nodes.push(Node::default());
            }
        }
        if let Some(node) = self.nodes.get_mut(at as usize) {
            let rules = if pattern.rest { &mut node.rests } else { &mut node.ends };
            // One rule may reach one node by several patterns that differ in capture names only.
            if rules.last() != Some(&rule) {
                rules.push(rule);
            }
        }
    }

    /// Calls `found` for every rule with a matching pattern; more than once where several match.
    pub(crate) fn walk(&self, path: &[&str], found: &mut impl FnMut(u32)) {
        self.visit(0, path, found);
    }

    /// The depth of the recursion is bounded by the longest pattern.
    fn visit(&self, at: u32, path: &[&str], found: &mut impl FnMut(u32)) {
        let Some(node) = self.nodes.get(at as usize) else { return };
        node.rests.iter().copied().for_each(&mut *found);
        let Some((segment, rest)) = path.split_first() else {
            node.ends.iter().copied().for_each(found);
            return;
        };
        if let Some(next) = node.literals.get(segment) {
            self.visit(next, rest, found);
        }
        if let Some(next) = node.any {
            self.visit(next, rest, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::segments;

    #[test]
    fn finds_what_patterns_match() {
        let patterns = [
            "/a/b",
            "/a/*",
            "/a/{x}",
            "/*",
            "/a/*/c",
            "/a/{x}/{y}",
            "/",
            "/b/*",
            "/a/b/*",
            "/c",
            "/d",
            "/e",
            "/f/g",
        ];
        let patterns = patterns.map(|text| Pattern::parse(text).unwrap());
        let mut trie = Trie::default();
        for (index, pattern) in patterns.iter().enumerate() {
            trie.insert(pattern, index as u32);
        }
        for path in
            ["/", "/a", "/a/b", "/a/b/c", "/a/x/c", "/b", "/b/c/d", "/c", "/e", "/f/g", "/a/b/c/d"]
        {
            let path = segments(path);
            let mut found = Vec::new();
            trie.walk(&path, &mut |rule| found.push(rule));
            found.sort_unstable();
            let expected: Vec<u32> = (0..patterns.len() as u32)
                .filter(|index| patterns[*index as usize].matches(&path))
                .collect();
            assert_eq!(found, expected, "{path:?}");
        }
    }
}
