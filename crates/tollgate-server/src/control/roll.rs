//! The nodes that share a Redis: each reports its state there, and reads the reports of all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tollgate_engine::Engine;
use tollgate_store::Store as _;

use super::figures::ControlFigures;
use super::{Keeper, Surroundings, ownership};
use crate::config::Config;
use crate::stores::Stores;

/// How often a node says how it is.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// How long its word holds. Five times that, so that a lost one is no funeral.
const HOLDS: Duration = Duration::from_secs(10);

/// Reports in a row that must differ before nodes are said to disagree about a rule file: one that all
/// of them watch changes on each at another moment.
const CONFIRMATIONS: u32 = 3;

/// How this node is, and what the others said last.
pub(crate) struct Roll {
    engine: Arc<Engine<Stores>>,
    config: Arc<Config>,
    figures: Arc<ControlFigures>,
    node: String,
    /// When this process started, in milliseconds.
    started: i64,
    others: Mutex<Vec<Value>>,
    /// How often in a row the reports of the others were read.
    reports_read: AtomicU32,
    /// How often in a row their owners differed.
    differing: AtomicU32,
}

impl Roll {
    pub(super) fn new(around: &Surroundings) -> Self {
        Self {
            engine: Arc::clone(&around.engine),
            config: Arc::clone(&around.config),
            figures: Arc::clone(&around.figures),
            node: around.node.clone(),
            started: crate::admin::now(),
            others: Mutex::default(),
            reports_read: AtomicU32::new(0),
            differing: AtomicU32::new(0),
        }
    }

    /// What this node is called.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// This node and the others, by name.
    pub(crate) fn all(&self) -> Vec<Value> {
        let mut all = self.others.lock().clone();
        all.push(self.own());
        let name = |node: &Value| node.get("node").and_then(Value::as_str).map(str::to_owned);
        all.sort_by_key(name);
        all
    }

    /// All nodes, if their reports were read at least so often in a row.
    pub(super) fn known_nodes(&self, min_reports: u32) -> Option<Vec<Value>> {
        let is_known = self.reports_read.load(Ordering::Relaxed) >= min_reports;
        is_known.then(|| self.others.lock().clone())
    }

    /// Compares the owners that all nodes report, and logs when they begin or cease to differ.
    fn compare_owners(&self) {
        let all = self.all();
        let found = ownership::disagreement(&all);
        let owners = ownership::owners(&all).len();
        let differing = match &found {
            None => 0,
            Some(_) => self.differing.load(Ordering::Relaxed).saturating_add(1),
        };
        self.differing.store(differing, Ordering::Relaxed);
        if found.is_some() && differing < CONFIRMATIONS && !ownership::has_two_databases(&all) {
            return;
        }
        if !self.figures.owners_reported(owners, found.clone()) {
            return;
        }
        if let Some(problem) = found {
            tracing::error!("{problem}");
        } else {
            tracing::info!("nodes that share this Redis have the rules of one owner again");
        }
    }

    /// How this node is.
    pub(super) fn own(&self) -> Value {
        let stores = self.engine.store();
        let each = stores.names().iter().zip(stores.shared());
        let stores: Vec<Value> = each
            .map(|(name, store)| {
                json!({ "name": name, "is_lost": store.degraded_since().is_some() })
            })
            .collect();
        json!({
            "node": self.node,
            "version": env!("CARGO_PKG_VERSION"),
            "role": self.config.control.role.name(),
            "uptime_seconds": (crate::admin::now() - self.started) / 1_000,
            "enforcement": self.engine.enforcement().name(),
            "rules": {
                "count": self.engine.rules().set.rules().len(),
                "source": self.figures.source().name(),
                "revision": self.figures.version.load(Ordering::Relaxed),
                "owner": self.figures.owner(self.engine.rules().set.digest()),
            },
            "stores": stores,
        })
    }
}

impl Keeper {
    /// Reports the state of this node every [`TELL_EVERY`], and at once when its rules have another
    /// owner, and reads the reports of the others. While Redis does not answer nothing is known of them.
    pub(super) async fn call_the_roll(self: Arc<Self>) {
        let Some(redis) = &self.redis else { return };
        let board = redis.board();
        loop {
            let state = self.roll.own().to_string();
            let reported = board.tell_node(self.roll.node(), state.as_bytes(), HOLDS, true).await;
            let read = |(_, state): (String, Vec<u8>)| serde_json::from_slice(&state).ok();
            let is_read = reported.is_ok();
            *self.roll.others.lock() =
                reported.unwrap_or_default().into_iter().filter_map(read).collect();
            if is_read {
                self.roll.compare_owners();
            } else {
                self.roll.reports_read.store(0, Ordering::Relaxed);
            }
            let is_early = tokio::select! {
                () = tokio::time::sleep(TELL_EVERY) => false,
                () = self.around.figures.owner_changed() => true,
            };
            // Only reports that are a whole interval apart prove that nobody is missing.
            if is_read && !is_early {
                self.roll.reports_read.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
