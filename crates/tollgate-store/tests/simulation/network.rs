//! The network between nodes and the store, and a node's connection to it.
//!
//! A message takes a random time, may be lost, and may arrive twice; a link that is cut loses all of
//! them. The connection does what the one to Redis does: a deadline for every attempt, one repetition
//! under the same id, and a circuit breaker (the real one).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tollgate_core::{MICRO, Nanos, SECOND};
use tollgate_store::Failure;
use tollgate_store::redis::{Breaker, Estimate};

use crate::draw::Draw;
use crate::owned::Op;
use crate::plan::{Fault, FaultKind, Plan, Profile};
use crate::server::{Reply, Server};
use crate::time::{MILLISECOND, START, Time};

/// What a call may take beyond its two attempts.
const MARGIN: Nanos = 10 * MILLISECOND;

/// The store, the links to it, and what goes wrong on them.
pub struct Network {
    pub time: Arc<Time>,
    pub server: Mutex<Server>,
    profile: Profile,
    faults: Vec<Fault>,
    /// From then on nothing is lost and nothing is slow.
    calm_at: Nanos,
    links: Vec<Mutex<LinkState>>,
}

/// What a node knows of its connection.
struct LinkState {
    draw: Draw,
    breaker: Breaker,
    clock: Option<Estimate>,
    calls: u64,
}

/// A call that was not answered.
struct GivenUp {
    id: u64,
    failure: Failure,
    /// It was sent, so that the store may have executed it.
    may_have_run: bool,
}

/// How an attempt ended.
type Ending = oneshot::Sender<Result<(Reply, Nanos), Failure>>;

impl Network {
    pub fn new(time: &Arc<Time>, plan: &Plan) -> Arc<Self> {
        let link = |node: u64| {
            Mutex::new(LinkState {
                draw: Draw::new(plan.seed, 1_000 + node),
                breaker: Breaker::default(),
                clock: None,
                calls: 0,
            })
        };
        Arc::new(Self {
            time: Arc::clone(time),
            server: Mutex::new(Server::new()),
            profile: plan.profile,
            faults: plan.faults.clone(),
            calm_at: plan.calm_at,
            links: (0..plan.nodes as u64).map(link).collect(),
        })
    }

    /// Whether something is wrong with a link at this instant.
    fn fault(&self, node: usize, at: Nanos) -> Option<FaultKind> {
        self.fault_at(node, at).map(|fault| fault.kind)
    }

    fn fault_at(&self, node: usize, at: Nanos) -> Option<&Fault> {
        let hits = |fault: &&Fault| {
            fault.nodes >> node & 1 == 1 && (fault.from..fault.until).contains(&at)
        };
        self.faults.iter().find(hits)
    }

    /// When the store executes a call that arrives at this instant.
    fn executed_at(&self, node: usize, arrives: Nanos) -> Nanos {
        match self.fault_at(node, arrives) {
            // In the order they came.
            Some(fault) if fault.kind == FaultKind::Frozen => {
                fault.until + (arrives - fault.from) / 1_000
            }
            _ => arrives,
        }
    }

    /// What the store's clock shows, as well as a node can know it.
    pub fn clock(&self, node: usize) -> Option<Nanos> {
        let estimate = self.links[node].lock().clock;
        let micros = estimate?.at(since_start(self.time.now()))?;
        Some(micros.saturating_mul(MICRO))
    }

    /// Calls the store. A decision whose answer may be lost is undone in the background.
    pub async fn call(self: &Arc<Self>, node: usize, op: Op) -> Result<(Reply, Nanos), Failure> {
        let (began, is_charge) = (self.time.now(), matches!(op, Op::Decide(_)) && op.is_change());
        let given_up = match self.try_call(node, op).await {
            Ok(answer) => return Ok(answer),
            Err(given_up) => given_up,
        };
        if given_up.may_have_run && is_charge {
            tokio::spawn(Arc::clone(self).undo(node, given_up.id, began));
        }
        Err(given_up.failure)
    }

    /// Two attempts under one id, and not longer than the deadline.
    async fn try_call(self: &Arc<Self>, node: usize, op: Op) -> Result<(Reply, Nanos), GivenUp> {
        let id = {
            let mut link = self.links[node].lock();
            link.calls += 1;
            (node as u64) << 32 | link.calls
        };
        let op = Arc::new(op);
        let deadline = self.time.now() + self.request_timeout_nanos();
        let (mut was_sent, mut was_lost, mut was_late) = (false, false, false);
        let mut last = Failure::CircuitOpen;
        loop {
            let elapsed = Duration::from_nanos(self.time.now() - START);
            if !self.links[node].lock().breaker.admits(elapsed) {
                break;
            }
            let sent = self.time.now();
            match self.attempt(node, id, &op, deadline).await {
                Ok((reply, at)) => {
                    self.answered(node, sent, at);
                    if !matches!(reply, Reply::Late) {
                        return Ok((reply, at));
                    }
                    last = Failure::Timeout;
                    if std::mem::replace(&mut was_late, true) {
                        break;
                    }
                }
                Err(failure) => {
                    let pause = self.failed(node);
                    was_sent |= failure == Failure::Timeout;
                    last = failure;
                    if std::mem::replace(&mut was_lost, true) {
                        break;
                    }
                    self.time.sleep(pause).await;
                    if self.time.now() >= deadline {
                        break;
                    }
                }
            }
        }
        self.server.lock().abandon(id, &op);
        self.time.note(id, || format!("node {node}: gives up {} ({})", op.text(), last.name()));
        Err(GivenUp { id, failure: last, may_have_run: was_sent })
    }

    /// What a call may take at most.
    pub const fn request_timeout_nanos(&self) -> Nanos {
        2 * self.profile.timeout + MARGIN
    }

    /// Returns when a request that begins to wait now has to stop.
    pub async fn request_timeout(&self) {
        self.time.sleep(self.request_timeout_nanos()).await;
    }

    /// For how long the store remembers the answer to a call.
    const fn remembered(&self) -> Nanos {
        self.request_timeout_nanos() + SECOND
    }

    /// Undoes a call that was sent and not answered, as the connection to Redis does: again and again
    /// until the store answers or has forgotten the call.
    async fn undo(self: Arc<Self>, node: usize, id: u64, began: Nanos) {
        let forgotten_at = began + self.remembered();
        let mut pause = self.profile.timeout;
        while self.try_call(node, Op::Undo(id)).await.is_err() {
            if self.time.now() + pause >= forgotten_at {
                self.server.lock().forget(id);
                break;
            }
            self.time.sleep(pause).await;
            pause *= 2;
        }
    }

    /// The store has answered, at the instant `at` of its clock.
    fn answered(&self, node: usize, sent: Nanos, at: Nanos) {
        let received = self.time.now();
        let newer = Estimate::new((at / MICRO) as i64, since_start(sent), since_start(received));
        let mut link = self.links[node].lock();
        link.breaker.succeeded();
        link.clock = Some(link.clock.map_or(newer, |known| known.or(newer)));
    }

    /// The store has not answered. Returns how long to wait before the next attempt.
    fn failed(&self, node: usize) -> Nanos {
        let elapsed = Duration::from_nanos(self.time.now() - START);
        let mut link = self.links[node].lock();
        let spread = link.draw.next() as u8;
        link.breaker.failed(elapsed, spread);
        link.draw.between(5_000, 9_999) * MICRO
    }

    async fn attempt(
        self: &Arc<Self>,
        node: usize,
        id: u64,
        op: &Arc<Op>,
        deadline: Nanos,
    ) -> Result<(Reply, Nanos), Failure> {
        let now = self.time.now();
        if self.fault(node, now) == Some(FaultKind::Reset) {
            return Err(Failure::Connection);
        }
        let (end, ended) = oneshot::channel();
        let end = Arc::new(Mutex::new(Some(end)));
        let until = (now + self.profile.timeout).min(deadline);
        let given_up = Arc::clone(&end);
        self.time.schedule(until, move || finish(&given_up, Err(Failure::Timeout)));
        // By the server's clock, as far as this node knows it.
        let their_deadline = self.clock(node).map(|clock| clock + (deadline - now));
        let is_twice = self.links[node].lock().draw.chance(self.profile.duplicates);
        for _ in 0..=u32::from(is_twice) {
            self.send(node, id, Arc::clone(op), their_deadline, Arc::clone(&end));
        }
        ended.await.unwrap_or(Err(Failure::Connection))
    }

    /// Sends a message, which arrives later, or never.
    fn send(
        self: &Arc<Self>,
        node: usize,
        id: u64,
        op: Arc<Op>,
        deadline: Option<Nanos>,
        end: Arc<Mutex<Option<Ending>>>,
    ) {
        let now = self.time.now();
        let Some(arrives) = self.travel(node, now, |fault| fault != FaultKind::LosesAnswers) else {
            return;
        };
        let network = Arc::clone(self);
        self.time.schedule(self.executed_at(node, arrives), move || {
            let now = network.time.now();
            let remember = network.remembered();
            let reply = network.server.lock().receive(id, &op, deadline, remember, now);
            network.time.note(id ^ now, || {
                format!("store: node {node}: {} -> {}", op.text(), text(&reply))
            });
            let Some(arrives) = network.travel(node, now, |fault| fault != FaultKind::LosesCalls)
            else {
                return false;
            };
            network.time.schedule(arrives, move || finish(&end, Ok((reply, now))));
            false
        });
    }

    /// When a message arrives that is sent now; `None` if it is lost.
    fn travel(&self, node: usize, now: Nanos, is_hit: impl Fn(FaultKind) -> bool) -> Option<Nanos> {
        let mut link = self.links[node].lock();
        let Profile { nearest, farthest, losses, .. } = self.profile;
        let mut takes = link.draw.between(nearest, farthest);
        let mut is_lost = link.draw.chance(losses);
        drop(link);
        if now >= self.calm_at {
            (takes, is_lost) = (takes.min(self.profile.timeout / 4), false);
        }
        let arrives = now + takes;
        let is_cut = |at| {
            let fault = self.fault(node, at);
            fault.is_some_and(|fault| fault != FaultKind::Frozen && is_hit(fault))
        };
        (!is_lost && !is_cut(now) && !is_cut(arrives)).then_some(arrives)
    }
}

/// Ends an attempt, unless it has ended. Returns whether somebody waited for that.
fn finish(end: &Mutex<Option<Ending>>, result: Result<(Reply, Nanos), Failure>) -> bool {
    let end = end.lock().take();
    end.is_some_and(|end| end.send(result).is_ok())
}

/// Microseconds.
fn since_start(at: Nanos) -> i64 {
    ((at - START) / MICRO) as i64
}

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Decided(outcomes) => {
            let each = outcomes.iter().map(|outcome| {
                let verdict = if outcome.examination.admits() { "admits" } else { "refuses" };
                format!("{verdict}, used {}", outcome.status.used)
            });
            each.collect::<Vec<_>>().join("; ")
        }
        Reply::Lease(grant) => format!("grants {}", grant.granted),
        Reply::Roll(roll) => format!("{} of {}", roll.membership.rank, roll.membership.nodes),
        Reply::Undone(was) => format!("known: {was}"),
        Reply::Applied(applied) => format!("{applied:?}"),
        Reply::Was(was) => format!("{was}"),
        Reply::Slots(slots) => format!("{} slots", slots.len()),
        Reply::Done => "done".to_owned(),
        Reply::Late => "too late".to_owned(),
    }
}
