//! Counters on disk: a base of all counters, and a journal of those changed since.
//!
//! Files carry a generation. A new generation starts with an empty journal; then a base is written
//! aside and renamed, and only then are the files of older generations removed. Whatever moment the
//! process dies at, the newest whole base plus all journals from its generation on, laid over it in
//! order, are the counters as of the last flush.

mod file;
mod record;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tollgate_core::{Nanos, SECOND, SlidingLog, State};

use super::fingerprint::{Fingerprint, SECRET_BYTES};
use super::group::Level;
use super::large::{Large, Unsaved};
use super::shard::Shard;
use super::{MemoryStore, random_secret};
use file::{CLOSING, FileError, FrameReader, FrameWriter, Kind};
use record::{Record, Records};

const SECRET_FILE: &str = "counters.secret";
const LOCK_FILE: &str = "counters.lock";

/// A journal is folded into a new base when it outgrows this and twice the base.
const LEAST_JOURNAL_BYTES: u64 = 16 << 20;

/// Frames are closed when they outgrow this.
const FRAME_BYTES: usize = 1 << 20;

/// While a base is written, the journal is flushed after every so many of its bytes, so that a crash
/// then costs no more than at other times.
const BYTES_BETWEEN_FLUSHES: u64 = 128 << 20;

/// A failing disk is reported once in this time.
const TIME_BETWEEN_WARNINGS: Nanos = 60 * SECOND;

/// Reads the fingerprint secret of a data directory, or makes one.
pub(super) fn load_or_create_secret(dir: &Path) -> io::Result<[u8; SECRET_BYTES]> {
    fs::create_dir_all(dir)?;
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
    let aside = dir.join(format!("{SECRET_FILE}.new"));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&aside)?;
    file.write_all(&secret)?;
    file.sync_all()?;
    fs::rename(&aside, &path)?;
    Ok(secret)
}

/// Keeps a store's counters on disk.
pub(super) struct Persister {
    dir: PathBuf,
    /// Held for as long as the store lives: two processes must not write one directory.
    _lock: File,
    identity: u64,
    generation: u64,
    journal: Option<FrameWriter>,
    base_bytes: u64,
    warned_at: Option<Nanos>,
}

impl Persister {
    /// Restores what the directory holds into `store` and opens a journal. `None`, with a warning,
    /// if the directory cannot be used.
    pub(super) fn open(dir: &Path, store: &MemoryStore, now: Nanos) -> Option<Self> {
        let lock = match lock(dir) {
            Ok(lock) => lock,
            Err(error) => {
                tracing::warn!(dir = %dir.display(), %error,
                    "counters are not persisted: is another tollgate using this directory?");
                return None;
            }
        };
        let identity = store.hasher.identity();
        let (newest, base_bytes) = restore(dir, store, identity, now);
        let mut persister = Self {
            dir: dir.to_owned(),
            _lock: lock,
            identity,
            generation: newest + 1,
            journal: None,
            base_bytes,
            warned_at: None,
        };
        match persister.create_journal(persister.generation) {
            Ok(journal) => persister.journal = Some(journal),
            Err(error) => persister.warn(&error, now),
        }
        Some(persister)
    }

    fn create_journal(&self, generation: u64) -> io::Result<FrameWriter> {
        let path = path_of(&self.dir, Kind::Journal, generation);
        FrameWriter::create(&path, Kind::Journal, self.identity, generation)
    }

    /// Writes what changed. If the disk refuses, the next call tries to write everything anew.
    pub(super) fn flush(&mut self, store: &MemoryStore, now: Nanos) {
        let flushed = match &mut self.journal {
            Some(journal) => {
                append_changes(journal, store).map(|()| journal.bytes).and_then(|bytes| {
                    let most = LEAST_JOURNAL_BYTES.max(self.base_bytes * 2);
                    if bytes > most { self.start_generation(store, now) } else { Ok(()) }
                })
            }
            None => self.start_generation(store, now),
        };
        if let Err(error) = flushed {
            // What was drained for the failed write is in no journal: only a new base has it.
            self.journal = None;
            self.warn(&error, now);
        } else {
            self.warned_at = None;
        }
    }

    fn start_generation(&mut self, store: &MemoryStore, now: Nanos) -> io::Result<()> {
        let generation = self.generation + 1;
        let mut journal = self.create_journal(generation)?;
        let aside = self.dir.join("base.new");
        let mut base = FrameWriter::create(&aside, Kind::Base, self.identity, generation)?;
        let mut flushed_at = 0;
        let mut buffer = Vec::with_capacity(FRAME_BYTES * 2);
        for shard in &store.shards {
            write_all(&shard.lock(), &mut buffer, now);
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
        File::open(&self.dir)?.sync_all()?;
        for (path, _, older) in files(&self.dir) {
            if older < generation {
                fs::remove_file(path)?;
            }
        }
        (self.generation, self.base_bytes, self.journal) = (generation, base.bytes, Some(journal));
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

fn lock(dir: &Path) -> io::Result<File> {
    let path = dir.join(LOCK_FILE);
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    file.try_lock()?;
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
fn files(dir: &Path) -> Vec<(PathBuf, Kind, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(stem) = name.to_str().and_then(|name| name.strip_suffix(".counters")) else {
            continue;
        };
        let (kind, digits) = match stem.split_once('-') {
            Some(("base", digits)) => (Kind::Base, digits),
            Some(("journal", digits)) => (Kind::Journal, digits),
            _ => continue,
        };
        if let Ok(generation) = u64::from_str_radix(digits, 16) {
            found.push((entry.path(), kind, generation));
        }
    }
    found.sort_by_key(|(_, _, generation)| *generation);
    found
}

fn write_frames(file: &mut FrameWriter, buffer: &mut Vec<u8>) -> io::Result<()> {
    if !buffer.is_empty() {
        file.write(buffer)?;
        buffer.clear();
    }
    Ok(())
}

fn write_all(shard: &Shard, buffer: &mut Vec<u8>, now: Nanos) {
    shard.table.for_each(now, |fingerprint, packed, level| {
        record::write_packed(buffer, fingerprint, packed, level);
    });
    for large in shard.large.iter().filter(|large| large.fresh_at > now) {
        record::write_large(buffer, large, Unsaved::All);
    }
}

fn append_changes(journal: &mut FrameWriter, store: &MemoryStore) -> io::Result<()> {
    let mut buffer = Vec::new();
    for shard in &store.shards {
        let mut shard = shard.lock();
        if !std::mem::take(&mut shard.is_dirty) {
            continue;
        }
        // Removals first: a counter may have been removed and charged again since.
        for fingerprint in std::mem::take(&mut shard.removed) {
            record::write_removed(&mut buffer, fingerprint);
        }
        shard.table.drain_dirty(|fingerprint, packed, level| {
            record::write_packed(&mut buffer, fingerprint, packed, level);
        });
        shard.large.drain_dirty(|large| record::write_large(&mut buffer, large, large.unsaved));
        drop(shard);
        if buffer.len() >= FRAME_BYTES {
            write_frames(journal, &mut buffer)?;
        }
    }
    let wrote = !buffer.is_empty();
    write_frames(journal, &mut buffer)?;
    if wrote { journal.sync() } else { Ok(()) }
}

/// Restores the newest whole base and the journals from its generation on. Returns the newest
/// generation seen and the size of the base.
fn restore(dir: &Path, store: &MemoryStore, identity: u64, now: Nanos) -> (u64, u64) {
    let files = files(dir);
    let newest = files.last().map_or(0, |(_, _, generation)| *generation);
    let mut from = 0;
    let mut base_bytes = 0;
    for (path, _, generation) in files.iter().rev().filter(|(_, kind, _)| *kind == Kind::Base) {
        match read_base(path, store, identity, now) {
            Ok(bytes) => {
                (from, base_bytes) = (*generation, bytes);
                break;
            }
            Err(error) => {
                refuse(path, &error);
                store.forget_everything();
            }
        }
    }
    for (path, _, generation) in files.iter().filter(|(_, kind, _)| *kind == Kind::Journal) {
        if *generation < from {
            continue;
        }
        if let Err(error) = read_journal(path, store, identity, now) {
            match error {
                // The tail of a journal is torn whenever a process dies while writing it.
                FileError::Torn(frames) if frames > 0 => tracing::warn!(
                    file = %path.display(), frames,
                    "the end of a counter journal is torn and was left out"),
                error => refuse(path, &error),
            }
        }
    }
    (newest, base_bytes)
}

/// Sets a file aside that cannot be used, so that it is looked at by people and not by us.
fn refuse(path: &Path, error: &FileError) {
    tracing::warn!(file = %path.display(), %error, "a counter file was refused and set aside");
    let mut aside = path.as_os_str().to_owned();
    aside.push(".refused");
    if let Err(error) = fs::rename(path, aside) {
        tracing::warn!(file = %path.display(), %error, "it could not be set aside");
    }
}

fn read_base(
    path: &Path,
    store: &MemoryStore,
    identity: u64,
    now: Nanos,
) -> Result<u64, FileError> {
    let mut file = FrameReader::open(path, Kind::Base, identity)?;
    let mut payload = Vec::new();
    while file.read(&mut payload)? {
        if payload == CLOSING {
            return if file.read(&mut payload)? {
                Err(FileError::Torn(file.frames))
            } else {
                Ok(file.bytes)
            };
        }
        apply_frame(&payload, store, now).map_err(|_| FileError::Torn(file.frames))?;
    }
    Err(FileError::Torn(file.frames))
}

fn read_journal(
    path: &Path,
    store: &MemoryStore,
    identity: u64,
    now: Nanos,
) -> Result<(), FileError> {
    let mut file = FrameReader::open(path, Kind::Journal, identity)?;
    let mut payload = Vec::new();
    while file.read(&mut payload)? {
        apply_frame(&payload, store, now).map_err(|_| FileError::Torn(file.frames))?;
    }
    Ok(())
}

fn apply_frame(payload: &[u8], store: &MemoryStore, now: Nanos) -> Result<(), record::Garbled> {
    let mut records = Records(payload);
    while let Some((fingerprint, level, record)) = records.next()? {
        if let Some(shard) = store.shard_of(fingerprint) {
            apply(&mut shard.lock(), fingerprint, level, record, now);
        }
    }
    Ok(())
}

fn apply(shard: &mut Shard, fingerprint: Fingerprint, level: Level, record: Record, now: Nanos) {
    let known = shard.table.find(fingerprint);
    match record {
        Record::Packed(packed) => {
            shard.large.remove(fingerprint);
            match known {
                Some((place, _)) => shard.table.update(place, fingerprint, packed, level),
                None if packed.fresh_at > now => {
                    shard.table.insert(fingerprint, packed, level, now);
                }
                None => {}
            }
        }
        Record::Removed => shard.forget(fingerprint),
        Record::Whole(state, fresh_at) => {
            shard.forget(fingerprint);
            put_large(shard, fingerprint, level, state, fresh_at, now);
        }
        Record::Tail(entries, fresh_at) => {
            let known = match shard.large.get(fingerprint).map(|large| &large.state) {
                Some(State::Log(log)) => log.clone(),
                _ => SlidingLog::default(),
            };
            let first = entries.first().map_or(0, |entry| entry.at);
            let kept = known.entries().copied().take_while(|entry| entry.at < first);
            let log = SlidingLog::from_entries(kept.chain(entries.iter().copied()));
            shard.forget(fingerprint);
            put_large(shard, fingerprint, level, State::Log(log), fresh_at, now);
        }
    }
}

fn put_large(
    shard: &mut Shard,
    fingerprint: Fingerprint,
    level: Level,
    state: State,
    fresh_at: Nanos,
    now: Nanos,
) {
    if fresh_at > now {
        let unsaved = Unsaved::Nothing;
        shard.large.insert(Large { fingerprint, state, fresh_at, level, unsaved }, now);
    }
}
