//! Where notes wait: in chunks, of which there are so many and no more.
//!
//! Each thread writes to a chunk of its own, behind a lock that nothing else takes but the
//! drain, for an instant. Only a full chunk is replaced by another one, under the pool's lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tollgate_engine::{Decision, Request};

use super::AuditFigures;
use super::note::{Head, MAX_TEXT_BYTES, Note, TEXTS, note};
use crate::shards::{self, SHARDS};

/// Notes of a chunk: at least, so that few bytes are still several chunks, and at most.
const LEAST_NOTES: usize = 16;
const MAX_NOTES: usize = 256;
/// What the texts of a note take, usually.
const USUAL_TEXT_BYTES: usize = 160;
/// What they take at most.
const MAX_NOTE_TEXT_BYTES: usize = TEXTS * MAX_TEXT_BYTES;
/// Drained chunks that are kept for the next flood.
const MAX_SPARE: usize = SHARDS;

/// Notes, and room for more; neither part ever grows.
struct Chunk {
    heads: Vec<Head>,
    texts: Box<[u8]>,
    /// How much of the texts is used.
    filled: usize,
}

impl Chunk {
    fn new(notes: usize) -> Self {
        // As much more as the last note may take.
        let texts = notes * USUAL_TEXT_BYTES + MAX_NOTE_TEXT_BYTES;
        Self { heads: Vec::with_capacity(notes), texts: vec![0; texts].into(), filled: 0 }
    }

    fn filled_bytes(&self) -> u64 {
        (self.filled + self.heads.len() * size_of::<Head>()) as u64
    }

    #[inline]
    fn has_room(&self) -> bool {
        self.heads.len() < self.heads.capacity()
            && self.texts.len() - self.filled >= MAX_NOTE_TEXT_BYTES
    }
}

#[derive(Default)]
struct Shard {
    chunk: Option<Chunk>,
    recorded: u64,
    dropped: u64,
}

/// Chunks that no thread writes to.
struct Shelf {
    full: VecDeque<Chunk>,
    spare: Vec<Chunk>,
    /// How many chunks may yet be made.
    unmade: usize,
}

pub(super) struct Pool {
    shards: [Mutex<Shard>; SHARDS],
    shelf: Mutex<Shelf>,
    notes_per_chunk: usize,
    drained: AtomicU64,
}

impl Pool {
    pub(super) fn new(most_bytes: usize) -> Self {
        // Some dozens of chunks, so that what one thread has not filled is a small part.
        let notes = most_bytes / (64 * (size_of::<Head>() + USUAL_TEXT_BYTES));
        let notes_per_chunk = notes.clamp(LEAST_NOTES, MAX_NOTES);
        let chunk = Chunk::new(notes_per_chunk);
        let chunk_bytes = chunk.texts.len() + chunk.heads.capacity() * size_of::<Head>();
        let unmade = (most_bytes / chunk_bytes).max(1);
        let shelf = Shelf { full: VecDeque::with_capacity(unmade), spare: Vec::new(), unmade };
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            shelf: Mutex::new(shelf),
            notes_per_chunk,
            drained: AtomicU64::new(0),
        }
    }

    /// Notes a decision if there is room.
    #[inline]
    pub(super) fn note(&self, request: &Request<'_>, decision: &Decision<'_>) {
        let Some(shard) = self.shards.get(shards::of_this_thread()) else { return };
        let mut shard = shard.lock();
        if !shard.chunk.as_ref().is_some_and(Chunk::has_room) {
            self.change(&mut shard);
        }
        let Some(chunk) = &mut shard.chunk else {
            shard.dropped += 1;
            return;
        };
        let room = chunk.texts.get_mut(chunk.filled..).unwrap_or_default();
        let (head, bytes) = note(request, decision, room);
        chunk.filled += bytes;
        chunk.heads.push(head);
        shard.recorded += 1;
    }

    /// Puts the shard's full chunk on the shelf and gives it another, if there is one.
    #[cold]
    fn change(&self, shard: &mut Shard) {
        let mut shelf = self.shelf.lock();
        shelf.full.extend(shard.chunk.take());
        shard.chunk = shelf.spare.pop();
        if shard.chunk.is_none()
            && let Some(unmade) = shelf.unmade.checked_sub(1)
        {
            shelf.unmade = unmade;
            shard.chunk = Some(Chunk::new(self.notes_per_chunk));
        }
    }

    /// A chunk to tell: the one that has been full the longest, else one that is being filled.
    pub(super) fn take(&self) -> Option<Reading> {
        let full = self.shelf.lock().full.pop_front();
        let begun = || {
            self.shards
                .iter()
                .find_map(|shard| shard.lock().chunk.take_if(|chunk| !chunk.heads.is_empty()))
        };
        let chunk = full.or_else(begun)?;
        Some(Reading { chunk, next: 0, text: 0 })
    }

    /// Takes back a chunk that has been drained.
    pub(super) fn put_back(&self, reading: Reading) {
        let mut chunk = reading.chunk;
        chunk.heads.clear();
        chunk.filled = 0;
        let mut shelf = self.shelf.lock();
        if shelf.spare.len() < MAX_SPARE {
            shelf.spare.push(chunk);
        } else {
            shelf.unmade += 1;
        }
    }

    pub(super) fn count_drained(&self, drained: u64) {
        self.drained.fetch_add(drained, Ordering::Relaxed);
    }

    pub(super) fn figures(&self) -> AuditFigures {
        // Read first, so that a concurrent drain cannot make more drained than noted.
        let drained = self.drained.load(Ordering::Relaxed);
        let mut figures = AuditFigures::default();
        for shard in &self.shards {
            let shard = shard.lock();
            figures.recorded += shard.recorded;
            figures.dropped += shard.dropped;
            figures.buffered_bytes += shard.chunk.as_ref().map_or(0, Chunk::filled_bytes);
        }
        figures.buffered = figures.recorded.saturating_sub(drained);
        figures.buffered_bytes +=
            self.shelf.lock().full.iter().map(Chunk::filled_bytes).sum::<u64>();
        figures
    }

    /// How many bytes the notes and the room for more take, for tests.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let of = |chunk: &Chunk| chunk.texts.len() + chunk.heads.capacity() * size_of::<Head>();
        let begun: usize =
            self.shards.iter().map(|shard| shard.lock().chunk.as_ref().map_or(0, of)).sum();
        let shelf = self.shelf.lock();
        begun + shelf.full.iter().chain(&shelf.spare).map(of).sum::<usize>()
    }
}

/// A chunk that is being drained.
pub(super) struct Reading {
    chunk: Chunk,
    next: usize,
    text: usize,
}

impl Reading {
    pub(super) fn next(&mut self) -> Option<Note<'_>> {
        let head = *self.chunk.heads.get(self.next)?;
        let texts = self.chunk.texts.get(self.text..).unwrap_or_default();
        self.next += 1;
        self.text += head.text_bytes();
        Some(Note { head, texts })
    }
}
