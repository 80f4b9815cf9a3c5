//! A flood of refusals, queue entries, reservations and tenants' writes against one node, and what it takes of disk,
//! Redis and memory.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_testkit::Redis;

use crate::{ADMIN, Client, Response, Server, ServerBuilder, Upstream};

/// How often what a node takes is looked at.
const SAMPLE_EVERY: Duration = Duration::from_millis(200);

const TENANTS: u64 = 20;
/// With so many calls of each kind, so few tenants write that they reach the bound of changes a minute.
const FEW_WRITERS: u64 = 2;
/// Keys of the queue, each of which has had its one request.
const JOBS: u64 = 50;
const QUEUED_BODY_BYTES: usize = 64 << 10;
const REFUSALS_OF_A_BATCH: u64 = 200;
const DESCRIPTION_BYTES: usize = 4_000;

/// What a node takes at one moment, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// Its data directory.
    pub disk: u64,
    /// Its resident memory.
    pub memory: u64,
    /// The memory of its Redis; 0 without one.
    pub redis: u64,
}

impl Usage {
    fn max(self, other: Self) -> Self {
        Self {
            disk: self.disk.max(other.disk),
            memory: self.memory.max(other.memory),
            redis: self.redis.max(other.redis),
        }
    }
}

/// What a flood did, and what it took.
#[derive(Debug)]
pub struct Report {
    /// Each kind of call: its name, how many were answered as wished, and how many were not.
    pub calls: Vec<(&'static str, u64, u64)>,
    /// Before the flood, at its worst, and after it.
    pub usage: [Usage; 3],
}

/// A node to be flooded, with what is behind it.
pub struct Flooded {
    server: Server,
    redis: Option<Redis>,
    tenants: Vec<String>,
    _upstream: Upstream,
}

/// How long each kind of call goes on.
#[derive(Debug, Clone, Copy)]
pub enum Extent {
    /// So long.
    For(Duration),
    /// So many calls of each kind.
    Calls(u64),
}

type Call<'a> = &'a (dyn Fn(&mut Client, u64) -> Result<bool, std::io::Error> + Sync);

impl Flooded {
    /// A gateway, embedded or with a Redis, with these settings.
    pub fn start(redis: Option<Redis>, settings: &[(&str, &str)]) -> Self {
        let upstream = Upstream::start();
        let mut builder = ServerBuilder::default().gateway().arg("--upstream").arg(&upstream.url());
        if let Some(redis) = &redis {
            builder = builder.arg("--redis").arg(&redis.url());
        }
        for (name, value) in settings {
            builder = builder.env(name, value);
        }
        let server = builder.start();
        let mut admin = server.admin();
        for rule in [
            json!({"rule_id": "refused", "identifier_type": "user_id", "limit": 0, "window": "1h",
                   "applies_to": {"endpoints": ["/refused"]}}),
            json!({"rule_id": "jobs", "key_by": ["job"], "identifier_type": "composite", "limit": 1,
                   "window": "1d", "algorithm": "token_bucket", "action": "queue",
                   "applies_to": {"endpoints": ["/jobs/{job}"]}}),
            json!({"rule_id": "held", "identifier_type": "tenant_id", "limit": 1_000_000_000,
                   "window": "1h", "applies_to": {"endpoints": ["/held"]}}),
        ] {
            admin.put("rules", &rule);
        }
        let tenants = (0..TENANTS)
            .map(|number| admin.token("tenant_admin", Some(&format!("tenant{number}"))).1)
            .collect();
        for job in 0..JOBS {
            let mut client = Client::connect(server.gateway_addr()).expect("a connection");
            client.request("POST", &format!("/jobs/{job}"), &[], b"first");
        }
        Self { server, redis, tenants, _upstream: upstream }
    }

    /// The node.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// What the node takes now.
    pub fn usage(&self) -> Usage {
        let status = fs::read_to_string(format!("/proc/{}/status", self.server.pid()));
        let resident = status.unwrap_or_default().lines().find_map(|line| {
            line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok()
        });
        let redis = self.redis.as_ref().and_then(|redis| redis.info("memory", "used_memory"));
        Usage {
            disk: size_of(self.server.dir()),
            memory: resident.unwrap_or(0) << 10,
            redis: redis.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0),
        }
    }

    /// Sends all kinds of calls at the same time, each on a connection of its own.
    pub fn run(&self, extent: Extent) -> Report {
        let writers = if matches!(extent, Extent::Calls(_)) { FEW_WRITERS } else { TENANTS };
        let kinds: [(&'static str, Call<'_>); 4] = [
            ("refusals", &Self::refuse),
            ("queue entries", &Self::queue),
            ("reservations", &Self::reserve),
            ("tenants' writes", &|client, number| self.write(client, number, writers)),
        ];
        let before = self.usage();
        let is_over = AtomicBool::new(false);
        let counts: Vec<_> = kinds.iter().map(|_| (AtomicU64::new(0), AtomicU64::new(0))).collect();
        let mut most = before;
        thread::scope(|scope| {
            let mut callers = Vec::new();
            for ((name, call), (done, refused)) in kinds.iter().zip(&counts) {
                let addr = match *name {
                    "queue entries" => self.server.gateway_addr(),
                    _ => self.server.addr(),
                };
                let is_over = &is_over;
                callers.push(scope.spawn(move || {
                    let mut client = None;
                    let mut number = 0;
                    while !is_over.load(Relaxed)
                        && !matches!(extent, Extent::Calls(calls) if number >= calls)
                    {
                        let connected = client.take().map_or_else(|| Client::connect(addr), Ok);
                        let Ok(mut connected) = connected else { continue };
                        let answered = call(&mut connected, number);
                        let count = if matches!(answered, Ok(true)) { done } else { refused };
                        count.fetch_add(1, Relaxed);
                        // A connection that failed is replaced.
                        client = answered.is_ok().then_some(connected);
                        number += 1;
                    }
                }));
            }
            let started = std::time::Instant::now();
            loop {
                most = most.max(self.usage());
                let is_late = matches!(extent, Extent::For(time) if started.elapsed() >= time);
                is_over.fetch_or(is_late, Relaxed);
                if callers.iter().all(thread::ScopedJoinHandle::is_finished) {
                    break;
                }
                thread::sleep(SAMPLE_EVERY);
            }
        });
        let after = self.usage();
        let calls = kinds.iter().zip(&counts);
        let calls = calls
            .map(|((name, _), (done, refused))| (*name, done.load(Relaxed), refused.load(Relaxed)));
        Report { calls: calls.collect(), usage: [before, most.max(after), after] }
    }

    /// Refusals under names that never come again: none is a repeat of another.
    fn refuse(client: &mut Client, number: u64) -> std::io::Result<bool> {
        let one = |place: u64| {
            let user = format!("user-{number}-{place}-{}", "x".repeat(64));
            json!({"userId": user, "tenantId": format!("tenant{}", place % TENANTS), "endpoint": "/refused"})
        };
        let batch = json!({"requests": (0..REFUSALS_OF_A_BATCH).map(one).collect::<Vec<_>>()});
        let answer = send(client, "/rate-limit/allow/batch", &batch)?;
        let refused = answer.text().matches("\"allowed\":false").count() as u64;
        Ok(answer.status == 200 && refused == REFUSALS_OF_A_BATCH)
    }

    fn queue(client: &mut Client, number: u64) -> std::io::Result<bool> {
        let body = vec![b'q'; QUEUED_BODY_BYTES];
        let path = format!("/jobs/{}", number % JOBS);
        Ok(client.try_request("POST", &path, &[], &body)?.status == 202)
    }

    fn reserve(client: &mut Client, number: u64) -> std::io::Result<bool> {
        let tenant = format!("tenant{}", number % TENANTS);
        let body = json!({"tenantId": tenant, "endpoint": "/held", "ttlMs": 3_600_000});
        send(client, "/rate-limit/reserve", &body).map(|answer| answer.status == 200)
    }

    /// A tenant's admin changes one rule again and again.
    fn write(&self, client: &mut Client, number: u64, writers: u64) -> std::io::Result<bool> {
        let tenant = number % writers;
        let token = self.tenants.get(usize::try_from(tenant).unwrap_or(0));
        let bearer = format!("Bearer {}", token.map_or("", String::as_str));
        let rule = json!({"rule_id": format!("tenant{tenant}.own"), "identifier_type": "user_id",
                          "limit": 1 + number, "window": "1h", "description": "d".repeat(DESCRIPTION_BYTES)});
        let headers = [("authorization", bearer.as_str())];
        let path = format!("{ADMIN}rules");
        let answer = client.try_request("POST", &path, &headers, rule.to_string().as_bytes())?;
        Ok(matches!(answer.status, 200 | 201))
    }
}

fn send(client: &mut Client, path: &str, body: &Value) -> std::io::Result<Response> {
    let headers = [("content-type", "application/json")];
    client.try_request("POST", path, &headers, body.to_string().as_bytes())
}

/// The bytes of all files in a folder and below it.
fn size_of(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => size_of(&entry.path()),
            Ok(found) => found.len(),
            // It was removed meanwhile.
            Err(_) => 0,
        })
        .sum()
}
