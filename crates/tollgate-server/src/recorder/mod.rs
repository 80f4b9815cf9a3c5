//! Records decisions in files, for backtests (`recording:` in the configuration).
//!
//! | file | |
//! |---|---|
//! | `mod.rs` | the recorder, and the thread that writes |
//! | `buffer.rs` | events that wait for that thread, as bytes |
//! | `rules.rs` | rules that came into force, without API keys |
//! | `files.rs` | the files: rotated, bounded in bytes and age |
//!
//! A request copies what it is made of into a buffer of its thread, and does not wait. The recorder's own thread replaces
//! API keys by their ids, leaves out what is not in the sample, and writes. What there is no room for is dropped and
//! counted; so is everything while the disk is nearly full. Every file begins with the rules in force, and says of every
//! counter what it held when it was met first, so that a file can be replayed without those before it.

mod buffer;
mod files;
mod rules;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;
use tollgate_core::Nanos;
use tollgate_engine::{Decision, Enforcement, HoldChange, MAX_RESERVATION_TTL, Request};
use tollgate_policy::Known;
use tollgate_recording::{Entry, Kind, Sample, Writer};
use tollgate_store::api_key_id;

use buffer::{Buffers, Noted};
use files::Files;
use rules::InForce;

/// How often buffers are emptied.
const ROUND: Duration = Duration::from_millis(100);
/// What was not enough for a block is written after so many rounds, so that a crash loses a second.
const ROUNDS_PER_FLUSH: u32 = 10;
/// After an error, writing is tried again after so many rounds.
const ROUNDS_PER_RETRY: u32 = 300;

/// The most counters of one file that are known to be met: about 10 MB. What others held is not recorded.
const MAX_KNOWN_COUNTERS: usize = 1_000_000;
/// The most requests in a sample that are known to hold something: about 20 MB. What becomes of others is not recorded.
const MAX_SAMPLED_HOLDS: usize = 1_000_000;
/// The most rule sets that wait to be written; only the last of more is recorded.
const MAX_WAITING_RULES: usize = 16;

/// What is recorded, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecorderOptions {
    /// Where the files are.
    pub dir: PathBuf,
    /// How many bytes they may take in all.
    pub max_bytes: u64,
    /// How old they may become.
    pub max_age: Nanos,
    /// Which part of the traffic is recorded.
    pub sample: Sample,
}

/// What became of decisions, and how much there is.
#[derive(Debug, Default)]
pub(crate) struct RecorderFigures {
    pub(crate) written: AtomicU64,
    pub(crate) dropped: AtomicU64,
    /// Bytes of the files.
    pub(crate) bytes: AtomicU64,
    /// Nothing is written, because the last attempt failed.
    pub(crate) is_failing: AtomicBool,
}

/// Records decisions.
pub(crate) struct Recorder {
    buffers: Arc<Buffers>,
    rules: Arc<Mutex<Vec<InForce>>>,
    secret: Box<[u8]>,
    figures: Arc<RecorderFigures>,
    thread: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

impl Recorder {
    /// Creates the folder and begins to record.
    pub(crate) fn start(
        options: RecorderOptions,
        node: &str,
        secret: &[u8],
    ) -> std::io::Result<Self> {
        let figures = Arc::new(RecorderFigures::default());
        let files = Files::open(&options, node)?;
        let buffers = Arc::new(Buffers::default());
        let rules = Arc::new(Mutex::default());
        let mut round = Round {
            buffers: Arc::clone(&buffers),
            rules: Arc::clone(&rules),
            figures: Arc::clone(&figures),
            files,
            writer: Writer::default(),
            sample: options.sample,
            secret: secret.into(),
            in_force: None,
            known: HashSet::default(),
            sampled: HashMap::default(),
            waiting: 0,
            entries: 0,
        };
        let (stop, stopped) = channel();
        let work = move || {
            loop {
                let is_over = stopped.recv_timeout(ROUND) != Err(RecvTimeoutError::Timeout);
                round.run(is_over);
                if is_over {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("recorder".to_owned()).spawn(work)?;
        let thread = Mutex::new(Some((stop, thread)));
        Ok(Self { buffers, rules, secret: secret.into(), figures, thread })
    }

    /// Notes a decision. It neither waits nor allocates, but for the buffer's growth.
    #[inline]
    pub(crate) fn decided(&self, request: &Request<'_>, decision: &Decision<'_>) {
        self.count(self.buffers.put(Kind::Decision, request, decision));
    }

    /// Notes a decision about more of a request.
    pub(crate) fn decided_more(&self, request: &Request<'_>, decision: &Decision<'_>) {
        self.count(self.buffers.put(Kind::More, request, decision));
    }

    /// Notes what became of something that a request holds.
    pub(crate) fn changed(&self, change: &HoldChange) {
        self.count(self.buffers.put_change(change));
    }

    /// Notes a reset of counters.
    pub(crate) fn was_reset(&self, request: &Request<'_>, rule_ids: &[String], at: Nanos) {
        self.count(self.buffers.put_reset(request, rule_ids, at));
    }

    /// Notes the rules in force from now on, as a rule file in JSON.
    pub(crate) fn rules_in_force(
        &self,
        document: serde_json::Value,
        enforcement: Enforcement,
        at: Nanos,
    ) {
        let text = rules::text_of(document, &self.secret);
        let in_force = InForce { at, enforcement: enforcement.name(), text };
        let mut waiting = self.rules.lock();
        if waiting.len() >= MAX_WAITING_RULES {
            waiting.pop();
        }
        waiting.push(in_force);
    }

    fn count(&self, is_noted: bool) {
        if !is_noted {
            self.figures.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn figures(&self) -> &RecorderFigures {
        &self.figures
    }

    /// Writes what is left, and ends.
    pub(crate) fn stop(&self) {
        if let Some((stop, thread)) = self.thread.lock().take() {
            let _ = stop.send(());
            let _ = thread.join();
        }
    }
}

/// The work of the recorder's thread.
struct Round {
    buffers: Arc<Buffers>,
    rules: Arc<Mutex<Vec<InForce>>>,
    figures: Arc<RecorderFigures>,
    files: Files,
    writer: Writer,
    sample: Sample,
    secret: Box<[u8]>,
    /// The rules in force: every file begins with them.
    in_force: Option<InForce>,
    /// The counters that this file has met.
    known: HashSet<u64, foldhash::fast::RandomState>,
    /// What requests in the sample hold, and until when it is remembered.
    sampled: HashMap<u64, Nanos, foldhash::fast::RandomState>,
    /// Rounds since the last flush, or since the last failure.
    waiting: u32,
    /// Entries of the block that is being filled.
    entries: u64,
}

impl Round {
    fn run(&mut self, is_last: bool) {
        let buffers = Arc::clone(&self.buffers);
        let is_failing = self.figures.is_failing.load(Ordering::Relaxed);
        self.waiting += 1;
        if is_failing && self.waiting < ROUNDS_PER_RETRY && !is_last {
            let lost = buffers.drain(|_| {});
            self.figures.dropped.fetch_add(lost, Ordering::Relaxed);
            return;
        }
        let mut rules = std::mem::take(&mut *self.rules.lock());
        rules.reverse();
        buffers.drain(|noted| {
            while rules.last().is_some_and(|next| next.at <= noted.entry.at) {
                self.push_rules(rules.pop());
            }
            self.push(noted);
        });
        while let Some(next) = rules.pop() {
            self.push_rules(Some(next));
        }
        if self.waiting >= ROUNDS_PER_FLUSH || is_last {
            self.waiting = 0;
            let dropped = self.figures.dropped.load(Ordering::Relaxed);
            self.writer.add_dropped(self.files.newly_dropped(dropped));
            let block = self.writer.finish();
            self.write(block);
        }
    }

    fn push_rules(&mut self, rules: Option<InForce>) {
        let Some(rules) = rules else { return };
        self.begin_file(rules.at);
        self.push_in_force(&rules, rules.at);
        self.in_force = Some(rules);
    }

    fn push_in_force(&mut self, rules: &InForce, at: Nanos) {
        let names = vec![rules.enforcement, &rules.text];
        self.files.reach(at);
        let entry = Entry { at, kind: Kind::Rules, names, ..Entry::default() };
        let block = self.writer.push(&entry);
        self.write(block);
    }

    /// A block that begins a file begins with the rules, and knows no counter.
    fn begin_file(&mut self, at: Nanos) {
        if self.files.is_open() || !self.writer.is_empty() {
            return;
        }
        self.known.clear();
        if let Some(rules) = self.in_force.take() {
            self.push_in_force(&rules, at);
            self.in_force = Some(rules);
        }
    }

    fn push(&mut self, noted: Noted<'_>) {
        let id;
        let Noted { mut entry, counters } = noted;
        if !self.is_in_sample(&entry) {
            return;
        }
        let key = Known::ApiKey.name();
        if let Some((_, value)) = entry.attributes.iter_mut().find(|(name, _)| *name == key) {
            id = api_key_id(&self.secret, value);
            *value = &id;
        }
        self.begin_file(entry.at);
        let mut counters = counters.iter();
        entry.used.retain(|_| {
            let has_room = self.known.len() < MAX_KNOWN_COUNTERS;
            counters.next().is_some_and(|counter| has_room && self.known.insert(*counter))
        });
        self.files.reach(entry.at);
        self.entries += 1;
        let block = self.writer.push(&entry);
        if block.is_some() {
            self.write(block);
        }
    }

    /// Whether an event is recorded. What a request holds ends as it began.
    fn is_in_sample(&mut self, entry: &Entry<'_>) -> bool {
        let Some(by) = &self.sample.by else { return true };
        if matches!(entry.kind, Kind::Settled | Kind::Released | Kind::Renewed) {
            return self.sampled.contains_key(&entry.hold);
        }
        let value = entry.attributes.iter().find(|(name, _)| name == by);
        let is_in = self.sample.has(value.map_or("", |(_, value)| value));
        if is_in && entry.hold != 0 {
            if self.sampled.len() >= MAX_SAMPLED_HOLDS {
                self.sampled.retain(|_, until| *until > entry.at);
            }
            if self.sampled.len() < MAX_SAMPLED_HOLDS {
                let until = entry.at.saturating_add(MAX_RESERVATION_TTL);
                self.sampled.insert(entry.hold, until);
            }
        }
        is_in
    }

    fn write(&mut self, block: Option<Vec<u8>>) {
        let Some(block) = block else { return };
        let entries = std::mem::take(&mut self.entries);
        let written = self.files.append(&block);
        self.figures.bytes.store(self.files.bytes(), Ordering::Relaxed);
        let was_failing = self.figures.is_failing.swap(written.is_err(), Ordering::Relaxed);
        match written {
            Ok(()) => {
                self.figures.written.fetch_add(entries, Ordering::Relaxed);
                if was_failing {
                    tracing::info!("decisions are recorded again");
                }
            }
            Err(error) => {
                self.figures.dropped.fetch_add(entries, Ordering::Relaxed);
                self.waiting = 0;
                if !was_failing {
                    tracing::error!(
                        dir = %self.files.dir().display(), %error,
                        "decisions are not recorded until the folder can be written; decisions themselves are not affected"
                    );
                }
            }
        }
    }
}
