//! One connection of one runtime to one Redis node, and the decisions that wait for it.
//!
//! A decision is sent at once while fewer than two calls are under way. Otherwise it waits, and when a
//! call returns, all that have gathered are sent together as one: the busier the server, the larger the
//! calls.
//!
//! A server that is far would make a decision wait for the round trip of another before its own. So
//! there what has gathered is also sent once [`SPACING`] has passed since the last call, however many
//! are under way: a decision takes one round trip, and calls still carry many.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use smallvec::SmallVec;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::connect::{self, Refusal};
use super::delivery::{Acceptance, AnsweredCall, call};
use super::encode::Encoded;
use super::hub::Hub;
use super::node::Node;
use super::undo::Fate;
use crate::Failure;

/// Calls under way at once to a server that is near.
const CALLS: usize = 2;

/// Calls under way at once to a server that is far.
const MAX_CALLS: usize = 1_024;

/// From this round trip on a server is far.
const FAR: Duration = Duration::from_millis(2);

/// The least time between calls to a server that is far, once two are under way.
const SPACING: Duration = Duration::from_millis(1);

/// The most requests and charges of one call.
pub(super) const MAX_REQUESTS: usize = 64;
pub(super) const MAX_CHARGES: usize = 512;

/// The most decisions that wait.
const MAX_WAITING: usize = 8_192;

/// A decision on its way.
pub(super) struct Job {
    pub(super) encoded: Encoded,
    pub(super) slot: u16,
    pub(super) deadline: Instant,
    pub(super) reply: oneshot::Sender<Result<Answer, Failure>>,
}

/// What became of it: per request a verdict, and what the script saw.
pub(super) struct Answer {
    /// The server's clock, in microseconds.
    pub(super) now: u64,
    pub(super) numbers: Vec<u64>,
    pub(super) acceptance: Acceptance,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    pumps: usize,
    /// When the last call was sent.
    sent_at: Option<Instant>,
    /// A pump waits for its time.
    is_timed: bool,
}

impl Queue {
    /// When another pump may send what is in the queue; `None` if those at work do so soon enough.
    fn next_pump(&self, node: &Node) -> Option<Instant> {
        let now = Instant::now();
        if self.pumps < CALLS {
            return Some(now);
        }
        if self.is_timed || self.pumps >= MAX_CALLS || node.shortest_round_trip() < FAR {
            return None;
        }
        Some(self.sent_at.map_or(now, |sent_at| now.max(sent_at + SPACING)))
    }
}

type Connected = Result<(u64, MultiplexedConnection), Refusal>;

#[derive(Default)]
enum Link {
    #[default]
    Down,
    Connecting(watch::Receiver<Option<Connected>>),
    Up(u64, MultiplexedConnection),
}

/// One connection of one runtime to one node.
#[derive(Default)]
pub(super) struct NodeConnection {
    queue: Mutex<Queue>,
    link: Mutex<Link>,
}

impl NodeConnection {
    /// Puts a decision on the lane.
    pub(super) fn submit(
        self: &Arc<Self>,
        hub: &Arc<Hub>,
        node: &Arc<Node>,
        job: Job,
    ) -> Result<(), Failure> {
        let mut queue = self.queue.lock();
        if queue.jobs.len() >= MAX_WAITING {
            return Err(Failure::Overloaded);
        }
        queue.jobs.push_back(job);
        if let Some(at) = queue.next_pump(node) {
            let waits = at > Instant::now();
            queue.pumps += 1;
            queue.is_timed |= waits;
            drop(queue);
            let pump = Pump {
                hub: Arc::clone(hub),
                node: Arc::clone(node),
                lane: Arc::clone(self),
                is_timed: waits,
                is_done: false,
            };
            tokio::spawn(async move {
                if waits {
                    tokio::time::sleep_until(at).await;
                }
                pump.run().await;
            });
        }
        Ok(())
    }

    /// The connection, made if there is none, and its number.
    pub(super) async fn connection(
        self: &Arc<Self>,
        node: &Arc<Node>,
        deadline: Instant,
    ) -> Connected {
        let mut receiver = {
            let mut link = self.link.lock();
            match &*link {
                Link::Up(number, connection) => return Ok((*number, connection.clone())),
                Link::Connecting(receiver) if receiver.has_changed().is_ok() => receiver.clone(),
                // Nobody is at it, or no longer.
                Link::Down | Link::Connecting(_) => {
                    let (sender, receiver) = watch::channel(None);
                    *link = Link::Connecting(receiver.clone());
                    tokio::spawn(Arc::clone(self).connect(Arc::clone(node), sender));
                    receiver
                }
            }
        };
        let lost = || (Failure::Connection, "the connection was given up".to_owned());
        let connected = receiver.wait_for(Option::is_some);
        match tokio::time::timeout_at(deadline, connected).await {
            Ok(Ok(connected)) => connected.clone().unwrap_or_else(|| Err(lost())),
            Ok(Err(_)) => Err(lost()),
            Err(_) if node.endpoint.uses_tls() => {
                Err((Failure::Timeout, connect::NO_TLS.to_owned()))
            }
            Err(_) => Err((Failure::Timeout, "no connection in time".to_owned())),
        }
    }

    /// Continues even if nobody waits for it any more: the next decision will need the connection.
    async fn connect(self: Arc<Self>, node: Arc<Node>, sender: watch::Sender<Option<Connected>>) {
        let opened = connect::open(&node).await;
        let connected = opened.map(|connection| (next_number(), connection));
        *self.link.lock() = match &connected {
            Ok((number, connection)) => Link::Up(*number, connection.clone()),
            Err(_) => Link::Down,
        };
        let _ = sender.send(Some(connected));
    }

    /// Forgets a connection that has failed.
    pub(super) fn drop_connection(&self, number: u64) {
        let mut link = self.link.lock();
        if matches!(&*link, Link::Up(current, _) if *current == number) {
            *link = Link::Down;
        }
    }

    /// What waits, as much as one call takes, or nothing, and then the pump is no more.
    fn take(&self) -> Vec<Job> {
        let mut queue = self.queue.lock();
        let (mut jobs, mut requests, mut charges) = (Vec::new(), 0, 0);
        while let Some(next) = queue.jobs.front() {
            requests += next.encoded.replies.len();
            charges += next.encoded.keys.len();
            if !jobs.is_empty() && (requests > MAX_REQUESTS || charges > MAX_CHARGES) {
                break;
            }
            let Some(job) = queue.jobs.pop_front() else { break };
            // A caller that has given up is not charged.
            if job.reply.is_closed() {
                requests -= job.encoded.replies.len();
                charges -= job.encoded.keys.len();
            } else {
                jobs.push(job);
            }
        }
        if jobs.is_empty() {
            queue.pumps -= 1;
        } else {
            queue.sent_at = Some(Instant::now());
        }
        jobs
    }
}

/// A number that is unique to each connection.
fn next_number() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// Sends what waits until nothing does.
struct Pump {
    hub: Arc<Hub>,
    node: Arc<Node>,
    lane: Arc<NodeConnection>,
    /// It waits for its time, and no other one needs to.
    is_timed: bool,
    is_done: bool,
}

impl Pump {
    async fn run(mut self) {
        if std::mem::take(&mut self.is_timed) {
            self.lane.queue.lock().is_timed = false;
        }
        loop {
            let mut jobs = self.lane.take();
            let Some(first) = jobs.first() else { break };
            let slot = first.slot;
            if jobs.iter().all(|job| job.slot == slot) {
                send(&self.hub, &self.node, jobs).await;
                continue;
            }
            // A script call is of one slot; several go one behind the other on the connection.
            let mut calls = JoinSet::new();
            jobs.sort_by_key(|job| job.slot);
            while let Some(slot) = jobs.first().map(|job| job.slot) {
                let rest = jobs.split_off(jobs.partition_point(|job| job.slot == slot));
                let (hub, node) = (Arc::clone(&self.hub), Arc::clone(&self.node));
                calls.spawn(async move { send(&hub, &node, jobs).await });
                jobs = rest;
            }
            while calls.join_next().await.is_some() {}
        }
        self.is_done = true;
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        // Ended by its runtime in the middle of a call.
        if !self.is_done {
            let mut queue = self.lane.queue.lock();
            queue.pumps -= 1;
            queue.is_timed &= !self.is_timed;
        }
    }
}

fn send_one(
    hub: &Arc<Hub>,
    node: &Arc<Node>,
    job: Job,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let (hub, node) = (Arc::clone(hub), Arc::clone(node));
    Box::pin(async move { send(&hub, &node, vec![job]).await })
}

/// One call for all of these.
async fn send(hub: &Arc<Hub>, node: &Arc<Node>, mut jobs: Vec<Job>) {
    // Those that have waited so long that they would hardly hear the answer must not be charged for it,
    // nor take their haste out on the others.
    let soon = Instant::now() + hub.timeout / 8;
    while let Some(place) = jobs.iter().position(|job| job.deadline < soon) {
        let _ = jobs.swap_remove(place).reply.send(Err(Failure::Timeout));
    }
    let Some(deadline) = jobs.iter().map(|job| job.deadline).min() else { return };
    let shapes: SmallVec<[Shape; 8]> = jobs.iter().map(Shape::of).collect();
    let encoded = match jobs.as_mut_slice() {
        [only] => std::mem::take(&mut only.encoded),
        several => {
            let mut all = Encoded::default();
            for job in several {
                all.append(&job.encoded);
            }
            all
        }
    };
    let requests = encoded.replies.len();
    hub.metrics.batch(requests);
    let slot = jobs.first().map_or(0, |job| job.slot);
    let call = call(hub, &encoded, slot, deadline, jobs.len() > 1);
    let mut sent = hub.unsent();
    let mut answer = match hub.call_as(&call, Some(node), &mut sent).await {
        Ok(Some(reply)) => reply,
        Ok(None) => {
            // Their slot is moving: some have their keys here, some there.
            let mut calls = JoinSet::new();
            for job in jobs {
                calls.spawn(send_one(hub, node, job));
            }
            while calls.join_next().await.is_some() {}
            return;
        }
        Err(failure) => {
            hub.undo_later(&call, &sent, std::iter::repeat_n(Fate::Undo, requests));
            for job in jobs {
                let _ = job.reply.send(Err(failure));
            }
            return;
        }
    };
    let answered = AnsweredCall::new(hub, encoded, slot, deadline, sent);
    let now = answer.now;
    let mut numbers = answer.elements.drain(..).map_while(|element| element.number());
    let mut widths = answered.encoded.replies.iter();
    let mut first = 0;
    for (job, Shape { requests, owes }) in jobs.into_iter().zip(shapes) {
        let mut mine = Vec::new();
        for width in widths.by_ref().take(requests) {
            let Some(verdict) = numbers.next() else { break };
            mine.push(verdict);
            if verdict <= 1 {
                mine.extend(numbers.by_ref().take(*width as usize));
            }
        }
        // What is owed stays owed.
        let acceptance =
            if owes { Acceptance::needless() } else { answered.acceptance(first, requests) };
        // An answer to a request that has been given up is dropped here, and so undone.
        let _ = job.reply.send(Ok(Answer { now, numbers: mine, acceptance }));
        first += requests;
    }
}

/// What is to be known of a job when its requests have become part of a call.
struct Shape {
    requests: usize,
    /// Whether any of it was spent already.
    owes: bool,
}

impl Shape {
    fn of(job: &Job) -> Self {
        Self { requests: job.encoded.replies.len(), owes: job.encoded.owes }
    }
}
