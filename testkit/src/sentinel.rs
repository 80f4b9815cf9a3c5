//! A master and its replica, and three sentinels that put the replica in the master's place.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::redis::{Redis, RedisBuilder};
use crate::resp::Reply;
use crate::{eventually, wait_for};

/// What the sentinels call the master.
const NAME: &str = "mymaster";

/// How many sentinels there are; two must agree.
const SENTINELS: usize = 3;

/// Five processes; killed when dropped.
pub struct Sentinel {
    nodes: Vec<Redis>,
    sentinels: Vec<Redis>,
    master: AtomicUsize,
}

impl Sentinel {
    /// Starts them, and waits until a failover would succeed.
    pub fn start() -> Self {
        Self::start_with(&Redis::builder())
    }

    /// [`start`](Self::start), with master and replica as described.
    pub fn start_with(template: &RedisBuilder) -> Self {
        let master = template.clone().start();
        let replica =
            template.clone().config(&format!("replicaof 127.0.0.1 {}", master.port())).start();
        eventually("the replica follows", || {
            replica.info("replication", "master_link_status").as_deref() == Some("up")
        });
        let sentinels = (0..SENTINELS).map(|_| sentinel_of(&master, template).start()).collect();
        let this = Self { nodes: vec![master, replica], sentinels, master: AtomicUsize::new(0) };
        wait_for("the sentinels know one another and the replica", || this.is_complete());
        this
    }

    fn is_complete(&self) -> Result<(), String> {
        for sentinel in &self.sentinels {
            let master = sentinel.call(&["SENTINEL", "MASTER", NAME]).map_err(|e| e.to_string())?;
            let is = |name, value| field(&master, name).as_deref() == Some(value);
            let replicas = sentinel.call(&["SENTINEL", "REPLICAS", NAME]);
            let replicas = replicas.map_err(|e| e.to_string())?;
            let follows = replicas.list().iter().all(|replica| {
                field(replica, "flags").as_deref() == Some("slave")
                    && field(replica, "master-link-status").as_deref() == Some("ok")
            });
            let others = (SENTINELS - 1).to_string();
            let is_complete = is("flags", "master")
                && is("num-slaves", "1")
                && is("num-other-sentinels", &others)
                && follows;
            if !is_complete {
                return Err(format!("{master:?}, {replicas:?}"));
            }
        }
        Ok(())
    }

    /// The addresses of the sentinels.
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Redis::url).collect()
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[Redis] {
        &self.sentinels
    }

    /// The master's name.
    pub fn master_name(&self) -> &'static str {
        NAME
    }

    /// Master and replica, in the order of their start.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The master: the first one, until [`wait_for_new_master`](Self::wait_for_new_master) found another.
    pub fn master(&self) -> &Redis {
        &self.nodes[self.master.load(Ordering::Acquire)]
    }

    /// Kills the master.
    pub fn kill_master(&self) {
        self.master().kill();
    }

    /// Waits until all sentinels name another master, and that one knows its part.
    pub fn wait_for_new_master(&self) -> &Redis {
        let old = self.master.load(Ordering::Acquire);
        let new = wait_for("a new master", || {
            let ports: Vec<_> = self
                .sentinels
                .iter()
                .filter(|s| s.is_running())
                .map(|s| self.named_by(s))
                .collect();
            let index = self.nodes.iter().position(|node| {
                !ports.is_empty() && ports.iter().all(|port| *port == node.port().to_string())
            });
            let is_master = |index: &usize| {
                self.nodes[*index].info("replication", "role").as_deref() == Some("master")
            };
            index
                .filter(|index| *index != old)
                .filter(is_master)
                .ok_or_else(|| format!("the sentinels name {ports:?}"))
        });
        self.master.store(new, Ordering::Release);
        &self.nodes[new]
    }

    /// The port of the master that this sentinel names.
    fn named_by(&self, sentinel: &Redis) -> String {
        let reply = sentinel.call(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.master_name()]);
        reply.ok().and_then(|reply| reply.list().get(1).map(Reply::text)).unwrap_or_default()
    }
}

fn sentinel_of(master: &Redis, template: &RedisBuilder) -> RedisBuilder {
    let mut builder = Redis::builder()
        .sentinel()
        .config(&format!("sentinel monitor {NAME} 127.0.0.1 {} 2", master.port()))
        .config(&format!("sentinel down-after-milliseconds {NAME} 1000"))
        .config(&format!("sentinel failover-timeout {NAME} 2000"));
    if let Some((user, password)) = template.credentials() {
        builder = builder.config(&format!("sentinel auth-pass {NAME} {password}"));
        if let Some(user) = user {
            builder = builder.config(&format!("sentinel auth-user {NAME} {user}"));
        }
    }
    builder
}

/// A field of an answer that lists names and values in turn.
fn field(reply: &Reply, name: &str) -> Option<String> {
    let mut items = reply.list().iter().map(Reply::text);
    items.find(|item| item == name)?;
    items.next()
}
