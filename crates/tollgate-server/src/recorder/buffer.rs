//! Decisions that wait for the recorder's thread, as bytes.
//!
//! ```text
//! length 4 · at 8 · verdict 1 · degraded 1 · amounts that are present 1 · each of them 8 ·
//! texts: rule id, then name and value of each attribute, each as length 2 and bytes
//! ```

use parking_lot::Mutex;
use tollgate_engine::{Decision, Request};
use tollgate_policy::Known;
use tollgate_recording::{Amounts, Entry, Verdict};

use crate::shards::{self, SHARDS};

/// What may wait in the buffer of one part of the threads.
const MAX_BYTES: usize = 4 << 20;
/// Buffers that have grown beyond this are not kept when they are empty.
const KEPT_BYTES: usize = 64 << 10;

const LENGTH_BYTES: usize = 4;

/// The buffers of all threads.
#[derive(Default)]
pub(super) struct Buffers([Mutex<Vec<u8>>; SHARDS]);

impl Buffers {
    /// Adds a decision; `false` if there is no room.
    #[inline]
    pub(super) fn put(&self, request: &Request<'_>, decision: &Decision<'_>) -> bool {
        let Some(shard) = self.0.get(shards::of_this_thread()) else { return false };
        let mut bytes = shard.lock();
        let start = bytes.len();
        if start >= MAX_BYTES {
            return false;
        }
        encode(&mut bytes, request, decision);
        let length = ((bytes.len() - start - LENGTH_BYTES) as u32).to_le_bytes();
        if let Some(place) = bytes.get_mut(start..start + LENGTH_BYTES) {
            place.copy_from_slice(&length);
        }
        true
    }

    /// Takes what has been added, in the order of its time; returns how many decisions that were.
    pub(super) fn drain(&self, mut take: impl FnMut(Entry<'_>)) -> u64 {
        let taken: Vec<Vec<u8>> = self
            .0
            .iter()
            .map(|shard| {
                let mut bytes = shard.lock();
                let room = bytes.capacity().min(KEPT_BYTES);
                std::mem::replace(&mut *bytes, Vec::with_capacity(room))
            })
            .collect();
        let mut entries: Vec<Entry<'_>> = Vec::new();
        for bytes in &taken {
            let mut rest = bytes.as_slice();
            while let Some((entry, after)) = next(rest) {
                entries.extend(decode(entry));
                rest = after;
            }
        }
        entries.sort_by_key(|entry| entry.at);
        let count = entries.len() as u64;
        entries.into_iter().for_each(&mut take);
        count
    }
}

#[inline]
fn encode(bytes: &mut Vec<u8>, request: &Request<'_>, decision: &Decision<'_>) {
    let verdict = match decision.verdict {
        tollgate_engine::Verdict::Allowed => 0,
        tollgate_engine::Verdict::Throttled => 1,
        tollgate_engine::Verdict::Queued => 2,
        tollgate_engine::Verdict::Denied => 3,
    };
    bytes.extend_from_slice(&[0; LENGTH_BYTES]);
    bytes.extend_from_slice(&decision.now.to_le_bytes());
    let stated = &request.amounts;
    let amounts = [
        stated.cost,
        stated.tokens,
        stated.input_tokens,
        stated.output_tokens,
        stated.cached_tokens,
    ];
    let mask = amounts
        .iter()
        .enumerate()
        .fold(0, |mask, (place, amount)| mask | (u8::from(amount.is_some()) << place));
    bytes.extend_from_slice(&[verdict, u8::from(decision.degraded.is_some()), mask]);
    for amount in amounts.into_iter().flatten() {
        bytes.extend_from_slice(&amount.to_le_bytes());
    }
    put_text(bytes, decision.deciding().map_or("", |scope| &scope.rule.id));
    for known in Known::ALL {
        if let Some(value) = request.attributes.get(known) {
            put_text(bytes, known.name());
            put_text(bytes, value);
        }
    }
    for (name, value) in request.attributes.extras() {
        put_text(bytes, name);
        put_text(bytes, value);
    }
}

#[inline]
fn put_text(bytes: &mut Vec<u8>, text: &str) {
    // Values and paths are bounded far below: what is longer cannot come here, and is left out.
    let length = u16::try_from(text.len()).unwrap_or(0);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(text.as_bytes().get(..usize::from(length)).unwrap_or_default());
}

/// The first entry, and what follows it.
fn next(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

fn decode(bytes: &[u8]) -> Option<Entry<'_>> {
    let (at, rest) = bytes.split_first_chunk::<8>()?;
    let ([verdict, is_degraded, mask], mut rest) = rest.split_first_chunk::<3>()?;
    let mut amounts = [None; 5];
    for (place, amount) in amounts.iter_mut().enumerate() {
        if mask & (1 << place) != 0 {
            let (value, after) = rest.split_first_chunk::<8>()?;
            (*amount, rest) = (Some(u64::from_le_bytes(*value)), after);
        }
    }
    let [cost, tokens, input_tokens, output_tokens, cached_tokens] = amounts;
    let (rule_id, mut rest) = text(rest)?;
    let mut attributes = Vec::new();
    while !rest.is_empty() {
        let (name, after) = text(rest)?;
        let (value, after) = text(after)?;
        attributes.push((name, value));
        rest = after;
    }
    Some(Entry {
        at: u64::from_le_bytes(*at),
        verdict: match verdict {
            0 => Verdict::Allowed,
            1 => Verdict::Throttled,
            2 => Verdict::Queued,
            _ => Verdict::Refused,
        },
        is_degraded: *is_degraded != 0,
        amounts: Amounts { cost, tokens, input_tokens, output_tokens, cached_tokens },
        rule_id: (!rule_id.is_empty()).then_some(rule_id),
        attributes,
    })
}

fn text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    let (text, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    Some((std::str::from_utf8(text).ok()?, rest))
}
