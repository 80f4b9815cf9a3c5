//! What goes wrong between us and a Redis server, on real servers.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::large_futures,
    reason = "these are tests: a panic is how they fail"
)]

mod redis_support;

use std::time::Duration;

use redis_support::{Probe, now, options, until_it_answers};
use tollgate_core::{Algorithm, Ask, Receipt, SECOND, SlotId};
use tollgate_store::redis::{Operation, Password, RedisKind, RedisOptions, RedisStore};
use tollgate_store::{
    Announcement, Failure, GiveBack, LeaseAsk, Mode, Outcomes, Request, RequestClaim, Role,
    SharedStore, Store,
};
use tollgate_testkit::{Cluster, FaultProxy, Redis, eventually};

/// Short enough to be waited for, long enough for a busy machine.
fn hasty(url: String) -> RedisOptions {
    RedisOptions { timeout: Duration::from_millis(300), ..options(&[url]) }
}

async fn connected(server: &Redis) -> RedisStore {
    let store = RedisStore::connect(hasty(server.url())).await.unwrap();
    until_it_answers(&store).await;
    store
}

#[tokio::test]
async fn a_forgotten_script_is_sent_again() {
    let server = Redis::start();
    let store = connected(&server).await;
    let probe = Probe::new("script", 100);
    for paid in 1..=5 {
        assert_eq!(probe.pay(&store).await.unwrap().status.used, paid);
        server.call(&["SCRIPT", "FLUSH"]).unwrap().ok().unwrap();
    }
    let receipt = probe.pay(&store).await.unwrap().receipt;
    server.call(&["SCRIPT", "FLUSH"]).unwrap().ok().unwrap();
    let returned = GiveBack { counter: probe.counter(&["k"]), limit: &probe.limit, receipt };
    store.give_back(&[returned], now()).await.unwrap();
    assert_eq!(probe.used(&store).await, 5);
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_and_charged_once() {
    let server = Redis::start();
    let proxy = FaultProxy::start(server.addr());
    let store = RedisStore::connect(hasty(proxy.url("redis"))).await.unwrap();
    until_it_answers(&store).await;
    for (algorithm, name) in Algorithm::ALL.into_iter().zip(["a", "b", "c", "d", "e", "f", "g"]) {
        let probe = Probe::of(name, algorithm, 10);
        proxy.swallow_replies(1);
        let outcome = probe.pay(&store).await.unwrap();
        assert!(outcome.examination.admits(), "{algorithm}");
        assert_eq!(outcome.status.used, 1, "{algorithm}");
        assert_eq!(probe.used(&store).await, 1, "{algorithm}");
        // Giving back is not done twice either.
        probe.pay(&store).await.unwrap();
        proxy.swallow_replies(1);
        let (counter, receipt) = (probe.counter(&["k"]), outcome.receipt);
        let returned = GiveBack { counter, limit: &probe.limit, receipt };
        store.give_back(&[returned], now()).await.unwrap();
        let left = u64::from(algorithm != Algorithm::Concurrency);
        assert_eq!(probe.used(&store).await, left, "{algorithm}");
    }
    assert!(store.metrics().retries() >= 14);
}

#[tokio::test]
async fn a_stopped_server_charges_nothing_when_it_goes_on() {
    let server = Redis::start();
    let store = connected(&server).await;
    let probe = Probe::new("stopped", 100);
    probe.pay(&store).await.unwrap();
    server.pause();
    for _ in 0..3 {
        let failure = probe.pay(&store).await.unwrap_err();
        assert!(matches!(failure, Failure::Timeout | Failure::CircuitOpen), "{failure:?}");
    }
    server.resume();
    until_it_answers(&store).await;
    assert_eq!(probe.used(&store).await, 1, "what came too late was not charged");
    assert_eq!(probe.pay(&store).await.unwrap().status.used, 2);
}

#[tokio::test]
async fn a_server_that_is_away_is_left_alone_and_found_again() {
    let server = Redis::start();
    server.kill();
    let store = RedisStore::connect(hasty(server.url())).await.unwrap();
    let probe = Probe::new("away", 100);
    let mut failures = Vec::new();
    for _ in 0..10 {
        failures.push(probe.pay(&store).await.unwrap_err());
    }
    assert_eq!(failures.last(), Some(&Failure::CircuitOpen), "{failures:?}");
    assert_eq!(store.metrics().open_breakers(), 1);
    assert!(store.metrics().errors(Operation::Decide, Failure::Connection) > 0);
    server.restart();
    until_it_answers(&store).await;
    assert_eq!(store.metrics().open_breakers(), 0);
    assert_eq!(probe.pay(&store).await.unwrap().status.used, 1);
}

#[tokio::test]
async fn without_memory_nothing_is_charged() {
    let server = Redis::start();
    let store = connected(&server).await;
    for (algorithm, name) in Algorithm::ALL.into_iter().zip(["a", "b", "c", "d", "e", "f", "g"]) {
        let probe = Probe::of(name, algorithm, 10);
        probe.pay(&store).await.unwrap();
        server.call(&["CONFIG", "SET", "maxmemory", "1"]).unwrap().ok().unwrap();
        let other = Probe::of("other", algorithm, 10);
        let slot = Ask { slot: SlotId(2), ..Ask::cost(1) };
        let charges =
            [probe.charge(&["k"], slot, Role::Must), other.charge(&["k"], slot, Role::Must)];
        let request = Request { charges: &charges, mode: Mode::Charge };
        let failed = store.decide(&[request], now(), &mut Outcomes::new()).await.unwrap_err();
        assert_eq!(failed.failure, Failure::OutOfMemory, "{algorithm}");
        server.call(&["CONFIG", "SET", "maxmemory", "0"]).unwrap().ok().unwrap();
        assert_eq!(probe.used(&store).await, 1, "{algorithm}");
        assert_eq!(other.used(&store).await, 0, "{algorithm}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_loads_its_data_is_waited_for() {
    let server = Redis::builder().config("enable-debug-command yes").start();
    let store = connected(&server).await;
    let probe = Probe::new("loading", 100);
    probe.pay(&store).await.unwrap();
    for command in [
        &["DEBUG", "POPULATE", "20000"][..],
        &["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"],
        &["CONFIG", "SET", "key-load-delay", "100"],
    ] {
        server.call(command).unwrap().ok().unwrap();
    }
    let port = server.port().to_string();
    let mut reload = std::process::Command::new("redis-cli")
        .args(["-p", &port, "DEBUG", "RELOAD"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    eventually("the server loads", || {
        server.call(&["GET", "x"]).is_ok_and(|reply| reply.text().contains("LOADING"))
    });
    let failure = probe.pay(&store).await.unwrap_err();
    assert!(matches!(failure, Failure::NotReady | Failure::CircuitOpen), "{failure:?}");
    server.call(&["CONFIG", "SET", "key-load-delay", "0"]).unwrap();
    reload.wait().unwrap();
    until_it_answers(&store).await;
    assert_eq!(probe.pay(&store).await.unwrap().status.used, 2);
}

#[tokio::test]
async fn a_server_that_became_a_replica_takes_nothing() {
    let (server, master) = (Redis::start(), Redis::start());
    let store = connected(&server).await;
    let probe = Probe::new("replica", 10);
    probe.pay(&store).await.unwrap();
    let port = master.port().to_string();
    server.call(&["REPLICAOF", "127.0.0.1", &port]).unwrap().ok().unwrap();
    let failure = probe.pay(&store).await.unwrap_err();
    assert!(matches!(failure, Failure::ReadOnly | Failure::NotReady), "{failure:?}");
    server.call(&["REPLICAOF", "NO", "ONE"]).unwrap().ok().unwrap();
    until_it_answers(&store).await;
    probe.pay(&store).await.unwrap();
}

#[tokio::test]
async fn a_wrong_password_is_said_and_put_right() {
    let server = Redis::builder().password("right").start();
    let bare = format!("redis://127.0.0.1:{}", server.port());
    let wrong =
        RedisOptions { password: Password::new(Some("wrong".to_owned())), ..hasty(bare.clone()) };
    for options in [wrong, hasty(bare)] {
        let store = RedisStore::connect(options).await.unwrap();
        assert_eq!(store.ping().await.unwrap_err().failure, Failure::Denied);
        assert_eq!(Probe::new("denied", 1).pay(&store).await.unwrap_err(), Failure::Denied);
    }
}

/// A password that is changed on the server and in the options is used by the next connection.
#[tokio::test]
async fn a_changed_password_needs_no_new_store() {
    let server = Redis::start();
    let call = |words: &[&str]| server.call(words).unwrap().ok().unwrap();
    call(&["ACL", "SETUSER", "counter", "on", ">first", "~*", "&*", "+@all"]);
    let password = Password::new(Some("first".to_owned()));
    let options = RedisOptions {
        username: Some("counter".to_owned()),
        password: password.clone(),
        ..hasty(server.url())
    };
    let store = RedisStore::connect(options).await.unwrap();
    let probe = Probe::new("changed password", 10);
    probe.pay(&store).await.unwrap();
    call(&["ACL", "SETUSER", "counter", "resetpass", ">second"]);
    call(&["CLIENT", "KILL", "USER", "counter"]);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !store.ping().await.is_err_and(|error| error.failure == Failure::Denied) {
        assert!(tokio::time::Instant::now() < deadline, "the old password is still accepted");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(password.set(Some("second".to_owned())));
    until_it_answers(&store).await;
    assert_eq!(probe.pay(&store).await.unwrap().status.used, 2);
}

#[tokio::test]
async fn a_cluster_is_not_a_server_nor_the_reverse() {
    let server = Redis::start();
    let kind = RedisKind::Cluster;
    let store = RedisStore::connect(RedisOptions { kind, ..hasty(server.url()) }).await.unwrap();
    assert_eq!(store.ping().await.unwrap_err().failure, Failure::WrongKind);
    assert_eq!(Probe::new("kind", 1).pay(&store).await.unwrap_err(), Failure::WrongKind);
    let cluster = Cluster::start(3, 0);
    let store = RedisStore::connect(hasty(cluster.urls()[0].clone())).await.unwrap();
    assert_eq!(store.ping().await.unwrap_err().failure, Failure::WrongKind);
    assert_eq!(Probe::new("kind", 1).pay(&store).await.unwrap_err(), Failure::WrongKind);
}

#[tokio::test]
async fn a_key_that_is_not_ours_fails_its_own_request_only() {
    let server = Redis::start();
    let store = connected(&server).await;
    let good = Probe::new("good", 100);
    let mut paid = 0;
    for (algorithm, name) in Algorithm::ALL.into_iter().zip(["a", "b", "c", "d", "e", "f", "g"]) {
        let probe = Probe::of(name, algorithm, 10);
        let key = format!("tg:{{k}}:{name}:t:k");
        for foreign in [&["SET", &key, "7"][..], &["RPUSH", &key, "x"], &["SADD", &key, "x"]] {
            server.call(&["DEL", &key]).unwrap().ok().unwrap();
            server.call(foreign).unwrap().ok().unwrap();
            let before = server.call(&["DUMP", &key]).unwrap().ok().unwrap().text();
            for mode in [Mode::Peek, Mode::Charge, Mode::Owe] {
                let ask = Ask::slot(SlotId(1));
                let both =
                    [good.charge(&["k"], ask, Role::Must), probe.charge(&["k"], ask, Role::Watch)];
                let requests = [Request { charges: &both, mode }];
                // At the same time a request that has nothing to do with it.
                let mut outcomes = Outcomes::new();
                let decided = store.decide(&requests, now(), &mut outcomes);
                let (failed, other) = futures_join(decided, good.pay(&store)).await;
                assert_eq!(failed.unwrap_err().failure, Failure::ForeignKey, "{algorithm}");
                paid += 1;
                assert_eq!(other.unwrap().status.used, paid, "{algorithm}");
            }
            let after = server.call(&["DUMP", &key]).unwrap().ok().unwrap().text();
            assert_eq!(before, after, "{algorithm}: {foreign:?}");
        }
    }
}

async fn futures_join<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    tokio::join!(a, b)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_does_not_end_is_waited_for_no_longer_than_the_deadline() {
    let server = Redis::builder().config("busy-reply-threshold 50").start();
    let store = connected(&server).await;
    let probe = Probe::new("busy", 100);
    probe.pay(&store).await.unwrap();
    let port = server.port().to_string();
    let mut endless = std::process::Command::new("redis-cli")
        .args(["-p", &port, "EVAL", "while true do end", "0"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    eventually("the server is busy", || {
        server.call(&["GET", "x"]).is_ok_and(|reply| reply.ok().is_err())
    });
    let failure = probe.pay(&store).await.unwrap_err();
    assert!(matches!(failure, Failure::Timeout | Failure::CircuitOpen), "{failure:?}");
    server.call(&["SCRIPT", "KILL"]).unwrap().ok().unwrap();
    endless.wait().unwrap();
    until_it_answers(&store).await;
    assert_eq!(probe.used(&store).await, 1);
}

#[tokio::test]
async fn every_key_has_an_end() {
    let server = Redis::start();
    let store = connected(&server).await;
    for (algorithm, name) in Algorithm::ALL.into_iter().zip(["a", "b", "c", "d", "e", "f", "g"]) {
        let probe = Probe::of(name, algorithm, 10);
        let receipt = probe.pay(&store).await.unwrap().receipt;
        probe.decide(&store, Mode::Owe).await.unwrap();
        let (counter, limit) = (probe.counter(&["k"]), &probe.limit);
        store.give_back(&[GiveBack { counter, limit, receipt }], now()).await.unwrap();
        probe.pay(&store).await.unwrap();
        store.renew(&counter, limit, SlotId(1), now()).await.unwrap_or(false);
        if algorithm != Algorithm::Concurrency {
            let ask = LeaseAsk {
                counter,
                limit,
                node: "n",
                want: 4,
                least: 1,
                returned: 0,
                receipt: Receipt::Nothing,
                return_id: 1,
                remember: SECOND,
                closes: &[],
                held: 0,
                pool: 10,
                ttl: 10 * SECOND,
            };
            assert_eq!(store.lease(&ask).await.unwrap().granted, 4, "{algorithm}");
        }
    }
    let announcement = Announcement { node: "node", ttl: 5 * SECOND, has_reported: true };
    store.announce(&announcement).await.unwrap();
    let claim = RequestClaim { id: 1, content: 2, owner: 3 };
    store.claim(&claim).await.unwrap();
    store.publish(&claim, Some(b"answer")).await.unwrap();
    let keys = server.call(&["KEYS", "*"]).unwrap().ok().unwrap();
    assert!(keys.list().len() >= 15, "{keys:?}");
    for key in keys.list() {
        let key = key.text();
        let left: i64 = server.call(&["PTTL", &key]).unwrap().ok().unwrap().text().parse().unwrap();
        // A remembered answer may have gone since.
        assert!(left > 0 || left == -2, "{key}: {left}");
        assert!(key.starts_with("tg:{"), "{key}");
    }
}
