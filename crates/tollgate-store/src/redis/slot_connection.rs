//! A connection for calls that are no decisions: to the server that has their keys now, whatever the topology.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ConnectionInfo, FromRedisValue, Value};
use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

use super::RedisStore;
use super::connect::{self, Refusal, ask};
use super::health::Health;
use super::hub::{Hub, Topology};
use super::node::Node;
use super::trouble::Trouble;
use crate::Failure;

/// So many errors that prove that nothing happened, and a call is given up, whatever time is left.
const MAX_TRIES: u32 = 16;

/// How much longer every pause is than the one before.
const PAUSE: Duration = Duration::from_millis(10);

/// Whether a call whose answer was lost may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Running twice has the effect of running once.
    Safe,
    /// The caller decides.
    Never,
}

/// A script, and the hash that servers know it by.
#[derive(Debug, Clone)]
pub struct SlotScript {
    text: String,
    hash: String,
    repeat: Repeat,
}

impl SlotScript {
    /// A script of this text. A call whose answer is lost is not repeated.
    pub fn new(text: String) -> Self {
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash, repeat: Repeat::Never }
    }

    /// The same; running twice has the effect of running once, so that a call whose answer is lost is sent once more.
    #[must_use]
    pub fn repeatable(self) -> Self {
        Self { repeat: Repeat::Safe, ..self }
    }
}

/// A connection that was made.
struct Up {
    /// What drives it. It stops when that does.
    runtime: Id,
    number: u64,
    node: Arc<Node>,
    connection: MultiplexedConnection,
}

/// A connection and its number.
type Numbered = (u64, MultiplexedConnection);

/// A connection of its own to the server that has a slot, so that large values never delay decisions. It is made
/// when it is needed, and made again after an error.
///
/// It lives on the runtime that it was made on; called from another runtime it makes a new one, so calls from two
/// runtimes in turn reconnect each time. It leaves breakers alone: they are about decisions, and a large value that
/// takes long says nothing about those.
pub struct SlotConnection {
    hub: Arc<Hub>,
    /// What the log calls it.
    name: &'static str,
    slot: u16,
    up: Mutex<Option<Up>>,
    /// Whose turn it is to connect.
    turn: tokio::sync::Mutex<()>,
    health: Health,
    began: Instant,
}

impl RedisStore {
    /// A connection to the servers of this store, for calls on keys of the same slot as `key`. `name` is what the log
    /// calls it.
    pub fn slot_connection(&self, name: &'static str, key: &[u8]) -> SlotConnection {
        SlotConnection::new(Arc::clone(&self.hub), name, self.hub.slot_of(key))
    }
}

impl SlotConnection {
    pub(super) fn new(hub: Arc<Hub>, name: &'static str, slot: u16) -> Self {
        Self {
            hub,
            name,
            slot,
            up: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            health: Health::default(),
            began: Instant::now(),
        }
    }

    /// The answer to a command. What is wrong is in the log.
    pub(super) async fn call(
        &self,
        command: &Cmd,
        by: Instant,
        repeat: Repeat,
    ) -> Result<Value, Failure> {
        self.attempts(command, by, repeat).await.map_err(|refusal| self.log(&refusal))
    }

    /// The answer of a script, which is sent where the server does not know it. Returns what went wrong as a text; the
    /// log has it too.
    pub async fn run<T: FromRedisValue>(
        &self,
        script: &SlotScript,
        keys: &[&str],
        arguments: &[&[u8]],
        within: Duration,
    ) -> Result<T, String> {
        let command = |name: &str, script: &str| {
            let mut command = redis::cmd(name);
            command.arg(script).arg(keys.len()).arg(keys).arg(arguments);
            command
        };
        let known = command("EVALSHA", &script.hash);
        let whole = || command("EVAL", &script.text);
        let by = Instant::now() + within;
        let value = self.attempts_with(&known, Some(&whole), by, script.repeat).await;
        let value = value.map_err(|refusal| {
            self.log(&refusal);
            refusal.1
        })?;
        T::from_redis_value(value).map_err(|error| error.to_string())
    }

    /// Puts into the log what is wrong.
    pub(super) fn log(&self, (failure, text): &Refusal) -> Failure {
        self.health.failed(self.name, *failure, text, self.began.elapsed());
        *failure
    }

    /// The answer to a command, or in what words it was refused.
    pub(super) async fn attempts(
        &self,
        command: &Cmd,
        by: Instant,
        repeat: Repeat,
    ) -> Result<Value, Refusal> {
        self.attempts_with(command, None, by, repeat).await
    }

    /// The same; `whole` makes the command for a server that does not know the script.
    async fn attempts_with(
        &self,
        command: &Cmd,
        whole: Option<&(dyn Fn() -> Cmd + Sync)>,
        by: Instant,
        repeat: Repeat,
    ) -> Result<Value, Refusal> {
        let mut command = Cow::Borrowed(command);
        let mut is_repeated = false;
        let mut asked: Option<Arc<Node>> = None;
        let mut last = (Failure::Timeout, "no answer".to_owned());
        for attempt in 0..MAX_TRIES {
            if attempt > 0 {
                tokio::time::sleep_until(by.min(Instant::now() + PAUSE * (attempt - 1))).await;
            }
            let target = asked.take();
            let is_asked = target.is_some();
            let node = match target {
                Some(node) => node,
                None => self.node(by).await?,
            };
            let mut was_sent = true;
            let answer = if is_asked {
                send_asking(&node, &command, by).await
            } else {
                match self.connect(&node, by).await {
                    Ok(connected) => self.send(connected, &command, by).await,
                    Err(trouble) => {
                        was_sent = false;
                        Err(trouble)
                    }
                }
            };
            let trouble = match answer {
                Ok(value) => {
                    self.health.succeeded(self.name, self.began.elapsed());
                    return Ok(value);
                }
                Err(trouble) => trouble,
            };
            last = refusal(&node, &trouble);
            match trouble {
                Trouble::Moved(address) => {
                    let Topology::Cluster(cluster) = &self.hub.topology else {
                        let text = format!("{} is a node of a cluster", node.name);
                        return Err((Failure::WrongKind, text));
                    };
                    cluster.moved(self.slot, &node, &address);
                }
                Trouble::Ask(address) => {
                    if let Topology::Cluster(cluster) = &self.hub.topology {
                        asked = cluster.node_at(&node, &address);
                    }
                }
                // What was not sent did not run.
                Trouble::Lost(..) if is_repeated || was_sent && repeat == Repeat::Never => {
                    self.refresh();
                    return Err(last);
                }
                Trouble::Lost(..) => {
                    self.refresh();
                    is_repeated = true;
                }
                Trouble::Again(..) | Trouble::Elsewhere(..) => self.refresh(),
                Trouble::NoScript => {
                    if let Some(whole) = whole {
                        command = Cow::Owned(whole());
                    }
                }
                Trouble::TryAgain => {}
                Trouble::Final(_, text) if text.contains("WRONGTYPE") => {
                    return Err((Failure::ForeignKey, text));
                }
                Trouble::Final(..) => return Err(last),
            }
            if Instant::now() >= by {
                break;
            }
        }
        Err(last)
    }

    async fn node(&self, by: Instant) -> Result<Arc<Node>, Refusal> {
        let node = self.hub.node_of(self.slot, by).await;
        node.map_err(|failure| (failure, "nobody is known to have the keys".to_owned()))
    }

    fn refresh(&self) {
        if let Topology::Cluster(cluster) = &self.hub.topology {
            cluster.refresh_soon();
        }
    }

    async fn connect(&self, node: &Arc<Node>, by: Instant) -> Result<Numbered, Trouble> {
        let connected = tokio::time::timeout_at(by, self.connection(node)).await;
        connected.unwrap_or_else(|_| Err(too_late()))
    }

    async fn send(
        &self,
        (number, connection): Numbered,
        command: &Cmd,
        by: Instant,
    ) -> Result<Value, Trouble> {
        let answer = tokio::time::timeout_at(by, exchange(connection, command)).await;
        let answer = answer.unwrap_or_else(|_| Err(too_late()));
        if answer.as_ref().is_err_and(Trouble::breaks_connection) {
            let mut up = self.up.lock();
            if up.as_ref().is_some_and(|up| up.number == number) {
                *up = None;
            }
        }
        answer
    }

    /// The connection to this node, made if there is none on this runtime.
    async fn connection(&self, node: &Arc<Node>) -> Result<Numbered, Trouble> {
        let runtime = Handle::current().id();
        let fits = |up: &&Up| up.runtime == runtime && Arc::ptr_eq(&up.node, node);
        let known = || {
            let up = self.up.lock();
            up.as_ref().filter(fits).map(|up| (up.number, up.connection.clone()))
        };
        if let Some(known) = known() {
            return Ok(known);
        }
        let _turn = self.turn.lock().await;
        if let Some(known) = known() {
            return Ok(known);
        }
        let connection = connect::open(node).await.map_err(unconnected)?;
        let (number, node) = (self.hub.draw(), Arc::clone(node));
        let up = Up { runtime, number, node, connection: connection.clone() };
        *self.up.lock() = Some(up);
        Ok((number, connection))
    }

    /// Where the server with the keys is. It has answered just now.
    pub(super) async fn address(&self, by: Instant) -> Result<ConnectionInfo, Failure> {
        // Whatever it is that keeps us from connecting, this finds it, and the right server.
        self.call(&redis::cmd("PING"), by, Repeat::Safe).await?;
        let found = async { self.node(by).await?.endpoint.locate().await };
        let late = || (Failure::Timeout, "no address in time".to_owned());
        let found = tokio::time::timeout_at(by, found).await.unwrap_or_else(|_| Err(late()));
        found.map_err(|refusal| self.log(&refusal))
    }
}

/// What kept a node from answering.
fn refusal(node: &Node, trouble: &Trouble) -> Refusal {
    let (failure, text) = match trouble {
        Trouble::Moved(address) => (Failure::NotReady, format!("MOVED: the slot is at {address}")),
        Trouble::Ask(address) => (Failure::NotReady, format!("ASK: the slot moves to {address}")),
        Trouble::TryAgain => (Failure::NotReady, "TRYAGAIN: the slot is being moved".to_owned()),
        Trouble::NoScript => (Failure::Script, "NOSCRIPT".to_owned()),
        Trouble::Again(failure, text)
        | Trouble::Elsewhere(failure, text)
        | Trouble::Lost(failure, text)
        | Trouble::Final(failure, text) => (*failure, text.clone()),
    };
    (failure, format!("{}: {text}", node.name))
}

fn too_late() -> Trouble {
    Trouble::Lost(Failure::Timeout, "no answer in time".to_owned())
}

fn unconnected((failure, text): Refusal) -> Trouble {
    match failure {
        Failure::Denied | Failure::WrongKind => Trouble::Final(failure, text),
        // Nothing was sent: nothing can have happened twice.
        Failure::ReadOnly | Failure::NotReady => Trouble::Elsewhere(failure, text),
        _ => Trouble::Lost(failure, text),
    }
}

async fn exchange(mut connection: MultiplexedConnection, command: &Cmd) -> Result<Value, Trouble> {
    let answer = connection.send_packed_command(command).await;
    answer.and_then(Value::extract_error).map_err(|error| Trouble::of(&error))
}

/// To a node that has the slot only for those who were sent there. That holds for the next command of the
/// connection, so it gets one that nobody else uses.
async fn send_asking(node: &Node, command: &Cmd, by: Instant) -> Result<Value, Trouble> {
    let sent = async {
        let connection = connect::open(node).await.map_err(unconnected)?;
        let permitted = ask::<Value>(&connection, &["ASKING"]).await;
        permitted.map_err(|error| Trouble::of(&error))?;
        exchange(connection, command).await
    };
    tokio::time::timeout_at(by, sent).await.unwrap_or_else(|_| Err(too_late()))
}
