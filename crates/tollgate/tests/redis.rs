//! A gate on a real Redis.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tollgate::{Client, Error, Gate, Quota, Redis, Rule, Unsettled, Usage};

fn gate(url: String) -> Gate {
    Gate::builder()
        .rule(Rule::per("user_id").quota(Quota::per_day(10)))
        .rule(Rule::per("api_key").quota(Quota::per_day(15)))
        .rule(Rule::per("user_id").tokens(Quota::per_day(100)))
        .unsettled(Unsettled::Release)
        // A busy machine must not make a decision fail here.
        .store(Redis::url(url).timeout(Duration::from_secs(5)))
        .build()
        .unwrap()
}

/// Two gates stand for two processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_share_counters_exactly() {
    let server = tollgate_testkit::Redis::start();
    let gates = [gate(server.url()), gate(server.url())];
    let passed = |user: &'static str, tries: usize| {
        let gates = gates.clone();
        async move {
            let tasks: Vec<_> = (0..tries)
                .map(|number| {
                    let gate = gates.iter().cycle().nth(number).unwrap().clone();
                    tokio::spawn(async move {
                        let client = Client::user(user).api_key("k1");
                        gate.check(&client).await.unwrap().is_allowed()
                    })
                })
                .collect();
            let mut passed = 0;
            for task in tasks {
                passed += usize::from(task.await.unwrap());
            }
            passed
        }
    };
    assert_eq!(passed("ann", 30).await, 10);
    assert_eq!(passed("bob", 30).await, 5, "the key has 5 left, and refusals charged no one");
    let verdict = gates[0].peek(&Client::user("bob").api_key("k2")).await.unwrap();
    assert_eq!(verdict.remaining(), Some(5));
}

#[tokio::test]
async fn holds_are_settled_released_and_dropped() {
    let server = tollgate_testkit::Redis::start();
    let gate = gate(server.url());
    let client = Client::user("ann").api_key("k1").tokens(60);
    let left =
        || async { gate.peek(&Client::user("ann").api_key("k1")).await.unwrap().remaining() };
    let hold = gate.reserve(&client).await.unwrap();
    let refused = gate.reserve(&client).await.unwrap_err();
    assert_eq!(refused.denial().unwrap().rule_id(), Some("user_id-tokens-1d"));
    hold.settle(Usage::tokens(20)).await.unwrap();
    let hold = gate.reserve(&client).await.unwrap();
    hold.release().await.unwrap();
    assert_eq!(left().await, Some(80), "settled at 20, and released");
    drop(gate.reserve(&client).await.unwrap());
    // Released in the background.
    let mut rounds = 0;
    while left().await != Some(80) {
        rounds += 1;
        assert!(rounds < 10_000, "the dropped hold is never released");
        tokio::task::yield_now().await;
    }
    assert!(gate.check(&client.tokens(80)).await.unwrap().is_allowed(), "20 of 100 are used");
}

/// With [`Unsettled::Release`], what a settlement leaves behind must not be released on drop.
#[tokio::test]
async fn a_settlement_that_fails_or_is_cancelled_releases_nothing() {
    let server = tollgate_testkit::Redis::start();
    let proxy = tollgate_testkit::FaultProxy::start(server.addr());
    let own = gate(server.url());
    let gate = Gate::builder()
        .rule(Rule::per("user_id").tokens(Quota::per_day(100)))
        .unsettled(Unsettled::Release)
        .store(Redis::url(proxy.url("redis")).timeout(Duration::from_millis(200)))
        .build()
        .unwrap();
    let estimate = |user| Client::user(user).tokens(60);
    let failing = gate.reserve(&estimate("ann")).await.unwrap();
    let cancelled = gate.reserve(&estimate("bob")).await.unwrap();

    proxy.cut();
    let error = failing.settle(Usage::tokens(20)).await.unwrap_err();
    assert!(matches!(error, Error::Store(_)), "{error:?}");
    {
        let mut settling = std::pin::pin!(cancelled.settle(Usage::tokens(20)));
        let polled = std::future::poll_fn(|context| {
            std::task::Poll::Ready(settling.as_mut().poll(context).is_pending())
        });
        assert!(polled.await, "it waits for the store");
    }
    proxy.heal();

    // A release would be on its way in the background: it would come before the last of these.
    for round in 0..50 {
        for user in ["ann", "bob"] {
            let left = gate.peek(&Client::user(user)).await.map(|verdict| verdict.remaining());
            let is_kept = left.is_err() || left == Ok(Some(40)) || left == Ok(Some(80));
            assert!(is_kept, "{user}, round {round}: {left:?}");
        }
    }
    let client = Client::user("ann").api_key("k").cost(0).tokens(41);
    assert!(!own.check(&client).await.unwrap().is_allowed(), "60 of 100 are used");
}

#[tokio::test]
async fn a_check_takes_no_slot_that_nobody_gives_back() {
    let server = tollgate_testkit::Redis::start();
    let gate = Gate::builder()
        .rule(Rule::per("user_id").concurrent(1))
        .store(Redis::url(server.url()).timeout(Duration::from_secs(5)))
        .build()
        .unwrap();
    let error = gate.check(&Client::user("ann")).await.unwrap_err();
    assert!(matches!(error, Error::SlotNotHeld { .. }), "{error:?}");
    assert!(gate.reserve(&Client::user("ann")).await.is_ok(), "no slot was taken");
}

#[tokio::test]
async fn counters_are_shared_and_reset_under_sentinel() {
    let servers = tollgate_testkit::Sentinel::start();
    let gate = || {
        let redis = Redis::sentinel(servers.urls(), servers.master_name());
        let rule = Rule::per("user_id").quota(Quota::per_day(1));
        let store = redis.timeout(Duration::from_secs(5));
        Gate::builder().rule(rule).store(store).build().unwrap()
    };
    let (one, other, ann) = (gate(), gate(), Client::user("ann"));
    assert!(one.check(&ann).await.unwrap().is_allowed());
    assert!(!other.check(&ann).await.unwrap().is_allowed());
    other.reset(&ann).await.unwrap();
    assert!(one.check(&ann).await.unwrap().is_allowed());
}

#[tokio::test]
async fn what_cannot_be_answered_is_an_error() {
    let server = tollgate_testkit::Redis::start();
    let gate = gate(server.url());
    assert_eq!(gate.check_now(&Client::user("ann").api_key("k")), Err(Error::NotImmediate));
    let nowhere = Gate::builder()
        .rule(Rule::per("user_id").quota(Quota::per_day(10)))
        .store(Redis::url("redis://127.0.0.1:1"))
        .build()
        .unwrap();
    let error = nowhere.check(&Client::user("ann")).await.unwrap_err();
    assert!(matches!(error, Error::Store(_)), "{error:?}");
    let wrong = Gate::builder()
        .rule(Rule::per("user_id").quota(Quota::per_day(10)))
        .store(Redis::url("not an address"));
    assert!(matches!(wrong.build(), Err(Error::Store(_))));
}
