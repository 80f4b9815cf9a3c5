//! Events that wait for the recorder's thread, as bytes.
//!
//! ```text
//! length 4 · at 8 · kind, verdict, degraded, part, refunds, amounts that are present: 1 each · each amount 8 · hold 8 ·
//! how many limits 1 · of each: counter 8, used 8, rule id, tag · how many names 1 · names ·
//! rule id · name and value of each attribute; texts are a length of 2 bytes and the bytes
//! ```

use parking_lot::Mutex;
use tollgate_core::{Nanos, Receipt};
use tollgate_engine::{Amounts as Stated, Decision, HoldChange, HoldChanged, Request};
use tollgate_policy::{Attributes, Known};
use tollgate_recording::{Amounts, Entry, Kind, Part, Refunds, Used, Verdict};
use xxhash_rust::xxh3::Xxh3;

use crate::shards::{self, SHARDS};

/// What may wait in the buffer of one part of the threads.
const MAX_BYTES: usize = 4 << 20;
/// Buffers that have grown beyond this are not kept when they are empty.
const KEPT_BYTES: usize = 64 << 10;

const LENGTH_BYTES: usize = 4;

/// The bit of a stated lifetime among those of the amounts.
const TTL_BIT: u8 = 1 << 5;

/// The buffers of all threads.
#[derive(Default)]
pub(super) struct Buffers([Mutex<Vec<u8>>; SHARDS]);

/// An event, and the counters of its limits: what they held is recorded when they are met first.
pub(super) struct Noted<'b> {
    pub(super) entry: Entry<'b>,
    pub(super) counters: Vec<u64>,
}

impl Buffers {
    /// Adds a decision; `false` if there is no room.
    #[inline]
    pub(super) fn put(&self, kind: Kind, request: &Request<'_>, decision: &Decision<'_>) -> bool {
        self.append(|bytes| encode_decision(bytes, kind, request, decision))
    }

    /// Adds a change of what a request holds; `false` if there is no room.
    pub(super) fn put_change(&self, change: &HoldChange) -> bool {
        self.append(|bytes| encode_change(bytes, change))
    }

    /// Adds a reset; `false` if there is no room.
    pub(super) fn put_reset(&self, request: &Request<'_>, rule_ids: &[String], at: Nanos) -> bool {
        self.append(|bytes| {
            let head = Head { at, kind: Kind::Reset, ..Head::default() };
            head.encode(bytes);
            bytes.push(0);
            let rule_ids = rule_ids.get(..rule_ids.len().min(usize::from(u8::MAX)));
            let rule_ids = rule_ids.unwrap_or_default();
            bytes.push(rule_ids.len() as u8);
            for id in rule_ids {
                put_text(bytes, id);
            }
            put_text(bytes, "");
            put_attributes(bytes, &request.attributes);
        })
    }

    #[inline]
    fn append(&self, encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        let Some(shard) = self.0.get(shards::of_this_thread()) else { return false };
        let mut bytes = shard.lock();
        let start = bytes.len();
        if start >= MAX_BYTES {
            return false;
        }
        bytes.extend_from_slice(&[0; LENGTH_BYTES]);
        encode(&mut bytes);
        let length = ((bytes.len() - start - LENGTH_BYTES) as u32).to_le_bytes();
        if let Some(place) = bytes.get_mut(start..start + LENGTH_BYTES) {
            place.copy_from_slice(&length);
        }
        true
    }

    /// Takes what has been added, in the order of its time; returns how many events that were.
    pub(super) fn drain(&self, mut take: impl FnMut(Noted<'_>)) -> u64 {
        let taken: Vec<Vec<u8>> = self
            .0
            .iter()
            .map(|shard| {
                let mut bytes = shard.lock();
                let room = bytes.capacity().min(KEPT_BYTES);
                std::mem::replace(&mut *bytes, Vec::with_capacity(room))
            })
            .collect();
        let mut entries: Vec<Noted<'_>> = Vec::new();
        for bytes in &taken {
            let mut rest = bytes.as_slice();
            while let Some((entry, after)) = next(rest) {
                entries.extend(decode(entry));
                rest = after;
            }
        }
        entries.sort_by_key(|noted| noted.entry.at);
        let count = entries.len() as u64;
        entries.into_iter().for_each(&mut take);
        count
    }
}

/// What every event begins with.
#[derive(Default)]
struct Head {
    at: Nanos,
    kind: Kind,
    verdict: Verdict,
    is_degraded: bool,
    part: Part,
    refunds: Refunds,
    amounts: Stated,
    ttl: Option<Nanos>,
    hold: u64,
}

impl Head {
    #[inline]
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.at.to_le_bytes());
        let Stated { cost, tokens, input_tokens, output_tokens, cached_tokens, .. } = self.amounts;
        let amounts = [cost, tokens, input_tokens, output_tokens, cached_tokens, self.ttl];
        let mask = amounts
            .iter()
            .enumerate()
            .fold(0, |mask, (place, amount)| mask | (u8::from(amount.is_some()) << place));
        bytes.extend_from_slice(&[
            self.kind as u8,
            self.verdict as u8,
            u8::from(self.is_degraded),
            self.part as u8,
            self.refunds as u8,
            mask,
        ]);
        for amount in amounts.into_iter().flatten() {
            bytes.extend_from_slice(&amount.to_le_bytes());
        }
        bytes.extend_from_slice(&self.hold.to_le_bytes());
    }
}

#[inline]
fn encode_decision(
    bytes: &mut Vec<u8>,
    kind: Kind,
    request: &Request<'_>,
    decision: &Decision<'_>,
) {
    let verdict = match decision.verdict {
        tollgate_engine::Verdict::Allowed => Verdict::Allowed,
        tollgate_engine::Verdict::Throttled => Verdict::Throttled,
        tollgate_engine::Verdict::Queued => Verdict::Queued,
        tollgate_engine::Verdict::Denied => Verdict::Refused,
    };
    let head = Head {
        at: decision.now,
        kind,
        verdict,
        is_degraded: decision.degraded.is_some(),
        part: Part::All,
        refunds: match request.refunds {
            tollgate_engine::Refunds::Never => Refunds::Never,
            tollgate_engine::Refunds::WhileWaiting => Refunds::WhileWaiting,
            tollgate_engine::Refunds::Always => Refunds::Always,
        },
        amounts: request.amounts,
        ttl: request.reserve,
        hold: hold(request, decision),
    };
    head.encode(bytes);
    put_used(bytes, decision);
    bytes.push(0);
    put_text(bytes, decision.deciding().map_or("", |scope| &scope.rule.id));
    put_attributes(bytes, &request.attributes);
}

/// Names what a request holds that can change later. One that does not wait is not refunded.
#[inline]
fn hold(request: &Request<'_>, decision: &Decision<'_>) -> u64 {
    let is_final = request.refunds == tollgate_engine::Refunds::WhileWaiting
        && decision.wait == 0
        && decision.slot.is_none();
    if is_final || !decision.is_allowed() { 0 } else { decision.hold_link() }
}

/// What the counters of a decision held before it.
#[inline]
fn put_used(bytes: &mut Vec<u8>, decision: &Decision<'_>) {
    let place = bytes.len();
    bytes.push(0);
    let mut count = 0_u8;
    for scope in decision.scopes().chain(decision.observed()) {
        let charged = if scope.outcome.receipt == Receipt::Nothing { 0 } else { scope.cost };
        let used = scope.outcome.status.used.saturating_sub(charged);
        if used == 0 || count == u8::MAX {
            continue;
        }
        count += 1;
        let mut counter = Xxh3::with_seed(scope.limit.salt as u64);
        for value in decision.key_values(scope) {
            counter.update(&(value.len() as u32).to_le_bytes());
            counter.update(value.as_bytes());
        }
        bytes.extend_from_slice(&counter.digest().to_le_bytes());
        bytes.extend_from_slice(&used.to_le_bytes());
        put_text(bytes, &scope.rule.id);
        put_text(bytes, &scope.limit.tag);
    }
    if let Some(place) = bytes.get_mut(place) {
        *place = count;
    }
}

fn encode_change(bytes: &mut Vec<u8>, change: &HoldChange) {
    let mut head = Head { at: change.at, hold: change.link, ..Head::default() };
    head.part = match (change.has_slots, change.has_charges) {
        (true, false) => Part::Slots,
        (false, true) => Part::Charges,
        _ => Part::All,
    };
    match &change.how {
        HoldChanged::Settled(actual) => {
            (head.kind, head.amounts) = (Kind::Settled, actual.amounts);
        }
        HoldChanged::Released => head.kind = Kind::Released,
        HoldChanged::Renewed(ttl) => (head.kind, head.ttl) = (Kind::Renewed, *ttl),
    }
    head.encode(bytes);
    bytes.extend_from_slice(&[0, 0]);
    put_text(bytes, "");
}

#[inline]
fn put_attributes(bytes: &mut Vec<u8>, attributes: &Attributes<'_>) {
    for known in Known::ALL {
        if let Some(value) = attributes.get(known) {
            put_text(bytes, known.name());
            put_text(bytes, value);
        }
    }
    for (name, value) in attributes.extras() {
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

fn decode(bytes: &[u8]) -> Option<Noted<'_>> {
    let (at, rest) = bytes.split_first_chunk::<8>()?;
    let ([kind, verdict, is_degraded, part, refunds, mask], mut rest) =
        rest.split_first_chunk::<6>()?;
    let mut amounts = [None; 5];
    for (place, amount) in amounts.iter_mut().enumerate() {
        if mask & (1 << place) != 0 {
            let (value, after) = number(rest)?;
            (*amount, rest) = (Some(value), after);
        }
    }
    let mut ttl = None;
    if mask & TTL_BIT != 0 {
        let (value, after) = number(rest)?;
        (ttl, rest) = (Some(value), after);
    }
    let (hold, rest) = number(rest)?;
    let (used, counters, rest) = decode_used(rest)?;
    let (count, mut rest) = rest.split_first()?;
    let mut names = Vec::new();
    for _ in 0..*count {
        let (name, after) = text(rest)?;
        names.push(name);
        rest = after;
    }
    let (rule_id, mut rest) = text(rest)?;
    let mut attributes = Vec::new();
    while !rest.is_empty() {
        let (name, after) = text(rest)?;
        let (value, after) = text(after)?;
        attributes.push((name, value));
        rest = after;
    }
    let [cost, tokens, input_tokens, output_tokens, cached_tokens] = amounts;
    let entry = Entry {
        at: u64::from_le_bytes(*at),
        kind: KINDS.into_iter().find(|one| *one as u8 == *kind)?,
        verdict: VERDICTS.into_iter().find(|one| *one as u8 == *verdict)?,
        is_degraded: *is_degraded != 0,
        amounts: Amounts { cost, tokens, input_tokens, output_tokens, cached_tokens },
        hold,
        part: PARTS.into_iter().find(|one| *one as u8 == *part)?,
        ttl,
        refunds: REFUNDS.into_iter().find(|one| *one as u8 == *refunds)?,
        rule_id: (!rule_id.is_empty()).then_some(rule_id),
        attributes,
        used,
        names,
    };
    Some(Noted { entry, counters })
}

/// Those that pass through the buffer.
const KINDS: [Kind; 6] =
    [Kind::Decision, Kind::More, Kind::Settled, Kind::Released, Kind::Renewed, Kind::Reset];
const VERDICTS: [Verdict; 4] =
    [Verdict::Allowed, Verdict::Throttled, Verdict::Queued, Verdict::Refused];
const PARTS: [Part; 3] = [Part::All, Part::Slots, Part::Charges];
const REFUNDS: [Refunds; 3] = [Refunds::Never, Refunds::WhileWaiting, Refunds::Always];

/// What counters held, the counters, and what follows.
type DecodedUsed<'b> = (Vec<Used<'b>>, Vec<u64>, &'b [u8]);

fn decode_used(bytes: &[u8]) -> Option<DecodedUsed<'_>> {
    let (count, mut rest) = bytes.split_first()?;
    let (mut all, mut counters) = (Vec::new(), Vec::new());
    for _ in 0..*count {
        let (counter, after) = number(rest)?;
        let (used, after) = number(after)?;
        let (rule_id, after) = text(after)?;
        let (tag, after) = text(after)?;
        all.push(Used { rule_id, tag, used });
        counters.push(counter);
        rest = after;
    }
    Some((all, counters, rest))
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (value, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*value), rest))
}

fn text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    let (text, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    Some((std::str::from_utf8(text).ok()?, rest))
}
