//! What a node reports about itself.

use std::fmt::Write as _;

use serde_json::Value;

use crate::value::{list, shown};
use crate::when;

/// How often a key was seen.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Key {
    pub(super) name: String,
    pub(super) count: u64,
}

/// The keys of one rule.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rule {
    pub(super) id: String,
    pub(super) consumed: u64,
    pub(super) refused: u64,
    pub(super) top_allowed: Vec<Key>,
    pub(super) top_refused: Vec<Key>,
}

/// A store that nodes share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Store {
    pub(super) name: String,
    pub(super) is_lost: bool,
    pub(super) open_breakers: u64,
    pub(super) nodes: u64,
}

/// A node, as it is now.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Seen {
    pub(super) node: String,
    pub(super) version: String,
    pub(super) uptime: String,
    pub(super) enforcement: String,
    pub(super) rule_count: u64,
    pub(super) revision: String,
    pub(super) counters: u64,
    pub(super) stores: Vec<Store>,
    /// How long a step is, in seconds, and what passed and was refused in each, the latest last.
    pub(super) step_seconds: u64,
    pub(super) allowed: Vec<u64>,
    pub(super) refused: Vec<u64>,
    /// p50, p95 and p99 of the latest step that had a call, in milliseconds.
    pub(super) latencies_ms: [Option<f64>; 3],
    pub(super) rules: Vec<Rule>,
    pub(super) tenants: Vec<Key>,
    /// What the keys are of, in seconds, and how many decisions one that was looked at stands for.
    pub(super) seconds: u64,
    pub(super) sampled: u64,
}

impl Seen {
    pub(super) fn read(report: &Value) -> Self {
        let part = |name: &str| report.get(name).unwrap_or(&Value::Null);
        let (node, history, top) = (part("node"), part("history"), part("top"));
        let all = history.get("all").unwrap_or(&Value::Null);
        let rules = node.get("rules").unwrap_or(&Value::Null);
        let memory = node.get("memory").unwrap_or(&Value::Null);
        Self {
            node: shown(node, "node"),
            version: shown(node, "version"),
            uptime: when::span(number(node, "uptime_seconds")),
            enforcement: shown(node, "enforcement"),
            rule_count: number(rules, "count"),
            revision: shown(rules, "revision"),
            counters: number(memory, "counters"),
            stores: list(node, "stores").iter().map(store).collect(),
            step_seconds: number(history, "step_seconds").max(1),
            allowed: sums(all, ["allowed", "throttled"]),
            refused: sums(all, ["denied", "queued"]),
            latencies_ms: ["p50_ms", "p95_ms", "p99_ms"].map(|name| latest(all, name)),
            rules: list(top, "rules").iter().map(rule).collect(),
            tenants: keys(top, "tenants"),
            seconds: number(top, "seconds"),
            sampled: number(top, "sampled_one_in").max(1),
        }
    }

    /// What passes and what is refused in a second, in the latest step.
    pub(super) fn rates(&self) -> (f64, f64) {
        #[expect(clippy::cast_precision_loss, reason = "figures to look at")]
        let rate = |steps: &[u64]| {
            steps.last().copied().unwrap_or_default() as f64 / self.step_seconds as f64
        };
        (rate(&self.allowed), rate(&self.refused))
    }

    /// The share of requests that is refused, in percent.
    pub(super) fn refused_percent(&self) -> f64 {
        let (allowed, refused) = self.rates();
        if allowed + refused > 0.0 { refused / (allowed + refused) * 100.0 } else { 0.0 }
    }

    /// All of it but the keys, as lines.
    pub(super) fn summary(&self) -> String {
        let (allowed, refused) = self.rates();
        let millis = |one: Option<f64>| one.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.3}"));
        let [p50, p95, p99] = self.latencies_ms.map(millis);
        let mut text = format!(
            "node {} {}, up {}, enforcement {}, {} rules (revision {})\n\
             {allowed:.1}/s allowed, {refused:.1}/s refused ({:.1} %), p50 {p50} p95 {p95} p99 {p99} ms\n\
             memory: {} counters\n",
            self.node,
            self.version,
            self.uptime,
            self.enforcement,
            self.rule_count,
            self.revision,
            self.refused_percent(),
            self.counters,
        );
        for store in &self.stores {
            // Writing to memory does not fail.
            let _ = writeln!(text, "store {}: {}", store.name, store.health());
        }
        text
    }
}

impl Store {
    pub(super) fn health(&self) -> String {
        let nodes = self.nodes;
        match (self.is_lost, self.open_breakers) {
            (true, _) => "LOST, fallbacks decide".to_owned(),
            (false, 0) => format!("well, {nodes} nodes"),
            (false, open) => format!("{open} servers left alone, {nodes} nodes"),
        }
    }
}

impl Rule {
    /// Its keys side by side.
    pub(super) fn rows(&self, most: usize) -> Vec<[String; 4]> {
        let length = self.top_allowed.len().max(self.top_refused.len()).min(most);
        let cells = |keys: &[Key], place: usize| match keys.get(place) {
            Some(key) => (key.name.clone(), key.count.to_string()),
            None => (String::new(), String::new()),
        };
        let row = |place| {
            let (allowed, consumed) = cells(&self.top_allowed, place);
            let (refused, times) = cells(&self.top_refused, place);
            [allowed, consumed, refused, times]
        };
        (0..length).map(row).collect()
    }
}

fn number(value: &Value, field: &str) -> u64 {
    value.get(field).and_then(Value::as_u64).unwrap_or_default()
}

fn store(value: &Value) -> Store {
    Store {
        name: shown(value, "name"),
        is_lost: value.get("is_lost").and_then(Value::as_bool).unwrap_or_default(),
        open_breakers: number(value, "open_breakers"),
        nodes: number(value, "nodes"),
    }
}

fn rule(value: &Value) -> Rule {
    Rule {
        id: shown(value, "rule_id"),
        consumed: number(value, "consumed"),
        refused: number(value, "refused"),
        top_allowed: keys(value, "top_allowed"),
        top_refused: keys(value, "top_refused"),
    }
}

fn keys(value: &Value, field: &str) -> Vec<Key> {
    let key = |one: &Value| Key { name: shown(one, "key"), count: number(one, "count") };
    list(value, field).iter().map(key).collect()
}

/// Two columns of the history, added up.
fn sums(all: &Value, columns: [&str; 2]) -> Vec<u64> {
    let [first, second] = columns.map(|name| list(all, name));
    let of = |value: Option<&Value>| value.and_then(Value::as_u64).unwrap_or_default();
    (0..first.len()).map(|place| of(first.get(place)) + of(second.get(place))).collect()
}

fn latest(all: &Value, column: &str) -> Option<f64> {
    list(all, column).iter().rev().find_map(Value::as_f64)
}
