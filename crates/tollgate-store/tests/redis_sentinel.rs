//! A master under Sentinel dies, and its replica takes over.

#![allow(
    clippy::unwrap_used,
    clippy::large_futures,
    reason = "these are tests: a panic is how they fail"
)]

mod redis_support;

use std::time::Duration;

use redis_support::{Probe, options, until_it_answers};
use tollgate_store::redis::{RedisKind, RedisOptions, RedisStore};
use tollgate_testkit::Sentinel;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_new_master_is_found() {
    let sentinel = Sentinel::start();
    let kind = RedisKind::Sentinel { master_name: sentinel.master_name().to_owned() };
    let timeout = Duration::from_millis(200);
    let options = RedisOptions { kind, timeout, ..options(&sentinel.urls()) };
    let store = RedisStore::connect(options).await.unwrap();
    let probe = Probe::new("failover", 100);
    assert_eq!(probe.pay(&store).await.unwrap().status.used, 1);
    sentinel.kill_master();
    assert!(probe.pay(&store).await.is_err(), "nobody is there yet");
    sentinel.wait_for_new_master();
    until_it_answers(&store).await;
    let used = probe.pay(&store).await.unwrap().status.used;
    assert!((1..=2).contains(&used), "a charge not yet replicated is lost, no more: {used}");
}
