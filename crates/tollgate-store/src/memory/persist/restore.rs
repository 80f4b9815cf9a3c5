//! Reading counters back.

use std::fs;
use std::io;
use std::path::Path;

use parking_lot::MutexGuard;
use tollgate_core::{LogEntry, Nanos, SlidingLog, State};

use super::file::{CLOSING, FileError, FrameReader, Kind};
use super::record::{self, Record, Records};
use super::{OlderJournals, files};
use crate::memory::MemoryStore;
use crate::memory::fingerprint::Fingerprint;
use crate::memory::group::Level;
use crate::memory::large::{Large, Unsaved};
use crate::memory::shard::Shard;

/// What was found on disk.
pub(super) struct Restored {
    /// The newest generation that was read.
    pub(super) newest: u64,
    pub(super) base_bytes: u64,
    pub(super) journals: OlderJournals,
}

/// Restores the newest whole base and the journals from its generation on.
pub(super) fn restore(
    dir: &Path,
    store: &MemoryStore,
    identity: u64,
    now: Nanos,
) -> io::Result<Restored> {
    let files = files(dir)?;
    let mut restored = Restored { newest: 0, base_bytes: 0, journals: OlderJournals::default() };
    for (path, _, generation) in files.iter().rev().filter(|(_, kind, _)| *kind == Kind::Base) {
        match read_base(path, store, (identity, *generation), now) {
            Ok(bytes) => {
                (restored.newest, restored.base_bytes) = (*generation, bytes);
                break;
            }
            Err(error) => {
                refuse(path, &error);
                store.forget_everything();
            }
        }
    }
    let from = restored.newest;
    for (path, _, generation) in files.iter().filter(|(_, kind, _)| *kind == Kind::Journal) {
        if *generation < from {
            continue;
        }
        match read_journal(path, store, (identity, *generation), now) {
            Ok(()) => {}
            // The tail of a journal is torn whenever a process dies while writing it.
            Err(FileError::Torn(frames)) if frames > 0 => tracing::warn!(
                file = %path.display(), frames,
                "the end of a counter journal is torn and was left out"),
            Err(error) => {
                refuse(path, &error);
                continue;
            }
        }
        restored.newest = restored.newest.max(*generation);
        restored.journals.files += 1;
        restored.journals.bytes += fs::metadata(path).map_or(0, |metadata| metadata.len());
    }
    // What was restored is on disk already.
    for shard in &store.shards {
        shard.lock().forget_changes();
    }
    Ok(restored)
}

/// Frames of so many bytes are worth two threads.
const WORTH_TWO_THREADS: usize = 256 << 10;

/// So many records of one shard in a row are worth making room for.
const ROOM_MADE_FOR: usize = 64;

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
    origin: (u64, u64),
    now: Nanos,
) -> Result<u64, FileError> {
    let mut file = FrameReader::open(path, Kind::Base, origin)?;
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
    origin: (u64, u64),
    now: Nanos,
) -> Result<(), FileError> {
    let mut file = FrameReader::open(path, Kind::Journal, origin)?;
    let mut payload = Vec::new();
    while file.read(&mut payload)? {
        apply_frame(&payload, store, now).map_err(|_| FileError::Torn(file.frames))?;
    }
    Ok(())
}

/// Applies a frame with two threads, each on every other shard: restoring is all that a start waits
/// for. Records of one shard keep their order.
fn apply_frame(payload: &[u8], store: &MemoryStore, now: Nanos) -> Result<(), record::Garbled> {
    if payload.len() < WORTH_TWO_THREADS {
        return apply_every(1, 0, payload, store, now);
    }
    std::thread::scope(|scope| {
        let other = scope.spawn(|| apply_every(2, 1, payload, store, now));
        let mine = apply_every(2, 0, payload, store, now);
        mine.and(other.join().unwrap_or(Err(record::Garbled)))
    })
}

/// Applies the records of every `step`th shard. Those of one shard lie together, so that its lock is
/// taken, and its room made, once.
fn apply_every(
    step: usize,
    first: usize,
    payload: &[u8],
    store: &MemoryStore,
    now: Nanos,
) -> Result<(), record::Garbled> {
    let mut records = Records(payload);
    let mut held: Option<(usize, MutexGuard<'_, Shard>)> = None;
    while let Some((fingerprint, level, record)) = records.next()? {
        let index = store.shard_index(fingerprint);
        if index % step != first {
            continue;
        }
        if held.as_ref().is_none_or(|(shard, _)| *shard != index) {
            held = None;
            let Some(shard) = store.shards.get(index) else { continue };
            let mut shard = shard.lock();
            let more = counters_in_a_row(store, index, Records(records.0), now);
            if more > ROOM_MADE_FOR {
                shard.table.reserve(more, now);
            }
            held = Some((index, shard));
        }
        if let Some((_, shard)) = &mut held {
            apply(shard, fingerprint, level, record, now);
        }
    }
    Ok(())
}

/// How many packed counters in use of this shard come next.
fn counters_in_a_row(
    store: &MemoryStore,
    shard: usize,
    mut records: Records<'_>,
    now: Nanos,
) -> usize {
    let mut counters = 0;
    while let Ok(Some((fingerprint, _, record))) = records.next() {
        if store.shard_index(fingerprint) != shard {
            break;
        }
        counters += usize::from(matches!(record, Record::Packed(one) if one.fresh_at > now));
    }
    counters
}

fn apply(shard: &mut Shard, fingerprint: Fingerprint, level: Level, record: Record, now: Nanos) {
    let known = shard.table.find(fingerprint);
    match record {
        Record::Packed(packed) => {
            shard.rest.large.remove(fingerprint);
            match known {
                Some((place, _)) => shard.table.update(place, packed, level),
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
            let log = with_tail(shard, fingerprint, &entries, fresh_at);
            shard.forget(fingerprint);
            put_large(shard, fingerprint, level, State::Log(log), fresh_at, now);
        }
    }
}

/// The log as it was when its last entries were these.
fn with_tail(
    shard: &Shard,
    fingerprint: Fingerprint,
    tail: &[LogEntry],
    fresh_at: Nanos,
) -> SlidingLog {
    let (Some(first), Some(last)) = (tail.first(), tail.last()) else {
        return SlidingLog::default();
    };
    let known = match shard.rest.large.get(fingerprint).map(|large| &large.state) {
        Some(State::Log(log)) => Some(log.entries()),
        _ => None,
    };
    let kept = known.into_iter().flatten().take_while(|entry| entry.at < first.at);
    let mut log = SlidingLog::from_entries(kept.chain(tail).copied());
    // What had left the window by then was dropped then; otherwise a busy log would grow with the
    // length of the journal.
    log.prune(fresh_at.saturating_sub(last.at), last.at);
    log
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
        let unsaved = Unsaved::Elsewhere;
        shard.rest.large.insert(Large { fingerprint, state, fresh_at, level, unsaved }, now);
    }
}
