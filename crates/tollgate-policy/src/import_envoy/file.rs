//! A file of envoyproxy/ratelimit, read and checked.

use std::rc::Rc;

use serde_json::{Map, Value};

use super::{MAX_IMPORT_DEPTH, yaml};
use crate::check::{MAX_NAME_BYTES, MAX_VALUE_BYTES, plain};
use crate::envoy::MAX_METADATA_BYTES;
use crate::fields::Fields;
use crate::matcher;
use crate::node::{self, Entry, Kind, Node, Spot};
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
    "metadata",
];
const LIMIT_FIELDS: &[&str] = &["unit", "requests_per_unit", "unlimited", "name", "replaces"];
const REPLACES_FIELDS: &[&str] = &["name"];

fn all_fields() -> Vec<&'static str> {
    [FILE_FIELDS, DESCRIPTOR_FIELDS, LIMIT_FIELDS].concat()
}

const DAY: u64 = 86_400;

/// A month where it is not one of the calendar.
pub(super) const MONTH_SECONDS: u64 = 30 * DAY;

/// What scopes of imported rules begin with.
pub(super) const SCOPE_PREFIX: &str = "envoy:";

/// A domain with its tree.
#[derive(Debug)]
pub(super) struct Domain {
    /// The files that it is in.
    pub(super) sources: Vec<Rc<str>>,
    pub(super) name: At<String>,
    pub(super) children: Vec<Descriptor>,
    /// What was read and does not count.
    pub(super) notes: Vec<String>,
}

impl Domain {
    /// Adds what another file says about the same domain, behind what is there.
    pub(super) fn append(&mut self, other: Self) {
        self.sources.extend(other.sources);
        self.children.extend(other.children);
        self.notes.extend(other.notes);
    }
}

/// A node of the tree.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "the flags of the file")]
pub(super) struct Descriptor {
    pub(super) source: Rc<str>,
    pub(super) at: Spot,
    pub(super) key: String,
    pub(super) value: Wanted,
    pub(super) limit: Option<Limit>,
    pub(super) is_shadow: bool,
    pub(super) is_quota: bool,
    /// All values of its wildcard share one counter.
    pub(super) is_shared: bool,
    /// Statistics of its limit are kept by all values of the descriptor.
    pub(super) has_detailed_metric: bool,
    /// Statistics of limits from here on are kept by this value.
    pub(super) has_value_in_metric: bool,
    pub(super) metadata: Map<String, Value>,
    pub(super) children: Vec<Descriptor>,
}

impl Descriptor {
    /// Key and value as envoyproxy/ratelimit names the node. No two nodes of one level may have the same.
    pub(super) fn composite_key(&self) -> String {
        match &self.value {
            Wanted::Exact(value) | Wanted::Pattern(value) => format!("{}_{value}", self.key),
            Wanted::Any => self.key.clone(),
        }
    }
}

/// Reports the nodes of a level that have the key and value of one before them.
pub(super) fn report_repeated(nodes: &[Descriptor], report: &mut Report) {
    let mut known: Vec<(String, &Descriptor)> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let key = node.composite_key();
        match known.iter().find(|(other, _)| *other == key) {
            Some((_, first)) => {
                let message = format!(
                    "the descriptor {key:?} has the key and value of {}:{} again",
                    first.source, first.at.line
                );
                report.add_in(&node.source, node.at, message);
            }
            None => known.push((key, node)),
        }
    }
}

/// Which values a node takes, in the order in which they are tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    Exact(String),
    /// With at least one `*`.
    Pattern(String),
    Any,
}

impl Wanted {
    pub(super) const fn rank(&self) -> u8 {
        match self {
            Self::Exact(_) => 0,
            Self::Pattern(_) => 1,
            Self::Any => 2,
        }
    }

    /// Whether some value may be taken by both. Of two patterns only the beginnings are compared.
    pub(super) fn may_overlap(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) => true,
            (Self::Exact(one), Self::Exact(other)) => one == other,
            (Self::Exact(exact), Self::Pattern(pattern))
            | (Self::Pattern(pattern), Self::Exact(exact)) => {
                matcher::Wanted::parse(pattern).accepts(exact)
            }
            (Self::Pattern(one), Self::Pattern(other)) => {
                let beginning = |pattern: &str| pattern.split('*').next().map(str::to_owned);
                let one = beginning(one).unwrap_or_default();
                let other = beginning(other).unwrap_or_default();
                one.starts_with(&other) || other.starts_with(&one)
            }
        }
    }
}

/// Files may nest so much deeper than rule files: each descriptor is a list and a map. What is too deep is then reported
/// with its place.
const EXTRA_DEPTH: usize = 8 * MAX_IMPORT_DEPTH;

/// How deep `metadata` may nest: readers of protobuf messages take 100 levels, of which each takes three.
const MAX_METADATA_DEPTH: usize = 16;

fn is_within(value: &Value, depth: usize) -> bool {
    let mut inner: Box<dyn Iterator<Item = &Value>> = match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(fields) => Box::new(fields.values()),
        _ => return true,
    };
    depth > 0 && inner.all(|value| is_within(value, depth - 1))
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
    let mut root = node::read_deeper(text, EXTRA_DEPTH, report)?;
    yaml::expand_merge_keys(&mut root, report);
    let source: Rc<str> = source.into();
    let mut notes = Vec::new();
    let mut reader = Reader { source: &source, notes: &mut notes, report };
    let fields = reader.open(&root, "", FILE_FIELDS)?;
    let Some(name) = fields.text("domain", reader.report) else {
        reader.report.add(root.at, Some("domain"), "is missing");
        return None;
    };
    let most = MAX_NAME_BYTES - SCOPE_PREFIX.len();
    plain(&name, "domain", most, reader.report);
    if name.value == "*" {
        let message = "* cannot be the domain of a rule; give it a name";
        reader.report.add(name.at, Some("domain"), message);
    }
    let children = reader.level(&fields, 1);
    Some(Domain { sources: vec![source], name, children, notes })
}

struct Reader<'a> {
    source: &'a Rc<str>,
    notes: &'a mut Vec<String>,
    report: &'a mut Report,
}

impl Reader<'_> {
    /// Opens a map. A field that belongs in another place is accepted and has no effect, as there; a note
    /// says so.
    fn open<'n>(&mut self, node: &'n Node, path: &str, known: &[&str]) -> Option<Fields<'n>> {
        let all = all_fields();
        let fields = Fields::open(node, path, &all, self.report)?;
        let Kind::Map(entries) = &node.kind else { return Some(fields) };
        for entry in entries {
            let name = entry.key.as_str();
            self.check_number(entry, &fields.path(name));
            if all.contains(&name) && !known.contains(&name) {
                let (source, line, known) = (self.source, entry.key_at.line, known.join(", "));
                self.notes.push(format!(
                    "{source}:{line}: {name} has no effect here, where only {known} are read"
                ));
                if name != "metadata" {
                    self.check_ignored(&entry.value, &fields.path(name));
                }
            }
        }
        Some(fields)
    }

    /// Reports a number with a fraction, which is no value of any field there. A limit's own is reported
    /// where it is read.
    fn check_number(&mut self, entry: &Entry, path: &str) {
        let is_checked = !matches!(entry.key.as_str(), "requests_per_unit" | "metadata");
        if is_checked && yaml::is_fraction(&entry.value) {
            let message = format!("must be text; put {} into quotes", entry.value.describe());
            self.report.add(entry.value.at, Some(path), message);
        }
    }

    /// Reports what is wrong in a value that has no effect, too.
    fn check_ignored(&mut self, node: &Node, path: &str) {
        match &node.kind {
            Kind::Scalar { .. } => {}
            Kind::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    let path = format!("{path}[{index}]");
                    if Fields::open(item, &path, &all_fields(), self.report).is_some() {
                        self.check_ignored_fields(item, &path);
                    }
                }
            }
            Kind::Map(_) => {
                Fields::open(node, path, &all_fields(), self.report);
                self.check_ignored_fields(node, path);
            }
        }
    }

    fn check_ignored_fields(&mut self, node: &Node, path: &str) {
        let Kind::Map(entries) = &node.kind else { return };
        for entry in entries.iter().filter(|entry| entry.key != "metadata") {
            let path = format!("{path}.{}", entry.key);
            self.check_number(entry, &path);
            self.check_ignored(&entry.value, &path);
        }
    }

    fn level(&mut self, fields: &Fields<'_>, depth: usize) -> Vec<Descriptor> {
        let mut nodes: Vec<Descriptor> = Vec::new();
        let items = fields.list("descriptors", self.report).unwrap_or_default();
        for (index, item) in items.iter().enumerate() {
            let path = fields.path(&format!("descriptors[{index}]"));
            nodes.extend(self.descriptor(item, &path, depth));
        }
        // Those of the first level may be in several files, and are compared when all are read.
        if depth > 1 {
            report_repeated(&nodes, self.report);
        }
        nodes
    }

    fn flag(&mut self, fields: &Fields<'_>, name: &str) -> Option<Spot> {
        let node = fields.node(name)?;
        let Some(flag) = yaml::flag(node) else {
            let message = format!("must be true or false, not {}", node.describe());
            self.report.add(node.at, Some(&fields.path(name)), message);
            return None;
        };
        flag.then_some(node.at)
    }

    fn descriptor(&mut self, item: &Node, path: &str, depth: usize) -> Option<Descriptor> {
        if depth > MAX_IMPORT_DEPTH {
            let message = format!(
                "descriptors may be nested {MAX_IMPORT_DEPTH} deep at most: a request's descriptor has no more entries"
            );
            self.report.add(item.at, Some(path), message);
            return None;
        }
        let fields = self.open(item, path, DESCRIPTOR_FIELDS)?;
        let key = self.key(&fields, item)?;
        let value = self.value(&fields)?;
        let shared = self.flag(&fields, "share_threshold");
        if let (Some(at), false) = (shared, matches!(value, Wanted::Pattern(_))) {
            let message = "goes with a value that has a * only";
            self.report.add(at, Some(&fields.path("share_threshold")), message);
        }
        let limit = fields.node("rate_limit").and_then(|node| {
            let path = fields.path("rate_limit");
            self.limit(node, &path)
        });
        Some(Descriptor {
            source: Rc::clone(self.source),
            at: item.at,
            key,
            value,
            limit,
            is_shadow: self.flag(&fields, "shadow_mode").is_some(),
            is_quota: self.flag(&fields, "quota_mode").is_some(),
            is_shared: shared.is_some(),
            has_detailed_metric: self.flag(&fields, "detailed_metric").is_some(),
            has_value_in_metric: self.flag(&fields, "value_to_metric").is_some(),
            metadata: self.metadata(&fields),
            children: self.level(&fields, depth + 1),
        })
    }

    fn metadata(&mut self, fields: &Fields<'_>) -> Map<String, Value> {
        let Some(map) = fields.map("metadata", self.report) else { return Map::new() };
        let entries =
            map.value.iter().map(|entry| (entry.key.clone(), yaml::to_json(&entry.value)));
        let metadata: Map<String, Value> = entries.collect();
        if metadata.values().any(|value| !is_within(value, MAX_METADATA_DEPTH)) {
            let message = format!("must not be nested more than {MAX_METADATA_DEPTH} levels deep");
            self.report.add(map.at, Some(&fields.path("metadata")), message);
        }
        let bytes = serde_json::to_string(&metadata).map_or(usize::MAX, |text| text.len());
        if bytes > MAX_METADATA_BYTES {
            let message = format!("must not be longer than {MAX_METADATA_BYTES} bytes as JSON");
            self.report.add(map.at, Some(&fields.path("metadata")), message);
        }
        metadata
    }

    fn key(&mut self, fields: &Fields<'_>, item: &Node) -> Option<String> {
        let field = fields.path("key");
        let Some(key) = fields.text("key", self.report).filter(|key| !key.value.is_empty()) else {
            self.report.add(item.at, Some(&field), "is missing");
            return None;
        };
        if key.value.contains('*') {
            let message = "a wildcard in a key cannot be imported; write the keys out";
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
        let is_pattern = value.value.contains('*');
        Some(if is_pattern { Wanted::Pattern(value.value) } else { Wanted::Exact(value.value) })
    }

    fn limit(&mut self, node: &Node, path: &str) -> Option<Limit> {
        let fields = self.open(node, path, LIMIT_FIELDS)?;
        let is_unlimited = self.flag(&fields, "unlimited").is_some();
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
        // A limit without a number allows nothing there, and so here.
        let quota = fields.node("requests_per_unit").map_or(Some(0), |node| {
            yaml::whole_number(node).or_else(|| {
                let message = format!("must be a whole number from 0 to {}", u32::MAX);
                self.report.add(node.at, Some(&fields.path("requests_per_unit")), message);
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
            let Some(entry) = self.open(item, &path, REPLACES_FIELDS) else { continue };
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
    let seconds = match unit.to_ascii_lowercase().as_str() {
        "second" => 1,
        "minute" => 60,
        "hour" => 3_600,
        "day" => DAY,
        "week" => 7 * DAY,
        "month" => MONTH_SECONDS,
        "year" => 365 * DAY,
        _ => return None,
    };
    Some(seconds)
}
