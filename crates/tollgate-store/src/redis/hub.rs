//! What all lanes share, and one call with all that may go wrong with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use super::call::{Call, Reply, SendOptions, Sent, command, exchange, remember, two_attempts};
use super::cluster::Cluster;
use super::connect::{ask, refusal};
use super::key::KeyEncoder;
use super::metrics::{Operation, RedisMetrics};
use super::msgpack::{self, Element};
use super::node::Node;
use super::operations::ForeignKeyReports;
use super::script::Scripts;
use super::trouble::Trouble;
use crate::{Failure, Nanos};

/// How long after its deadline a call is cut off.
pub(super) const GRACE: Duration = Duration::from_millis(2);

/// A call that no request waits for may take this many round trips, where that is longer than the
/// timeout of requests; and no longer than this.
const BACKGROUND_ROUND_TRIPS: u32 = 4;
const MAX_BACKGROUND_TIMEOUT: Duration = Duration::from_secs(2);

/// So many errors that prove that nothing happened, and a call is given up, whatever time is left.
const MAX_TRIES: u32 = 16;

/// Where counters are.
pub(super) enum Topology {
    /// On one server, perhaps another one from time to time.
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

/// What all lanes share.
pub(super) struct Hub {
    pub(super) topology: Topology,
    pub(super) speller: KeyEncoder,
    pub(super) scripts: Scripts,
    pub(super) metrics: Arc<RedisMetrics>,
    pub(super) timeout: Duration,
    pub(super) strangers: ForeignKeyReports,
    /// How many calls are being undone.
    pub(super) undoing: AtomicUsize,
    seed: u64,
    drawn: AtomicU64,
    /// The log says that the timeout is shorter than the distance.
    warned_of_distance: AtomicBool,
}

impl Hub {
    pub(super) fn new(
        topology: Topology,
        speller: KeyEncoder,
        scripts: Scripts,
        metrics: Arc<RedisMetrics>,
        timeout: Duration,
    ) -> Self {
        let mut seed = [0; 8];
        // Without random bytes ids may repeat those of another process of the same second.
        let _ = getrandom::fill(&mut seed);
        let seed = u64::from_le_bytes(seed);
        let (strangers, drawn) = (ForeignKeyReports::default(), AtomicU64::new(0));
        let warned_of_distance = AtomicBool::new(false);
        let undoing = AtomicUsize::new(0);
        Self {
            topology,
            speller,
            scripts,
            metrics,
            timeout,
            strangers,
            undoing,
            seed,
            drawn,
            warned_of_distance,
        }
    }

    /// A number that does not come again in this process, and hardly in another.
    pub(super) fn draw(&self) -> u64 {
        let step = self.drawn.fetch_add(1, Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.seed.wrapping_add(step);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// How long a request waits at most: two attempts, and what lies between them.
    pub(super) fn request_timeout(&self) -> Duration {
        two_attempts(self.timeout)
    }

    /// When a request that is made now gives up.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.request_timeout()
    }

    /// How long an attempt may take that no request waits for: long enough for the distance that was
    /// measured, also where the timeout of requests is shorter than that.
    pub(super) fn background_timeout(&self) -> Duration {
        let round_trip = match &self.topology {
            Topology::One(node) => node.long_round_trip(),
            Topology::Cluster(cluster) => {
                let nodes = cluster.nodes();
                nodes.iter().map(|node| node.long_round_trip()).max().unwrap_or_default()
            }
        };
        self.timeout.max((round_trip * BACKGROUND_ROUND_TRIPS).min(MAX_BACKGROUND_TIMEOUT))
    }

    pub(super) fn slot_of(&self, key: &[u8]) -> u16 {
        match self.topology {
            Topology::One(_) => 0,
            Topology::Cluster(_) => super::key::slot_of(key),
        }
    }

    /// Which node has a slot.
    pub(super) async fn node_of(&self, slot: u16, by: Instant) -> Result<Arc<Node>, Failure> {
        match &self.topology {
            Topology::One(node) => Ok(Arc::clone(node)),
            Topology::Cluster(cluster) => cluster.node_of(slot, by).await,
        }
    }

    /// What some server's clock shows, if any has been seen.
    pub(super) fn clock(&self) -> Option<Nanos> {
        match &self.topology {
            Topology::One(node) => node.clock(),
            Topology::Cluster(cluster) => cluster.clock(),
        }
    }

    /// Whether every node answers.
    pub(super) async fn ping(self: &Arc<Self>) -> Result<(), Failure> {
        let began = Instant::now();
        let by = began + self.timeout.max(Duration::from_millis(500));
        let nodes = match &self.topology {
            Topology::One(node) => Ok(vec![Arc::clone(node)]),
            Topology::Cluster(cluster) => cluster.node_of(0, by).await.map(|_| cluster.nodes()),
        };
        let result = match nodes {
            Ok(nodes) => self.ping_all(&nodes, by).await,
            Err(failure) => Err(failure),
        };
        self.metrics.called(Operation::Ping, began.elapsed());
        if let Err(failure) = &result {
            self.metrics.failed(Operation::Ping, *failure);
        }
        result
    }

    async fn ping_all(&self, nodes: &[Arc<Node>], by: Instant) -> Result<(), Failure> {
        for node in nodes {
            let lane = node.lane();
            let pinged = async {
                let (number, connection) = lane.connection(node, by).await?;
                match tokio::time::timeout_at(by, ask::<Value>(&connection, &["TIME"])).await {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(error)) => {
                        lane.drop_connection(number);
                        Err(refusal(&error))
                    }
                    Err(_) => {
                        lane.drop_connection(number);
                        Err((Failure::Timeout, "no answer".to_owned()))
                    }
                }
            };
            match pinged.await {
                Ok(()) => node.succeeded(),
                Err((failure, text)) => {
                    node.failed(failure, &text, self.draw() as u8);
                    node.gave_up(failure, &text);
                    return Err(failure);
                }
            }
        }
        Ok(())
    }

    /// A call that has not been sent.
    pub(super) fn unsent(&self) -> Sent {
        let id = self.draw().to_le_bytes();
        Sent::new(id)
    }

    /// Runs a script. Nothing is charged twice, and nothing takes longer than the deadline. `None`: its
    /// parts must go one by one.
    pub(super) async fn call(
        self: &Arc<Self>,
        call: &Call<'_>,
        first: Option<&Arc<Node>>,
    ) -> Result<Option<Reply>, Failure> {
        self.call_as(call, first, &mut self.unsent()).await
    }

    /// The same, where the caller must know what may have run if it fails.
    pub(super) async fn call_as(
        self: &Arc<Self>,
        call: &Call<'_>,
        first: Option<&Arc<Node>>,
        sent: &mut Sent,
    ) -> Result<Option<Reply>, Failure> {
        let began = Instant::now();
        // Attempts end at the deadline by themselves, and say so to the breaker; a moment for that.
        let end = call.deadline + GRACE;
        let mut blamed = None;
        let tries = self.tries(call, first, sent, &mut blamed);
        let result = tokio::time::timeout_at(end, tries).await;
        self.metrics.called(call.operation, began.elapsed());
        let result = result.unwrap_or(Err(Failure::Timeout));
        if let Err(failure) = &result {
            self.metrics.failed(call.operation, *failure);
            if let Some((node, failure, text)) = blamed {
                node.gave_up(failure, &text);
                if failure == Failure::Timeout {
                    self.warn_of_distance(&node);
                }
            }
        }
        result
    }

    /// Says once that no decision can be in time, because the server is further than the timeout lets
    /// an answer come from.
    fn warn_of_distance(&self, node: &Node) {
        let round_trip = node.shortest_round_trip();
        if round_trip > self.timeout && !self.warned_of_distance.swap(true, Relaxed) {
            let round_trip_ms = u64::try_from(round_trip.as_millis()).unwrap_or(u64::MAX);
            let timeout_ms = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
            tracing::warn!(
                redis = node.name,
                round_trip_ms,
                timeout_ms,
                "this Redis is further than timeout_ms lets an answer come from: set timeout_ms to \
                 three times the round trip"
            );
        }
    }

    async fn tries(
        self: &Arc<Self>,
        call: &Call<'_>,
        first: Option<&Arc<Node>>,
        sent: &mut Sent,
        blamed: &mut Option<(Arc<Node>, Failure, String)>,
    ) -> Result<Option<Reply>, Failure> {
        let id = sent.id();
        let mut options = SendOptions { id, sends_script: false, is_asked: false, is_bare: false };
        let (mut is_repeated, mut was_late) = (false, false);
        let mut last = Failure::Timeout;
        let mut asked: Option<Arc<Node>> = None;
        for attempt in 0..MAX_TRIES {
            options.is_asked = asked.is_some();
            let node = match (asked.take(), first) {
                (Some(target), _) => target,
                (None, Some(node)) if attempt == 0 => Arc::clone(node),
                _ => self.node_of(call.slot, call.deadline).await?,
            };
            if !node.admits() {
                return Err(if attempt == 0 { Failure::CircuitOpen } else { last });
            }
            let trouble = match self.attempt(call, &node, options, sent).await {
                Ok(Some(reply)) => {
                    node.succeeded();
                    return Ok(Some(reply));
                }
                // Too late for the server. The clock we went by was wrong, or the server was stopped
                // for a while; the answer has set our idea of its clock right.
                Ok(None) => {
                    node.succeeded();
                    self.metrics.was_late();
                    if was_late {
                        return Err(Failure::Timeout);
                    }
                    was_late = true;
                    continue;
                }
                Err(trouble) => trouble,
            };
            if let Some(failure) = trouble.failure() {
                last = failure;
                node.failed(failure, trouble.text(), self.draw() as u8);
                *blamed = Some((Arc::clone(&node), failure, trouble.text().to_owned()));
            } else {
                node.succeeded();
            }
            match trouble {
                Trouble::NoScript => options.sends_script = true,
                Trouble::Moved(address) => {
                    let Topology::Cluster(cluster) = &self.topology else {
                        let text = "it is a node of a cluster, and sends us to another";
                        node.failed(Failure::WrongKind, text, 0);
                        node.gave_up(Failure::WrongKind, text);
                        return Err(Failure::WrongKind);
                    };
                    cluster.moved(call.slot, &node, &address);
                }
                Trouble::Ask(address) => {
                    if let Topology::Cluster(cluster) = &self.topology {
                        asked = cluster.node_at(&node, &address);
                    }
                }
                // An earlier attempt may have run: sent in another way it would run again.
                Trouble::TryAgain if is_repeated && call.remember => return Err(last),
                Trouble::TryAgain if call.may_split => return Ok(None),
                Trouble::TryAgain if !options.is_bare => options.is_bare = true,
                Trouble::TryAgain => self.pause().await,
                Trouble::Again(..) | Trouble::Elsewhere(..) => {
                    self.refresh();
                    self.pause().await;
                }
                Trouble::Lost(..) => {
                    self.refresh();
                    if is_repeated || options.is_bare && call.remember {
                        return Err(last);
                    }
                    is_repeated = true;
                    self.metrics.retried();
                    self.pause().await;
                }
                Trouble::Final(failure, _) => return Err(failure),
            }
        }
        Err(last)
    }

    /// One attempt. `None`: it came too late.
    async fn attempt(
        &self,
        call: &Call<'_>,
        node: &Arc<Node>,
        options: SendOptions,
        attempts: &mut Sent,
    ) -> Result<Option<Reply>, Trouble> {
        let until = (Instant::now() + call.timeout).min(call.deadline);
        let lane = node.lane();
        let (number, connection) = match lane.connection(node, until).await {
            Ok(connected) => connected,
            Err((failure @ (Failure::Denied | Failure::WrongKind), text)) => {
                return Err(Trouble::Final(failure, text));
            }
            Err((failure, text)) => return Err(Trouble::Lost(failure, text)),
        };
        let sent = Instant::now();
        let until = (sent + call.timeout).min(call.deadline);
        let command = command(call, node.clock_at(call.deadline), remember(call), options);
        attempts.begins(options);
        let answer =
            tokio::time::timeout_at(until, exchange(connection, &command, options.is_asked)).await;
        let is_lost = |error: &redis::RedisError| matches!(Trouble::of(error), Trouble::Lost(..));
        attempts.ends(match &answer {
            Ok(answer) => answer.as_ref().is_err_and(is_lost),
            Err(_) => true,
        });
        let value = match answer {
            Ok(Ok(value)) => value,
            Ok(Err(error)) => {
                let trouble = Trouble::of(&error);
                if trouble.breaks_connection() {
                    lane.drop_connection(number);
                }
                return Err(trouble);
            }
            Err(_) => {
                // A connection that has swallowed an answer may swallow the next.
                lane.drop_connection(number);
                return Err(Trouble::Lost(Failure::Timeout, "no answer".to_owned()));
            }
        };
        let nonsense = || Trouble::Final(Failure::Protocol, "the answer makes no sense".to_owned());
        let Value::BulkString(bytes) = value else { return Err(nonsense()) };
        let mut elements = msgpack::read(&bytes).ok_or_else(nonsense)?;
        let [Element::Number(late), Element::Number(now), ..] = *elements.as_slice() else {
            return Err(nonsense());
        };
        // A remembered answer shows the clock of the attempt that ran.
        if late != 0 || !attempts.may_be_repeated() {
            node.saw_clock(now, sent, Instant::now());
        }
        elements.drain(..2);
        Ok((late == 0).then_some(Reply { now, elements }))
    }

    /// Between 5 and 10 ms.
    async fn pause(&self) {
        tokio::time::sleep(Duration::from_micros(5_000 + self.draw() % 5_000)).await;
    }

    fn refresh(&self) {
        if let Topology::Cluster(cluster) = &self.topology {
            cluster.refresh_soon();
        }
    }
}
