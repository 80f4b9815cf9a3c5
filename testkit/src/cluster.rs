//! A Redis cluster whose nodes can die, and whose slots can move.

use std::collections::{BTreeMap, BTreeSet};

use crate::redis::{Redis, RedisBuilder};
use crate::resp::Reply;
use crate::slots::SLOTS;
use crate::wait_for;

/// How many keys move at once.
const KEYS_PER_MOVE: usize = 100;

/// What one node says of another, or of itself.
struct Member {
    id: String,
    port: u16,
    flags: String,
    epoch: u64,
    is_connected: bool,
    slots: BTreeSet<u16>,
}

impl Member {
    fn is(&self, flag: &str) -> bool {
        self.flags.split(',').any(|other| other == flag)
    }

    /// A line of `CLUSTER NODES`: id, address, flags, master, ping, pong, epoch, link, slots.
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let id = words.next()?.to_owned();
        let (addr, _) = words.next()?.split_once('@')?;
        let port = addr.rsplit_once(':')?.1.parse().ok()?;
        let flags = words.next()?.to_owned();
        let epoch = words.nth(3)?.parse().ok()?;
        let is_connected = words.next()? == "connected";
        let mut slots = BTreeSet::new();
        for word in words.filter(|word| !word.starts_with('[')) {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            slots.extend(first.parse::<u16>().ok()?..=last.parse().ok()?);
        }
        Some(Self { id, port, flags, epoch, is_connected, slots })
    }
}

/// Nodes that form a cluster; killed when dropped. The first `masters` nodes begin as masters, each with
/// an equal share of the slots in ascending order; the replicas follow, those of the first master first.
pub struct Cluster {
    nodes: Vec<Redis>,
}

impl Cluster {
    /// Starts the nodes and waits until they are a healthy cluster.
    pub fn start(masters: usize, replicas_per_master: usize) -> Self {
        Self::start_with(&Redis::builder(), masters, replicas_per_master)
    }

    /// [`start`](Self::start), with each node as described.
    pub fn start_with(template: &RedisBuilder, masters: usize, replicas_per_master: usize) -> Self {
        let template = template
            .clone()
            .config("cluster-enabled yes")
            .config("cluster-node-timeout 1000")
            .config("cluster-replica-validity-factor 0")
            .config("cluster-allow-replica-migration no");
        let count = masters * (1 + replicas_per_master);
        let nodes: Vec<Redis> = (0..count).map(|_| template.clone().start()).collect();
        let cluster = Self { nodes };
        for (index, node) in cluster.nodes.iter().enumerate() {
            must(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            for other in &cluster.nodes[..index] {
                must(node, &["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string()]);
            }
        }
        for (index, node) in cluster.nodes[..masters].iter().enumerate() {
            let first = usize::from(SLOTS) * index / masters;
            let last = usize::from(SLOTS) * (index + 1) / masters - 1;
            must(node, &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
        }
        wait_for("the nodes meet", || {
            cluster.nodes.iter().try_for_each(|node| cluster.has_met_all(node))
        });
        for (index, node) in cluster.nodes[masters..].iter().enumerate() {
            let master = cluster.id(index / replicas_per_master);
            must(node, &["CLUSTER", "REPLICATE", &master]);
        }
        cluster.wait_until_healthy();
        cluster
    }

    fn has_met_all(&self, node: &Redis) -> Result<(), String> {
        let members = members(node)?;
        let has_met = members.len() == self.nodes.len()
            && members.iter().all(|member| member.is_connected && !member.is("handshake"));
        if has_met { Ok(()) } else { Err(format!("{} knows {}", node.port(), members.len())) }
    }

    /// The addresses of all nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Redis::url).collect()
    }

    /// All nodes, also those that were killed. Indices are of this list.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The index of the node that owns a slot, by the newest claim that any running node knows.
    pub fn master_of(&self, slot: u16) -> usize {
        wait_for(&format!("an owner of slot {slot}"), || {
            let views = self.running().filter_map(|node| members(node).ok());
            let claims = views.flatten().filter(|member| member.slots.contains(&slot));
            let newest = claims.max_by_key(|member| member.epoch).ok_or("nobody claims it")?;
            self.index_of(newest.port)
        })
    }

    /// The indices of the masters that have slots.
    pub fn masters(&self) -> Vec<usize> {
        let views = self.running().filter_map(|node| members(node).ok()).flatten();
        let mut newest = BTreeMap::new();
        for member in views {
            for slot in &member.slots {
                let claim = (member.epoch, member.port);
                let best = newest.entry(*slot).or_insert(claim);
                *best = claim.max(*best);
            }
        }
        let ports: BTreeSet<u16> = newest.values().map(|(_, port)| *port).collect();
        let mut masters: Vec<_> = ports.into_iter().flat_map(|port| self.index_of(port)).collect();
        masters.sort_unstable();
        masters
    }

    /// Kills the master of a slot and says which it was.
    pub fn kill_master_of(&self, slot: u16) -> usize {
        let index = self.master_of(slot);
        self.nodes[index].kill();
        index
    }

    /// Waits until all running nodes agree that each slot is with a running master, each of them that is
    /// not a master follows one, and none has doubts about another. Killed and paused nodes do not count.
    pub fn wait_until_healthy(&self) {
        wait_for("a healthy cluster", || self.is_healthy());
    }

    fn is_healthy(&self) -> Result<(), String> {
        let mut agreed: Option<BTreeMap<u16, BTreeSet<u16>>> = None;
        let running: BTreeSet<u16> = self.running().map(Redis::port).collect();
        for node in self.running() {
            let complain = |what: &str| Err(format!("{} {what}", node.port()));
            let info = node.call(&["CLUSTER", "INFO"]).map_err(|e| e.to_string())?.text();
            if !info.contains("cluster_state:ok") {
                return complain("is not ok");
            }
            let members = members(node)?;
            if members.len() != self.nodes.len() {
                return complain("does not know all nodes");
            }
            for member in members.iter().filter(|member| running.contains(&member.port)) {
                let is_doubtful = ["fail", "fail?", "handshake"].iter().any(|flag| member.is(flag));
                if is_doubtful || !member.is_connected {
                    return complain(&format!("doubts {}: {}", member.port, member.flags));
                }
                if member.is("slave") != member.slots.is_empty() {
                    return complain(&format!("sees {} between two parts", member.port));
                }
                if member.is("myself") && member.is("slave") {
                    let link = node.info("replication", "master_link_status");
                    let master = node.info("replication", "master_port");
                    let master = master.and_then(|port| port.parse().ok()).unwrap_or(0);
                    if link.as_deref() != Some("up") || !running.contains(&master) {
                        return complain("is not in step with its master");
                    }
                }
            }
            let owners: BTreeMap<u16, BTreeSet<u16>> = members
                .into_iter()
                .filter(|member| !member.slots.is_empty())
                .map(|member| (member.port, member.slots))
                .collect();
            if owners.values().map(BTreeSet::len).sum::<usize>() != usize::from(SLOTS) {
                return complain("does not know the owners of all slots");
            }
            if !owners.keys().all(|port| running.contains(port)) {
                return complain("sees slots with a node that does not run");
            }
            if *agreed.get_or_insert_with(|| owners.clone()) != owners {
                return complain("sees other owners than the first");
            }
        }
        if agreed.is_some() { Ok(()) } else { Err("no node is running".to_owned()) }
    }

    /// Moves a slot with all its keys to another master, and waits until all nodes know.
    pub fn move_slot(&self, slot: u16, to: usize) {
        self.begin_move(slot, to);
        self.finish_move(slot, to);
    }

    /// Puts a slot between two masters: the old one still has the keys, and answers `ASK` for keys that
    /// it does not have.
    pub fn begin_move(&self, slot: u16, to: usize) {
        let from = self.master_of(slot);
        assert_ne!(from, to, "the slot {slot} is there already");
        let slot = slot.to_string();
        let set = ["CLUSTER", "SETSLOT", &slot];
        must(&self.nodes[to], &[&set[..], &["IMPORTING", &self.id(from)]].concat());
        must(&self.nodes[from], &[&set[..], &["MIGRATING", &self.id(to)]].concat());
    }

    /// Moves up to `limit` keys of a slot that is between two masters, and says how many they were.
    pub fn move_keys(&self, slot: u16, to: usize, limit: usize) -> usize {
        let from = &self.nodes[self.master_of(slot)];
        let keys = must(from, &["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), &limit.to_string()]);
        let keys: Vec<String> = keys.list().iter().map(Reply::text).collect();
        if !keys.is_empty() {
            let port = self.nodes[to].port().to_string();
            let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000"];
            match self.nodes[to].credentials() {
                Some((Some(user), password)) => command.extend(["AUTH2", user, password]),
                Some((None, password)) => command.extend(["AUTH", password]),
                None => {}
            }
            command.push("KEYS");
            command.extend(keys.iter().map(String::as_str));
            must(from, &command);
        }
        keys.len()
    }

    /// Ends what [`begin_move`](Self::begin_move) began: the other keys follow, and the slot has a new
    /// owner.
    pub fn finish_move(&self, slot: u16, to: usize) {
        let from = self.master_of(slot);
        while self.move_keys(slot, to, KEYS_PER_MOVE) > 0 {}
        let id = self.id(to);
        let text = slot.to_string();
        // The new owner first: were it the last, the slot could be nobody's in between.
        let others = self.masters().into_iter().filter(|index| *index != to && *index != from);
        for index in [to, from].into_iter().chain(others) {
            if self.nodes[index].is_running() {
                must(&self.nodes[index], &["CLUSTER", "SETSLOT", &text, "NODE", &id]);
            }
        }
        let port = self.nodes[to].port();
        wait_for(&format!("slot {slot} is moved"), || {
            self.running().try_for_each(|node| {
                let owner = members(node)?.into_iter().find(|m| m.slots.contains(&slot));
                let owner = owner.map(|member| member.port);
                if owner == Some(port) { Ok(()) } else { Err(format!("{owner:?} has it")) }
            })
        });
    }

    fn running(&self) -> impl Iterator<Item = &Redis> {
        self.nodes.iter().filter(|node| node.is_running())
    }

    fn index_of(&self, port: u16) -> Result<usize, String> {
        let index = self.nodes.iter().position(|node| node.port() == port);
        index.ok_or_else(|| format!("the port {port} is none of ours"))
    }

    fn id(&self, index: usize) -> String {
        let members = members(&self.nodes[index]).expect("a node that knows itself");
        let myself = members.into_iter().find(|member| member.is("myself"));
        myself.expect("a node that knows itself").id
    }
}

fn members(node: &Redis) -> Result<Vec<Member>, String> {
    let text = node.call(&["CLUSTER", "NODES"]).map_err(|error| error.to_string())?.text();
    let read = |line: &str| Member::read(line).ok_or_else(|| format!("unreadable: {line}"));
    text.lines().map(read).collect()
}

fn must(node: &Redis, command: &[&str]) -> Reply {
    let reply = node.call(command).map_err(|error| error.to_string()).and_then(Reply::ok);
    reply.unwrap_or_else(|error| panic!("{command:?} on {}: {error}", node.port()))
}
