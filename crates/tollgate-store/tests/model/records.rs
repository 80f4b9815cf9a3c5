//! The records of reservations, as they should be.

use tollgate_core::{Nanos, SECOND};
use tollgate_store::{RecordAnswer, RecordAsk, Store};
use xxhash_rust::xxh3::xxh3_128;

use crate::driver::{Ground, Verdict, World, failed, same};
use crate::history::RecordStep;

/// A record that ends sooner than this is no longer looked at: servers drop it by their own clock, which
/// does not stand still.
const SHORT_RECORD: Nanos = 30 * SECOND;

/// The record of a reservation.
pub struct Record {
    stage: Stage,
    ttl: Nanos,
    expires_at: Nanos,
}

enum Stage {
    Open,
    Ending,
    Ended,
}

impl<G: Ground> World<'_, G> {
    pub async fn record(&mut self, id: u32, step: RecordStep) -> Verdict {
        let now = self.now;
        self.records.retain(|_, record| record.expires_at > now + SHORT_RECORD);
        let is_new = matches!(step, RecordStep::Keep(_));
        if !is_new && !self.records.contains_key(&id) {
            return Ok(());
        }
        let (content, how, answer) = (b"content", b"how", b"answer");
        let ask = match step {
            RecordStep::Keep(ttl) => RecordAsk::Keep { content, ttl, is_here: false },
            RecordStep::End(ttl) => RecordAsk::End { how, ttl },
            RecordStep::Complete => RecordAsk::Complete { answer },
            RecordStep::Renew(ttl) => RecordAsk::Renew { ttl },
        };
        let name = self.names.first().map_or("", String::as_str);
        let named = xxh3_128(format!("record {name} {id}").as_bytes());
        let shown = self.ground.store().record(named, &ask, now).await.map_err(failed)?;
        same("record", &shown, &self.expected_record(id, step))
    }

    fn expected_record(&mut self, id: u32, step: RecordStep) -> RecordAnswer {
        let now = self.now;
        if let RecordStep::Keep(ttl) = step {
            self.records.insert(id, Record { stage: Stage::Open, ttl, expires_at: now + ttl });
        }
        let Some(record) = self.records.get_mut(&id) else { return RecordAnswer::Absent };
        match (step, &record.stage) {
            (RecordStep::End(ttl), Stage::Open) => {
                (record.stage, record.expires_at) = (Stage::Ending, now + ttl);
            }
            (RecordStep::Renew(ttl), Stage::Open) => {
                record.expires_at = record.expires_at.max(now + ttl.unwrap_or(record.ttl));
            }
            _ => {}
        }
        let content = b"content".to_vec();
        let shown = match record.stage {
            Stage::Open => RecordAnswer::Open { content, expires_at: record.expires_at },
            Stage::Ending => RecordAnswer::Ending { content, how: b"how".to_vec() },
            Stage::Ended => RecordAnswer::Ended { answer: b"answer".to_vec() },
        };
        if let (RecordStep::Complete, Stage::Ending) = (step, &record.stage) {
            record.stage = Stage::Ended;
        }
        shown
    }
}
