//! Several nodes that share a store, and many clients at once.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{Client, Response, Server, ServerBuilder};

/// The stack of a client's thread: there are hundreds of them.
const STACK_BYTES: usize = 256 * 1024;

/// Makes the request of a client from the client's number and its own.
type MakeBody = Arc<dyn Fn(usize, usize) -> Value + Send + Sync>;

/// Nodes of one installation.
pub struct Fleet {
    nodes: Vec<Server>,
}

/// An answer to a client, and when it came.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Which node answered.
    pub node: usize,
    pub status: u16,
    pub body: Value,
    /// Since the clients began.
    pub at: Duration,
    /// How long it took.
    pub took: Duration,
}

impl Answer {
    pub fn is_allowed(&self) -> bool {
        self.body["allowed"] == true
    }

    pub fn is_degraded(&self) -> bool {
        self.body["degraded"] == true
    }
}

impl Fleet {
    /// So many nodes with the same rules and arguments.
    pub fn start(nodes: usize, rules: &str, args: &[&str]) -> Self {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let start = |_| ServerBuilder::default().rules(rules).args(&args).start();
        Self { nodes: (0..nodes).map(start).collect() }
    }

    /// The same, with so much patience with Redis that a busy machine is not taken for an outage:
    /// for tests of exactness.
    pub fn patient(nodes: usize, rules: &str, args: &[&str]) -> Self {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let start = |_| {
            let builder = ServerBuilder::default().rules(rules).args(&args);
            builder.env("TOLLGATE_REDIS_TIMEOUT_MS", "5000").start()
        };
        Self { nodes: (0..nodes).map(start).collect() }
    }

    /// These nodes.
    pub fn of(nodes: Vec<Server>) -> Self {
        Self { nodes }
    }

    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    pub fn nodes_mut(&mut self) -> &mut [Server] {
        &mut self.nodes
    }

    /// Asks every node in turn.
    pub fn ask(&self, node: usize, path: &str, body: &Value) -> Response {
        self.nodes[node].client().post(path, body)
    }

    /// So many clients for every node send so many requests each, all at the same time. Every
    /// request must be answered.
    pub fn flood(
        &self,
        clients_per_node: usize,
        requests: usize,
        body: impl Fn(usize, usize) -> Value + Send + Sync + 'static,
    ) -> Vec<Answer> {
        let forever = Arc::new(AtomicBool::new(true));
        let body: MakeBody = Arc::new(body);
        self.run(clients_per_node, requests, &forever, &body).join()
    }

    /// So many clients for every node send requests until [`Load::stop`].
    pub fn load(
        &self,
        clients_per_node: usize,
        body: impl Fn(usize, usize) -> Value + Send + Sync + 'static,
    ) -> Load {
        let running = Arc::new(AtomicBool::new(true));
        let body: MakeBody = Arc::new(body);
        self.run(clients_per_node, usize::MAX, &running, &body)
    }

    fn run(
        &self,
        clients_per_node: usize,
        requests: usize,
        running: &Arc<AtomicBool>,
        body: &MakeBody,
    ) -> Load {
        let barrier = Arc::new(Barrier::new(clients_per_node * self.nodes.len() + 1));
        let mut threads = Vec::new();
        for (node, server) in self.nodes.iter().enumerate() {
            for client in 0..clients_per_node {
                let client = ClientRun {
                    addr: server.addr(),
                    node,
                    client: node * clients_per_node + client,
                    requests,
                };
                let (barrier, running) = (Arc::clone(&barrier), Arc::clone(running));
                let body = Arc::clone(body);
                let thread = thread::Builder::new()
                    .stack_size(STACK_BYTES)
                    .spawn(move || client.run(&barrier, &running, &*body))
                    .expect("a thread for a client");
                threads.push(thread);
            }
        }
        barrier.wait();
        Load { threads, running: Arc::clone(running) }
    }
}

/// Clients at work.
pub struct Load {
    threads: Vec<thread::JoinHandle<Vec<Answer>>>,
    running: Arc<AtomicBool>,
}

impl Load {
    /// Lets every client finish its request, and returns all answers.
    pub fn stop(self) -> Vec<Answer> {
        self.running.store(false, Ordering::SeqCst);
        self.join()
    }

    fn join(self) -> Vec<Answer> {
        self.threads.into_iter().flat_map(|thread| thread.join().expect("a client")).collect()
    }
}

struct ClientRun {
    addr: SocketAddr,
    node: usize,
    client: usize,
    requests: usize,
}

impl ClientRun {
    fn run(
        self,
        barrier: &Barrier,
        running: &AtomicBool,
        body: &dyn Fn(usize, usize) -> Value,
    ) -> Vec<Answer> {
        let mut client = Client::connect(self.addr).expect("a connection");
        let mut answers = Vec::new();
        barrier.wait();
        let began = Instant::now();
        for request in 0..self.requests {
            if !running.load(Ordering::SeqCst) {
                break;
            }
            let asked = Instant::now();
            let body = body(self.client, request).to_string();
            let answer = client.try_request("POST", "/rate-limit/allow", &[], body.as_bytes());
            match answer {
                Ok(answer) => answers.push(Answer {
                    node: self.node,
                    status: answer.status,
                    body: answer.json(),
                    at: began.elapsed(),
                    took: asked.elapsed(),
                }),
                // The node was killed by the test.
                Err(_) => break,
            }
        }
        answers
    }
}
