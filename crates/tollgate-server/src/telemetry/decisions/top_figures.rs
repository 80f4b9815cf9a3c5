//! Who is seen most, in a form in which the figures of several nodes can be added up and sent.
//!
//! A key is known by its name here: hashes are seeded by each process. The bounds of a key stay true when
//! figures are added or shortened: a key that is not listed was counted at most as often as the floor says.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};
use tollgate_core::Nanos;
use xxhash_rust::xxh3::xxh3_64;

use super::sketch::{Counted, Sketch};

/// The longest name of a key that is sent; of a longer one its beginning and a hash of all.
const MAX_NAME_BYTES: usize = 300;
/// Keys of one sketch that are sent, if they fit; fewer otherwise.
const SENT_KEYS: [usize; 6] = [100, 50, 20, 10, 5, 1];
/// Keys and rules that are kept when figures are added up. Nodes send far fewer.
const MAX_KEYS: usize = 20_000;
const MAX_RULES: usize = 2_000;
/// No node has counted more than this.
const MAX_COUNT: u64 = 1 << 53;

/// The keys of one sketch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyFigures {
    /// What was counted, of all keys.
    pub(crate) total: u64,
    /// No key that is not listed was counted more often.
    pub(crate) floor: u64,
    /// How many keys were counted, listed or not.
    pub(crate) distinct: usize,
    /// Name, at most so often, at least so often.
    pub(crate) keys: Vec<(String, u64, u64)>,
}

impl KeyFigures {
    /// `missed` was counted for no key, and may have been any one's.
    pub(super) fn of(sketch: &Sketch, missed: u64) -> Self {
        let key = |one: Counted| (one.name, one.count.saturating_add(missed), one.at_least);
        Self {
            total: sketch.total(),
            floor: sketch.floor().saturating_add(missed),
            distinct: sketch.len(),
            keys: sketch.top(usize::MAX).into_iter().map(key).collect(),
        }
    }

    const fn is_empty(&self) -> bool {
        self.total == 0 && self.floor == 0
    }

    /// Leaves so many keys, of which there is one at most of a name.
    fn shorten(&mut self, most: usize) {
        if let Some((_, count, _)) = self.keys.get(most) {
            self.floor = self.floor.max(*count);
        }
        self.keys.truncate(most);
    }

    fn add(&mut self, other: &Self) {
        let theirs: HashMap<&str, (u64, u64)> = other
            .keys
            .iter()
            .map(|(name, count, least)| (name.as_str(), (*count, *least)))
            .collect();
        let mut known: HashSet<String> = HashSet::with_capacity(self.keys.len());
        for (name, count, least) in &mut self.keys {
            let (more, more_least) = theirs.get(name.as_str()).copied().unwrap_or((other.floor, 0));
            *count = count.saturating_add(more);
            *least = least.saturating_add(more_least);
            known.insert(name.clone());
        }
        for (name, count, least) in &other.keys {
            if known.insert(name.clone()) {
                self.keys.push((name.clone(), count.saturating_add(self.floor), *least));
            }
        }
        self.keys.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        self.total = self.total.saturating_add(other.total);
        self.floor = self.floor.saturating_add(other.floor);
        self.distinct = self.distinct.max(other.distinct).max(self.keys.len());
        self.shorten(MAX_KEYS);
    }

    /// Those seen most, the first first.
    pub(crate) fn top(&self, most: usize) -> Vec<Counted> {
        let counted = |(name, count, at_least): &(String, u64, u64)| Counted {
            name: name.clone(),
            count: *count,
            at_least: *at_least,
        };
        self.keys.iter().take(most).map(counted).collect()
    }

    /// What was sent by another node is not taken on trust.
    fn is_sound(&self) -> bool {
        let key = |(name, count, least): &(String, u64, u64)| {
            name.len() <= MAX_NAME_BYTES
                && least <= count
                && *count <= self.total.saturating_add(self.floor)
        };
        self.total.max(self.floor) <= MAX_COUNT
            && self.keys.is_sorted_by(|one, other| one.1 >= other.1)
            && self.keys.iter().all(key)
    }
}

/// The keys of one rule: allowed, refused, would-deny.
pub(crate) type RuleFigures = [KeyFigures; 3];

/// Who is seen most.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopFigures {
    pub(crate) since: Nanos,
    /// The largest number of decisions that one noted stood for.
    pub(crate) sampled: u64,
    pub(crate) rules: BTreeMap<String, RuleFigures>,
    pub(crate) tenants: KeyFigures,
    pub(crate) models: KeyFigures,
    /// Rules that found no room here: nothing is known of their keys.
    pub(crate) rules_left_out: usize,
}

impl TopFigures {
    pub(crate) fn new(since: Nanos) -> Self {
        Self {
            since,
            sampled: 1,
            rules: BTreeMap::new(),
            tenants: KeyFigures::default(),
            models: KeyFigures::default(),
            rules_left_out: 0,
        }
    }

    /// Adds what another node saw in the same window.
    pub(crate) fn add(&mut self, other: &Self) {
        for (rule, theirs) in &other.rules {
            if self.rules.len() >= MAX_RULES && !self.rules.contains_key(rule) {
                self.rules_left_out += 1;
                continue;
            }
            let own = self.rules.entry(rule.clone()).or_default();
            for (own, theirs) in own.iter_mut().zip(theirs) {
                own.add(theirs);
            }
        }
        self.tenants.add(&other.tenants);
        self.models.add(&other.models);
        self.since = self.since.min(other.since);
        self.sampled = self.sampled.max(other.sampled);
        self.rules_left_out += other.rules_left_out;
    }

    /// Names as all nodes send them, so that those of one key meet.
    pub(crate) fn with_short_names(mut self) -> Self {
        for keys in self.all_mut() {
            for (name, ..) in &mut keys.keys {
                if name.len() > MAX_NAME_BYTES {
                    *name = short_name(name);
                }
            }
        }
        self
    }

    /// As text of at most so many bytes: with fewer keys, and if that is not enough, fewer rules.
    pub(crate) fn to_text(&self, max_bytes: usize) -> String {
        let mut sent = self.clone().with_short_names();
        sent.rules.retain(|_, kinds| !kinds.iter().all(KeyFigures::is_empty));
        for most in SENT_KEYS {
            for keys in sent.all_mut() {
                keys.shorten(most);
            }
            let text = text_of(&sent);
            if text.len() <= max_bytes {
                return text;
            }
        }
        // The busiest rules stay.
        let mut by_use: Vec<(u64, u64, String)> = sent
            .rules
            .iter()
            .map(|(id, [allowed, refused, _])| (refused.total, allowed.total, id.clone()))
            .collect();
        by_use.sort_unstable();
        for some in by_use.chunks(by_use.len().div_ceil(16).max(1)) {
            for (_, _, rule) in some {
                sent.rules.remove(rule);
                sent.rules_left_out += 1;
            }
            let text = text_of(&sent);
            if text.len() <= max_bytes {
                return text;
            }
        }
        let mut none = Self::new(sent.since);
        none.rules_left_out = sent.rules_left_out;
        text_of(&none)
    }

    /// What another node has sent; `None` for what cannot be used.
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        let mut sent: Self = serde_json::from_slice(text).ok()?;
        let is_sound = sent.all_mut().all(|keys| keys.is_sound());
        (is_sound && sent.rules.len() <= MAX_RULES).then_some(sent)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut KeyFigures> {
        let rules = self.rules.values_mut().flatten();
        rules.chain([&mut self.tenants, &mut self.models])
    }
}

/// Its beginning and a hash, which is the same on every node.
fn short_name(name: &str) -> String {
    let hash = xxh3_64(name.as_bytes());
    let end = MAX_NAME_BYTES - 20;
    let begin = (0..=end).rev().find_map(|end| name.get(..end)).unwrap_or_default();
    format!("{begin}…{hash:016x}")
}

fn text_of(figures: &TopFigures) -> String {
    // Numbers and text in memory: this does not fail.
    serde_json::to_string(figures).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A node that saw these keys.
    fn node(seen: &[(u64, u64)], places: usize) -> KeyFigures {
        let mut sketch = Sketch::new(places);
        for (key, weight) in seen {
            sketch.add(key.wrapping_mul(0x9e37_79b9_7f4a_7c15), *weight, || format!("key-{key}"));
        }
        KeyFigures::of(&sketch, 0)
    }

    proptest! {
        /// Whatever nodes send of their sketches, the bounds of every key hold its true count.
        #[test]
        fn bounds_of_several_nodes_hold_the_true_count(
            nodes in proptest::collection::vec(
                proptest::collection::vec((0_u64..40, 1_u64..5), 0..200), 1..5),
            places in 1_usize..30,
            max_bytes in 200_usize..6_000,
        ) {
            let mut truth: HashMap<String, u64> = HashMap::new();
            let mut all: Option<TopFigures> = None;
            for seen in &nodes {
                for (key, weight) in seen {
                    *truth.entry(format!("key-{key}")).or_default() += weight;
                }
                let mut own = TopFigures::new(7);
                own.rules.insert("r".to_owned(), [node(seen, places), KeyFigures::default(), KeyFigures::default()]);
                let sent = own.to_text(max_bytes);
                prop_assert!(sent.len() <= max_bytes, "{}", sent.len());
                let read = TopFigures::read(sent.as_bytes()).unwrap();
                match &mut all {
                    None => all = Some(read),
                    Some(all) => all.add(&read),
                }
            }
            let all = all.unwrap();
            let empty = RuleFigures::default();
            let [allowed, ..] = all.rules.get("r").unwrap_or(&empty);
            if all.rules_left_out == 0 {
                prop_assert_eq!(allowed.total, truth.values().sum::<u64>());
                for (key, count) in &truth {
                    match allowed.keys.iter().find(|(name, ..)| name == key) {
                        Some((_, most, least)) => prop_assert!(least <= count && count <= most),
                        None => prop_assert!(*count <= allowed.floor),
                    }
                }
            }
        }
    }

    #[test]
    fn long_names_of_two_nodes_meet_and_differ() {
        let long = |end: &str| format!("user_id={}{end}", "ä".repeat(200));
        let figures = |name: String| {
            let mut figures = TopFigures::new(1);
            figures.tenants =
                KeyFigures { total: 3, floor: 0, distinct: 1, keys: vec![(name, 3, 3)] };
            TopFigures::read(figures.to_text(10_000).as_bytes()).unwrap()
        };
        let mut all = figures(long("a"));
        all.add(&figures(long("a")));
        all.add(&figures(long("b")));
        let counts: Vec<u64> = all.tenants.keys.iter().map(|(_, count, _)| *count).collect();
        assert_eq!(counts, [6, 3]);
    }

    #[test]
    fn figures_that_contradict_themselves_are_not_used() {
        let good = r#"{"since":1,"sampled":1,"rules":{},"tenants":{"total":5,"floor":0,"distinct":2,
            "keys":[["a",3,3],["b",2,2]]},"models":{"total":0,"floor":0,"distinct":0,"keys":[]},"rules_left_out":0}"#;
        assert!(TopFigures::read(good.as_bytes()).is_some());
        for (part, wrong) in [
            (r#"["a",3,3]"#, r#"["a",3,4]"#),
            (r#"["a",3,3]"#, r#"["a",1,1]"#),
            (r#"["a",3,3]"#, r#"["a",9999,3]"#),
            (r#"["a",3,3]"#, r#"["a",-3,3]"#),
            (r#""floor":0"#, r#""floor":18446744073709551615"#),
            (r#""rules_left_out":0"#, r#""rules_left_out":0,"more":1"#),
        ] {
            let text = good.replacen(part, wrong, 1);
            assert!(TopFigures::read(text.as_bytes()).is_none(), "{text}");
        }
        assert!(TopFigures::read(b"").is_none());
        assert!(TopFigures::read(&[b'['; 10_000]).is_none());
    }
}
