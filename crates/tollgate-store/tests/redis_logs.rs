//! What the log says about an outage: every change once, what to do, and no secret.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::large_futures,
    reason = "these are tests: a panic is how they fail"
)]

mod redis_support;

use std::fmt::Debug;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use redis_support::{Probe, options, until_it_answers};
use tollgate_store::redis::{RedisKind, RedisOptions, RedisStore};
use tollgate_testkit::Redis;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps what our own code says.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tollgate_store") && *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{} ", event.metadata().level()));
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Lines {
    /// What all tests of this process say.
    fn all() -> &'static Self {
        static ALL: OnceLock<Lines> = OnceLock::new();
        ALL.get_or_init(|| {
            let lines = Self::default();
            tracing::subscriber::set_global_default(lines.clone()).unwrap();
            lines
        })
    }

    /// What was said about one server since the last time, from INFO on.
    fn taken(&self, about: &str) -> Vec<String> {
        let mut lines = self.0.lock().unwrap();
        let (mine, others) = lines.drain(..).partition(|line| line.contains(about));
        *lines = others;
        mine
    }
}

fn hasty(url: String) -> RedisOptions {
    RedisOptions { timeout: Duration::from_millis(300), ..options(&[url]) }
}

#[tokio::test]
async fn an_outage_is_logged_once_and_its_end_too() {
    let server = Redis::builder().password("hunter2").start();
    let (lines, port) = (Lines::all(), server.port().to_string());
    let store = RedisStore::connect(hasty(server.url())).await.unwrap();
    let probe = Probe::new("logged", 1_000);
    for _ in 0..50 {
        probe.pay(&store).await.unwrap();
    }
    assert_eq!(lines.taken(&port), Vec::<String>::new(), "nothing happened");

    // Silent, then unavailable, then back.
    server.pause();
    for _ in 0..3 {
        probe.pay(&store).await.unwrap_err();
    }
    server.kill();
    for _ in 0..200 {
        probe.pay(&store).await.unwrap_err();
    }
    let logged = lines.taken(&port);
    assert_eq!(logged.len(), 1, "{logged:#?}");
    assert!(logged[0].starts_with("WARN") && logged[0].contains("in time"), "{logged:#?}");
    assert!(!logged[0].contains("hunter2"), "{logged:#?}");

    server.restart();
    until_it_answers(&store).await;
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    for _ in 0..50 {
        probe.pay(&store).await.unwrap();
    }
    let logged = lines.taken(&port);
    assert_eq!(logged.len(), 1, "{logged:#?}");
    assert!(logged[0].starts_with("INFO") && logged[0].contains("answers again"), "{logged:#?}");
}

#[tokio::test]
async fn an_idle_connection_that_is_closed_is_nobodys_concern() {
    let server = Redis::start();
    let (lines, port) = (Lines::all(), server.port().to_string());
    let store = RedisStore::connect(hasty(server.url())).await.unwrap();
    let probe = Probe::new("idle", 1_000);
    for paid in 1..=5 {
        assert_eq!(probe.pay(&store).await.unwrap().status.used, paid);
        server.call(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap().ok().unwrap();
    }
    assert_eq!(lines.taken(&port), Vec::<String>::new());
}

#[tokio::test]
async fn what_is_wrong_with_the_address_is_said() {
    let server = Redis::start();
    let port = server.port().to_string();
    let kind = RedisKind::Sentinel { master_name: "nobody".to_owned() };
    let plain = format!("127.0.0.1:{port}");
    for (options, about, words) in [
        (hasty(format!("redis://{plain}/99")), port.as_str(), "no database of this number"),
        (hasty(format!("rediss://{plain}")), &port, "TLS handshake"),
        (RedisOptions { kind, ..hasty(format!("redis://{plain}")) }, "nobody", "no Sentinel"),
    ] {
        let store = RedisStore::new(&options).unwrap();
        Lines::all().taken(about);
        store.ping().await.unwrap_err();
        Probe::new("wrong", 1).pay(&store).await.unwrap_err();
        let logged = Lines::all().taken(about);
        assert_eq!(logged.len(), 1, "{logged:#?}");
        assert!(logged[0].contains(words), "{logged:#?}");
    }
}
