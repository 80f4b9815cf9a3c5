//! How counters are written: one record each, all absolute, so that replaying one twice is harmless.

use tollgate_core::{
    Bucket, FixedWindow, LATEST, LogEntry, MAX_OPEN_CHARGES, Nanos, OpenBucket, OpenCharge,
    SlidingCounter, SlidingLog, Slot, SlotId, Slots, Small, Span, State,
};

use crate::memory::fingerprint::Fingerprint;
use crate::memory::group::Level;
use crate::memory::large::{Large, Unsaved};
use crate::memory::pack::Packed;

const PACKED: u8 = 0;
const REMOVED: u8 = 1;
const LOG: u8 = 2;
const LOG_TAIL: u8 = 3;
const SLOTS: u8 = 4;
const FIXED: u8 = 5;
const SLIDING: u8 = 6;
const BUCKET: u8 = 7;
const OPEN_BUCKET: u8 = 8;

/// One counter as read back.
#[derive(Debug)]
pub(super) enum Record {
    Packed(Packed),
    Removed,
    /// A whole state, and from when it is fresh.
    Whole(State, Nanos),
    /// The last entries of a log, to be laid over what is known of it.
    Tail(Vec<LogEntry>, Nanos),
}

fn head(buffer: &mut Vec<u8>, kind: u8, level: Level, fingerprint: Fingerprint) {
    buffer.push(kind << 4 | level);
    for word in fingerprint.0 {
        buffer.extend_from_slice(&word.to_le_bytes());
    }
}

fn words(buffer: &mut Vec<u8>, words: &[u64]) {
    for word in words {
        buffer.extend_from_slice(&word.to_le_bytes());
    }
}

pub(super) fn write_packed(buffer: &mut Vec<u8>, at: Fingerprint, packed: Packed, level: Level) {
    head(buffer, PACKED, level, at);
    words(buffer, &[packed.fresh_at, packed.word]);
}

pub(super) fn write_removed(buffer: &mut Vec<u8>, fingerprint: Fingerprint) {
    head(buffer, REMOVED, 0, fingerprint);
}

/// Writes a large counter: all of it, or, where only the end of a log is unsaved, that.
pub(super) fn write_large(buffer: &mut Vec<u8>, large: &Large, unsaved: Unsaved) {
    let kind = match (&large.state, unsaved) {
        (State::Log(_), Unsaved::Tail(_)) => LOG_TAIL,
        (State::Log(_), _) => LOG,
        (State::Slots(_), _) => SLOTS,
        (State::Small(Small::Fixed(_)), _) => FIXED,
        (State::Small(Small::Sliding(_)), _) => SLIDING,
        (State::Small(Small::Bucket(_)), _) => BUCKET,
        (State::Open(_), _) => OPEN_BUCKET,
    };
    head(buffer, kind, large.level, large.fingerprint);
    words(buffer, &[large.fresh_at]);
    match &large.state {
        State::Log(log) => {
            let tail = match unsaved {
                Unsaved::Tail(entries) => log.len().min(entries as usize),
                _ => log.len(),
            };
            buffer.extend_from_slice(&(tail as u32).to_le_bytes());
            for entry in log.entries().skip(log.len() - tail) {
                words(buffer, &[entry.at, entry.cost]);
            }
        }
        State::Slots(slots) => {
            buffer.extend_from_slice(&(slots.len() as u32).to_le_bytes());
            for slot in slots.iter() {
                words(buffer, &[slot.id.0 as u64, (slot.id.0 >> 64) as u64, slot.expires_at]);
            }
        }
        State::Small(Small::Fixed(state)) => words(buffer, &[state.end, state.count]),
        State::Small(Small::Sliding(state)) => {
            words(buffer, &[state.end, state.current, state.previous]);
        }
        State::Small(Small::Bucket(state)) => {
            // The last word was how far give-backs had moved it, in earlier versions.
            words(buffer, &[state.tat.nanos, state.tat.part, 0]);
        }
        State::Open(open) => write_open(buffer, open),
    }
}

fn write_open(buffer: &mut Vec<u8>, open: &OpenBucket) {
    words(buffer, &[open.base().nanos, open.base().part, open.unit()]);
    buffer.extend_from_slice(&(open.charges().len() as u32).to_le_bytes());
    for charge in open.charges() {
        words(buffer, &[charge.at << 1 | u64::from(charge.is_brief)]);
        for span in [charge.span, charge.added, charge.floor] {
            words(buffer, &[span.nanos, span.part]);
        }
    }
}

/// Reads records one after another. `None` at the end; an error where the bytes make no sense.
pub(super) struct Records<'a>(pub(super) &'a [u8]);

/// The bytes are not records.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Garbled;

impl Records<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Garbled> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(Garbled)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn word(&mut self) -> Result<u64, Garbled> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn half(&mut self) -> Result<u32, Garbled> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    pub(super) fn next(&mut self) -> Result<Option<(Fingerprint, Level, Record)>, Garbled> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let [first] = self.take()?;
        let fingerprint = Fingerprint([self.half()?, self.half()?, self.half()?]);
        let record = match first >> 4 {
            PACKED => Record::Packed(Packed { fresh_at: self.word()?, word: self.word()? }),
            REMOVED => Record::Removed,
            kind => {
                let fresh_at = self.word()?;
                self.large(kind, fresh_at)?
            }
        };
        Ok(Some((fingerprint, first & 15, record)))
    }

    fn large(&mut self, kind: u8, fresh_at: Nanos) -> Result<Record, Garbled> {
        let state = match kind {
            LOG | LOG_TAIL => {
                let entries = self.log_entries()?;
                if kind == LOG_TAIL {
                    return Ok(Record::Tail(entries, fresh_at));
                }
                State::Log(SlidingLog::from_entries(entries))
            }
            SLOTS => {
                let count = self.half()?;
                let mut slots = Vec::new();
                for _ in 0..count {
                    let id = u128::from(self.word()?) | u128::from(self.word()?) << 64;
                    slots.push(Slot { id: SlotId(id), expires_at: self.word()? });
                }
                State::Slots(Slots::from_slots(slots))
            }
            FIXED => {
                State::Small(Small::Fixed(FixedWindow { end: self.word()?, count: self.word()? }))
            }
            SLIDING => State::Small(Small::Sliding(SlidingCounter {
                end: self.word()?,
                current: self.word()?,
                previous: self.word()?,
            })),
            BUCKET => {
                let tat = self.span()?;
                self.word()?;
                State::Small(Small::Bucket(Bucket { tat }))
            }
            OPEN_BUCKET => State::Open(self.open_bucket()?),
            _ => return Err(Garbled),
        };
        Ok(Record::Whole(state, fresh_at))
    }

    fn span(&mut self) -> Result<Span, Garbled> {
        Ok(Span { nanos: self.word()?, part: self.word()? })
    }

    fn open_bucket(&mut self) -> Result<OpenBucket, Garbled> {
        let (base, unit, count) = (self.span()?, self.word()?, self.half()? as usize);
        if base.part >= unit || count > 2 * MAX_OPEN_CHARGES {
            return Err(Garbled);
        }
        let mut charges: Vec<OpenCharge> = Vec::with_capacity(count);
        for _ in 0..count {
            let first = self.word()?;
            let (at, is_brief) = (first >> 1, first & 1 == 1);
            let (span, added, floor) = (self.span()?, self.span()?, self.span()?);
            if at > LATEST || [span, added, floor].iter().any(|span| span.part >= unit) {
                return Err(Garbled);
            }
            // Nodes have nothing on lease of a store in memory.
            charges.push(OpenCharge { at, is_brief, is_leased: false, span, added, floor });
        }
        Ok(OpenBucket::from_parts(base, unit, charges))
    }

    fn log_entries(&mut self) -> Result<Vec<LogEntry>, Garbled> {
        let count = self.half()?;
        let mut entries = Vec::new();
        for _ in 0..count {
            entries.push(LogEntry { at: self.word()?, cost: self.word()? });
        }
        Ok(entries)
    }
}
