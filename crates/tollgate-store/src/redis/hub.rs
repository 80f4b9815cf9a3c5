//! What all lanes share, and one call with all that may go wrong with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tokio::time::Instant;
use tollgate_core::MOST_MICROS;

use super::cluster::Cluster;
use super::connect::{ask, refusal};
use super::key::{Keys, Speller, once};
use super::metrics::{Operation, RedisMetrics};
use super::msgpack::{self, Element, Elements};
use super::node::Node;
use super::operations::Strangers;
use super::script::{Script, Scripts};
use super::trouble::Trouble;
use crate::{Failure, Nanos};

/// Beyond two attempts, for what lies between them.
const MARGIN: Duration = Duration::from_millis(10);

/// How long after its deadline a call is cut off.
const GRACE: Duration = Duration::from_millis(2);

/// So many errors that prove that nothing happened, and a call is given up, whatever time is left.
const MOST_TRIES: u32 = 16;

/// Where counters are.
pub(super) enum Topology {
    /// On one server, perhaps another one from time to time.
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

/// What all lanes share.
pub(super) struct Hub {
    pub(super) topology: Topology,
    pub(super) speller: Speller,
    pub(super) scripts: Scripts,
    pub(super) metrics: Arc<RedisMetrics>,
    pub(super) timeout: Duration,
    pub(super) strangers: Strangers,
    seed: u64,
    drawn: AtomicU64,
}

/// One script call.
pub(super) struct Call<'a> {
    pub(super) operation: Operation,
    pub(super) script: &'a Script,
    /// At least one; all of one slot.
    pub(super) keys: &'a Keys,
    pub(super) body: &'a Elements,
    /// Whether it changes anything, so that it must not run twice.
    pub(super) remember: bool,
    pub(super) slot: u16,
    pub(super) deadline: Instant,
    /// Whether it is made of parts that could go one by one.
    pub(super) may_split: bool,
}

/// How a call is sent.
#[derive(Debug, Clone, Copy)]
struct Manner {
    id: [u8; 8],
    /// With the script, which the server does not know.
    sends_script: bool,
    /// To a node that has the slot only for those who were sent there.
    is_asked: bool,
    /// Without a place for its answer: while a slot moves, a call must not name a key that does not exist
    /// beside one that does. It must not be repeated then if its answer is lost.
    is_bare: bool,
}

/// What a script answered.
#[derive(Debug)]
pub(super) struct Reply {
    /// The server's clock, in microseconds.
    pub(super) now: u64,
    pub(super) elements: Vec<Element>,
}

impl Reply {
    pub(super) fn number(&self, index: usize) -> Option<u64> {
        self.elements.get(index).and_then(Element::number)
    }
}

impl Hub {
    pub(super) fn new(
        topology: Topology,
        speller: Speller,
        scripts: Scripts,
        metrics: Arc<RedisMetrics>,
        timeout: Duration,
    ) -> Self {
        let mut seed = [0; 8];
        // Without random bytes ids may repeat those of another process of the same second.
        let _ = getrandom::fill(&mut seed);
        let seed = u64::from_le_bytes(seed);
        let (strangers, drawn) = (Strangers::default(), AtomicU64::new(0));
        Self { topology, speller, scripts, metrics, timeout, strangers, seed, drawn }
    }

    /// A number that does not come again in this process, and hardly in another.
    pub(super) fn draw(&self) -> u64 {
        let step = self.drawn.fetch_add(1, Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.seed.wrapping_add(step);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// When whoever asks now gives up.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout * 2 + MARGIN
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

    /// Runs a script. Nothing is charged twice, and nothing takes longer than the deadline. `None`: its
    /// parts must go one by one.
    pub(super) async fn call(
        self: &Arc<Self>,
        call: &Call<'_>,
        first: Option<&Arc<Node>>,
    ) -> Result<Option<Reply>, Failure> {
        let began = Instant::now();
        // Attempts end at the deadline by themselves, and say so to the breaker; a moment for that.
        let end = call.deadline + GRACE;
        let mut blamed = None;
        let result = tokio::time::timeout_at(end, self.tries(call, first, &mut blamed)).await;
        self.metrics.called(call.operation, began.elapsed());
        let result = result.unwrap_or(Err(Failure::Timeout));
        if let Err(failure) = &result {
            self.metrics.failed(call.operation, *failure);
            if let Some((node, failure, text)) = blamed {
                node.gave_up(failure, &text);
            }
        }
        result
    }

    async fn tries(
        self: &Arc<Self>,
        call: &Call<'_>,
        first: Option<&Arc<Node>>,
        blamed: &mut Option<(Arc<Node>, Failure, String)>,
    ) -> Result<Option<Reply>, Failure> {
        let id = self.draw().to_le_bytes();
        let mut manner = Manner { id, sends_script: false, is_asked: false, is_bare: false };
        let (mut is_repeated, mut was_late) = (false, false);
        let mut last = Failure::Timeout;
        let mut asked: Option<Arc<Node>> = None;
        for attempt in 0..MOST_TRIES {
            manner.is_asked = asked.is_some();
            let node = match (asked.take(), first) {
                (Some(target), _) => target,
                (None, Some(node)) if attempt == 0 => Arc::clone(node),
                _ => self.node_of(call.slot, call.deadline).await?,
            };
            if !node.admits() {
                return Err(if attempt == 0 { Failure::CircuitOpen } else { last });
            }
            let trouble = match self.attempt(call, &node, manner).await {
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
                Trouble::NoScript => manner.sends_script = true,
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
                Trouble::TryAgain if call.may_split => return Ok(None),
                Trouble::TryAgain if !manner.is_bare => manner.is_bare = true,
                Trouble::TryAgain => self.pause().await,
                Trouble::Again(..) | Trouble::Elsewhere(..) => {
                    self.refresh();
                    self.pause().await;
                }
                Trouble::Lost(..) => {
                    self.refresh();
                    if is_repeated || manner.is_bare && call.remember {
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
        manner: Manner,
    ) -> Result<Option<Reply>, Trouble> {
        let until = (Instant::now() + self.timeout).min(call.deadline);
        let lane = node.lane();
        let (number, connection) = match lane.connection(node, until).await {
            Ok(connected) => connected,
            Err((failure @ (Failure::Denied | Failure::WrongKind), text)) => {
                return Err(Trouble::Final(failure, text));
            }
            Err((failure, text)) => return Err(Trouble::Lost(failure, text)),
        };
        let sent = Instant::now();
        let until = (sent + self.timeout).min(call.deadline);
        let command = command(call, node.clock_at(call.deadline), self.remember(), manner);
        let answer =
            tokio::time::timeout_at(until, exchange(connection, &command, manner.is_asked)).await;
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
        node.saw_clock(now, sent, Instant::now());
        elements.drain(..2);
        Ok((late == 0).then_some(Reply { now, elements }))
    }

    /// For how many milliseconds an answer is remembered: longer than anybody asks for it.
    fn remember(&self) -> u64 {
        let longest = self.timeout * 2 + MARGIN + Duration::from_secs(1);
        u64::try_from(longest.as_millis()).unwrap_or(u64::MAX).min(MOST_MICROS)
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

/// The call as a command. `deadline` is told by the server's clock, in microseconds.
fn command(call: &Call<'_>, deadline: Option<u64>, remember: u64, manner: Manner) -> Cmd {
    let mut head = Elements::default();
    head.number(deadline.unwrap_or(0));
    head.number(if call.remember && !manner.is_bare { remember } else { 0 });
    head.text(&manner.id);
    let mut command = Cmd::new();
    if manner.sends_script {
        command.arg("EVAL").arg(call.script.text.as_str());
    } else {
        command.arg("EVALSHA").arg(call.script.hash.as_str());
    }
    command.arg(call.keys.len() + 1);
    let first = call.keys.get(0).unwrap_or_default();
    if manner.is_bare {
        command.arg(first);
    } else {
        command.arg(once(first, manner.id));
    }
    for key in call.keys.iter() {
        command.arg(key);
    }
    command.arg(head.array(call.body));
    command
}

async fn exchange(
    mut connection: MultiplexedConnection,
    command: &Cmd,
    is_asked: bool,
) -> redis::RedisResult<Value> {
    if !is_asked {
        return connection.send_packed_command(command).await?.extract_error();
    }
    // The permission holds for the next command only, so the two must go together.
    let mut pipeline = redis::Pipeline::new();
    pipeline.cmd("ASKING").add_command(command.clone());
    let mut answers = connection.send_packed_commands(&pipeline, 0, 2).await?;
    answers.pop().unwrap_or(Value::Nil).extract_error()
}
