//! The Redis store passes the suite on a single server, under Sentinel and on a cluster, by the servers'
//! own clocks.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::large_futures,
    reason = "these are tests: a panic is how they fail"
)]

mod redis_support;

use std::sync::Arc;

use redis_support::{RealClock, options};
use tollgate_store::redis::{Password, RedisKind, RedisOptions, RedisStore};
use tollgate_store::{Failure, conformance};
use tollgate_testkit::{Cluster, Redis, Sentinel};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn single_server() {
    let server = Redis::start();
    let harness = RealClock::new(options(&[server.url()])).await;
    tollgate_store::conformance_at_once!(&harness);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sentinel() {
    let sentinel = Sentinel::start();
    let kind = RedisKind::Sentinel { master_name: sentinel.master_name().to_owned() };
    let harness = RealClock::new(RedisOptions { kind, ..options(&sentinel.urls()) }).await;
    tollgate_store::conformance_at_once!(&harness);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cluster() {
    let cluster = Cluster::start(3, 1);
    let kind = RedisKind::Cluster;
    let harness = RealClock::new(RedisOptions { kind, ..options(&cluster.urls()) }).await;
    tollgate_store::conformance_at_once!(&harness);
}

/// A few cases of every sort, for other ways to connect.
async fn some_cases(harness: &Arc<RealClock>) {
    conformance::admits_the_quota_and_no_more(harness).await;
    conformance::all_or_none_over_every_algorithm(harness).await;
    conformance::give_back_of_one_among_others(harness).await;
    conformance::slots_are_held_and_released(harness).await;
    conformance::keys_do_not_collide(harness).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unix_socket() {
    let server = Redis::builder().unix_socket().start();
    some_cases(&RealClock::new(options(&[server.unix_url()])).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tls_with_a_client_certificate() {
    let server = Redis::builder().tls().require_client_certificate().start();
    let certificates = server.certificates();
    let options = RedisOptions {
        tls_ca_file: Some(server.ca_file()),
        tls_client: Some((certificates.client_cert_file(), certificates.client_key_file())),
        ..options(&[server.tls_url()])
    };
    some_cases(&RealClock::new(options).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tls_takes_any_certificate_only_where_configured() {
    let server = Redis::builder().tls().start();
    let trusting = RedisOptions { tls_insecure: true, ..options(&[server.tls_url()]) };
    conformance::any_of_charges_those_that_fit(&RealClock::new(trusting).await).await;
    let store = RedisStore::connect(options(&[server.tls_url()])).await.unwrap();
    assert_eq!(store.ping().await.unwrap_err().failure, Failure::Connection);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn password() {
    let server = Redis::builder().password("a secret: @/").start();
    let password = Password::new(Some("a secret: @/".to_owned()));
    let bare = format!("redis://127.0.0.1:{}", server.port());
    some_cases(&RealClock::new(RedisOptions { password, ..options(&[bare]) }).await).await;
}

/// A user that may do what we need and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_user_with_few_rights() {
    let server = Redis::start();
    let rights = [
        "ACL",
        "SETUSER",
        "counter",
        "on",
        ">word",
        "resetkeys",
        "~tg:*",
        "nocommands",
        "+eval",
        "+evalsha",
        "+time",
        "+get",
        "+mget",
        "+set",
        "+del",
        "+exists",
        "+psetex",
        "+pexpire",
        "+pttl",
        "+zadd",
        "+zrange",
        "+zrangebyscore",
        "+zcount",
        "+zscore",
        "+zrem",
        "+zremrangebyscore",
        "+zremrangebyrank",
        "+zcard",
        "+unlink",
    ];
    assert_eq!(server.call(&rights).unwrap().ok().unwrap().text(), "OK");
    let options = RedisOptions {
        username: Some("counter".to_owned()),
        password: Password::new(Some("word".to_owned())),
        ..options(&[format!("redis://127.0.0.1:{}", server.port())])
    };
    some_cases(&RealClock::new(options).await).await;
}
