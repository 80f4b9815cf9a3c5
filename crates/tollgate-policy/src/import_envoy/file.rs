//! A file of envoyproxy/ratelimit, read and checked.

use super::MAX_IMPORT_DEPTH;
use crate::check::{MAX_NAME_BYTES, MAX_VALUE_BYTES, plain};
use crate::fields::Fields;
use crate::node::{self, Node, Spot};
use crate::problem::Report;
use crate::raw::At;

const FILE_FIELDS: &[&str] = &["domain", "descriptors"];
const DESCRIPTOR_FIELDS: &[&str] = &[
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "share_threshold",
    "detailed_metric",
    "value_to_metric",
];
const LIMIT_FIELDS: &[&str] = &["unit", "requests_per_unit", "unlimited", "name", "replaces"];
const REPLACES_FIELDS: &[&str] = &["name"];

/// Fields that only shape metrics.
const METRIC_FIELDS: [&str; 2] = ["detailed_metric", "value_to_metric"];

/// What scopes of imported rules begin with.
pub(super) const SCOPE_PREFIX: &str = "envoy:";

/// A domain with its tree.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) source: String,
    pub(super) name: At<String>,
    pub(super) children: Vec<Descriptor>,
    /// What was read and does not count.
    pub(super) notes: Vec<String>,
}

/// A node of the tree.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) at: Spot,
    pub(super) key: String,
    pub(super) value: Wanted,
    pub(super) limit: Option<Limit>,
    pub(super) is_shadow: bool,
    pub(super) is_quota: bool,
    /// All values of its wildcard share one counter.
    pub(super) is_shared: bool,
    pub(super) children: Vec<Descriptor>,
}

/// Which values a node takes, in the order in which they are tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    Exact(String),
    Prefix(String),
    Any,
}

impl Wanted {
    pub(super) const fn rank(&self) -> u8 {
        match self {
            Self::Exact(_) => 0,
            Self::Prefix(_) => 1,
            Self::Any => 2,
        }
    }

    /// Whether some value is taken by both.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) => true,
            (Self::Exact(one), Self::Exact(other)) => one == other,
            (Self::Exact(exact), Self::Prefix(prefix))
            | (Self::Prefix(prefix), Self::Exact(exact)) => exact.starts_with(prefix),
            (Self::Prefix(one), Self::Prefix(other)) => {
                one.starts_with(other) || other.starts_with(one)
            }
        }
    }
}

/// What a node allows.
#[derive(Debug)]
pub(super) struct Limit {
    /// Absent: unlimited.
    pub(super) quota: Option<u32>,
    pub(super) window_seconds: u64,
    pub(super) name: Option<String>,
    pub(super) replaces: Vec<String>,
}

pub(super) fn read_domain(text: &str, source: &str, report: &mut Report) -> Option<Domain> {
    let root = node::read(text, report)?;
    let fields = Fields::open(&root, "", FILE_FIELDS, report)?;
    let Some(name) = fields.text("domain", report) else {
        report.add(root.at, Some("domain"), "is missing");
        return None;
    };
    let most = MAX_NAME_BYTES - SCOPE_PREFIX.len();
    plain(&name, "domain", most, report);
    if name.value == "*" {
        report.add(name.at, Some("domain"), "* cannot be told as a rule; give it a name");
    }
    let mut notes = Vec::new();
    let mut reader = Reader { source, notes: &mut notes, report };
    let children = reader.level(&fields, 1);
    Some(Domain { source: source.to_owned(), name, children, notes })
}

struct Reader<'a> {
    source: &'a str,
    notes: &'a mut Vec<String>,
    report: &'a mut Report,
}

impl Reader<'_> {
    fn level(&mut self, fields: &Fields<'_>, depth: usize) -> Vec<Descriptor> {
        let mut nodes: Vec<Descriptor> = Vec::new();
        let items = fields.list("descriptors", self.report).unwrap_or_default();
        for (index, item) in items.iter().enumerate() {
            let path = fields.path(&format!("descriptors[{index}]"));
            let Some(node) = self.descriptor(item, &path, depth) else { continue };
            let same = |other: &&Descriptor| other.key == node.key && other.value == node.value;
            if let Some(same) = nodes.iter().find(same) {
                let message = format!("has the key and value of line {} again", same.at.line);
                self.report.add(node.at, Some(&path), message);
            }
            nodes.push(node);
        }
        nodes
    }

    fn descriptor(&mut self, item: &Node, path: &str, depth: usize) -> Option<Descriptor> {
        if depth > MAX_IMPORT_DEPTH {
            let message = format!("descriptors may be nested {MAX_IMPORT_DEPTH} deep");
            self.report.add(item.at, Some(path), message);
            return None;
        }
        let fields = Fields::open(item, path, DESCRIPTOR_FIELDS, self.report)?;
        let key = self.key(&fields, item)?;
        let value = self.value(&fields)?;
        let mut flag = |name: &str| {
            let flag = fields.flag(name, self.report)?;
            flag.value.then_some(flag.at)
        };
        let (shadow, quota) = (flag("shadow_mode"), flag("quota_mode"));
        let shared = flag("share_threshold");
        for name in METRIC_FIELDS {
            if let Some(at) = flag(name) {
                let place = format!("{}:{}", self.source, at.line);
                self.notes.push(format!("{place}: {name} is about metrics only and has no effect"));
            }
        }
        if let (Some(at), false) = (shared, matches!(value, Wanted::Prefix(_))) {
            let message = "goes with a value that ends with * only";
            self.report.add(at, Some(&fields.path("share_threshold")), message);
        }
        let limit = fields.node("rate_limit").and_then(|node| {
            let path = fields.path("rate_limit");
            self.limit(node, &path)
        });
        let children = self.level(&fields, depth + 1);
        Some(Descriptor {
            at: item.at,
            key,
            value,
            limit,
            is_shadow: shadow.is_some(),
            is_quota: quota.is_some(),
            is_shared: shared.is_some(),
            children,
        })
    }

    fn key(&mut self, fields: &Fields<'_>, item: &Node) -> Option<String> {
        let field = fields.path("key");
        let Some(key) = fields.text("key", self.report).filter(|key| !key.value.is_empty()) else {
            self.report.add(item.at, Some(&field), "is missing");
            return None;
        };
        if key.value.contains('*') {
            let message = "a wildcard in a key cannot be told as a rule; write the keys out";
            self.report.add(key.at, Some(&field), message);
            return None;
        }
        (key.value.len() <= MAX_VALUE_BYTES).then_some(key.value).or_else(|| {
            let message = format!("must not be longer than {MAX_VALUE_BYTES} bytes");
            self.report.add(key.at, Some(&field), message);
            None
        })
    }

    fn value(&mut self, fields: &Fields<'_>) -> Option<Wanted> {
        let field = fields.path("value");
        let Some(value) = fields.text("value", self.report).filter(|value| !value.value.is_empty())
        else {
            return Some(Wanted::Any);
        };
        if !plain(&value, &field, MAX_VALUE_BYTES, self.report) {
            return None;
        }
        let (literal, is_prefix) = match value.value.strip_suffix('*') {
            Some(prefix) => (prefix, true),
            None => (value.value.as_str(), false),
        };
        if literal.contains('*') {
            let message = "a wildcard anywhere but at the end cannot be told as a rule";
            self.report.add(value.at, Some(&field), message);
            return None;
        }
        let literal = literal.to_owned();
        Some(if is_prefix { Wanted::Prefix(literal) } else { Wanted::Exact(literal) })
    }

    fn limit(&mut self, node: &Node, path: &str) -> Option<Limit> {
        let fields = Fields::open(node, path, LIMIT_FIELDS, self.report)?;
        let is_unlimited = fields.flag("unlimited", self.report).is_some_and(|flag| flag.value);
        let unit = fields.text("unit", self.report);
        let window = unit.as_ref().map(|unit| window_seconds(&unit.value));
        let (at, unit_path) = (unit.as_ref().map_or(node.at, |unit| unit.at), fields.path("unit"));
        match window {
            Some(Some(_)) if is_unlimited => {
                let message = "does not go with unlimited; remove one of them";
                self.report.add(at, Some(&unit_path), message);
            }
            None if !is_unlimited => self.report.add(at, Some(&unit_path), "is missing"),
            Some(None) if !is_unlimited => {
                let message = "must be second, minute, hour, day, week, month or year";
                self.report.add(at, Some(&unit_path), message);
            }
            _ => {}
        }
        let number = fields.int("requests_per_unit", self.report);
        // A limit without a number allows nothing there, and so here.
        let quota = number.map_or(Some(0), |number| {
            u32::try_from(number.value).ok().or_else(|| {
                let message = format!("must be from 0 to {}", u32::MAX);
                self.report.add(number.at, Some(&fields.path("requests_per_unit")), message);
                None
            })
        });
        let name = fields.text("name", self.report).map(|name| name.value);
        let replaces = self.replaces(&fields, name.as_deref());
        Some(Limit {
            quota: quota.filter(|_| !is_unlimited),
            window_seconds: window.flatten().unwrap_or(1),
            name: name.filter(|name| !name.is_empty()),
            replaces,
        })
    }

    fn replaces(&mut self, fields: &Fields<'_>, own: Option<&str>) -> Vec<String> {
        let mut names = Vec::new();
        let items = fields.list("replaces", self.report).unwrap_or_default();
        for (index, item) in items.iter().enumerate() {
            let path = fields.path(&format!("replaces[{index}]"));
            let Some(entry) = Fields::open(item, &path, REPLACES_FIELDS, self.report) else {
                continue;
            };
            let name = entry.text("name", self.report).filter(|name| !name.value.is_empty());
            let Some(name) = name else {
                self.report.add(item.at, Some(&entry.path("name")), "is missing");
                continue;
            };
            if own == Some(name.value.as_str()) {
                let message = "is this limit's own name";
                self.report.add(name.at, Some(&entry.path("name")), message);
            }
            names.push(name.value);
        }
        names
    }
}

/// The length of the window that a unit names; months have 30 days and years 365.
fn window_seconds(unit: &str) -> Option<u64> {
    const DAY: u64 = 86_400;
    let seconds = match unit.to_ascii_lowercase().as_str() {
        "second" => 1,
        "minute" => 60,
        "hour" => 3_600,
        "day" => DAY,
        "week" => 7 * DAY,
        "month" => 30 * DAY,
        "year" => 365 * DAY,
        _ => return None,
    };
    Some(seconds)
}
