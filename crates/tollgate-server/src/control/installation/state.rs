//! How a node is, as it reports it to others, and as operators see it.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tollgate_control::Millis;
use tollgate_control::draft::rfc3339;

use super::{Installation, MAX_STATE_BYTES};
use crate::telemetry::decisions::COUNTS;
use crate::telemetry::history::quantile_micros;

/// Short steps that the time of decisions is reported of: a minute.
const LATENCY_STEPS: usize = 12;
/// The longest text that is taken from another node, in characters.
const MAX_TEXT: usize = 200;
/// Stores that are taken from another node.
const MAX_STORES: usize = 32;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct RulesState {
    count: u64,
    source: String,
    revision: i64,
    owner: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct StoreState {
    name: String,
    is_lost: bool,
}

/// How a node is. Fields that an older node does not have are empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NodeState {
    node: String,
    host: String,
    version: String,
    role: String,
    uptime_seconds: i64,
    enforcement: String,
    rules: RulesState,
    stores: Vec<StoreState>,
    /// Decisions since the start, in the order of [`COUNTS`].
    decisions: [u64; COUNTS.len()],
    decisions_per_second: f64,
    /// Processors in use.
    cpu: f64,
    p50_ms: Option<f64>,
    p95_ms: Option<f64>,
    p99_ms: Option<f64>,
    /// The process has ended as it was asked to.
    is_stopped: bool,
}

impl NodeState {
    pub(super) fn name(&self) -> &str {
        &self.node
    }

    pub(super) const fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// What a node has reported; `None` for what cannot be used.
    pub(super) fn read(node: &str, text: &[u8]) -> Option<Self> {
        if text.len() > MAX_STATE_BYTES {
            return None;
        }
        Some(serde_json::from_slice::<Self>(text).ok()?.bounded(node))
    }

    /// The state on the roll of nodes, which older nodes have, too.
    pub(super) fn of_roll(state: &Value) -> Option<Self> {
        let node = state.get("node")?.as_str()?;
        Some(Self::deserialize(state).ok()?.bounded(node))
    }

    /// Whatever it says it is, its name is the one under which it was found.
    fn bounded(mut self, node: &str) -> Self {
        node.clone_into(&mut self.node);
        self.stores.truncate(MAX_STORES);
        let texts = [
            &mut self.node,
            &mut self.host,
            &mut self.version,
            &mut self.role,
            &mut self.enforcement,
        ];
        let stores = self.stores.iter_mut().map(|store| &mut store.name);
        let rules = [&mut self.rules.source].into_iter().chain(&mut self.rules.owner);
        for text in texts.into_iter().chain(stores).chain(rules) {
            if text.chars().nth(MAX_TEXT).is_some() {
                *text = text.chars().take(MAX_TEXT).collect();
            }
        }
        for number in [&mut self.decisions_per_second, &mut self.cpu] {
            *number = number.max(0.0);
        }
        self
    }
}

/// A node with when it was seen.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NodeView {
    pub(crate) state: NodeState,
    pub(crate) last_seen: Millis,
    pub(crate) is_live: bool,
}

impl NodeView {
    pub(crate) fn name(&self) -> &str {
        &self.state.node
    }

    /// Live nodes first, by host and name.
    pub(super) fn order(&self) -> (bool, &str, &str) {
        (!self.is_live, &self.state.host, &self.state.node)
    }

    pub(crate) fn decisions(&self) -> [u64; COUNTS.len()] {
        self.state.decisions
    }

    pub(crate) const fn per_second(&self) -> f64 {
        self.state.decisions_per_second
    }

    /// The names of stores that do not answer it.
    pub(crate) fn lost_stores(&self) -> impl Iterator<Item = &str> {
        self.state.stores.iter().filter(|store| store.is_lost).map(|store| store.name.as_str())
    }

    pub(crate) fn view(&self) -> Value {
        let mut view = json!(self.state);
        let decisions = COUNTS.iter().zip(self.state.decisions);
        let decisions: Value =
            decisions.map(|(name, sum)| ((*name).to_owned(), json!(sum))).collect();
        let seen = rfc3339(self.last_seen);
        if let Some(fields) = view.as_object_mut() {
            fields.insert("decisions".to_owned(), decisions);
            fields.insert("is_live".to_owned(), self.is_live.into());
            fields.insert("gone_since".to_owned(), (!self.is_live).then_some(&*seen).into());
            fields.insert("last_seen".to_owned(), seen.into());
        }
        view
    }
}

impl Installation {
    /// How this node is.
    pub(super) fn own_state(&self) -> NodeState {
        let calls = self.observed.history.recent_calls(LATENCY_STEPS);
        let millis = |share: f64| quantile_micros(&calls, share).map(|micros| micros / 1e3);
        let (decisions_per_second, cpu) = self.speed.lock().latest();
        let of_roll = NodeState::of_roll(&self.roll.own()).unwrap_or_default();
        NodeState {
            host: self.host.clone(),
            decisions: self.observed.witness.tally().totals(),
            decisions_per_second,
            cpu,
            p50_ms: millis(0.5),
            p95_ms: millis(0.95),
            p99_ms: millis(0.99),
            ..of_roll
        }
    }
}

impl NodeState {
    /// The last report of a process that ends.
    pub(super) fn stopped(mut self) -> Self {
        self.is_stopped = true;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An old or hostile node must break neither the list nor those who read it.
    #[test]
    fn what_nodes_report_is_bounded_and_may_lack_fields() {
        let old = NodeState::read("n1", br#"{"node":"n1","version":"0.1","rules":{"revision":7}}"#);
        let old = old.unwrap();
        assert_eq!((old.rules.revision, old.host.as_str(), old.decisions), (7, "", [0; 5]));
        let long = format!(
            r#"{{"node":"another","host":"{}","stores":[{}],"unknown":[1],"cpu":-1e308}}"#,
            "ä".repeat(3_000),
            vec![r#"{"name":"s"}"#; 100].join(",")
        );
        assert_eq!(NodeState::read("n1", long.as_bytes()).map(|_| ()), Some(()), "{}", long.len());
        let long = NodeState::read("n1", long.as_bytes()).unwrap();
        assert_eq!((long.node.as_str(), long.host.chars().count()), ("n1", MAX_TEXT));
        assert_eq!((long.stores.len(), long.cpu.to_bits()), (MAX_STORES, 0));
        for wrong in
            ["", "null", r#"{"rules":7}"#, r#"{"decisions":[1]}"#, r#"{"decisions":[-1,0,0,0,0]}"#]
        {
            assert_eq!(NodeState::read("n1", wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(NodeState::read("n1", &vec![b' '; MAX_STATE_BYTES + 1]), None);
    }
}
