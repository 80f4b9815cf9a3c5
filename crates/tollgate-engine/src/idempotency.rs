//! Answers remembered by request id, so that a repeated call is answered and not charged again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tollgate_core::{Nanos, SECOND};
use tollgate_policy::prices::TokenKind;
use tollgate_policy::{Known, Unit};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::ActiveRules;
use crate::answer::{Answer, shape};
use crate::decision::{Decision, Scopes};
use crate::remembered_answers::{Caller, RememberedAnswers};
use crate::request::Request;
use crate::verdict::{Reason, Verdict};

/// How long an admission is remembered.
pub const REMEMBERED_FOR: Nanos = 60 * SECOND;

/// Shards of the memory, each behind its own lock.
const SHARDS: usize = 64;

/// The most bytes that all answers take together; beyond, the oldest go of the callers that take the most.
pub(crate) const MAX_REMEMBERED_BYTES: usize = 256 << 20;

/// What an answer takes in addition to itself: its places in the map and in the orders of expiry.
const PLACE_BYTES: usize = 256;

/// An admission. The rules that made it are not kept alive: when others have replaced them, the answer is rebuilt from
/// the outcomes, as it is on another node.
pub(crate) struct Remembered {
    rules: Weak<ActiveRules>,
    /// Which limits the outcomes are of.
    shape: u64,
    content: u128,
    until: Nanos,
    verdict: Verdict,
    reason: Reason,
    now: Nanos,
    wait: Nanos,
    is_shadow: bool,
    is_refusal_ignored: bool,
    degraded: Option<tollgate_store::Degraded>,
    slot: Option<tollgate_core::SlotId>,
    reservation: Option<crate::reservations::Reservation>,
    scopes: Vec<KeptScope>,
    deciding: Option<u32>,
}

struct KeptScope {
    rule: String,
    limit: usize,
    exact: tollgate_core::Limit,
    cost: u64,
    role: tollgate_store::Role,
    outcome: tollgate_core::Outcome,
}

impl Remembered {
    fn new(rules: &Arc<ActiveRules>, content: u128, decision: &Decision<'_>, until: Nanos) -> Self {
        let kept = |scope: &crate::Scope<'_>| KeptScope {
            rule: scope.rule.id.clone(),
            limit: scope
                .rule
                .limits
                .iter()
                .position(|limit| std::ptr::eq(limit, scope.limit))
                .unwrap_or(0),
            exact: scope.exact.clone(),
            cost: scope.cost,
            role: scope.role,
            outcome: scope.outcome,
        };
        Self {
            rules: Arc::downgrade(rules),
            shape: shape(decision.scopes.iter().map(|scope| scope.limit.salt)),
            content,
            until,
            verdict: decision.verdict,
            reason: decision.reason,
            now: decision.now,
            wait: decision.wait,
            is_shadow: decision.is_shadow,
            is_refusal_ignored: decision.is_refusal_ignored,
            degraded: decision.degraded,
            slot: decision.slot,
            reservation: decision.reservation,
            scopes: decision.scopes.iter().map(kept).collect(),
            deciding: decision.deciding,
        }
    }

    /// The rules that made it, while they are in force.
    pub(crate) fn rules(&self) -> Option<Arc<ActiveRules>> {
        self.rules.upgrade()
    }

    /// What it takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        let scope = |scope: &KeptScope| size_of::<KeptScope>() + scope.rule.len();
        PLACE_BYTES + size_of::<Self>() + self.scopes.iter().map(scope).sum::<usize>()
    }

    /// What is known of it without its rules.
    pub(crate) fn answer(&self) -> Answer {
        let Self { now: at, shape, slot, reservation, .. } = *self;
        let outcomes = self.scopes.iter().map(|scope| scope.outcome).collect();
        Answer { at, shape, slot, reservation, outcomes }
    }

    /// The decision as it was made, by its rules, for a request with this API key.
    pub(crate) fn decision<'a>(
        &'a self,
        rules: &'a ActiveRules,
        api_key: Option<&str>,
    ) -> Decision<'a> {
        let set = &rules.set;
        let mut scopes = Scopes::new();
        for kept in &self.scopes {
            let default = set.default_rule().filter(|rule| rule.id == kept.rule);
            let of_key = || set.key_rule(api_key?, &kept.rule);
            let Some(rule) = set.rule(&kept.rule).or(default).or_else(of_key) else { continue };
            let Some(limit) = rule.limits.get(kept.limit) else { continue };
            let (role, outcome) = (kept.role, kept.outcome);
            scopes.push(Decision::scope(
                rule,
                limit,
                (&kept.exact, kept.cost),
                role,
                outcome,
                u32::MAX,
            ));
        }
        let mut decision = Decision::pending(rules.version);
        (decision.verdict, decision.reason) = (self.verdict, self.reason);
        decision.now = self.now;
        decision.wait = self.wait;
        decision.is_shadow = self.is_shadow;
        decision.is_refusal_ignored = self.is_refusal_ignored;
        decision.degraded = self.degraded;
        decision.slot = self.slot;
        decision.reservation = self.reservation;
        decision.scopes = scopes;
        decision.deciding = self.deciding;
        decision
    }
}

#[derive(Default)]
struct Shard {
    answers: RememberedAnswers,
    /// The ids that are being answered now.
    busy: HashMap<u128, Arc<AsyncMutex<()>>>,
}

/// The answers of the last minute.
pub(crate) struct Memory {
    shards: Box<[Mutex<Shard>]>,
    spare: Mutex<Shard>,
    max_shard_bytes: usize,
    /// Answers were forgotten early, and the log says so.
    has_warned: AtomicBool,
}

impl Memory {
    /// A memory of at most so many bytes.
    pub(crate) fn new(max_bytes: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let (max_shard_bytes, has_warned) = (max_bytes / SHARDS, AtomicBool::default());
        Self { shards, spare: Mutex::default(), max_shard_bytes, has_warned }
    }
}

/// The place of one request id, held until its call is answered, so that of two calls at the same
/// time the second gets the first's answer. Calls with other ids do not wait for it.
pub(crate) struct Place<'a> {
    memory: &'a Memory,
    shard: &'a Mutex<Shard>,
    id: u128,
    /// Taken out when the place is left.
    turn: Option<OwnedMutexGuard<()>>,
}

impl Memory {
    pub(crate) async fn enter(&self, caller: &str, id: &str) -> Place<'_> {
        let mut hash = Xxh3::new();
        part(&mut hash, caller);
        part(&mut hash, id);
        let index = (xxh3_64(id.as_bytes()) as usize) % SHARDS;
        let shard = self.shards.get(index).unwrap_or(&self.spare);
        let id = hash.digest128();
        let turn = Arc::clone(shard.lock().busy.entry(id).or_default());
        // The place is there before the wait, so that one who gives up waiting leaves it tidy.
        let mut place = Place { memory: self, shard, id, turn: None };
        place.turn = Some(turn.lock_owned().await);
        place
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut shard = self.shard.lock();
        drop(self.turn.take());
        // Only the map knows it now, unless someone waits for it.
        if shard.busy.get(&self.id).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            shard.busy.remove(&self.id);
        }
    }
}

impl Place<'_> {
    /// What the id is known by on all nodes.
    pub(crate) const fn id(&self) -> u128 {
        self.id
    }

    /// A fingerprint of what is asked under the id.
    #[expect(clippy::unused_self, reason = "it is the place's question")]
    pub(crate) fn content(&self, request: &Request<'_>) -> u128 {
        content(request)
    }

    /// The remembered answer, or an error if it answered something else.
    pub(crate) fn find(
        &self,
        request: &Request<'_>,
        now: Nanos,
    ) -> Option<Result<Arc<Remembered>, ()>> {
        let shard = self.shard.lock();
        let known = shard.answers.get(self.id).filter(|known| now < known.until)?;
        Some(if known.content == content(request) { Ok(Arc::clone(known)) } else { Err(()) })
    }

    pub(crate) fn remember(
        &self,
        request: &Request<'_>,
        rules: &Arc<ActiveRules>,
        decision: &Decision<'_>,
        now: Nanos,
    ) {
        let until = now.saturating_add(REMEMBERED_FOR);
        let answer = Arc::new(Remembered::new(rules, content(request), decision, until));
        let max_bytes = self.memory.max_shard_bytes;
        let caller = Caller::of(request);
        let mut shard = self.shard.lock();
        shard.answers.forget_expired(now);
        let has_forgotten = shard.answers.make_room(answer.bytes(), max_bytes);
        shard.answers.insert(self.id, caller, until, answer);
        drop(shard);
        if has_forgotten && !self.memory.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                max_bytes = SHARDS * max_bytes,
                "more request ids than are remembered came within a minute; the oldest of the callers \
                 that use the most are forgotten early, and a repeated call may be charged again"
            );
        }
    }
}

fn part(hash: &mut Xxh3, text: &str) {
    hash.update(&(text.len() as u64).to_le_bytes());
    hash.update(text.as_bytes());
}

/// A fingerprint of all that the decision depends on.
fn content(request: &Request<'_>) -> u128 {
    let mut hash = Xxh3::new();
    for known in Known::ALL {
        part(&mut hash, request.attributes.get(known).unwrap_or_default());
    }
    for (name, value) in request.attributes.extras() {
        part(&mut hash, name);
        part(&mut hash, value);
    }
    for figure in [request.amounts.cost, request.amounts.tokens] {
        hash.update(&figure.unwrap_or(u64::MAX).to_le_bytes());
    }
    // Nodes that know of no other units must find the same in what has none.
    for unit in [Unit::InputTokens, Unit::OutputTokens, Unit::CachedTokens, Unit::Money] {
        if let Some(amount) = request.amounts.get(unit) {
            hash.update(unit.name().as_bytes());
            hash.update(&amount.to_le_bytes());
        }
    }
    if let Some(money) = request.amounts.money {
        hash.update(money.currency.code().as_bytes());
    }
    if let Some(usage) = request.usage {
        hash.update(b"usage");
        for kind in TokenKind::ALL {
            hash.update(&usage.tokens(kind).to_le_bytes());
        }
        hash.update(&usage.images().to_le_bytes());
        hash.update(&usage.requests().to_le_bytes());
    }
    // Nodes that know of no reservations must find the same in what is none.
    if let Some(ttl) = request.reserve {
        hash.update(&ttl.to_le_bytes());
    }
    // As nodes wrote it that knew of tokens alone.
    if request.is_more {
        hash.update(Unit::Tokens.name().as_bytes());
    }
    if request.uses_nothing {
        hash.update(b"skip");
        hash.update(Unit::Tokens.name().as_bytes());
    }
    for endpoint in request.attributes.other_endpoints() {
        part(&mut hash, endpoint);
    }
    hash.digest128()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use tollgate_policy::RuleSet;
    use tollgate_store::MemoryStore;

    use super::*;
    use crate::{Engine, ManualClock};

    const MAX_BYTES: usize = 4 << 20;

    /// With a memory that a few hundred answers fill.
    fn engine() -> (Engine<MemoryStore>, Arc<ManualClock>) {
        let mut yaml = "default: false\nrules:\n".to_owned();
        for number in 0..20 {
            let name = "r".repeat(120);
            let rule = format!(
                "{{rule_id: {name}{number}, identifier_type: global, limit: 100000, window: 1d}}"
            );
            writeln!(yaml, "  - {rule}").unwrap();
        }
        let rules = RuleSet::from_yaml(&yaml, "rules").unwrap();
        let clock = Arc::new(ManualClock::new(1_794_700_800 * SECOND));
        let mut engine =
            Engine::new(MemoryStore::new(100), Arc::<ManualClock>::clone(&clock), rules);
        engine.remembered = Memory::new(MAX_BYTES);
        (engine, clock)
    }

    /// How many of the first limit were left when this call was decided.
    async fn ask(engine: &Engine<MemoryStore>, caller: &str, id: &str) -> u64 {
        let rules = engine.rules();
        let mut request = Request { request_id: Some(id), caller, ..Request::default() };
        if let Ok(address) = caller.parse() {
            (request.caller, request.caller_address) = ("", Some(address));
        }
        let remaining = |decision: &Decision<'_>| {
            assert!(decision.is_allowed());
            decision.scopes().next().unwrap().outcome.status.remaining
        };
        engine.decide_once(&rules, &request, remaining).await.unwrap()
    }

    /// However many limits an answer has, and however long their names are.
    #[tokio::test]
    async fn remembered_answers_are_bounded_in_bytes() {
        let (engine, clock) = engine();
        let remembered = || {
            let shards = engine.remembered.shards.iter().map(|shard| shard.lock());
            shards.fold((0, 0), |(count, bytes), shard| {
                (count + shard.answers.len(), bytes + shard.answers.bytes())
            })
        };
        for number in 0..2_000 {
            ask(&engine, "", &number.to_string()).await;
        }
        let (count, bytes) = remembered();
        assert!((100..2_000).contains(&count), "{count}");
        assert!(bytes <= MAX_BYTES, "{bytes}");
        clock.advance(REMEMBERED_FOR);
        for number in 0..2_000 {
            ask(&engine, "", &number.to_string()).await;
        }
        assert!(remembered().1 <= MAX_BYTES);
    }

    #[tokio::test]
    async fn one_caller_does_not_push_out_the_answers_of_others() {
        let (engine, _clock) = engine();
        let quiet = ["token", "192.0.2.1", "127.0.0.1"];
        let mut answers = Vec::new();
        for caller in quiet {
            answers.push(ask(&engine, caller, &format!("id of {caller}")).await);
        }
        for number in 0..2_000 {
            ask(&engine, "loud", &number.to_string()).await;
            ask(&engine, "2001:db8::1", &number.to_string()).await;
        }
        for (caller, answer) in quiet.into_iter().zip(answers) {
            assert_eq!(ask(&engine, caller, &format!("id of {caller}")).await, answer, "{caller}");
        }
    }

    /// Anybody can have many addresses.
    #[tokio::test]
    async fn many_addresses_leave_a_part_of_the_memory_to_callers_with_a_token() {
        let (engine, _clock) = engine();
        let mut answers = Vec::new();
        for number in 0..64 {
            answers.push(ask(&engine, "token", &format!("t{number}")).await);
        }
        for number in 0..2_000 {
            let address = format!("198.51.{}.{}", number / 250, number % 250);
            ask(&engine, &address, &format!("a{number}")).await;
        }
        let mut kept = 0;
        for (number, answer) in answers.into_iter().enumerate() {
            kept += usize::from(ask(&engine, "token", &format!("t{number}")).await == answer);
        }
        assert!(kept > 32, "{kept} of 64");
    }
}
