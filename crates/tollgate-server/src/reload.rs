//! The rule file, loaded and watched.
//!
//! A change is noticed by the file system's events, and by looking at the file now and then in case
//! events are lost. A file that does not compile changes nothing: the old set stays, and the log says
//! what is wrong, once.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tollgate_engine::Engine;
use tollgate_policy::{MAX_FILE_BYTES, Problems, RuleSet};
use tollgate_store::Store;

use crate::control::ControlFigures;
use crate::control::figures::Source;
use crate::recorder::Recorder;

/// How often the file is looked at without an event.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Events of one save come in a burst; this long after the first the file is read.
const SETTLE: Duration = Duration::from_millis(5);

/// How often the watching thread is looked at before it is left behind at the end.
const STOP_LOOKS: u32 = 100;

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
    #[error(transparent)]
    Wrong(#[from] Problems),
    /// A rule counts in a store that is not there.
    #[error(
        "{path}: rule {rule:?}: store: there is no store {store:?}; the configuration has {known}"
    )]
    UnknownStore {
        /// Which file.
        path: PathBuf,
        /// Which rule.
        rule: String,
        /// What it asks for.
        store: String,
        /// What there is.
        known: String,
    },
}

/// What a rule file held when it was read.
pub(crate) struct Loaded {
    pub(crate) rules: RuleSet,
    path: PathBuf,
    text: String,
}

/// Reads and compiles a rule file.
pub(crate) fn load(path: &Path, stores: &[String]) -> Result<Loaded, RulesError> {
    let text = read(path)?;
    let rules = compile(&text, path, stores)?;
    Ok(Loaded { rules, path: path.to_owned(), text })
}

impl Loaded {
    /// The rules, and what is needed to watch their file from this content on.
    pub(crate) fn split(self) -> (RuleSet, WatchedFile) {
        let seen = Some(fingerprint(&self.text));
        let first = Some(self.text);
        (self.rules, WatchedFile { path: self.path, stamp: None, seen, trouble: None, first })
    }
}

/// Reads a file that is no longer than a rule file may be. Longer ones are cut off just past that, and
/// then refused for their length.
fn read(path: &Path) -> Result<String, RulesError> {
    let unreadable = |error| RulesError::Unreadable { path: path.to_owned(), error };
    let mut text = String::new();
    let most = MAX_FILE_BYTES as u64 + 1;
    let file = File::open(path).map_err(unreadable)?;
    file.take(most).read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}

/// [`read`] for a file that is looked at again and again: a pipe or a folder would block or fail.
pub(crate) fn read_again(path: &Path) -> Result<String, RulesError> {
    let unreadable = |error| RulesError::Unreadable { path: path.to_owned(), error };
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(unreadable(std::io::Error::other("it is not a regular file")));
    }
    read(path)
}

/// True if a file says nothing at all, as it does for a moment while it is written in place.
fn says_nothing(text: &str) -> bool {
    text.lines().map(str::trim).all(|line| line.is_empty() || line.starts_with('#'))
}

fn compile(text: &str, path: &Path, stores: &[String]) -> Result<RuleSet, RulesError> {
    let rules = RuleSet::from_yaml(text, &path.display().to_string())?;
    // Without any shared store everything is counted here, whatever rules say: a rule file can be
    // tried on one machine as it is.
    let unknown = |store: &&String| !stores.is_empty() && !stores.contains(store);
    for rule in rules.rules() {
        if let Some(store) = rule.store.as_ref().filter(unknown) {
            return Err(RulesError::UnknownStore {
                path: path.to_owned(),
                rule: rule.id.clone(),
                store: store.clone(),
                known: stores.join(", "),
            });
        }
    }
    Ok(rules)
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
        mut file: WatchedFile,
        figures: Arc<ControlFigures>,
        recorder: Option<Arc<Recorder>>,
    ) -> std::io::Result<Self> {
        if let Some(text) = file.first.take() {
            record(recorder.as_deref(), &engine, &text);
        }
        let recorder = move |engine: &Engine<S>, text: &str| {
            record(recorder.as_deref(), engine, text);
        };
        let (events, received) = channel();
        let watcher = watch(&file.path, events.clone());
        // The file may have changed between the first reading and the watch.
        let _ = events.send(Event::Look);
        let thread = std::thread::Builder::new().name("rules".to_owned()).spawn(move || {
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
                        file.look(&engine, &figures, &recorder);
                    }
                    Ok(Event::Look) => file.look(&engine, &figures, &recorder),
                    Err(RecvTimeoutError::Timeout) => {
                        if file.seems_changed() {
                            file.look(&engine, &figures, &recorder);
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
        // A file system that does not answer must not hold up the end.
        for _ in 0..STOP_LOOKS {
            if self.thread.is_finished() {
                if self.thread.join().is_err() {
                    tracing::error!("the thread that watches the rule file had panicked");
                }
                return;
            }
            std::thread::sleep(SETTLE);
        }
        tracing::warn!("the rule file is still being read; it is left behind");
    }
}

/// Watches the folder, because editors replace files rather than write them.
fn watch(path: &Path, events: Sender<Event>) -> Option<RecommendedWatcher> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // Other files of the folder may change all the time. A file that is a link into another folder
    // changes without an event here; looking now and then finds it.
    let name = path.file_name().map(ToOwned::to_owned);
    let is_ours = move |event: &notify::Event| {
        !event.kind.is_access()
            && event.paths.iter().any(|changed| changed.file_name() == name.as_deref())
    };
    let watching = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| is_ours(&event)) {
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

/// A rule file under watch.
pub(crate) struct WatchedFile {
    path: PathBuf,
    stamp: Stamp,
    /// The content that was last looked at, good or bad: each is reported once.
    seen: Option<u64>,
    /// Why it could not be read the last time, reported once.
    trouble: Option<String>,
    /// What the rules in force were read from at the start.
    first: Option<String>,
}

/// Records the rules that came into force.
fn record<S: Store>(recorder: Option<&Recorder>, engine: &Engine<S>, text: &str) {
    let Some(recorder) = recorder else { return };
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    let document: Option<serde_json::Value> =
        serde_saphyr::from_str_with_options(text, options).ok();
    // An empty file is no document: its rules are the built-in ones.
    let document = document.filter(serde_json::Value::is_object);
    let document = document.unwrap_or_else(|| serde_json::json!({}));
    recorder.rules_in_force(document, engine.enforcement(), engine.clock().now());
}

impl WatchedFile {
    fn stamp_now(&self) -> Stamp {
        let meta = std::fs::metadata(&self.path).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    }

    fn seems_changed(&self) -> bool {
        self.stamp_now() != self.stamp
    }

    fn look<S: Store>(
        &mut self,
        engine: &Engine<S>,
        figures: &ControlFigures,
        record: &dyn Fn(&Engine<S>, &str),
    ) {
        self.stamp = self.stamp_now();
        let text = match read_again(&self.path) {
            Ok(text) => text,
            Err(error) => {
                let trouble = error.to_string();
                if self.trouble.as_ref() != Some(&trouble) {
                    figures.failure();
                    tracing::warn!(%error, "the rules in force stay");
                    self.trouble = Some(trouble);
                }
                return;
            }
        };
        self.trouble = None;
        let content = fingerprint(&text);
        if self.seen == Some(content) {
            return;
        }
        self.seen = Some(content);
        if says_nothing(&text) {
            figures.failure();
            tracing::warn!(file = %self.path.display(),
                "the rule file is empty; the rules in force stay (rules: [] means none)");
            return;
        }
        match compile(&text, &self.path, engine.store().names()) {
            Ok(rules) => {
                let count = rules.rules().len();
                let version = engine.swap_rules(rules);
                record(engine, &text);
                figures.in_force(Source::File, i64::try_from(version).unwrap_or(i64::MAX));
                figures.success();
                tracing::info!(file = %self.path.display(), rules = count, version,
                    "rules reloaded");
            }
            Err(problems) => {
                figures.failure();
                tracing::error!(file = %self.path.display(), %problems,
                    "the rule file is wrong; the rules in force stay");
            }
        }
    }
}

fn fingerprint(text: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_for_an_unknown_store_is_refused_where_there_are_any() {
        let text =
            "rules: [{rule_id: a, identifier_type: user_id, limit: 5, window: 1d, store: mars}]";
        let path = Path::new("r.yaml");
        let stores = ["default".to_owned(), "global".to_owned()];
        let error = compile(text, path, &stores).map(|_| ()).unwrap_err().to_string();
        let said = "r.yaml: rule \"a\": store: there is no store \"mars\"; the configuration has \
                    default, global";
        assert_eq!(error, said);
        assert!(compile(&text.replace("mars", "global"), path, &stores).is_ok());
        assert!(compile(text, path, &[]).is_ok(), "a rule file can be tried anywhere");
    }

    /// Rules are bounded so that what a script counts with stays exact.
    #[test]
    fn every_limit_that_rules_allow_can_be_counted_in_redis() {
        use tollgate_core::{Algorithm, Limit, LimitSpec, Window};
        let most = tollgate_policy::MAX_QUOTA;
        let quotas = (0..53).flat_map(|bits| [1_u64 << bits, (1 << bits) + 1]);
        let powers = (0..23).map(|power| 5_u64.pow(power));
        for quota in quotas.chain(powers).chain([most, most - 1]).filter(|quota| *quota <= most) {
            for millis in [1, 2, 3, 7, 10, 1_000, 3_600_000, 86_400_000] {
                let window = Window::Every(millis * 1_000_000);
                let algorithm = Algorithm::TokenBucket;
                let spec = LimitSpec { algorithm, quota, window, burst: Some(1), slot_ttl: 1_000 };
                let limit = Limit::new(spec).unwrap();
                assert!(limit.fits_micros(), "{quota} per {millis} ms");
            }
        }
    }
}
