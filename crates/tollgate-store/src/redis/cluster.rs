//! Which node of a cluster has which slot.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::RwLock;
use redis::{ConnectionAddr, ConnectionInfo, Value};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::connect::{Endpoint, Refusal, ask, dial, refusal};
use super::credentials::Credentials;
use super::health::Health;
use super::key::SLOTS;
use super::metrics::RedisMetrics;
use super::node::Node;
use super::options::RedisOptions;
use super::sentinel::at_address;
use crate::{Failure, Nanos};

/// How old the table may grow.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// How long one node may take to tell what it knows.
const PATIENCE: Duration = Duration::from_millis(500);

#[derive(Default)]
struct Table {
    /// The node of every slot.
    slots: Vec<Option<Arc<Node>>>,
    nodes: HashMap<(String, u16), Arc<Node>>,
}

/// A cluster as far as this process knows it.
pub(super) struct Cluster {
    seeds: Vec<ConnectionInfo>,
    /// How to connect to any node of it.
    template: ConnectionInfo,
    credentials: Credentials,
    metrics: Arc<RedisMetrics>,
    table: RwLock<Table>,
    is_refreshing: AtomicBool,
    refreshed: Notify,
    /// When the table was read last, in milliseconds since `began`; 0: never.
    read_at: AtomicU64,
    began: Instant,
    last_failure: parking_lot::Mutex<Failure>,
    health: Health,
}

impl Cluster {
    pub(super) fn new(
        seeds: Vec<ConnectionInfo>,
        options: &RedisOptions,
        metrics: Arc<RedisMetrics>,
    ) -> Option<Self> {
        let slots = (0..SLOTS).map(|_| None).collect();
        Some(Self {
            template: seeds.first()?.clone(),
            seeds,
            credentials: options.credentials(),
            metrics,
            table: RwLock::new(Table { slots, nodes: HashMap::new() }),
            is_refreshing: AtomicBool::new(false),
            refreshed: Notify::new(),
            read_at: AtomicU64::new(0),
            began: Instant::now(),
            last_failure: parking_lot::Mutex::new(Failure::Connection),
            health: Health::default(),
        })
    }

    /// Which node has a slot. Where that is not known, the cluster is asked.
    pub(super) async fn node_of(
        self: &Arc<Self>,
        slot: u16,
        by: Instant,
    ) -> Result<Arc<Node>, Failure> {
        let known = || self.table.read().slots.get(usize::from(slot)).cloned().flatten();
        let age = self.now().saturating_sub(self.read_at.load(Relaxed));
        if let Some(node) = known() {
            if u128::from(age) > LOOK_AGAIN.as_millis() {
                self.refresh_soon();
            }
            return Ok(node);
        }
        let refreshed = self.refreshed.notified();
        tokio::pin!(refreshed);
        refreshed.as_mut().enable();
        self.refresh_soon();
        if tokio::time::timeout_at(by, refreshed).await.is_err() {
            return Err(Failure::Timeout);
        }
        known().ok_or_else(|| *self.last_failure.lock())
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn clock(&self) -> Option<Nanos> {
        self.table.read().nodes.values().find_map(|node| node.clock())
    }

    /// All nodes that have slots.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        let table = self.table.read();
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        for node in table.slots.iter().flatten() {
            if !nodes.iter().any(|other| Arc::ptr_eq(other, node)) {
                nodes.push(Arc::clone(node));
            }
        }
        nodes
    }

    /// A node says that a slot is on another node now.
    pub(super) fn moved(self: &Arc<Self>, slot: u16, by: &Arc<Node>, address: &str) {
        if let Some(node) = self.node_at(by, address)
            && let Some(entry) = self.table.write().slots.get_mut(usize::from(slot))
        {
            *entry = Some(node);
        }
        self.refresh_soon();
    }

    /// The node at `host:port`; without a host, on the host of the node that sent the address.
    pub(super) fn node_at(&self, by: &Arc<Node>, address: &str) -> Option<Arc<Node>> {
        let (host, port) = address.rsplit_once(':')?;
        let port = port.parse().ok()?;
        let host = if host.is_empty() { host_of(&by.endpoint)? } else { host.to_owned() };
        Some(self.node(host, port))
    }

    fn node(&self, host: String, port: u16) -> Arc<Node> {
        let mut table = self.table.write();
        if let Some(node) = table.nodes.get(&(host.clone(), port)) {
            return Arc::clone(node);
        }
        let info = Box::new(at_address(&self.template, host.clone(), port));
        let credentials = self.credentials.clone();
        let endpoint = Endpoint::Fixed { info, expects_cluster: true, credentials };
        let node = Arc::new(Node::new(endpoint, Arc::clone(&self.metrics)));
        table.nodes.insert((host, port), Arc::clone(&node));
        node
    }

    /// Asks the cluster for its slots, unless somebody is at it.
    pub(super) fn refresh_soon(self: &Arc<Self>) {
        if !self.is_refreshing.swap(true, Relaxed) {
            let refresh = Refresh(Arc::clone(self));
            tokio::spawn(async move { refresh.0.refresh().await });
        }
    }

    async fn refresh(&self) {
        let known: Vec<ConnectionInfo> = {
            let table = self.table.read();
            let info = |node: &Arc<Node>| match &node.endpoint {
                Endpoint::Fixed { info, .. } => Some((**info).clone()),
                Endpoint::Sentinel(_) => None,
            };
            table.nodes.values().filter_map(info).collect()
        };
        let mut last = (Failure::Connection, "no address of the cluster answers".to_owned());
        for info in known.iter().chain(&self.seeds) {
            let info = self.credentials.apply(info.clone());
            let asked = tokio::time::timeout(PATIENCE, slots_from(&info)).await;
            match asked.unwrap_or_else(|_| Err((Failure::Timeout, "no answer".to_owned()))) {
                Ok(ranges) if !ranges.is_empty() => {
                    self.adopt(ranges);
                    self.read_at.store(self.now().max(1), Relaxed);
                    self.health.succeeded("cluster", self.began.elapsed());
                    return;
                }
                Ok(_) => last = (Failure::NotReady, format!("{} knows no slots", info.addr())),
                Err(refusal) => last = refusal,
            }
        }
        *self.last_failure.lock() = last.0;
        self.health.failed("cluster", last.0, &last.1, self.began.elapsed());
    }

    fn adopt(&self, ranges: Vec<Range>) {
        let mut slots: Vec<Option<Arc<Node>>> = (0..SLOTS).map(|_| None).collect();
        let mut kept = HashMap::new();
        for Range { first, last, host, port } in ranges {
            let node = self.node(host.clone(), port);
            let places = slots.get_mut(usize::from(first)..=usize::from(last));
            places.unwrap_or_default().fill(Some(Arc::clone(&node)));
            kept.insert((host, port), node);
        }
        *self.table.write() = Table { slots, nodes: kept };
    }
}

/// However a look ends, another may begin.
struct Refresh(Arc<Cluster>);

impl Drop for Refresh {
    fn drop(&mut self) {
        self.0.is_refreshing.store(false, Relaxed);
        self.0.refreshed.notify_waiters();
    }
}

fn host_of(endpoint: &Endpoint) -> Option<String> {
    match endpoint {
        Endpoint::Fixed { info, .. } => host(info),
        Endpoint::Sentinel(_) => None,
    }
}

fn host(info: &ConnectionInfo) -> Option<String> {
    match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Some(host.clone()),
        _ => None,
    }
}

/// Slots that follow one another on one node.
struct Range {
    first: u16,
    last: u16,
    host: String,
    port: u16,
}

async fn slots_from(info: &ConnectionInfo) -> Result<Vec<Range>, Refusal> {
    let connection = dial(info.clone()).await?;
    let answer = ask::<Value>(&connection, &["CLUSTER", "SLOTS"]).await;
    let Value::Array(rows) = answer.map_err(|error| refusal(&error))? else {
        return Err((Failure::Protocol, "CLUSTER SLOTS is no list".to_owned()));
    };
    Ok(rows.iter().filter_map(|row| range(row, info)).collect())
}

fn range(row: &Value, info: &ConnectionInfo) -> Option<Range> {
    let Value::Array(row) = row else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = row.as_slice() else {
        return None;
    };
    let [name, Value::Int(port), ..] = master.as_slice() else { return None };
    // A node that does not know its own name is where we asked.
    let name = match name {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    };
    let host = if name.is_empty() || name == "?" { host(info)? } else { name };
    Some(Range {
        first: u16::try_from(*first).ok()?,
        last: u16::try_from(*last).ok().filter(|last| *last < SLOTS)?,
        host,
        port: u16::try_from(*port).ok()?,
    })
}
