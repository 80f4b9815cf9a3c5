//! What envoyproxy/ratelimit would say: the tree as it is written, walked as it is documented, with
//! plain counters. Charging is Tollgate's: all descriptors of a request together, or none.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use proptest::prelude::*;
use tollgate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollgate_proto::envoy::service::ratelimit::v3::RateLimitRequest;

#[derive(Debug, Clone)]
pub(crate) struct Node {
    key: &'static str,
    value: Option<&'static str>,
    limit: Option<Limit>,
    is_shadow: bool,
    is_quota: bool,
    is_shared: bool,
    children: Vec<Node>,
}

#[derive(Debug, Clone)]
struct Limit {
    quota: u32,
    unit: &'static str,
    is_unlimited: bool,
    name: Option<&'static str>,
    replaces: Vec<&'static str>,
}

const KEYS: [&str; 3] = ["a", "b", "c"];
const VALUES: [Option<&str>; 8] =
    [None, None, Some("x"), Some("xy"), Some("y"), Some("x*"), Some("xy*"), Some("*")];
const ASKED: [&str; 6] = ["x", "xy", "xyz", "y", "z", ""];
const UNITS: [(&str, u64); 3] = [("minute", 60), ("hour", 3_600), ("day", 86_400)];
const NAMES: [&str; 3] = ["one", "two", "three"];

fn limit() -> impl Strategy<Value = Limit> {
    let name = proptest::option::weighted(0.3, proptest::sample::select(&NAMES[..]));
    let replaces = prop_oneof![
        4 => Just(Vec::new()),
        1 => proptest::sample::subsequence(&NAMES[..], 1..=2),
    ];
    let unlimited = proptest::bool::weighted(0.15);
    let unit = proptest::sample::select(&UNITS[..]);
    (0_u32..4, unit, unlimited, name, replaces).prop_map(
        |(quota, (unit, _), is_unlimited, name, mut replaces)| {
            replaces.retain(|other| Some(*other) != name);
            Limit { quota, unit, is_unlimited, name, replaces }
        },
    )
}

fn nodes(children: impl Strategy<Value = Vec<Node>>) -> impl Strategy<Value = Vec<Node>> {
    let node = (
        proptest::sample::select(&KEYS[..]),
        proptest::sample::select(&VALUES[..]),
        proptest::option::weighted(0.7, limit()),
        proptest::bool::weighted(0.2),
        proptest::bool::weighted(0.2),
        proptest::bool::weighted(0.3),
        children,
    );
    let node = node.prop_map(|(key, value, limit, is_shadow, is_quota, share, children)| {
        let is_shared = share && value.is_some_and(|value| value.ends_with('*'));
        Node { key, value, limit, is_shadow, is_quota, is_shared, children }
    });
    proptest::collection::vec(node, 0..6).prop_map(|nodes| {
        let mut seen = HashSet::new();
        nodes.into_iter().filter(|node| seen.insert((node.key, node.value))).collect()
    })
}

pub(crate) fn tree() -> impl Strategy<Value = Vec<Node>> {
    nodes(nodes(nodes(Just(Vec::new()))))
}

/// The tree as a file.
pub(crate) fn config(tree: &[Node]) -> String {
    let mut text = String::from("domain: d\n");
    print(&mut text, tree, 0);
    text
}

fn print(text: &mut String, nodes: &[Node], depth: usize) {
    if nodes.is_empty() {
        return;
    }
    let blanks = "    ".repeat(depth);
    let _ = writeln!(text, "{blanks}descriptors:");
    for node in nodes {
        let _ = writeln!(text, "{blanks}  - key: {}", node.key);
        if let Some(value) = node.value {
            let _ = writeln!(text, "{blanks}    value: \"{value}\"");
        }
        for (name, flag) in [
            ("shadow_mode", node.is_shadow),
            ("quota_mode", node.is_quota),
            ("share_threshold", node.is_shared),
        ] {
            if flag {
                let _ = writeln!(text, "{blanks}    {name}: true");
            }
        }
        if let Some(limit) = &node.limit {
            let _ = writeln!(text, "{blanks}    rate_limit:");
            if limit.is_unlimited {
                let _ = writeln!(text, "{blanks}      unlimited: true");
            } else {
                let _ = writeln!(text, "{blanks}      unit: {}", limit.unit);
                let _ = writeln!(text, "{blanks}      requests_per_unit: {}", limit.quota);
            }
            if let Some(name) = limit.name {
                let _ = writeln!(text, "{blanks}      name: {name}");
            }
            if !limit.replaces.is_empty() {
                let names: Vec<_> =
                    limit.replaces.iter().map(|n| format!("{{name: {n}}}")).collect();
                let _ = writeln!(text, "{blanks}      replaces: [{}]", names.join(", "));
            }
        }
        print(text, &node.children, depth + 1);
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Asked {
    descriptors: Vec<Vec<(&'static str, &'static str)>>,
    hits: u32,
    pub(crate) advance_seconds: u64,
}

pub(crate) fn request() -> impl Strategy<Value = Asked> {
    let entry = (proptest::sample::select(&KEYS[..]), proptest::sample::select(&ASKED[..]));
    let descriptor = proptest::collection::vec(entry, 1..4);
    let descriptors = proptest::collection::vec(descriptor, 1..4);
    let hits = prop_oneof![4 => 0_u32..2, 1 => 2_u32..4];
    let advance = prop_oneof![5 => Just(0), 1 => 1_u64..60, 1 => Just(3_600)];
    (descriptors, hits, advance).prop_map(|(descriptors, hits, advance_seconds)| Asked {
        descriptors,
        hits,
        advance_seconds,
    })
}

impl Asked {
    pub(crate) fn message(&self) -> RateLimitRequest {
        let descriptor = |entries: &Vec<(&str, &str)>| RateLimitDescriptor {
            entries: entries
                .iter()
                .map(|(key, value)| Entry { key: (*key).into(), value: (*value).to_owned().into() })
                .collect(),
            ..RateLimitDescriptor::default()
        };
        RateLimitRequest {
            domain: "d".to_owned(),
            descriptors: self.descriptors.iter().map(descriptor).collect(),
            hits_addend: self.hits,
        }
    }
}

/// What is said about one request.
pub(crate) struct Told {
    pub(crate) overall: String,
    pub(crate) codes: Vec<String>,
    pub(crate) limits: Vec<String>,
    pub(crate) remaining: Vec<u32>,
    pub(crate) would_deny: bool,
}

/// The keys and values that name a counter, and the number of its window.
type Counter = (Vec<(&'static str, String)>, u64);

/// A limit that a descriptor meets.
struct Met<'t> {
    node: &'t Node,
    limit: &'t Limit,
    counter: Counter,
}

pub(crate) struct Model<'t> {
    tree: &'t [Node],
    now_seconds: u64,
    used: HashMap<Counter, u64>,
}

impl<'t> Model<'t> {
    pub(crate) fn new(tree: &'t [Node]) -> Self {
        Self { tree, now_seconds: super::START / super::SECOND, used: HashMap::new() }
    }

    /// One step of the walk: the exact value, then wildcards in order, then the bare key.
    fn child(nodes: &'t [Node], key: &str, value: &str) -> Option<&'t Node> {
        let mut same = nodes.iter().filter(|node| node.key == key);
        let exact = same.clone().find(|node| node.value == Some(value));
        let wildcard = || {
            same.clone().find(|node| {
                let prefix = node.value.and_then(|value| value.strip_suffix('*'));
                prefix.is_some_and(|prefix| value.starts_with(prefix))
            })
        };
        let wildcard = exact.or_else(wildcard);
        wildcard.or_else(|| same.find(|node| node.value.is_none()))
    }

    fn find(&self, entries: &[(&'static str, &'static str)]) -> Option<Met<'t>> {
        let mut nodes = self.tree;
        let mut named = Vec::new();
        let mut last = None;
        for (key, value) in entries {
            let node = Self::child(nodes, key, value)?;
            let told = if node.is_shared { node.value.unwrap_or_default() } else { value };
            named.push((*key, told.to_owned()));
            nodes = &node.children;
            last = Some(node);
        }
        let node = last?;
        let limit = node.limit.as_ref()?;
        let seconds = UNITS.iter().find(|(unit, _)| *unit == limit.unit).map_or(1, |unit| unit.1);
        Some(Met { node, limit, counter: (named, self.now_seconds / seconds) })
    }

    pub(crate) fn ask(&mut self, asked: &Asked) -> Told {
        self.now_seconds += asked.advance_seconds;
        let mut met: Vec<Option<Met<'t>>> =
            asked.descriptors.iter().map(|entries| self.find(entries)).collect();
        let replaced: HashSet<&str> =
            met.iter().flatten().flat_map(|met| met.limit.replaces.iter().copied()).collect();
        for place in &mut met {
            let counts = place.as_ref().is_some_and(|met| {
                !met.limit.is_unlimited
                    && !met.limit.name.is_some_and(|name| replaced.contains(name))
            });
            if !counts {
                *place = None;
            }
        }
        let hits = u64::from(asked.hits.max(1));
        let fits = self.fits(&met, hits);
        let is_quota = |met: &Met<'_>| met.node.is_quota && !met.node.is_shadow;
        let is_must = |met: &Met<'_>| !met.node.is_quota && !met.node.is_shadow;
        let pairs = || met.iter().flatten().zip(&fits);
        let has_group = pairs().any(|(met, _)| is_quota(met));
        let group_has_room = pairs().any(|(met, fits)| is_quota(met) && *fits);
        let passes =
            pairs().all(|(met, fits)| !is_must(met) || *fits) && (!has_group || group_has_room);
        let mut told = Told {
            overall: String::new(),
            codes: Vec::new(),
            limits: Vec::new(),
            remaining: Vec::new(),
            would_deny: pairs().any(|(met, fits)| met.node.is_shadow && !fits),
        };
        let mut fits = fits.iter();
        for place in &met {
            let Some(met) = place else {
                told.codes.push("OK".to_owned());
                told.limits.push("-".to_owned());
                told.remaining.push(u32::MAX);
                continue;
            };
            let fits = *fits.next().unwrap();
            let used = self.used.entry(met.counter.clone()).or_default();
            if passes && fits {
                *used += hits;
            }
            let is_over = (is_must(met) && !fits) || (is_quota(met) && !group_has_room);
            told.codes.push(if is_over { "OVER" } else { "OK" }.to_owned());
            let Limit { quota, unit, .. } = met.limit;
            told.limits.push(format!("{quota}/{}", unit.to_uppercase()));
            told.remaining.push(quota - u32::try_from(*used).unwrap());
        }
        let is_over = told.codes.iter().any(|code| code == "OVER");
        Told { overall: if is_over { "OVER" } else { "OK" }.to_owned(), ..told }
    }

    /// Whether each limit has room. Those on one counter must fit together; of those that may be left
    /// out, the ones that do not fit are.
    fn fits(&self, met: &[Option<Met<'t>>], hits: u64) -> Vec<bool> {
        let mut asked: HashMap<&Counter, u64> = HashMap::new();
        let mut fits = Vec::new();
        for met in met.iter().flatten() {
            let used = self.used.get(&met.counter).copied().unwrap_or(0);
            let before = asked.entry(&met.counter).or_default();
            let fit = used + *before + hits <= u64::from(met.limit.quota);
            if fit || !(met.node.is_quota || met.node.is_shadow) {
                *before += hits;
            }
            fits.push(fit);
        }
        fits
    }
}
