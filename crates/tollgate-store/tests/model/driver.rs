//! Plays a history on a store and on the oracle, and compares after every step.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;
use tollgate_core::{
    Ask, Examination, Limit, MAX_OPEN_CHARGES, Nanos, Outcome, Receipt, Refundable, SECOND, SlotId,
};
use tollgate_store::{
    Applied, Change, Charge, Counter, Decided, Home, Mode, Outcomes, Request, Role, Store,
    StoreError,
};
use xxhash_rust::xxh3::xxh3_128;

use crate::history::{Asked, Decision, History, Lease, Meter, Op, Step};
use crate::oracle::{Account, ChargeId, Terms, Wanted};
use crate::records::Record;

/// Settlements are remembered for longer than any history lasts.
pub const REMEMBERED: Nanos = 1000 * 86_400 * SECOND;

/// How long it takes at most until a decision is undone whose caller has given up, and how often that is looked at.
const UNDONE_WITHIN: Duration = Duration::from_secs(5);
const UNDO_LOOK: Duration = Duration::from_millis(2);

/// A store on a clock that the history sets.
pub trait Ground {
    type Store: Store;

    fn store(&self) -> &Self::Store;

    /// What the clock shows where counters of this partition are.
    fn now(&self, partition: u8) -> Nanos;

    fn set_now(&self, now: Nanos) -> impl Future<Output = ()>;

    fn tidy(&self) {}

    /// Whether the store does nothing in the background.
    fn is_idle(&self) -> bool {
        true
    }
}

/// What the store did that the oracle did not, and after which operation.
pub struct Mismatch {
    pub step: usize,
    pub what: String,
}

pub type Verdict = Result<(), String>;

/// A charge that was made.
#[derive(Clone)]
pub struct Made {
    pub counter: usize,
    pub limit: Limit,
    pub receipt: Receipt,
    pub slot: u128,
    /// What of it was not given back.
    pub left: u64,
    /// Its counter was reset since: it gives back nothing.
    pub is_void: bool,
}

/// A settlement as it was sent.
pub struct Sent {
    pub id: u128,
    pub adjustments: Vec<(usize, Limit, Change, Receipt)>,
    /// What each of them reports as given back.
    pub refunded: Vec<u64>,
}

/// Both sides.
pub struct World<'a, G> {
    pub ground: &'a G,
    pub history: &'a History,
    pub names: Vec<String>,
    pub limits: Vec<Vec<Limit>>,
    pub accounts: Vec<Account>,
    /// Which terms each counter has.
    pub current: Vec<usize>,
    pub now: Nanos,
    pub made: HashMap<ChargeId, Made>,
    /// Chunks on lease, the oldest first.
    pub chunks: Vec<ChargeId>,
    pub sent: HashMap<u32, Sent>,
    pub records: HashMap<u32, Record>,
    pub retry_at: Option<Nanos>,
}

/// Plays a history under a name of its own, and says where the store and the oracle part.
pub async fn play<G: Ground>(ground: &G, history: &History, name: &str) -> Result<(), Mismatch> {
    let meters = &history.meters;
    let mut world = World {
        ground,
        history,
        names: (0..meters.len()).map(|number| format!("{name}-{number}")).collect(),
        limits: (meters.iter())
            .map(|meter| meter.terms.iter().map(|terms| meter.limit(*terms)).collect())
            .collect(),
        accounts: meters.iter().map(|meter| Account::new(meter.shape)).collect(),
        current: vec![0; meters.len()],
        now: history.start,
        made: HashMap::new(),
        chunks: Vec::new(),
        sent: HashMap::new(),
        records: HashMap::new(),
        retry_at: None,
    };
    ground.set_now(world.now).await;
    for (step, op) in history.ops.iter().enumerate() {
        let verdict = match world.step(op).await {
            Ok(()) => world.look(step as u64).await,
            wrong => wrong,
        };
        verdict.map_err(|what| Mismatch { step, what })?;
    }
    Ok(())
}

pub fn failed(error: StoreError) -> String {
    format!("the store failed: {error}")
}

pub fn partition_name(partition: u8) -> String {
    format!("p{partition}")
}

fn ask_of(asked: &Asked, refundable: Refundable) -> Ask {
    let Asked { cost, max_delay, slot, max_slot_ttl, .. } = *asked;
    Ask { max_delay, slot: SlotId(slot), max_slot_ttl, refundable, ..Ask::cost(cost) }
}

impl<G: Ground> World<'_, G> {
    pub fn meter(&self, counter: usize) -> &Meter {
        &self.history.meters[counter]
    }

    pub fn terms(&self, counter: usize) -> Terms {
        self.meter(counter).terms[self.current[counter]]
    }

    pub fn limit(&self, counter: usize) -> &Limit {
        &self.limits[counter][self.current[counter]]
    }

    /// What the clock shows where this counter is.
    pub fn now_at(&self, counter: usize) -> Nanos {
        self.ground.now(self.meter(counter).partition)
    }

    pub fn partitions(&self) -> Vec<String> {
        self.history.meters.iter().map(|meter| partition_name(meter.partition)).collect()
    }

    async fn step(&mut self, op: &Op) -> Verdict {
        match op {
            Op::Decide(decisions) => self.decide(decisions).await,
            Op::Lease(lease) => self.lease(lease).await,
            Op::GiveUp(decision, looks) => self.give_up(decision, *looks).await,
            Op::GiveBack(charges) => {
                let parts = charges.iter().map(|id| (*id, u64::MAX)).collect::<Vec<_>>();
                self.give_back(&parts).await
            }
            Op::GiveBackPart(id, cost) => self.give_back(&[(*id, *cost)]).await,
            Op::Settle { id, of, truths } => self.settle(*id, *of, truths).await,
            Op::SettleAgain(id) => self.send_settlement(*id, Applied::Before).await,
            Op::Renew(counter, slot) => self.renew(*counter, *slot).await,
            Op::Release(counter, slot) => self.release(*counter, *slot).await,
            Op::Slots(counter) => self.slots(*counter).await,
            Op::Reset(counter) => self.reset(*counter).await,
            Op::Change(counter, terms) => {
                self.current[*counter] = *terms;
                Ok(())
            }
            Op::Record(id, step) => self.record(*id, *step).await,
            Op::Advance(step) => {
                self.advance(*step).await;
                Ok(())
            }
            Op::Tidy => {
                self.ground.tidy();
                Ok(())
            }
        }
    }

    pub async fn advance(&mut self, step: Step) {
        let grain = self.history.grain;
        let goal = match step {
            Step::By(by) => self.now + by,
            Step::ToEdge(counter, less) => {
                let window = self.meter(counter).shape.window;
                (self.now / window + 1) * window - less * grain
            }
            Step::ToRetry(less) => {
                let retry_at = self.retry_at.unwrap_or(0).next_multiple_of(grain);
                retry_at.saturating_sub(less * grain)
            }
        };
        self.now = self.now.max(goal);
        self.ground.set_now(self.now).await;
    }

    /// Asks the store, in one call.
    async fn ask(&self, decisions: &[Decision]) -> Result<(Outcomes, Decided), String> {
        let partitions = self.partitions();
        let keys: Vec<[&str; 2]> = (partitions.iter().zip(&self.names))
            .map(|(partition, name)| [partition.as_str(), name.as_str()])
            .collect();
        let charge = |one: &Asked, refundable: Refundable| Charge {
            counter: counter(&keys[one.counter]),
            limit: self.limit(one.counter),
            ask: ask_of(one, refundable),
            role: one.role,
        };
        let charges: Vec<Vec<Charge<'_>>> = (decisions.iter())
            .map(|of| of.asked.iter().map(|one| charge(one, of.refundable)).collect())
            .collect();
        let requests: Vec<Request<'_>> = (decisions.iter().zip(&charges))
            .map(|(of, charges)| Request { charges, mode: of.mode })
            .collect();
        let mut outcomes = Outcomes::new();
        let decided = self.ground.store().decide(&requests, self.now, &mut outcomes).await;
        let decided = decided.map_err(failed)?;
        let expected: usize = charges.iter().map(Vec::len).sum();
        if outcomes.len() != expected || decided.failed.is_some() {
            return Err(format!("{} outcomes of {expected} charges", outcomes.len()));
        }
        Ok((outcomes, decided))
    }

    async fn decide(&mut self, decisions: &[Decision]) -> Verdict {
        let answer = self.ask(decisions).await?;
        self.check_decisions(decisions, &answer)
    }

    /// Takes chunks on lease. A bucket has places for so many of them; older ones are final, and reservations stay.
    async fn lease(&mut self, lease: &Lease) -> Verdict {
        for number in 0..lease.times {
            let Lease { counter, cost, mode, .. } = *lease;
            let (id, refundable) = (lease.chunk(number), Refundable::OnLease);
            let (slot, max_delay, max_slot_ttl) = (0, None, Nanos::MAX);
            let one = Asked { counter, cost, role: Role::Must, slot, max_delay, max_slot_ttl };
            self.decide(&[Decision { id, mode, asked: vec![one], refundable }]).await?;
            if self.made.contains_key(&(id, 0)) {
                self.chunks.push((id, 0));
            }
            self.advance(Step::By(self.history.grain)).await;
        }
        let made = &self.made;
        self.chunks.retain(|id| made.contains_key(id));
        let of_counter =
            |id: &ChargeId| made.get(id).is_some_and(|one| one.counter == lease.counter);
        let all: Vec<ChargeId> = self.chunks.iter().copied().filter(of_counter).collect();
        for id in all.iter().rev().skip(MAX_OPEN_CHARGES) {
            self.made.remove(id);
        }
        Ok(())
    }

    /// Asks the store, and stops waiting before it has answered, or not.
    async fn give_up(&mut self, decision: &Decision, looks: u32) -> Verdict {
        let decisions = std::slice::from_ref(decision);
        let answer = {
            let mut asking = pin!(self.ask(decisions));
            let mut answer = Poll::Pending;
            for _ in 0..=looks {
                answer = poll_fn(|context| Poll::Ready(asking.as_mut().poll(context))).await;
                if answer.is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            answer
        };
        if let Poll::Ready(answer) = answer {
            return self.check_decisions(decisions, &answer?);
        }
        // What it has charged, or charges when a later call has overtaken it, is refunded in the background.
        let deadline = Instant::now() + UNDONE_WITHIN;
        while !self.ground.is_idle() {
            if Instant::now() >= deadline {
                return Err("the store is still busy".to_owned());
            }
            tokio::time::sleep(UNDO_LOOK).await;
        }
        self.look(0).await
    }

    fn check_decisions(&mut self, decisions: &[Decision], answer: &(Outcomes, Decided)) -> Verdict {
        let (outcomes, decided) = answer;
        let mut first = 0;
        for decision in decisions {
            let end = first + decision.asked.len();
            let shown = Shown { outcomes: &outcomes[first..end], decided, first };
            self.check_decision(decision, &shown)?;
            first = end;
        }
        Ok(())
    }

    /// Compares one request's outcomes with the oracle's, and charges there what it charges.
    fn check_decision(&mut self, decision: &Decision, shown: &Shown<'_>) -> Verdict {
        let Decision { id, mode, asked, refundable } = decision;
        let judged = self.judge(asked, *mode);
        let charges = match mode {
            Mode::Charge | Mode::Hold => Self::passes(asked, &judged, *mode),
            Mode::Peek => false,
            Mode::Owe => true,
        };
        for (place, (one, outcome)) in asked.iter().zip(shown.outcomes).enumerate() {
            let (now, at) = (self.now_at(one.counter), shown.decided.of(shown.first + place));
            let of = format!("#{id}.{place} ({one})");
            if at != now {
                return Err(format!("{of} was decided at {at}, not at {now}"));
            }
            self.check_examination(one, judged[place], &outcome.examination, now)
                .map_err(|what| format!("{of}: {what}"))?;
            if let Examination::Refuse { retry_at: Some(at) } = outcome.examination {
                self.retry_at = Some(at);
            }
        }
        for (place, (one, outcome)) in asked.iter().zip(shown.outcomes).enumerate() {
            let is_charged = charges && (*mode == Mode::Owe || judged[place].wait.is_some());
            if is_charged {
                self.charge((*id, place), one, outcome, *refundable != Refundable::No);
            }
            let of = format!("#{id}.{place} ({one})");
            if is_charged != (outcome.receipt != Receipt::Nothing) {
                return Err(format!("{of} has the receipt {:?}", outcome.receipt));
            }
            self.check_status(one.counter, outcome).map_err(|what| format!("{of}: {what}"))?;
        }
        Ok(())
    }

    fn charge(&mut self, id: ChargeId, one: &Asked, outcome: &Outcome, is_refundable: bool) {
        let Asked { counter, cost, max_delay, slot, max_slot_ttl, .. } = *one;
        let (now, terms) = (self.now_at(counter), self.terms(counter));
        let ttl = self.meter(counter).shape.window.min(max_slot_ttl);
        let wanted = Wanted { cost, max_delay, slot };
        self.accounts[counter].charge(id, terms, wanted, ttl, now);
        if is_refundable {
            let (limit, receipt) = (self.limit(counter).clone(), outcome.receipt);
            let (left, is_void) = (cost, false);
            self.made.insert(id, Made { counter, limit, receipt, slot, left, is_void });
        }
    }

    /// What the oracle says of every charge of a request: those to the same counter must fit together.
    fn judge(&self, asked: &[Asked], mode: Mode) -> Vec<Judged> {
        let mut judged: Vec<Judged> = Vec::new();
        for one in asked {
            let goes_with = |(other, judged): &(&Asked, &Judged)| {
                let goes = mode == Mode::Owe || other.role == Role::Must || judged.wait.is_some();
                other.counter == one.counter && goes
            };
            let before: u64 =
                asked.iter().zip(&judged).filter(goes_with).map(|(other, _)| other.cost).sum();
            let Asked { counter, cost, max_delay, slot, .. } = *one;
            let wanted = Wanted { cost: cost + before, max_delay, slot };
            let terms = self.terms(counter);
            let account = &self.accounts[counter];
            let can = account.ever_admits(terms, wanted);
            let admitted = account.admits(terms, wanted, self.now_at(counter));
            judged.push(Judged { wanted, can, wait: admitted.filter(|_| can) });
        }
        judged
    }

    fn passes(asked: &[Asked], judged: &[Judged], mode: Mode) -> bool {
        let of = |role: Role| {
            let of_role = asked.iter().zip(judged).filter(move |(one, _)| one.role == role);
            of_role.map(|(_, judged)| judged.wait.is_some())
        };
        let group_has_room = of(Role::AnyOf).count() == 0 || of(Role::AnyOf).any(|fits| fits);
        of(Role::Must).all(|fits| fits) && (mode == Mode::Hold || group_has_room)
    }

    fn check_examination(
        &self,
        one: &Asked,
        judged: Judged,
        examination: &Examination,
        now: Nanos,
    ) -> Verdict {
        let (account, terms) = (&self.accounts[one.counter], self.terms(one.counter));
        match (judged.wait, examination) {
            (Some(wait), Examination::Admit { wait: shown }) if wait == *shown => Ok(()),
            (None, Examination::Refuse { retry_at: None }) if !judged.can => Ok(()),
            (None, Examination::Refuse { retry_at: Some(at) }) if judged.can => {
                let admits = |at| account.admits(terms, judged.wanted, at).is_some();
                if *at > now && admits(*at) && !admits(*at - 1) {
                    return Ok(());
                }
                Err(format!(
                    "retry at {at} (now {now}): the oracle {} there and {} just before",
                    if admits(*at) { "admits" } else { "refuses" },
                    if admits(*at - 1) { "admits" } else { "refuses" },
                ))
            }
            (Some(wait), shown) => Err(format!("{shown:?}, the oracle admits after {wait} ns")),
            (None, shown) if judged.can => Err(format!("{shown:?}, the oracle refuses")),
            (None, shown) => Err(format!("{shown:?}, the oracle never admits it")),
        }
    }

    fn check_status(&self, counter: usize, outcome: &Outcome) -> Verdict {
        let now = self.now_at(counter);
        let expected = self.accounts[counter].status(self.terms(counter), now);
        if outcome.status == expected {
            return Ok(());
        }
        Err(format!("c{counter} has {:?}, the oracle {expected:?} (now {now})", outcome.status))
    }

    /// Looks at every counter without charging it.
    async fn look(&mut self, step: u64) -> Verdict {
        let all: Vec<Asked> = (0..self.history.meters.len())
            .map(|counter| {
                let capacity = self.limit(counter).capacity();
                Asked {
                    counter,
                    cost: [1, 1, capacity][step as usize % 3],
                    role: Role::Watch,
                    slot: u128::MAX,
                    max_delay: None,
                    max_slot_ttl: Nanos::MAX,
                }
            })
            .collect();
        let look = Decision { id: 0, mode: Mode::Peek, asked: all, refundable: Refundable::No };
        let (outcomes, _) = self.ask(std::slice::from_ref(&look)).await?;
        let judged = self.judge(&look.asked, Mode::Peek);
        for ((one, outcome), judged) in look.asked.iter().zip(&outcomes).zip(judged) {
            let now = self.now_at(one.counter);
            let of = format!("looking for {one}");
            self.check_status(one.counter, outcome).map_err(|what| format!("{of}: {what}"))?;
            self.check_examination(one, judged, &outcome.examination, now)
                .map_err(|what| format!("{of}: {what}"))?;
        }
        Ok(())
    }
}

/// What the store said of one request.
struct Shown<'a> {
    outcomes: &'a [Outcome],
    decided: &'a Decided,
    /// The place of its first charge among those of the call.
    first: usize,
}

/// What the oracle says of one charge.
#[derive(Debug, Clone, Copy)]
struct Judged {
    wanted: Wanted,
    /// Whether it can pass at any time.
    can: bool,
    /// After which wait it passes now.
    wait: Option<Nanos>,
}

pub fn same<T: PartialEq + std::fmt::Debug + ?Sized>(
    what: &str,
    shown: &T,
    expected: &T,
) -> Verdict {
    if shown == expected {
        return Ok(());
    }
    Err(format!("{what}: {shown:?}, the oracle {expected:?}"))
}

/// A counter by its key: the partition, and its name.
pub fn counter<'a>(key: &'a [&'a str; 2]) -> Counter<'a> {
    let home = Home { partition: Some(0), ..Home::default() };
    Counter { rule_id: "rule", tag: "tag", salt: xxh3_128(b"rule"), key, home }
}
