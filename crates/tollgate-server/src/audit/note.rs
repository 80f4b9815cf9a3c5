//! One decision, as a note and as a record of the log.

use std::net::IpAddr;

use tollgate_control::DecisionRecord;
use tollgate_engine::{Decision, Reason, Request, Verdict};
use tollgate_policy::{Known, hit_reason};
use tollgate_store::api_key_id;

use crate::callers::CallerId;

/// The longest text of one field; what is longer is cut off.
pub(super) const MAX_TEXT_BYTES: usize = 256;

/// How many fields of a note are texts.
pub(super) const TEXTS: usize = 12;

/// What separates rules within one text: no id of a rule contains it.
const SEPARATOR: u8 = b'\n';

/// The length that says that there is no text.
const ABSENT: u16 = u16::MAX;

/// A decision without its texts. It has their lengths; the chunk stores the texts one after another.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    at: u64,
    rules_version: u64,
    used: u64,
    quota: u64,
    /// `u64::MAX`: never, or not refused.
    retry_after: u64,
    cost: u64,
    window_seconds: u64,
    verdict: Verdict,
    reason: Reason,
    /// Whether it passed and would have been refused, had all rules been enforced.
    is_would_deny: bool,
    /// Whether a limit decided.
    has_limit: bool,
    caller_address: Option<IpAddr>,
    lengths: [u16; TEXTS],
}

/// Notes a decision: its texts go to the beginning of `room`, which is large enough for all of them.
/// Returns how many bytes they take.
#[inline]
pub(super) fn note(
    request: &Request<'_>,
    decision: &Decision<'_>,
    room: &mut [u8],
) -> (Head, usize) {
    let is_would_deny = decision.verdict == Verdict::Allowed && decision.has_would_deny();
    // Of a request that passes, the first rule that would have refused it.
    let watched =
        decision.would_deny().next().filter(|_| is_would_deny && !decision.is_refusal_ignored);
    let deciding = watched.or_else(|| decision.deciding());
    let attributes = &request.attributes;
    let all = room.len();
    let mut texts = Texts { room };
    let lengths = [
        texts.put(deciding.map(|scope| scope.rule.id.as_str())),
        texts.put(deciding.map(|scope| scope.rule.scope.as_str())),
        texts.put(attributes.get(Known::Endpoint)),
        texts.put(attributes.get(Known::Method)),
        texts.put(attributes.get(Known::Ip)),
        texts.put(attributes.get(Known::UserId)),
        texts.put(attributes.get(Known::TenantId)),
        texts.put(attributes.get(Known::ApiKey)),
        texts.put(attributes.get(Known::ModelId)),
        texts.put(request.request_id),
        texts.put(Some(request.caller).filter(|caller| !caller.is_empty())),
        texts.put_all(decision.would_deny().map(|scope| scope.rule.id.as_str())),
    ];
    let (used, quota, cost, retry_after) = match deciding {
        Some(scope) => {
            let refused = Some(scope).filter(|_| is_would_deny || !decision.is_allowed());
            let retry_after = refused.and_then(|scope| scope.retry_after(decision.now));
            (scope.outcome.status.used, scope.quota, scope.cost, retry_after)
        }
        None => (0, 0, request.amounts.cost.unwrap_or(1), None),
    };
    let reason = match watched {
        Some(scope) if scope.retry_after(decision.now).is_none() => Reason::CostExceedsLimit,
        Some(_) => Reason::HitLimit,
        None => decision.reason,
    };
    let head = Head {
        at: decision.now,
        rules_version: decision.rules_version,
        used,
        quota,
        retry_after: retry_after.unwrap_or(u64::MAX),
        cost,
        window_seconds: deciding.map_or(0, |scope| scope.limit.window_seconds),
        verdict: decision.verdict,
        reason,
        is_would_deny,
        has_limit: deciding.is_some(),
        caller_address: request.caller_address,
        lengths,
    };
    (head, all - texts.room.len())
}

/// Puts texts one after another.
struct Texts<'c> {
    /// What is left.
    room: &'c mut [u8],
}

impl Texts<'_> {
    /// Adds a text; its length is what a note keeps of it.
    #[inline]
    fn put(&mut self, text: Option<&str>) -> u16 {
        let Some(text) = text else { return ABSENT };
        let bytes = if text.len() <= MAX_TEXT_BYTES { text.as_bytes() } else { cut(text) };
        let room = std::mem::take(&mut self.room);
        let Some((own, rest)) = room.split_at_mut_checked(bytes.len()) else { return ABSENT };
        self.room = rest;
        copy(bytes, own);
        bytes.len() as u16
    }

    /// Adds as many of these as fit into one text, each once.
    #[inline]
    fn put_all<'t>(&mut self, texts: impl Iterator<Item = &'t str>) -> u16 {
        let mut length = 0;
        let mut last = "";
        for text in texts.filter(|text| !text.is_empty()) {
            let separator = usize::from(length > 0);
            if text == last || length + separator + text.len() > MAX_TEXT_BYTES {
                continue;
            }
            last = text;
            let room = std::mem::take(&mut self.room);
            let Some((own, rest)) = room.split_at_mut_checked(separator + text.len()) else {
                break;
            };
            self.room = rest;
            let (before, own) = own.split_at_mut(separator);
            before.fill(SEPARATOR);
            copy(text.as_bytes(), own);
            length += separator + text.len();
        }
        if length == 0 { ABSENT } else { length as u16 }
    }
}

/// Copies between slices of one length. Names are short: two overlapping moves of a fixed size take a
/// fraction of what a call takes.
#[inline]
fn copy(from: &[u8], to: &mut [u8]) {
    match from.len() {
        8..=16 => copy_ends::<8>(from, to),
        17..=32 => copy_ends::<16>(from, to),
        4..8 => copy_ends::<4>(from, to),
        _ => to.copy_from_slice(from),
    }
}

/// Copies the first and the last `N` bytes, which meet or overlap.
#[inline]
fn copy_ends<const N: usize>(from: &[u8], to: &mut [u8]) {
    if let (Some(from), Some(to)) = (from.first_chunk::<N>(), to.first_chunk_mut::<N>()) {
        *to = *from;
    }
    if let (Some(from), Some(to)) = (from.last_chunk::<N>(), to.last_chunk_mut::<N>()) {
        *to = *from;
    }
}

/// The text within its bound, and not cut in the middle of a character.
#[cold]
fn cut(text: &str) -> &[u8] {
    let end = (0..=MAX_TEXT_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.as_bytes().get(..end).unwrap_or_default()
}

/// A note as it is read: the decision and its texts, from where they begin.
pub(super) struct Note<'c> {
    pub(super) head: Head,
    pub(super) texts: &'c [u8],
}

impl Head {
    /// How many bytes of text belong to it.
    pub(super) fn text_bytes(&self) -> usize {
        self.lengths.iter().filter(|length| **length != ABSENT).map(|l| usize::from(*l)).sum()
    }
}

/// Makes records of the log from notes.
pub(super) struct RecordBuilder {
    secret: Box<[u8]>,
    /// Distinguishes this trail's events from those of all others.
    trail: u64,
    /// How many records it has made.
    built: u64,
}

impl RecordBuilder {
    pub(super) fn new(secret: &[u8]) -> Self {
        let mut trail = [0; 8];
        // Without random bytes events of two nodes could be taken for one, and one of them lost.
        let _ = getrandom::fill(&mut trail);
        Self { secret: secret.into(), trail: u64::from_le_bytes(trail), built: 0 }
    }

    pub(super) fn build(&mut self, note: &Note<'_>) -> DecisionRecord {
        let (head, mut texts) = (note.head, note.texts);
        let mut next = |length: u16| {
            let (text, rest) = texts.split_at_checked(usize::from(length))?;
            texts = rest;
            Some(String::from_utf8_lossy(text).into_owned())
        };
        let [
            rule_id,
            scope,
            endpoint,
            method,
            ip,
            user,
            tenant,
            api_key,
            model,
            request_id,
            caller,
            rules,
        ] = head.lengths.map(&mut next);
        let caller =
            CallerId { name: caller.as_deref().unwrap_or_default(), peer: head.caller_address };
        let api_key_id = api_key.map(|key| api_key_id(&self.secret, &key));
        let client = [&api_key_id, &user, &ip, &tenant].into_iter().flatten().next();
        let reason = match (head.reason, &scope) {
            (Reason::HitLimit, Some(scope)) => hit_reason(scope),
            (reason, _) => reason.code().to_owned(),
        };
        self.built += 1;
        let retry_after = (head.retry_after != u64::MAX).then(|| head.retry_after.div_ceil(MILLI));
        DecisionRecord {
            event_id: format!("{:016x}{:016x}", self.trail, self.built),
            at: signed(head.at / MILLI),
            action: if head.is_would_deny { "would_deny" } else { action(head.verdict) }.to_owned(),
            reason,
            client_id: client.cloned().unwrap_or_default(),
            rule_id,
            scope,
            request_count: head.has_limit.then(|| signed(head.used)),
            limit_count: head.has_limit.then(|| signed(head.quota)),
            retry_after_ms: retry_after.map(signed),
            window_seconds: head.has_limit.then(|| signed(head.window_seconds)),
            would_deny: rules.iter().flat_map(|rules| rules.lines()).map(str::to_owned).collect(),
            endpoint,
            method,
            ip_address: ip,
            user_id: user,
            tenant_id: tenant,
            api_key_id,
            model_id: model,
            request_id,
            cost: signed(head.cost),
            node: String::new(),
            revision: signed(head.rules_version),
            caller: caller.label(),
            ..DecisionRecord::default()
        }
    }
}

/// Nanoseconds of a millisecond.
const MILLI: u64 = 1_000_000;

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What became of a request, in the words of the log.
const fn action(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Denied => "rejected",
        other => other.name(),
    }
}
