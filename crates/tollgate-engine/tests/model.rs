//! The engine against the model: reservations, settlements, releases, renewals and rule changes in random
//! order, compared after each step with a plain list of the charges that are alive.
//!
//! The oracle and the minimizer are those of the stores' model (`tollgate-store/tests/model`).
//! `TOLLGATE_MODEL_HISTORIES` and `TOLLGATE_MODEL_SEED` work as there.

#![allow(
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a panic is how a test fails, in its helpers too"
)]

#[path = "../../tollgate-store/tests/model/draw.rs"]
mod draw;
#[path = "../../tollgate-store/tests/model/minimize.rs"]
mod minimize;
#[path = "../../tollgate-store/tests/model/oracle.rs"]
mod oracle;

use std::collections::HashMap;
use std::fmt;
use std::fmt::Write as _;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use draw::Draw;
use minimize::minimize;
use oracle::{Account, Shape, Terms, Wanted};
use tollgate_core::{Algorithm, Nanos, SECOND, Status};
use tollgate_engine::{
    Actual, Amounts, ENDED_RETENTION, Ending, Engine, EngineError, ManualClock, Renewed, Request,
    Settled,
};
use tollgate_policy::prices::{Currency, Money, format_nanos};
use tollgate_policy::{Known, RuleSet};
use tollgate_store::{MemoryStore, Mode};

const HISTORIES: u64 = 3_000;
const SHRINK_TRIES: u32 = 4_000;
const MAX_RULES: u64 = 6;
const MAX_OPERATIONS: u64 = 40;
/// Charges that follow a reset so closely may count as made before it.
const RESET_MARGIN: Nanos = SECOND / 1_000;
const USERS: [&str; 2] = ["ann", "ben"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Requests,
    Tokens,
    Cost,
    Slots,
    /// As many nanos as tokens.
    Money,
}

#[derive(Debug, Clone)]
struct ModelRule {
    unit: Unit,
    shape: Shape,
    /// What a rule change chooses from; the first at the start.
    terms: Vec<Terms>,
}

impl ModelRule {
    fn yaml(&self, number: usize, terms: Terms) -> String {
        let Shape { algorithm, window, .. } = self.shape;
        let seconds = window / SECOND;
        let figure = |figure: u64| match self.unit {
            Unit::Money => format!("\"{}\"", format_nanos(figure)),
            _ => figure.to_string(),
        };
        let quota = figure(terms.quota);
        let head = format!(
            "rule_id: r{number}, scope: s{number}, identifier_type: user_id, limit: {quota}"
        );
        let unit = match self.unit {
            Unit::Requests => "requests",
            Unit::Tokens => "tokens",
            Unit::Cost => "cost",
            Unit::Money => "money, currency: USD",
            Unit::Slots => {
                return format!("  - {{{head}, unit: concurrency, slot_ttl: {seconds}s}}\n");
            }
        };
        let burst = if algorithm.is_bucket() {
            format!(", burst: {}", figure(terms.burst))
        } else {
            String::new()
        };
        format!("  - {{{head}, unit: {unit}, algorithm: {algorithm}, window: {seconds}s{burst}}}\n")
    }
}

/// What a request asks for.
#[derive(Debug, Clone, Copy)]
struct Asks {
    user: usize,
    tokens: u64,
    cost: u64,
}

#[derive(Debug, Clone)]
enum Op {
    Allow {
        id: u32,
        asks: Asks,
    },
    Reserve {
        id: u32,
        asks: Asks,
        ttl: Nanos,
    },
    Settle {
        of: u32,
        tokens: Option<u64>,
        cost: Option<u64>,
    },
    Release {
        of: u32,
    },
    Renew {
        of: u32,
        ttl: Option<Nanos>,
    },
    Change {
        rule: usize,
        terms: usize,
    },
    /// Resets a counter, also one that open reservations have charged.
    Reset {
        rule: usize,
        user: usize,
    },
    Advance(Nanos),
}

#[derive(Debug, Clone)]
struct History {
    seed: u64,
    rules: Vec<ModelRule>,
    ops: Vec<Op>,
}

fn model_rule(draw: &mut Draw) -> ModelRule {
    let unit = draw.pick(&[
        Unit::Requests,
        Unit::Tokens,
        Unit::Tokens,
        Unit::Tokens,
        Unit::Cost,
        Unit::Slots,
        Unit::Money,
        Unit::Money,
    ]);
    let algorithm = match unit {
        Unit::Slots => Algorithm::Concurrency,
        // Money has no log.
        Unit::Money => {
            let all =
                [Algorithm::FixedWindow, Algorithm::SlidingWindowCounter, Algorithm::TokenBucket];
            draw.pick(&all)
        }
        _ => draw.pick(&Algorithm::ALL[..6]),
    };
    let window = draw.pick(&[1, 10, 60, 3600, 86_400]) * SECOND;
    // Paces of whole nanoseconds, because limits change.
    let quotas: Vec<u64> = (0..3).map(|_| draw.pick(&[1, 2, 4, 5, 8, 10, 20, 50, 100])).collect();
    let terms = quotas.iter().map(|quota| {
        let burst = match algorithm {
            Algorithm::Gcra => 1 + draw.below(*quota),
            _ => *quota,
        };
        Terms { quota: *quota, burst }
    });
    ModelRule { unit, terms: terms.collect(), shape: Shape { algorithm, window, scale: 200 } }
}

impl History {
    fn new(seed: u64) -> Self {
        let mut draw = Draw::new(seed);
        let rules: Vec<_> = (0..=draw.below(MAX_RULES)).map(|_| model_rule(&mut draw)).collect();
        let length = 2 + draw.below(MAX_OPERATIONS);
        let mut ops = Vec::new();
        for id in 0..length as u32 {
            ops.push(op(&mut draw, &rules, id));
        }
        Self { seed, rules, ops }
    }
}

fn op(draw: &mut Draw, rules: &[ModelRule], id: u32) -> Op {
    // Mostly something recent.
    let of = id.saturating_sub(1 + draw.below(8) as u32);
    let asks = Asks {
        user: usize::from(draw.one_in(6)),
        tokens: draw.pick(&[0, 1, 1, 2, 3, 5, 8, 20]),
        cost: draw.pick(&[0, 1, 1, 2, 4]),
    };
    let ttl = draw.pick(&[5, 60, 60, 600]) * SECOND;
    match draw.below(21) {
        20 => Op::Reset { rule: draw.below(rules.len() as u64) as usize, user: asks.user },
        0..=2 => Op::Allow { id, asks },
        3..=7 => Op::Reserve { id, asks, ttl },
        8..=10 => {
            let tokens = (!draw.one_in(5)).then(|| draw.pick(&[0, 1, 2, 3, 4, 9, 30]));
            let cost = draw.one_in(2).then(|| draw.below(6));
            Op::Settle { of, tokens, cost }
        }
        11..=13 => Op::Release { of },
        14 => Op::Renew { of, ttl: draw.one_in(2).then_some(ttl) },
        15 => Op::Change {
            rule: draw.below(rules.len() as u64) as usize,
            terms: draw.below(3) as usize,
        },
        _ => {
            let window = rules[draw.below(rules.len() as u64) as usize].shape.window;
            Op::Advance(match draw.below(6) {
                0 => window,
                1 => draw.below(window),
                2 => draw.below(ENDED_RETENTION),
                _ => draw.below(window / 10),
            })
        }
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}:", self.seed)?;
        for (number, rule) in self.rules.iter().enumerate() {
            let others: Vec<u64> = rule.terms.iter().map(|terms| terms.quota).collect();
            let yaml = rule.yaml(number, rule.terms[0]);
            writeln!(f, "{} # changes to one of {others:?}", yaml.trim_end())?;
        }
        for (number, op) in self.ops.iter().enumerate() {
            writeln!(f, "  {:3}. {op:?}", number + 1)?;
        }
        Ok(())
    }
}

/// What an admitted request holds.
#[derive(Debug, Clone)]
struct Held {
    id: u128,
    user: usize,
    /// Rule, what was charged to it, and under which terms.
    charges: Vec<(usize, u64, Terms)>,
    /// It was reserved, not allowed.
    is_reserved: bool,
    /// Nothing but slots is held.
    is_slots: bool,
    ttl: Nanos,
    expires_at: Nanos,
    ended: Option<(Ending, Settled)>,
}

/// The sums that the engine counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sums {
    reserved: u64,
    settled: u64,
    released: u64,
    reserved_tokens: u64,
    reserved_cost: u64,
    changed: [u64; 4],
}

struct World<'a> {
    history: &'a History,
    engine: Engine<MemoryStore>,
    clock: Arc<ManualClock>,
    current: Vec<usize>,
    accounts: HashMap<(usize, usize), Account>,
    held: HashMap<u32, Held>,
    sums: Sums,
}

type Verdict = Result<(), String>;

/// Futures of the memory store are ready at once.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the memory store does not wait"),
    }
}

fn rules(history: &History, current: &[usize]) -> RuleSet {
    let mut yaml = "default: false\nrules:\n".to_owned();
    for (number, (rule, terms)) in history.rules.iter().zip(current).enumerate() {
        yaml.push_str(&rule.yaml(number, rule.terms[*terms]));
    }
    RuleSet::from_yaml(&yaml, "model").unwrap()
}

impl<'a> World<'a> {
    fn new(history: &'a History) -> Self {
        let start = 1_789_000_000 * SECOND + Draw::new(history.seed).below(86_400 * SECOND);
        let clock = Arc::new(ManualClock::new(start));
        let current = vec![0; history.rules.len()];
        let rules = rules(history, &current);
        let engine = Engine::new(MemoryStore::new(1_000), Arc::<ManualClock>::clone(&clock), rules);
        let (accounts, held) = (HashMap::new(), HashMap::new());
        Self { history, engine, clock, current, accounts, held, sums: Sums::default() }
    }

    fn now(&self) -> Nanos {
        self.engine.clock().now()
    }

    fn terms(&self, rule: usize) -> Terms {
        self.history.rules[rule].terms[self.current[rule]]
    }

    fn account(&mut self, rule: usize, user: usize) -> &mut Account {
        let shape = self.history.rules[rule].shape;
        self.accounts.entry((rule, user)).or_insert_with(|| Account::new(shape))
    }

    fn step(&mut self, op: &Op) -> Verdict {
        match *op {
            Op::Allow { id, asks } => self.decide(id, asks, None),
            Op::Reserve { id, asks, ttl } => self.decide(id, asks, Some(ttl)),
            Op::Settle { of, tokens, cost } => {
                let amounts = Amounts { tokens, cost, money: tokens.map(dollars), ..Amounts::NONE };
                self.settle(of, amounts)
            }
            Op::Release { of } => self.release(of),
            Op::Renew { of, ttl } => self.renew(of, ttl),
            Op::Change { rule, terms } => {
                self.current[rule] = terms;
                self.engine.swap_rules(rules(self.history, &self.current));
                Ok(())
            }
            Op::Reset { rule, user } => self.reset(rule, user),
            Op::Advance(by) => {
                self.clock.advance(by);
                Ok(())
            }
        }
    }

    /// What was charged before is gone from the oracle's list: it is still settled and released, to no effect.
    fn reset(&mut self, rule: usize, user: usize) -> Verdict {
        let in_force = self.engine.rules();
        let request = request(Asks { user, tokens: 1, cost: 1 });
        let name = format!("r{rule}");
        let shown = ready(self.engine.reset(&in_force, &request, |rule| rule.id == name));
        drop(request);
        drop(in_force);
        self.account(rule, user).reset();
        self.clock.advance(RESET_MARGIN);
        same("reset", &shown, &Ok(vec![name]))
    }

    fn cost_of(&self, rule: usize, asks: Asks) -> u64 {
        match self.history.rules[rule].unit {
            Unit::Requests | Unit::Cost => asks.cost,
            Unit::Tokens | Unit::Money => asks.tokens,
            Unit::Slots => 1,
        }
    }

    fn decide(&mut self, id: u32, asks: Asks, reserve: Option<Nanos>) -> Verdict {
        let now = self.now();
        let in_force = self.engine.rules();
        let request = Request { reserve, ..request(asks) };
        let shown = ready(self.engine.decide_once(&in_force, &request, |decision| {
            let status =
                |scope: &tollgate_engine::Scope<'_>| (scope.rule.id.clone(), scope.outcome.status);
            let figures: HashMap<String, Status> = decision.scopes().map(status).collect();
            (decision.is_allowed(), decision.reservation_id(), decision.reservation, figures)
        }));
        drop(request);
        drop(in_force);
        let (is_allowed, name, reservation, figures) = shown.map_err(|error| error.to_string())?;
        let all: Vec<usize> = (0..self.history.rules.len()).collect();
        let slot = name.unwrap_or(u128::MAX);
        let fits = all.iter().all(|rule| {
            let (terms, cost) = (self.terms(*rule), self.cost_of(*rule, asks));
            let wanted = Wanted { cost, max_delay: None, slot };
            let account = self.account(*rule, asks.user);
            account.ever_admits(terms, wanted) && account.admits(terms, wanted, now).is_some()
        });
        if fits != is_allowed {
            return Err(format!("allowed: {is_allowed}, the oracle {fits}"));
        }
        if is_allowed {
            self.note(id, asks, reserve, slot);
        }
        if reservation.is_some() != (is_allowed && reserve.is_some()) {
            return Err(format!("the reservation is {reservation:?}"));
        }
        if let Some(held) = self.held.get(&id)
            && let Some(reservation) = reservation
            && (reservation.id, reservation.expires_at) != (held.id, held.expires_at)
        {
            return Err(format!("{reservation:?} instead of {held:?}"));
        }
        self.compare(asks.user, &figures)
    }

    /// Notes what an admitted request charged and holds.
    fn note(&mut self, id: u32, asks: Asks, reserve: Option<Nanos>, name: u128) {
        let now = self.now();
        let mut charges = Vec::new();
        let mut slot_ttl = 0;
        for rule in 0..self.history.rules.len() {
            let (terms, cost) = (self.terms(rule), self.cost_of(rule, asks));
            let wanted = Wanted { cost, max_delay: None, slot: name };
            let ttl = self.history.rules[rule].shape.window.min(reserve.unwrap_or(Nanos::MAX));
            self.account(rule, asks.user).charge((id, rule), terms, wanted, ttl, now);
            if self.history.rules[rule].unit == Unit::Slots {
                slot_ttl = slot_ttl.max(self.history.rules[rule].shape.window);
            }
            charges.push((rule, cost, terms));
        }
        let ttl = reserve.unwrap_or(slot_ttl);
        if reserve.is_none() {
            charges.retain(|(rule, ..)| self.history.rules[*rule].unit == Unit::Slots);
        } else {
            self.sums.reserved += 1;
            self.sums.reserved_tokens += self.most(&charges, Unit::Tokens).unwrap_or(0);
            self.sums.reserved_cost += self.most(&charges, Unit::Cost).unwrap_or(0);
        }
        if charges.is_empty() {
            return;
        }
        let (user, is_reserved) = (asks.user, reserve.is_some());
        let is_slot =
            |(rule, ..): &(usize, u64, Terms)| self.history.rules[*rule].unit == Unit::Slots;
        let is_slots = charges.iter().all(is_slot);
        let (id_held, expires_at, ended) = (name, now + ttl, None);
        let held =
            Held { id: id_held, user, charges, is_reserved, is_slots, ttl, expires_at, ended };
        self.held.insert(id, held);
    }

    /// The most that any rule of a unit was charged.
    fn most(&self, charges: &[(usize, u64, Terms)], unit: Unit) -> Option<u64> {
        let of_unit = charges.iter().filter(|(rule, ..)| self.history.rules[*rule].unit == unit);
        of_unit.map(|(_, cost, _)| *cost).max()
    }

    /// What an ending comes to, in the engine's words.
    fn expected(&self, held: &Held, actual: Amounts, refunds: Refunds) -> Settled {
        let extra = |unit, truth: Option<u64>| match (self.most(&held.charges, unit), truth) {
            (Some(charged), Some(truth)) => truth.saturating_sub(charged),
            _ => 0,
        };
        Settled {
            refunded: amounts(refunds.tokens, refunds.cost, refunds.money),
            extra: amounts(
                extra(Unit::Tokens, actual.tokens),
                extra(Unit::Cost, actual.cost),
                extra(Unit::Money, actual.tokens),
            ),
        }
    }

    /// What is held under the name, or what the engine must say instead.
    fn find(&self, of: u32, ending: Ending) -> Option<Result<Held, Result<Settled, EngineError>>> {
        let held = self.held.get(&of)?.clone();
        if self.now() >= held.expires_at {
            return Some(Err(Err(EngineError::ReservationUnknown)));
        }
        Some(match held.ended {
            None => Ok(held),
            Some((ended, settled)) if ended == ending => Err(Ok(settled)),
            Some((ended, _)) => Err(Err(EngineError::ReservationEnded(ended))),
        })
    }

    fn settle(&mut self, of: u32, actual: Amounts) -> Verdict {
        let Some(found) = self.find(of, Ending::Settled) else { return Ok(()) };
        let id = self.held[&of].id;
        let shown = ready(self.engine.settle_reservation(id, Actual::from(actual)));
        let says_something = actual.tokens.is_some() || actual.cost.is_some();
        let held = match found {
            Ok(held) => held,
            Err(expected) => return same("settled", &shown, &expected),
        };
        if !held.is_reserved && says_something {
            return same("settled", &shown, &Err(EngineError::OnlySlots));
        }
        let (now, mut refunds) = (self.now(), Refunds::default());
        for (rule, cost, terms) in held.charges.iter().copied() {
            let truth = match self.history.rules[rule].unit {
                Unit::Tokens | Unit::Money => actual.tokens,
                Unit::Cost => actual.cost,
                Unit::Requests => None,
                Unit::Slots => {
                    self.account(rule, held.user).release(held.id, now);
                    None
                }
            };
            let Some(truth) = truth else { continue };
            // A bucket is charged more by the limit that is in force now.
            let is_bucket = self.history.rules[rule].shape.algorithm.is_bucket();
            let now_terms = self.terms(rule);
            let terms = if is_bucket && now_terms.quota > 0 { now_terms } else { terms };
            let account = self.account(rule, held.user);
            if truth < cost {
                let freed = account.refund((of, rule), cost - truth, now);
                refunds.add(self.history.rules[rule].unit, freed);
            } else {
                let wanted = Wanted { cost: truth - cost, max_delay: None, slot: 0 };
                account.charge((u32::MAX - of, rule), terms, wanted, 0, now);
            }
        }
        let expected = self.expected(&held, actual, refunds);
        self.end(of, Ending::Settled, expected);
        same("settled", &shown, &Ok(expected))
    }

    fn release(&mut self, of: u32) -> Verdict {
        let Some(found) = self.find(of, Ending::Released) else { return Ok(()) };
        let shown = ready(self.engine.release_reservation(self.held[&of].id));
        let held = match found {
            Ok(held) => held,
            Err(expected) => return same("released", &shown, &expected),
        };
        let (now, mut refunds) = (self.now(), Refunds::default());
        for (rule, cost, _) in held.charges.iter().copied() {
            let unit = self.history.rules[rule].unit;
            let account = self.account(rule, held.user);
            if unit == Unit::Slots {
                account.release(held.id, now);
            } else {
                refunds.add(unit, account.refund((of, rule), cost, now));
            }
        }
        let expected = self.expected(&held, Amounts::NONE, refunds);
        self.end(of, Ending::Released, expected);
        same("released", &shown, &Ok(expected))
    }

    fn end(&mut self, of: u32, ending: Ending, settled: Settled) {
        let now = self.now();
        if let Some(held) = self.held.get_mut(&of) {
            held.ended = Some((ending, settled));
            held.expires_at = now + ENDED_RETENTION;
        }
        match ending {
            Ending::Settled => self.sums.settled += 1,
            Ending::Released => self.sums.released += 1,
        }
        for (sum, figure) in self.sums.changed.iter_mut().zip(figures(&settled)) {
            *sum += figure;
        }
    }

    fn renew(&mut self, of: u32, ttl: Option<Nanos>) -> Verdict {
        let Some(held) = self.held.get(&of).cloned() else { return Ok(()) };
        let now = self.now();
        let shown = ready(self.engine.renew_reservation(held.id, ttl));
        if now >= held.expires_at {
            return same("renewed", &shown, &Err(EngineError::ReservationUnknown));
        }
        if let Some((ending, _)) = held.ended {
            return same("renewed", &shown, &Err(EngineError::ReservationEnded(ending)));
        }
        let expires_at = held.expires_at.max(now + ttl.unwrap_or(held.ttl));
        let (mut is_held, mut slots_end) = (true, Nanos::MAX);
        for (rule, ..) in held.charges.iter().copied() {
            let ModelRule { unit, shape, .. } = &self.history.rules[rule];
            if *unit == Unit::Slots {
                slots_end = slots_end.min(now + shape.window);
                let most =
                    if held.is_slots && ttl.is_none() { shape.window } else { expires_at - now };
                // Slots are held for whole microseconds.
                let most = shape.window.min(most.div_ceil(1_000) * 1_000);
                is_held &= self.account(rule, held.user).renew(held.id, most, now);
            }
        }
        if let Some(held) = self.held.get_mut(&of) {
            held.expires_at = expires_at;
        }
        let expires_at = if held.is_slots { slots_end.min(expires_at) } else { expires_at };
        same("renewed", &shown, &Ok(Renewed { is_held, expires_at }))
    }

    /// Looks at all rules for both users, and at the sums.
    fn look(&mut self) -> Verdict {
        for user in 0..USERS.len() {
            let in_force = self.engine.rules();
            let request = request(Asks { user, tokens: 0, cost: 0 });
            let decision = ready(self.engine.decide(&in_force, &request, Mode::Peek)).unwrap();
            let status =
                |scope: &tollgate_engine::Scope<'_>| (scope.rule.id.clone(), scope.outcome.status);
            let figures = decision.scopes().map(status).collect();
            drop(decision);
            drop(request);
            drop(in_force);
            self.compare(user, &figures)?;
        }
        let counts = self.engine.reservations().counts();
        let shown = Sums {
            reserved: counts.reserved,
            settled: counts.settled,
            released: counts.released,
            reserved_tokens: counts.reserved_tokens,
            reserved_cost: counts.reserved_cost,
            changed: [
                counts.refunded_tokens,
                counts.extra_tokens,
                counts.refunded_cost,
                counts.extra_cost,
            ],
        };
        same("sums", &shown, &self.sums)
    }

    fn compare(&mut self, user: usize, figures: &HashMap<String, Status>) -> Verdict {
        let now = self.now();
        for rule in 0..self.history.rules.len() {
            let terms = self.terms(rule);
            let expected = self.account(rule, user).status(terms, now);
            let shown = figures.get(&format!("r{rule}"));
            if shown != Some(&expected) {
                let user = USERS[user];
                return Err(format!(
                    "r{rule} of {user} has {shown:?}, the oracle {expected:?} (now {now})"
                ));
            }
        }
        Ok(())
    }
}

fn request<'a>(asks: Asks) -> Request<'a> {
    let Asks { user, tokens, cost } = asks;
    let money = Some(dollars(tokens));
    let amounts = Amounts { cost: Some(cost), tokens: Some(tokens), money, ..Amounts::NONE };
    let mut request = Request { amounts, ..Request::default() };
    request.attributes.set(Known::UserId, USERS[user]);
    request
}

const fn dollars(nanos: u64) -> Money {
    Money { currency: Currency::USD, nanos }
}

/// What a settlement names; an amount of 0 is absent.
fn amounts(tokens: u64, cost: u64, money: u64) -> Amounts {
    let some = |amount| Some(amount).filter(|amount| *amount > 0);
    Amounts {
        tokens: some(tokens),
        cost: some(cost),
        money: some(money).map(dollars),
        ..Amounts::NONE
    }
}

/// What the engine counts of a settlement.
fn figures(settled: &Settled) -> [u64; 4] {
    let Settled { refunded, extra } = settled;
    [refunded.tokens, extra.tokens, refunded.cost, extra.cost].map(Option::unwrap_or_default)
}

fn same<T: PartialEq + fmt::Debug>(what: &str, shown: &T, expected: &T) -> Verdict {
    if shown == expected {
        return Ok(());
    }
    Err(format!("{what}: {shown:?}, the oracle {expected:?}"))
}

fn play(history: &History) -> Result<(), (usize, String)> {
    let mut world = World::new(history);
    for (step, op) in history.ops.iter().enumerate() {
        let verdict = world.step(op).and_then(|()| world.look());
        verdict.map_err(|what| (step + 1, what))?;
    }
    Ok(())
}

fn simpler(op: &Op) -> Vec<Op> {
    let fewer = |asks: Asks| {
        let less = asks.tokens.saturating_sub(1);
        let fewer = [(0, asks.cost), (less, asks.cost), (asks.tokens, asks.cost.min(1))];
        let fewer = fewer.into_iter().filter(move |fewer| *fewer != (asks.tokens, asks.cost));
        fewer.map(move |(tokens, cost)| Asks { tokens, cost, ..asks })
    };
    match *op {
        Op::Allow { id, asks } => fewer(asks).map(|asks| Op::Allow { id, asks }).collect(),
        Op::Reserve { id, asks, ttl } => {
            fewer(asks).map(|asks| Op::Reserve { id, asks, ttl }).collect()
        }
        Op::Advance(by) => [SECOND, 1_000_000, 1_000]
            .into_iter()
            .map(|grain| by / grain * grain)
            .filter(|less| *less < by)
            .map(Op::Advance)
            .collect(),
        _ => Vec::new(),
    }
}

/// What counters gave back: the most of any rule of a unit.
#[derive(Debug, Clone, Copy, Default)]
struct Refunds {
    tokens: u64,
    cost: u64,
    money: u64,
}

impl Refunds {
    fn add(&mut self, unit: Unit, freed: u64) {
        match unit {
            Unit::Tokens => self.tokens = self.tokens.max(freed),
            Unit::Cost => self.cost = self.cost.max(freed),
            Unit::Money => self.money = self.money.max(freed),
            Unit::Requests | Unit::Slots => {}
        }
    }
}

#[test]
fn engine() {
    let set = |name: &str| std::env::var(name).ok().map(|value| value.parse().expect("a number"));
    let first: u64 = set("TOLLGATE_MODEL_SEED").unwrap_or(0);
    for seed in first..first + set("TOLLGATE_MODEL_HISTORIES").unwrap_or(HISTORIES) {
        let history = History::new(seed);
        if play(&history).is_ok() {
            continue;
        }
        let with = |ops: Vec<Op>| History { ops, ..history.clone() };
        let fails = |ops: &[Op]| play(&with(ops.to_vec())).is_err();
        let small = with(minimize(history.ops.clone(), SHRINK_TRIES, simpler, fails));
        let mut report = format!("the engine and the oracle differ.\n{small}");
        if let Err((step, what)) = play(&small) {
            let _ = write!(report, "after step {step}: {what}");
        }
        panic!("{report}");
    }
}
