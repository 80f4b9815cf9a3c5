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
const VALUES: [Option<&str>; 10] = [
    None,
    None,
    Some("x"),
    Some("xy"),
    Some("y"),
    Some("x*"),
    Some("xy*"),
    Some("*"),
    Some("x*z"),
    Some("*y*"),
];
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
        let is_shared = share && value.is_some_and(|value| value.contains('*'));
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

/// A descriptor: its entries and the hits of its own.
type Descriptor = (Vec<(&'static str, &'static str)>, Option<u64>);

#[derive(Debug, Clone)]
pub(crate) struct Asked {
    descriptors: Vec<Descriptor>,
    hits: u32,
    pub(crate) advance_seconds: u64,
}

pub(crate) fn request() -> impl Strategy<Value = Asked> {
    let entry = (proptest::sample::select(&KEYS[..]), proptest::sample::select(&ASKED[..]));
    let descriptor = proptest::collection::vec(entry, 1..4);
    let own = prop_oneof![6 => Just(None), 2 => Just(Some(0)), 1 => (1_u64..4).prop_map(Some)];
    let descriptors = proptest::collection::vec((descriptor, own), 1..4);
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
        let descriptor = |(entries, own): &Descriptor| RateLimitDescriptor {
            hits_addend: *own,
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
pub(crate) struct Expected {
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
    /// None: it is only checked.
    hits: Option<u64>,
}

impl Met<'_> {
    fn is_group(&self) -> bool {
        self.node.is_quota && !self.node.is_shadow
    }

    fn is_must(&self) -> bool {
        !self.node.is_quota && !self.node.is_shadow
    }
}

/// Whether a pattern takes a value: every way to place the star is tried.
fn takes(pattern: &str, value: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == value,
        Some((before, behind)) => value.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices()
                .map(|(at, _)| at)
                .chain([rest.len()])
                .any(|at| rest.get(at..).is_some_and(|rest| takes(behind, rest)))
        }),
    }
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
                node.value.is_some_and(|pattern| pattern.contains('*') && takes(pattern, value))
            })
        };
        let wildcard = exact.or_else(wildcard);
        wildcard.or_else(|| same.find(|node| node.value.is_none()))
    }

    fn find(&self, (entries, own): &Descriptor, request_hits: u64) -> Option<Met<'t>> {
        let mut nodes = self.tree;
        let mut named = Vec::new();
        let mut last = None;
        for (key, value) in entries {
            let node = Self::child(nodes, key, value)?;
            let counted = if node.is_shared { node.value.unwrap_or_default() } else { value };
            named.push((*key, counted.to_owned()));
            nodes = &node.children;
            last = Some(node);
        }
        let node = last?;
        let limit = node.limit.as_ref()?;
        let seconds = UNITS.iter().find(|(unit, _)| *unit == limit.unit).map_or(1, |unit| unit.1);
        let hits = own.unwrap_or(request_hits);
        let hits = (hits > 0).then_some(hits);
        Some(Met { node, limit, counter: (named, self.now_seconds / seconds), hits })
    }

    pub(crate) fn ask(&mut self, asked: &Asked) -> Expected {
        self.now_seconds += asked.advance_seconds;
        let hits = u64::from(asked.hits.max(1));
        let mut met: Vec<Option<Met<'t>>> =
            asked.descriptors.iter().map(|descriptor| self.find(descriptor, hits)).collect();
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
        let has_own = |(place, (_, own)): (&Option<Met<'t>>, &Descriptor)| {
            place.is_some() && own.is_some_and(|own| own > 0)
        };
        let owes = met.iter().zip(&asked.descriptors).any(has_own);
        let fits = self.fits(&met, owes);
        // A member that is only reported counts as one that has room.
        let is_open = met.iter().flatten().any(|met| met.node.is_quota && met.node.is_shadow);
        let pairs = || met.iter().flatten().zip(&fits);
        let has_group = pairs().any(|(met, _)| met.is_group());
        let group_has_room = is_open || pairs().any(|(met, fits)| met.is_group() && *fits);
        let passes =
            pairs().all(|(met, fits)| !met.is_must() || *fits) && (!has_group || group_has_room);
        let mut expected = Expected {
            overall: if passes { "OK" } else { "OVER" }.to_owned(),
            codes: Vec::new(),
            limits: Vec::new(),
            remaining: Vec::new(),
            would_deny: pairs().any(|(met, fits)| met.node.is_shadow && !fits),
        };
        // What is only checked stands as it was before the call.
        let before = self.used.clone();
        let mut fits = fits.iter();
        for place in &met {
            let Some(met) = place else {
                expected.codes.push("OK".to_owned());
                expected.limits.push("-".to_owned());
                expected.remaining.push(u32::MAX);
                continue;
            };
            let fits = *fits.next().unwrap();
            let used = self.used.entry(met.counter.clone()).or_default();
            if let Some(hits) = met.hits
                && (owes || (passes && fits))
            {
                *used += hits;
            }
            let used = if met.hits.is_some() {
                *used
            } else {
                before.get(&met.counter).copied().unwrap_or(0)
            };
            let is_over = !met.node.is_shadow && !fits;
            expected.codes.push(if is_over { "OVER" } else { "OK" }.to_owned());
            let Limit { quota, unit, .. } = met.limit;
            expected.limits.push(format!("{quota}/{}", unit.to_uppercase()));
            let remaining = quota.saturating_sub(u32::try_from(used).unwrap());
            expected.remaining.push(if is_over { 0 } else { remaining });
        }
        expected
    }

    /// Whether each limit has room. Charges on one counter must fit together; of those that may be left
    /// out, the ones that do not fit are. A check fits until its limit is exceeded.
    fn fits(&self, met: &[Option<Met<'t>>], owes: bool) -> Vec<bool> {
        let mut asked: HashMap<&Counter, u64> = HashMap::new();
        let mut fits = Vec::new();
        for met in met.iter().flatten() {
            let used = self.used.get(&met.counter).copied().unwrap_or(0);
            let quota = u64::from(met.limit.quota);
            let Some(hits) = met.hits else {
                fits.push(quota > 0 && used <= quota);
                continue;
            };
            let before = asked.entry(&met.counter).or_default();
            let fit = used + *before + hits <= quota;
            if fit || owes || met.is_must() {
                *before += hits;
            }
            fits.push(fit);
        }
        fits
    }
}
