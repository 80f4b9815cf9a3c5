//! Records of reservations in memory: bounded in number and bytes, and gone when their time is over.

use std::collections::{BTreeSet, HashMap, VecDeque};

use parking_lot::Mutex;
use tollgate_core::Nanos;

use crate::record::{MAX_RECORD_BYTES, RecordAnswer, RecordAsk};

/// How many reservations are kept by default.
pub const DEFAULT_MAX_RESERVATIONS: usize = 100_000;

/// What a record takes in addition to its content, roughly.
const ENTRY_BYTES: usize = 160;

/// So many bytes there are for each reservation that may be kept, on average.
const BYTES_EACH: usize = 1024;

/// All records.
pub(super) struct Records {
    kept: Mutex<Kept>,
    most: usize,
}

#[derive(Default)]
struct Kept {
    by_id: HashMap<u128, Record>,
    by_expiry: BTreeSet<(Nanos, u128)>,
    /// Those that have ended, oldest first: they only answer those who ask again, and go when room is
    /// needed.
    ended: VecDeque<u128>,
    bytes: usize,
    /// Open ones whose time was over.
    expired: u64,
}

struct Record {
    stage: Stage,
    content: Box<[u8]>,
    ttl: Nanos,
    expires_at: Nanos,
}

enum Stage {
    Open,
    /// How it is to end.
    Ending(Box<[u8]>),
    /// The content is the answer.
    Ended,
}

impl Record {
    fn bytes(&self) -> usize {
        let how = if let Stage::Ending(how) = &self.stage { how.len() } else { 0 };
        ENTRY_BYTES + self.content.len() + how
    }

    fn answer(&self) -> RecordAnswer {
        let content = self.content.to_vec();
        match &self.stage {
            Stage::Open => RecordAnswer::Open { content, expires_at: self.expires_at },
            Stage::Ending(how) => RecordAnswer::Ending { content, how: how.to_vec() },
            Stage::Ended => RecordAnswer::Ended { answer: content },
        }
    }
}

impl Records {
    pub(super) fn new(most: usize) -> Self {
        Self { kept: Mutex::default(), most }
    }

    /// How many there are, and how many open ones have expired.
    pub(super) fn usage(&self) -> (u64, u64) {
        let kept = self.kept.lock();
        (kept.by_id.len() as u64, kept.expired)
    }

    /// Whether this store has the record of this id, so that no other store need be asked.
    pub(super) fn has(&self, id: u128) -> bool {
        self.kept.lock().by_id.contains_key(&id)
    }

    pub(super) fn ask(&self, id: u128, ask: &RecordAsk<'_>, now: Nanos) -> RecordAnswer {
        let mut kept = self.kept.lock();
        kept.expire(now);
        match *ask {
            RecordAsk::Keep { content, ttl, .. } => {
                let expires_at = now.saturating_add(ttl);
                let content = Box::from(content);
                let record = Record { stage: Stage::Open, content, ttl, expires_at };
                if !kept.make_room(record.bytes(), self.most) {
                    return RecordAnswer::Full;
                }
                let answer = record.answer();
                kept.insert(id, record);
                answer
            }
            RecordAsk::End { how, ttl } => kept.change(id, |record| {
                if matches!(record.stage, Stage::Open) {
                    record.stage = Stage::Ending(Box::from(how));
                    record.expires_at = now.saturating_add(ttl);
                }
                record.answer()
            }),
            RecordAsk::Complete { answer } => {
                let before = kept.change(id, |record| {
                    let before = record.answer();
                    if matches!(record.stage, Stage::Ending(_)) {
                        (record.stage, record.content) = (Stage::Ended, Box::from(answer));
                    }
                    before
                });
                if matches!(before, RecordAnswer::Ending { .. }) {
                    kept.ended.push_back(id);
                }
                before
            }
            RecordAsk::Renew { ttl } => kept.change(id, |record| {
                if matches!(record.stage, Stage::Open) {
                    let until = now.saturating_add(ttl.unwrap_or(record.ttl));
                    record.expires_at = record.expires_at.max(until);
                }
                record.answer()
            }),
        }
    }
}

impl Kept {
    fn insert(&mut self, id: u128, record: Record) {
        self.remove(id);
        self.bytes += record.bytes();
        self.by_expiry.insert((record.expires_at, id));
        self.by_id.insert(id, record);
    }

    fn remove(&mut self, id: u128) -> Option<Record> {
        let record = self.by_id.remove(&id)?;
        self.bytes -= record.bytes();
        self.by_expiry.remove(&(record.expires_at, id));
        Some(record)
    }

    fn change(
        &mut self,
        id: u128,
        change: impl FnOnce(&mut Record) -> RecordAnswer,
    ) -> RecordAnswer {
        let Some(mut record) = self.remove(id) else { return RecordAnswer::Absent };
        let answer = change(&mut record);
        self.insert(id, record);
        answer
    }

    fn expire(&mut self, now: Nanos) {
        while let Some((expires_at, id)) = self.by_expiry.first().copied()
            && expires_at <= now
        {
            let was = self.remove(id);
            self.expired += u64::from(was.is_some_and(|was| matches!(was.stage, Stage::Open)));
        }
        while let Some(id) = self.ended.front()
            && !self.by_id.contains_key(id)
        {
            self.ended.pop_front();
        }
    }

    /// Whether there is room for another, once those that have ended have made some.
    fn make_room(&mut self, bytes: usize, most: usize) -> bool {
        // However few there may be, the largest one fits.
        let most_bytes = most.saturating_mul(BYTES_EACH).max(MAX_RECORD_BYTES + ENTRY_BYTES);
        while self.by_id.len() >= most || self.bytes + bytes > most_bytes {
            let Some(id) = self.ended.pop_front() else { return false };
            self.remove(id);
        }
        bytes <= MAX_RECORD_BYTES + ENTRY_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn keep(content: &[u8]) -> RecordAsk<'_> {
        RecordAsk::Keep { content, ttl: 100, is_here: true }
    }

    #[test]
    fn what_is_open_is_never_pushed_out_and_what_has_ended_is() {
        let records = Records::new(3);
        for id in 0..3 {
            assert!(matches!(records.ask(id, &keep(b"x"), 0), RecordAnswer::Open { .. }));
        }
        assert_eq!(records.ask(3, &keep(b"x"), 1), RecordAnswer::Full);
        records.ask(1, &RecordAsk::End { how: b"so", ttl: 100 }, 2);
        assert_eq!(records.ask(3, &keep(b"x"), 3), RecordAnswer::Full, "it is not over yet");
        records.ask(1, &RecordAsk::Complete { answer: b"done" }, 4);
        assert!(matches!(records.ask(3, &keep(b"x"), 5), RecordAnswer::Open { .. }));
        let gone = records.ask(1, &RecordAsk::End { how: b"so", ttl: 100 }, 6);
        assert_eq!(gone, RecordAnswer::Absent);
        assert_eq!(records.ask(4, &keep(b"x"), 99), RecordAnswer::Full);
        assert!(matches!(records.ask(4, &keep(b"x"), 100), RecordAnswer::Open { .. }));
        assert_eq!(records.usage(), (2, 2), "two open ones expired");
    }

    #[test]
    fn bytes_are_bounded_too() {
        let records = Records::new(2);
        let large = vec![0; MAX_RECORD_BYTES / 2 + 1];
        assert!(matches!(records.ask(1, &keep(&large), 0), RecordAnswer::Open { .. }));
        assert_eq!(records.ask(2, &keep(&large), 0), RecordAnswer::Full);
        assert!(matches!(records.ask(2, &keep(b"x"), 0), RecordAnswer::Open { .. }));
        let too_large = vec![0; MAX_RECORD_BYTES + 1];
        let records = Records::new(1_000);
        assert_eq!(records.ask(1, &keep(&too_large), 0), RecordAnswer::Full);
        assert!(matches!(records.ask(1, &keep(&large), 0), RecordAnswer::Open { .. }));
    }
}
