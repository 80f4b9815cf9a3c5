//! The rule file, loaded and watched.
//!
//! A change is noticed by the file system's events, and by looking at the file now and then in case
//! events are lost. A file that does not compile changes nothing: the old set stays, and the log says
//! what is wrong, once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tollgate_engine::Engine;
use tollgate_policy::{Problems, RuleSet};
use tollgate_store::Store;

/// How often the file is looked at without an event.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Events of one save come in a burst; this long after the first the file is read.
const SETTLE: Duration = Duration::from_millis(5);

/// Why rules were not loaded.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// The file cannot be read.
    #[error("the rule file {path} cannot be read: {error}")]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The rules are wrong.
    #[error("{0}")]
    Wrong(#[from] Problems),
}

/// Reads and compiles a rule file.
pub(crate) fn load(path: &Path) -> Result<RuleSet, RulesError> {
    Ok(compile(&read(path)?, path)?)
}

fn read(path: &Path) -> Result<String, RulesError> {
    std::fs::read_to_string(path)
        .map_err(|error| RulesError::Unreadable { path: path.to_owned(), error })
}

fn compile(text: &str, path: &Path) -> Result<RuleSet, Problems> {
    RuleSet::from_yaml(text, &path.display().to_string())
}

/// Keeps an engine's rules in step with a file until dropped.
pub(crate) struct RuleWatch {
    events: Sender<Event>,
    thread: JoinHandle<()>,
    _watcher: Option<RecommendedWatcher>,
}

enum Event {
    Changed,
    /// Look even if nothing seems changed (SIGHUP).
    Look,
    Stop,
}

impl RuleWatch {
    pub(crate) fn start<S: Store + 'static>(
        engine: Arc<Engine<S>>,
        path: PathBuf,
    ) -> std::io::Result<Self> {
        let (events, received) = channel();
        let watcher = watch(&path, events.clone());
        let thread = std::thread::Builder::new().name("rules".to_owned()).spawn(move || {
            let mut file = WatchedFile::new(path);
            loop {
                match received.recv_timeout(LOOK_EVERY) {
                    Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                    Ok(Event::Changed) => {
                        std::thread::sleep(SETTLE);
                        // Whatever came meanwhile is answered by the same look, except a stop.
                        while let Ok(event) = received.try_recv() {
                            if matches!(event, Event::Stop) {
                                return;
                            }
                        }
                        file.look(&engine);
                    }
                    Ok(Event::Look) => file.look(&engine),
                    Err(RecvTimeoutError::Timeout) => {
                        if file.seems_changed() {
                            file.look(&engine);
                        }
                    }
                }
            }
        })?;
        Ok(Self { events, thread, _watcher: watcher })
    }

    /// Reads the file now.
    pub(crate) fn look(&self) {
        let _ = self.events.send(Event::Look);
    }

    pub(crate) fn stop(self) {
        let _ = self.events.send(Event::Stop);
        if self.thread.join().is_err() {
            tracing::error!("the thread that watches the rule file had panicked");
        }
    }
}

/// Watches the folder, because editors replace files rather than write them.
fn watch(path: &Path, events: Sender<Event>) -> Option<RecommendedWatcher> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let watching = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| !event.kind.is_access()) {
            let _ = events.send(Event::Changed);
        }
    })
    .and_then(|mut watcher| {
        watcher.watch(folder, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    match watching {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            tracing::warn!(%error, "file events are not available; the rule file is polled");
            None
        }
    }
}

type Stamp = Option<(std::time::SystemTime, u64)>;

struct WatchedFile {
    path: PathBuf,
    stamp: Stamp,
    /// The content that was last looked at, good or bad: each is reported once.
    seen: Option<u64>,
}

impl WatchedFile {
    fn new(path: PathBuf) -> Self {
        let mut file = Self { path, stamp: None, seen: None };
        file.stamp = file.stamp_now();
        file.seen = read(&file.path).ok().map(|text| fingerprint(&text));
        file
    }

    fn stamp_now(&self) -> Stamp {
        let meta = std::fs::metadata(&self.path).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    }

    fn seems_changed(&self) -> bool {
        self.stamp_now() != self.stamp
    }

    fn look<S: Store>(&mut self, engine: &Engine<S>) {
        let stamp = self.stamp_now();
        let was_readable = self.stamp.is_some();
        self.stamp = stamp;
        let text = match read(&self.path) {
            Ok(text) => text,
            Err(error) => {
                if was_readable {
                    tracing::warn!(%error, "the rules in force stay");
                }
                return;
            }
        };
        let content = fingerprint(&text);
        if self.seen == Some(content) {
            return;
        }
        self.seen = Some(content);
        match compile(&text, &self.path) {
            Ok(rules) => {
                let count = rules.rules().len();
                let version = engine.swap_rules(rules);
                tracing::info!(file = %self.path.display(), rules = count, version,
                    "rules reloaded");
            }
            Err(problems) => {
                tracing::error!(file = %self.path.display(), %problems,
                    "the rule file is wrong; the rules in force stay");
            }
        }
    }
}

fn fingerprint(text: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}
