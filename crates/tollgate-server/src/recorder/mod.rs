//! Records decisions in files, for backtests (`recording:` in the configuration).
//!
//! | file | |
//! |---|---|
//! | `mod.rs` | the recorder, and the thread that writes |
//! | `buffer.rs` | decisions that wait for that thread, as bytes |
//! | `files.rs` | the files: rotated, bounded in bytes and age |
//!
//! A request copies what it is made of into a buffer of its thread, and does not wait. The recorder's own thread replaces
//! API keys by their ids, leaves out what is not in the sample, and writes. What there is no room for is dropped and
//! counted; so is everything while the disk is nearly full.

mod buffer;
mod files;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tollgate_core::Nanos;
use tollgate_engine::{Decision, Request};
use tollgate_policy::Known;
use tollgate_recording::{Entry, Sample, Writer};
use tollgate_store::api_key_id;

use buffer::Buffers;
use files::Files;

/// How often buffers are emptied.
const ROUND: Duration = Duration::from_millis(100);
/// What was not enough for a block is written after so many rounds, so that a crash loses a second.
const ROUNDS_PER_FLUSH: u32 = 10;
/// After an error, writing is tried again after so many rounds.
const ROUNDS_PER_RETRY: u32 = 300;

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
        let mut round = Round {
            buffers: Arc::clone(&buffers),
            figures: Arc::clone(&figures),
            files,
            writer: Writer::default(),
            sample: options.sample,
            secret: secret.into(),
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
        Ok(Self { buffers, figures, thread: Mutex::new(Some((stop, thread))) })
    }

    /// Notes a decision. It neither waits nor allocates, but for the buffer's growth.
    #[inline]
    pub(crate) fn decided(&self, request: &Request<'_>, decision: &Decision<'_>) {
        if !self.buffers.put(request, decision) {
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
    figures: Arc<RecorderFigures>,
    files: Files,
    writer: Writer,
    sample: Sample,
    secret: Box<[u8]>,
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
        buffers.drain(|entry| self.push(entry));
        if self.waiting >= ROUNDS_PER_FLUSH || is_last {
            self.waiting = 0;
            let dropped = self.figures.dropped.load(Ordering::Relaxed);
            self.writer.add_dropped(self.files.newly_dropped(dropped));
            let block = self.writer.finish();
            self.write(block);
        }
    }

    fn push(&mut self, entry: Entry<'_>) {
        let id;
        let mut entry = entry;
        if let Some(by) = &self.sample.by {
            let value = entry.attributes.iter().find(|(name, _)| name == by);
            if !self.sample.has(value.map_or("", |(_, value)| value)) {
                return;
            }
        }
        let key = Known::ApiKey.name();
        if let Some((_, value)) = entry.attributes.iter_mut().find(|(name, _)| *name == key) {
            id = api_key_id(&self.secret, value);
            *value = &id;
        }
        self.files.reach(entry.at);
        self.entries += 1;
        let block = self.writer.push(&entry);
        if block.is_some() {
            self.write(block);
        }
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
