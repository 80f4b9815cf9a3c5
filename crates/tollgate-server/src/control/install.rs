//! A set comes into force, and is kept on disk.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tollgate_control::{Compiled, kept};
use tollgate_engine::{Enforcement, Engine};
use tollgate_policy::RuleSet;
use tollgate_store::Store as _;

use super::Surroundings;
use super::figures::{ControlFigures, Source};
use crate::stores::Stores;

/// A set up to this size is kept on disk at once; a larger one not more often than [`KEEP_EVERY`].
const SMALL_BYTES: usize = 4 << 20;
/// How often a large set is written.
const KEEP_EVERY: Duration = Duration::from_secs(10);

/// Puts sets in force.
pub(super) struct Installer {
    engine: Arc<Engine<Stores>>,
    figures: Arc<ControlFigures>,
    /// What each node goes by where the set says nothing.
    enforcement: Enforcement,
    kept: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    current: Option<Compiled>,
    /// Whether the disk has it.
    is_kept: bool,
    kept_at: Option<Instant>,
}

impl Installer {
    pub(super) fn new(around: &Surroundings, kept: Option<PathBuf>) -> Self {
        Self {
            engine: Arc::clone(&around.engine),
            figures: Arc::clone(&around.figures),
            enforcement: around.config.enforcement,
            kept,
            state: Mutex::default(),
        }
    }

    /// The set in force.
    pub(super) fn current(&self) -> Option<Compiled> {
        self.state.lock().current.clone()
    }

    /// Puts the set in force that this node knew last.
    pub(super) fn start_from_kept(&self) {
        let Some(path) = &self.kept else { return };
        let found = kept::find(path).map_err(|error| error.to_string());
        let compiled = match found {
            Ok(None) => return,
            Ok(Some(content)) => Compiled::build(content, None).map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        match compiled {
            Ok(compiled) => {
                let revision = compiled.content.revision;
                if self.install(compiled, Source::Kept).is_ok() {
                    self.state.lock().is_kept = true;
                    tracing::info!(revision, file = %path.display(),
                        "starting from the last known rules, until newer ones are heard of");
                }
            }
            Err(error) => {
                self.figures.failure();
                tracing::warn!(file = %path.display(), %error,
                    "the last known rules cannot be used; starting without them");
            }
        }
    }

    /// Puts a set in force, unless it asks for a store that this node does not have.
    pub(super) fn install(&self, compiled: Compiled, source: Source) -> Result<(), ()> {
        if let Some((rule, store)) = unknown_store(&compiled.rules, self.engine.store().names()) {
            self.figures.failure();
            tracing::error!(
                rule,
                store,
                revision = compiled.content.revision,
                "the new rules count in a store that this node does not have; the old ones stay"
            );
            return Err(());
        }
        let revision = compiled.content.revision;
        let mode = compiled.content.enforcement.as_deref().and_then(Enforcement::from_name);
        let mut state = self.state.lock();
        let is_same =
            state.current.as_ref().is_some_and(|current| current.content == compiled.content);
        if !is_same {
            let version = u64::try_from(revision).unwrap_or_default();
            self.engine.swap_rules_as(RuleSet::clone(&compiled.rules), version);
            self.engine.set_enforcement(mode.unwrap_or(self.enforcement));
            state.is_kept = false;
            if source != Source::Kept {
                tracing::info!(
                    revision,
                    rules = compiled.rules.rules().len(),
                    clients = compiled.clients(),
                    source = source.name(),
                    "rules in force"
                );
            }
        }
        self.figures.in_force(source, revision);
        state.current = Some(compiled);
        Ok(())
    }

    /// Keeps the set on disk if it is time.
    pub(super) async fn keep(&self) {
        let is_due = {
            let state = self.state.lock();
            let bytes: usize = state
                .current
                .as_ref()
                .map_or(0, |current| current.content.parts().map(|part| part.bytes.len()).sum());
            let is_rested = state.kept_at.is_none_or(|at| at.elapsed() >= KEEP_EVERY);
            !state.is_kept && (bytes <= SMALL_BYTES || is_rested)
        };
        if is_due {
            self.keep_now().await;
        }
    }

    /// Keeps the set on disk.
    pub(super) async fn keep_now(&self) {
        let Some(path) = self.kept.clone() else { return };
        let content = {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.is_kept, true) {
                return;
            }
            state.kept_at = Some(Instant::now());
            state.current.as_ref().map(|current| current.content.clone())
        };
        let Some(content) = content else { return };
        let write = move || kept::keep(&path, &content).map_err(|error| (path, error));
        match tokio::task::spawn_blocking(write).await {
            Ok(Ok(())) => {}
            Ok(Err((path, error))) => {
                self.state.lock().is_kept = false;
                tracing::warn!(file = %path.display(), %error,
                    "the rules cannot be kept on disk; a restart without the control plane would \
                     go by older ones");
            }
            Err(error) => tracing::error!(%error, "keeping the rules on disk failed"),
        }
    }
}

/// The first rule that counts in a store that is not there. Without any shared store everything is
/// counted here, whatever rules say.
fn unknown_store<'r>(rules: &'r RuleSet, stores: &[String]) -> Option<(&'r str, &'r str)> {
    if stores.is_empty() {
        return None;
    }
    rules.rules().iter().find_map(|rule| {
        let store = rule.store.as_ref().filter(|store| !stores.contains(store))?;
        Some((rule.id.as_str(), store.as_str()))
    })
}
