//! Counters on disk: a base of all counters, and a journal of those changed since.
//!
//! Files carry a generation. A new generation starts with an empty journal; then a base is written
//! aside and renamed, and only then are the files of older generations removed. Whatever moment the
//! process dies at, the newest whole base plus all journals from its generation on, laid over it in
//! order, are the counters as of the last flush.
//!
//! Records are absolute, but for the tail of a log. A journal therefore contains a whole log before
//! its tails, so that no tail is ever applied to what another, perhaps damaged, file contains.

mod file;
mod record;
mod restore;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tollgate_core::{Nanos, SECOND};

use super::fingerprint::SECRET_BYTES;
use super::large::Unsaved;
use super::shard::Shard;
use super::{MemoryStore, random_secret};
use file::{CLOSING, FrameWriter, Kind};
use restore::restore;

const SECRET_FILE: &str = "counters.secret";
const LOCK_FILE: &str = "counters.lock";

/// Journals are folded into a new base when they outgrow this and twice the base.
pub(super) const LEAST_JOURNAL_BYTES: u64 = 16 << 20;

/// Every start leaves a journal behind; so many of them are folded too, however small.
const MAX_JOURNALS: usize = 16;

/// Frames are closed when they outgrow this.
const FRAME_BYTES: usize = 1 << 20;

/// While a base is written, the journal is flushed after every so many of its bytes, so that a crash
/// then costs no more than at other times.
const BYTES_BETWEEN_FLUSHES: u64 = 128 << 20;

/// A failing disk is reported once in this time.
const TIME_BETWEEN_WARNINGS: Nanos = 60 * SECOND;

/// Reads the fingerprint secret of a data directory, or makes one.
pub(super) fn load_or_create_secret(dir: &Path) -> io::Result<[u8; SECRET_BYTES]> {
    let path = dir.join(SECRET_FILE);
    match fs::read(&path) {
        Ok(bytes) => {
            if let Ok(secret) = bytes.try_into() {
                return Ok(secret);
            }
            tracing::warn!(file = %path.display(),
                "the fingerprint secret is damaged; a new one is made, and counters start fresh");
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let secret = random_secret();
    write_secret(dir, &secret)?;
    Ok(secret)
}

fn write_secret(dir: &Path, secret: &[u8; SECRET_BYTES]) -> io::Result<()> {
    let aside = dir.join(format!("{SECRET_FILE}.new"));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&aside)?;
    file.write_all(secret)?;
    file.sync_all()?;
    fs::rename(&aside, dir.join(SECRET_FILE))?;
    sync_dir(dir)
}

/// A new or renamed file survives a power cut only once its directory is on disk.
fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Keeps a store's counters on disk.
pub(super) struct Persister {
    dir: PathBuf,
    /// Held for as long as the store lives: two processes must not write one directory.
    lock: File,
    identity: u64,
    generation: u64,
    journal: Option<FrameWriter>,
    /// What was there at the start and no base has taken in yet.
    older: OlderJournals,
    base_bytes: u64,
    least_journal_bytes: u64,
    warned_at: Option<Nanos>,
}

/// Journals of earlier runs.
#[derive(Debug, Default, Clone, Copy)]
struct OlderJournals {
    files: usize,
    bytes: u64,
}

impl Persister {
    /// Restores what the directory holds into `store` and opens a journal. An error if the
    /// directory is in use or cannot be read; one that cannot be written is tried again later.
    pub(super) fn open(
        dir: &Path,
        lock: File,
        store: &MemoryStore,
        least_journal_bytes: u64,
        now: Nanos,
    ) -> io::Result<Self> {
        let identity = store.hasher.identity();
        let restored = restore(dir, store, identity, now)?;
        let mut persister = Self {
            dir: dir.to_owned(),
            lock,
            identity,
            generation: restored.newest.saturating_add(1),
            journal: None,
            older: restored.journals,
            base_bytes: restored.base_bytes,
            least_journal_bytes,
            warned_at: None,
        };
        match persister.create_journal(persister.generation) {
            Ok(journal) => persister.journal = Some(journal),
            Err(error) => persister.warn(&error, now),
        }
        Ok(persister)
    }

    fn create_journal(&self, generation: u64) -> io::Result<FrameWriter> {
        let path = path_of(&self.dir, Kind::Journal, generation);
        let journal = FrameWriter::create(&path, Kind::Journal, self.identity, generation)?;
        sync_dir(&self.dir)?;
        Ok(journal)
    }

    /// Writes what changed, and returns whether it is on disk. If the disk refuses, the next call tries to write everything
    /// anew.
    pub(super) fn flush(&mut self, store: &MemoryStore, now: Nanos) -> bool {
        let path = path_of(&self.dir, Kind::Journal, self.generation);
        // A journal whose directory was removed can still be written, but never be read back.
        if self.journal.take_if(|journal| !journal.is_at(&path)).is_some() {
            tracing::warn!(file = %path.display(), "the counter journal has vanished");
        }
        let flushed = self.append_or_start(store, now);
        let is_written = flushed.is_ok();
        if let Err(error) = flushed {
            // What was drained for the failed write is in no journal: only a new base has it. Until
            // then, keeping count of changes would only fill the memory.
            self.journal = None;
            for shard in &store.shards {
                shard.lock().forget_changes();
            }
            self.warn(&error, now);
        } else if self.warned_at.take().is_some() {
            tracing::info!(dir = %self.dir.display(), "counters are written to disk again");
        }
        is_written
    }

    fn append_or_start(&mut self, store: &MemoryStore, now: Nanos) -> io::Result<()> {
        let Some(journal) = &mut self.journal else { return self.start_generation(store, now) };
        append_changes(journal, store)?;
        let most = self.least_journal_bytes.max(self.base_bytes.saturating_mul(2));
        let bytes = journal.bytes.saturating_add(self.older.bytes);
        if bytes > most || self.older.files >= MAX_JOURNALS {
            return self.start_generation(store, now);
        }
        Ok(())
    }

    /// Makes sure that the directory is still ours: it may have been emptied or mounted anew.
    fn reclaim(&mut self, store: &MemoryStore) -> io::Result<()> {
        if !self.dir.join(LOCK_FILE).try_exists()? {
            self.lock = relock(&self.dir)?;
        }
        if !self.dir.join(SECRET_FILE).try_exists()? {
            write_secret(&self.dir, store.hasher.secret())?;
        }
        Ok(())
    }

    fn start_generation(&mut self, store: &MemoryStore, now: Nanos) -> io::Result<()> {
        self.reclaim(store)?;
        let generation = self.generation.saturating_add(1);
        let mut journal = self.create_journal(generation)?;
        let aside = self.dir.join("base.new");
        let mut base = FrameWriter::create(&aside, Kind::Base, self.identity, generation)?;
        let mut flushed_at = 0;
        let mut buffer = Vec::with_capacity(FRAME_BYTES * 2);
        for shard in &store.shards {
            write_all(&mut shard.lock(), &mut buffer, now);
            if buffer.len() >= FRAME_BYTES {
                write_frames(&mut base, &mut buffer)?;
            }
            if base.bytes - flushed_at > BYTES_BETWEEN_FLUSHES {
                flushed_at = base.bytes;
                append_changes(&mut journal, store)?;
            }
        }
        write_frames(&mut base, &mut buffer)?;
        base.write(CLOSING)?;
        base.sync()?;
        fs::rename(&aside, path_of(&self.dir, Kind::Base, generation))?;
        sync_dir(&self.dir)?;
        (self.generation, self.base_bytes, self.journal) = (generation, base.bytes, Some(journal));
        self.older = OlderJournals::default();
        for (path, _, older) in files(&self.dir)? {
            if older < generation {
                // One that stays is older than the base and will not be read.
                let _ = fs::remove_file(path);
            }
        }
        Ok(())
    }

    fn warn(&mut self, error: &io::Error, now: Nanos) {
        if self.warned_at.is_none_or(|then| now.saturating_sub(then) >= TIME_BETWEEN_WARNINGS) {
            self.warned_at = Some(now);
            tracing::warn!(dir = %self.dir.display(), %error,
                "counters cannot be written to disk; deciding goes on, a restart would forget");
        }
    }
}

/// Takes a directory for this process, making it if need be.
pub(super) fn lock(dir: &Path) -> io::Result<File> {
    fs::create_dir_all(dir)?;
    relock(dir)
}

fn relock(dir: &Path) -> io::Result<File> {
    let path = dir.join(LOCK_FILE);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    // Nobody else may lock it and so keep a node from its counters.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    #[cfg(unix)]
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    file.try_lock().map_err(|error| match error {
        fs::TryLockError::WouldBlock => {
            io::Error::new(io::ErrorKind::ResourceBusy, "another tollgate is using it")
        }
        fs::TryLockError::Error(error) => error,
    })?;
    Ok(file)
}

fn path_of(dir: &Path, kind: Kind, generation: u64) -> PathBuf {
    let name = match kind {
        Kind::Base => "base",
        Kind::Journal => "journal",
    };
    dir.join(format!("{name}-{generation:016x}.counters"))
}

/// The counter files of a directory, oldest generation first.
fn files(dir: &Path) -> io::Result<Vec<(PathBuf, Kind, u64)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some((kind, digits)) =
            name.strip_suffix(".counters").and_then(|stem| stem.split_once('-'))
        else {
            continue;
        };
        let kind = match kind {
            "base" => Kind::Base,
            "journal" => Kind::Journal,
            _ => continue,
        };
        let Ok(generation) = u64::from_str_radix(digits, 16) else { continue };
        // Only the one spelling: a generation must not be read twice.
        if path == path_of(dir, kind, generation) {
            found.push((path, kind, generation));
        }
    }
    found.sort_by_key(|(_, _, generation)| *generation);
    Ok(found)
}

fn write_frames(file: &mut FrameWriter, buffer: &mut Vec<u8>) -> io::Result<()> {
    if !buffer.is_empty() {
        file.write(buffer)?;
        buffer.clear();
    }
    Ok(())
}

fn write_all(shard: &mut Shard, buffer: &mut Vec<u8>, now: Nanos) {
    shard.table.for_each(now, |fingerprint, packed, level| {
        record::write_packed(buffer, fingerprint, packed, level);
    });
    for large in shard.rest.large.iter().filter(|large| large.fresh_at > now) {
        record::write_large(buffer, large, Unsaved::All);
    }
    shard.rest.large.expect_new_journal();
}

fn append_changes(journal: &mut FrameWriter, store: &MemoryStore) -> io::Result<()> {
    let mut buffer = Vec::new();
    for shard in &store.shards {
        let mut shard = shard.lock();
        if !std::mem::take(&mut shard.is_dirty) {
            continue;
        }
        // Removals first: a counter may have been removed and charged again since.
        for fingerprint in std::mem::take(&mut shard.rest.removed) {
            record::write_removed(&mut buffer, fingerprint);
        }
        shard.table.drain_dirty(|fingerprint, packed, level| {
            record::write_packed(&mut buffer, fingerprint, packed, level);
        });
        shard
            .rest
            .large
            .drain_dirty(|large| record::write_large(&mut buffer, large, large.unsaved));
        drop(shard);
        if buffer.len() >= FRAME_BYTES {
            write_frames(journal, &mut buffer)?;
        }
    }
    let wrote = !buffer.is_empty();
    write_frames(journal, &mut buffer)?;
    if wrote { journal.sync() } else { Ok(()) }
}
