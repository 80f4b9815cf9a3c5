//! Answers remembered by request id, so that a repeated call is answered and not charged again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tollgate_core::{Nanos, SECOND};
use tollgate_policy::prices::TokenKind;
use tollgate_policy::{Known, Unit};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::ActiveRules;
use crate::decision::{Decision, Scopes};
use crate::request::Request;
use crate::verdict::{Reason, Verdict};

/// How long an admission is remembered.
pub const REMEMBERED_FOR: Nanos = 60 * SECOND;

/// Shards of the memory, each behind its own lock.
const SHARDS: usize = 64;

/// The most answers one shard remembers; beyond, the oldest go.
const MAX_PER_SHARD: usize = 8_192;

/// An admission, kept with the rules that made it.
pub(crate) struct Remembered {
    rules: Arc<ActiveRules>,
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
    fn new(rules: Arc<ActiveRules>, content: u128, decision: &Decision<'_>, until: Nanos) -> Self {
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
            rules,
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

    /// The decision as it was made.
    pub(crate) fn decision(&self) -> Decision<'_> {
        let set = &self.rules.set;
        let mut scopes = Scopes::new();
        for kept in &self.scopes {
            let default = set.default_rule().filter(|rule| rule.id == kept.rule);
            let Some(rule) = set.rule(&kept.rule).or(default) else { continue };
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
        let mut decision = Decision::pending(self.rules.version);
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
    answers: HashMap<u128, Arc<Remembered>>,
    /// In the order in which they expire.
    order: VecDeque<(Nanos, u128)>,
    /// The ids that are being answered now.
    busy: HashMap<u128, Arc<AsyncMutex<()>>>,
    /// Answers were forgotten early, and the log says so.
    has_warned: bool,
}

/// The answers of the last minute.
pub(crate) struct Memory {
    shards: Box<[Mutex<Shard>]>,
    spare: Mutex<Shard>,
}

impl Default for Memory {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, spare: Mutex::default() }
    }
}

/// The place of one request id, held until its call is answered, so that of two calls at the same
/// time the second gets the first's answer. Calls with other ids do not wait for it.
pub(crate) struct Place<'a> {
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
        let mut place = Place { shard, id, turn: None };
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
        let known = shard.answers.get(&self.id).filter(|known| now < known.until)?;
        Some(if known.content == content(request) { Ok(Arc::clone(known)) } else { Err(()) })
    }

    pub(crate) fn remember(
        &self,
        request: &Request<'_>,
        rules: Arc<ActiveRules>,
        decision: &Decision<'_>,
        now: Nanos,
    ) {
        let until = now.saturating_add(REMEMBERED_FOR);
        let answer = Arc::new(Remembered::new(rules, content(request), decision, until));
        let mut shard = self.shard.lock();
        let shard = &mut *shard;
        while let Some((until, id)) = shard.order.front().copied() {
            if now < until && shard.order.len() < MAX_PER_SHARD {
                break;
            }
            shard.order.pop_front();
            if now < until && !shard.has_warned {
                shard.has_warned = true;
                tracing::warn!(
                    most = SHARDS * MAX_PER_SHARD,
                    "more request ids than are remembered came within a minute; the oldest are \
                     forgotten early, and a repeated call may be charged again"
                );
            }
            if shard.answers.get(&id).is_some_and(|answer| answer.until == until) {
                shard.answers.remove(&id);
            }
        }
        shard.answers.insert(self.id, answer);
        shard.order.push_back((until, self.id));
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
