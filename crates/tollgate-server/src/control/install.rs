//! A set comes into force, and is kept on disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tollgate_control::content::Content;
use tollgate_control::{Compiled, kept};
use tollgate_engine::{Enforcement, Engine};
use tollgate_policy::RuleSet;
use tollgate_store::Store as _;

use super::Surroundings;
use super::figures::{ControlFigures, Source};
use crate::recorder::Recorder;
use crate::stores::Stores;

/// A set up to this size is kept on disk at once; a larger one not more often than [`KEEP_EVERY`].
const SMALL_BYTES: usize = 4 << 20;
/// How often a large set is written.
const KEEP_EVERY: Duration = Duration::from_secs(10);

/// The longest part of a file's name that comes from the id of a database.
const MAX_NAME_CHARS: usize = 64;

/// Puts sets in force.
pub(super) struct Installer {
    engine: Arc<Engine<Stores>>,
    figures: Arc<ControlFigures>,
    /// What each node goes by where the set says nothing.
    enforcement: Enforcement,
    kept: Option<PathBuf>,
    recorder: Option<Arc<Recorder>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    current: Option<Compiled>,
    /// Whether the disk has it.
    is_kept: bool,
    kept_at: Option<Instant>,
    /// The database whose rules the disk has.
    kept_installation: Option<String>,
    /// Whether the last attempt to write it failed.
    is_failing: bool,
    /// Whether the set of an empty database is withheld, because the rules in force are those of another.
    is_withholding: bool,
}

impl Installer {
    pub(super) fn new(around: &Surroundings, kept: Option<PathBuf>) -> Self {
        Self {
            engine: Arc::clone(&around.engine),
            figures: Arc::clone(&around.figures),
            enforcement: around.config.enforcement,
            kept,
            recorder: around.recorder.clone(),
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
                let installation = compiled.content.installation.clone();
                if self.install(compiled, Source::Kept).is_ok() {
                    let mut state = self.state.lock();
                    state.is_kept = true;
                    state.kept_installation = Some(installation);
                    drop(state);
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
        if source == Source::Database
            && let Some(current) = state.current.as_ref().filter(|one| is_lost(one, &compiled))
        {
            let text = lost_text(current, &compiled);
            if !std::mem::replace(&mut state.is_withholding, true) {
                tracing::error!("{text}");
                self.figures.report_incident("rules_lost", Some(text));
            }
            return Err(());
        }
        if std::mem::take(&mut state.is_withholding) {
            self.figures.report_incident("rules_lost", None);
        }
        let is_same =
            state.current.as_ref().is_some_and(|current| current.content == compiled.content);
        if !is_same {
            let version = u64::try_from(revision).unwrap_or_default();
            self.engine.swap_rules_as(RuleSet::clone(&compiled.rules), version);
            self.engine.set_enforcement(mode.unwrap_or(self.enforcement));
            if let Some(recorder) = &self.recorder
                && let Ok(text) = compiled.content.document_text()
                && let Ok(document) = serde_json::from_str(text)
            {
                let at = self.engine.clock().now();
                recorder.rules_in_force(document, self.engine.enforcement(), at);
            }
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
        self.figures.owned_by(&compiled.content.installation);
        self.figures.in_force(source, revision);
        state.current = Some(compiled);
        Ok(())
    }

    /// Whether the rules of the database are withheld, because they would replace those of a lost one.
    pub(super) fn is_withholding(&self) -> bool {
        self.state.lock().is_withholding
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
        let (content, previous) = {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.is_kept, true) {
                return;
            }
            state.kept_at = Some(Instant::now());
            let Some(current) = &state.current else { return };
            let content = current.content.clone();
            let other = |kept: &String| *kept != content.installation;
            let previous = state.kept_installation.clone().filter(other);
            (content, previous)
        };
        let installation = content.installation.clone();
        let write = move || {
            let aside = previous.map(|previous| path.with_file_name(set_aside_name(&previous)));
            write_kept(&path, aside.as_deref(), &content).map_err(|error| (path, error))
        };
        match tokio::task::spawn_blocking(write).await {
            Ok(Ok(())) => {
                let mut state = self.state.lock();
                state.kept_installation = Some(installation);
                if std::mem::take(&mut state.is_failing) {
                    tracing::info!("the rules are kept on disk again");
                }
            }
            Ok(Err((path, error))) => {
                let mut state = self.state.lock();
                state.is_kept = false;
                // It is tried again with every look at the source; what matters is said once.
                if !std::mem::replace(&mut state.is_failing, true) {
                    tracing::warn!(file = %path.display(), %error,
                        "the rules cannot be kept on disk; a restart without the control plane would \
                         go by older ones");
                }
            }
            Err(error) => tracing::error!(%error, "keeping the rules on disk failed"),
        }
    }
}

/// The file that the rules of this database are moved to when those of another one take their place.
pub(super) fn set_aside_name(installation: &str) -> String {
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '-';
    let plain: String = installation.chars().filter(is_plain).take(MAX_NAME_CHARS).collect();
    format!("{}.{plain}", super::KEPT_FILE)
}

/// Writes the set; the rules of another database are moved aside first.
fn write_kept(path: &Path, aside: Option<&Path>, content: &Content) -> std::io::Result<()> {
    if let Some(aside) = aside {
        match std::fs::rename(path, aside) {
            Ok(()) => tracing::error!(file = %aside.display(), database = content.installation,
                "the rules in force are those of another database than before; the last known rules \
                 of the previous one were moved to this file"),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    kept::keep(path, content)
}

/// Whether the rules in force are those of a database that was lost: this one is another, and empty.
fn is_lost(current: &Compiled, found: &Compiled) -> bool {
    current.content.installation != found.content.installation
        && found.rules.rules().is_empty()
        && found.clients() == 0
        && current.rules.digest() != found.rules.digest()
}

fn lost_text(current: &Compiled, found: &Compiled) -> String {
    format!(
        "the database ({}) holds no rules and is not the one that the last known rules are from ({}, \
         revision {}, {} rules): it was lost, emptied, or its address is wrong. This node enforces the \
         last known rules. Restore the database from a backup, or correct its address, and start the \
         node again. To begin anew, apply rules to this database: they replace the last known ones, which \
         are then moved to {}",
        found.content.installation,
        current.content.installation,
        current.content.revision,
        current.rules.rules().len(),
        set_aside_name(&current.content.installation),
    )
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
