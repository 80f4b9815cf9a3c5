//! What the log says about an outage: every change once, what to do, and no secret.

#![allow(
    clippy::unwrap_used,
    clippy::large_futures,
    reason = "these are tests: a panic is how they fail"
)]

mod redis_support;

use std::fmt::Debug;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis_support::{Probe, options, until_it_answers};
use tollgate_store::redis::{RedisOptions, RedisStore};
use tollgate_testkit::Redis;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

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
        metadata.target().starts_with("tollgate_store")
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

#[tokio::test]
async fn an_outage_is_told_once_and_its_end_too() {
    let lines = Lines::default();
    tracing::subscriber::set_global_default(lines.clone()).unwrap();
    let taken = || std::mem::take(&mut *lines.0.lock().unwrap());

    let server = Redis::builder().password("hunter2").start();
    let timeout = Duration::from_millis(300);
    let store = RedisStore::connect(RedisOptions { timeout, ..options(&[server.url()]) });
    let store = store.await.unwrap();
    let probe = Probe::new("told", 1_000);
    for _ in 0..50 {
        probe.pay(&store).await.unwrap();
    }
    assert_eq!(taken(), Vec::<String>::new(), "nothing happened");

    server.kill();
    for _ in 0..200 {
        probe.pay(&store).await.unwrap_err();
    }
    let told = taken();
    let about = |words: &str| told.iter().filter(|line| line.contains(words)).count();
    assert_eq!(about("cannot be reached"), 1, "{told:#?}");
    assert_eq!(about("leaving it alone"), 1, "{told:#?}");
    assert_eq!(told.len(), 2, "{told:#?}");
    assert_eq!(about("hunter2"), 0, "{told:#?}");

    server.restart();
    until_it_answers(&store).await;
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    for _ in 0..50 {
        probe.pay(&store).await.unwrap();
    }
    let told = taken();
    let about = |words: &str| told.iter().filter(|line| line.contains(words)).count();
    assert_eq!(about("Redis answers again"), 1, "{told:#?}");
    assert!(told.len() <= 3, "{told:#?}");
}
