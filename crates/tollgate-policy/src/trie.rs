//! Patterns of many rules in one trie. The walk visits only nodes that some pattern shares with the
//! path, so it does not depend on how many patterns there are beside them.

use hashbrown::HashMap;

use crate::pattern::{Pattern, Step};

#[derive(Debug, Clone, Default)]
struct Node {
    literals: HashMap<Box<str>, u32>,
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
                Step::Literal(literal) => *node.literals.entry(literal.clone()).or_insert(fresh),
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
        if !node.literals.is_empty()
            && let Some(next) = node.literals.get(*segment)
        {
            self.visit(*next, rest, found);
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
        let patterns =
            ["/a/b", "/a/*", "/a/{x}", "/*", "/a/*/c", "/a/{x}/{y}", "/", "/b/*", "/a/b/*"];
        let patterns = patterns.map(|text| Pattern::parse(text).unwrap());
        let mut trie = Trie::default();
        for (index, pattern) in patterns.iter().enumerate() {
            trie.insert(pattern, index as u32);
        }
        for path in ["/", "/a", "/a/b", "/a/b/c", "/a/x/c", "/b", "/b/c/d", "/c", "/a/b/c/d"] {
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
