//! The roll of nodes: each says through Redis how it is, and those that serve the admin API hear of all.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tollgate_engine::Engine;
use tollgate_store::Store as _;

use super::figures::ControlFigures;
use super::{Keeper, Surroundings};
use crate::config::Config;
use crate::stores::Stores;

/// How often a node says how it is.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// How long its word holds. Five times that, so that a lost one is no funeral.
const HOLDS: Duration = Duration::from_secs(10);

/// How this node is, and what the others said last.
pub(crate) struct Roll {
    engine: Arc<Engine<Stores>>,
    config: Arc<Config>,
    figures: Arc<ControlFigures>,
    node: String,
    /// When this process started, in milliseconds.
    started: i64,
    others: Mutex<Vec<Value>>,
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

    fn own(&self) -> Value {
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
            },
            "stores": stores,
        })
    }
}

impl Keeper {
    /// Says how this node is, again and again. A Redis that does not answer hears it later; meanwhile nothing is known of the
    /// others.
    pub(super) async fn call_the_roll(self: Arc<Self>) {
        let Some(redis) = &self.redis else { return };
        let board = redis.board();
        let hears = self.around.config.has_control();
        loop {
            let state = self.roll.own().to_string();
            let told = board.tell_node(self.roll.node(), state.as_bytes(), HOLDS, hears).await;
            let read = |(_, state): (String, Vec<u8>)| serde_json::from_slice(&state).ok();
            *self.roll.others.lock() =
                told.unwrap_or_default().into_iter().filter_map(read).collect();
            tokio::time::sleep(TELL_EVERY).await;
        }
    }
}
