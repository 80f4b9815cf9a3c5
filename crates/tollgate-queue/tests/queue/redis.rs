//! What a queue in Redis survives: restarts, clusters, failovers.

use std::time::Duration;

use tollgate_queue::{QueueError, QueueOptions, QueueStore, RedisQueue, TicketState};
use tollgate_store::redis::RedisKind;
use tollgate_testkit::{Cluster, PATIENCE, Redis, Sentinel, slot_of};

use crate::ground::{id, name_of, request, response, single, store};

async fn push(queue: &RedisQueue, number: usize) -> Result<(), QueueError> {
    let (id, request) = (id(number), request(&number.to_string()));
    queue.push(&id, "lane", &request, Duration::ZERO).await.map(|_| ())
}

/// Tries until it is done.
async fn insist<T>(mut attempt: impl AsyncFnMut() -> Result<T, QueueError>) -> T {
    let tries = async {
        loop {
            match attempt().await {
                Ok(value) => return value,
                Err(QueueError::Unavailable(_)) => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(other) => panic!("{other}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, tries).await.expect("an answer")
}

/// Sends all that waits, and returns the names.
async fn drain(queue: &RedisQueue) -> Vec<usize> {
    let mut names = Vec::new();
    loop {
        let claims = queue.claim(10).await.unwrap().claims;
        if claims.is_empty() {
            return names;
        }
        for claim in claims {
            names.push(name_of(&claim).parse().unwrap());
            assert!(queue.complete(&claim, &response(b"")).await.unwrap());
        }
    }
}

#[tokio::test]
async fn a_killed_server_that_persists_loses_nothing() {
    let arguments = ["--appendonly", "yes", "--appendfsync", "always"];
    let redis = Redis::builder().args(&arguments).start();
    let queue = RedisQueue::new(&single(&redis), "test", QueueOptions::default());
    for number in 0..40 {
        push(&queue, number).await.unwrap();
        if number % 10 == 9 {
            redis.kill();
            let refused = queue.counts().await.unwrap_err();
            assert!(matches!(refused, QueueError::Unavailable(_)), "{refused}");
            redis.restart();
        }
    }
    assert_eq!(queue.counts().await.unwrap().waiting, 40);
    assert_eq!(drain(&queue).await, (0..40).collect::<Vec<_>>());
    redis.restart();
    let ticket = insist(async || queue.ticket(&id(7)).await).await.unwrap();
    assert_eq!(ticket.state, TicketState::Done);
}

#[tokio::test]
async fn all_of_it_is_in_one_slot_of_a_cluster() {
    let cluster = Cluster::start(3, 0);
    let store = store(RedisKind::Cluster, &cluster.urls());
    let queue = RedisQueue::new(&store, "test", QueueOptions::default());
    for number in 0..20 {
        push(&queue, number).await.unwrap();
    }
    // It moves as a whole.
    let slot = slot_of("test:{q}:");
    let other = (cluster.master_of(slot) + 1) % 3;
    cluster.move_slot(slot, other);
    assert_eq!(drain(&queue).await, (0..20).collect::<Vec<_>>());
    assert!(queue.sweep().await.is_ok());
    assert_eq!(queue.counts().await.unwrap().done, 20);
}

/// A connection that broke is replaced, and what was sent over it is sent once more where that changes nothing.
#[tokio::test]
async fn the_first_push_after_a_broken_connection_is_taken_in() {
    let arguments = ["--appendonly", "yes", "--appendfsync", "always"];
    let redis = Redis::builder().args(&arguments).start();
    let queue = RedisQueue::new(&single(&redis), "test", QueueOptions::default());
    for number in 0..5 {
        push(&queue, number).await.unwrap();
        redis.restart();
    }
    // An answer that is lost after the push was made: the same one again changes nothing.
    push(&queue, 5).await.unwrap();
    push(&queue, 5).await.unwrap();
    redis.restart();
    assert_eq!(queue.counts().await.unwrap().waiting, 6);
    redis.restart();
    assert_eq!(queue.ticket(&id(3)).await.unwrap().unwrap().state, TicketState::Queued);
}

/// Half of the keys are with one node and half with another: nothing is read, changed or taken in.
#[tokio::test]
async fn nothing_happens_while_its_slot_is_on_its_way() {
    let cluster = Cluster::start(3, 0);
    let store = store(RedisKind::Cluster, &cluster.urls());
    let queue = RedisQueue::new(&store, "test", QueueOptions::default());
    for number in 0..10 {
        push(&queue, number).await.unwrap();
    }
    let held = queue.claim(1).await.unwrap().claims.remove(0);
    let slot = slot_of("test:{q}:");
    let other = (cluster.master_of(slot) + 1) % 3;
    cluster.begin_move(slot, other);
    // Ten entries, the lane, and two sets: it is looked at with none, some and all of them moved.
    for keys in [0, 3, 4, 3, 3] {
        if keys > 0 {
            assert_eq!(cluster.move_keys(slot, other, keys), keys);
        }
        let answers = [
            push(&queue, 99).await.err(),
            queue.claim(1).await.err(),
            queue.complete(&held, &response(b"")).await.err(),
            queue.sweep().await.err(),
            queue.drop_entry(&id(5)).await.err(),
        ];
        for answer in answers {
            let Some(QueueError::Unavailable(why)) = answer else { panic!("{answer:?}") };
            assert!(why.contains("TRYAGAIN") || why.contains("ASK"), "{why}");
        }
    }
    cluster.finish_move(slot, other);
    assert!(insist(async || queue.complete(&held, &response(b"")).await).await);
    assert_eq!(drain(&queue).await, (1..10).collect::<Vec<_>>());
    assert_eq!(queue.ticket(&id(99)).await.unwrap(), None);
}

#[tokio::test]
async fn a_failover_is_followed() {
    let sentinel = Sentinel::start();
    let master_name = sentinel.master_name().to_owned();
    let store = store(RedisKind::Sentinel { master_name }, &sentinel.urls());
    let queue = RedisQueue::new(&store, "test", QueueOptions::default());
    for number in 0..5 {
        push(&queue, number).await.unwrap();
    }
    sentinel.kill_master();
    sentinel.wait_for_new_master();
    for number in 5..10 {
        insist(async || push(&queue, number).await).await;
    }
    assert_eq!(drain(&queue).await.last(), Some(&9));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_an_error_and_not_a_wait() {
    let redis = Redis::start();
    let store = single(&redis);
    redis.kill();
    let queue = RedisQueue::new(&store, "test", QueueOptions::default());
    let refused = push(&queue, 1).await;
    assert!(matches!(refused, Err(QueueError::Unavailable(_))), "{refused:?}");
    redis.restart();
    insist(async || push(&queue, 1).await).await;
    assert_eq!(queue.counts().await.unwrap().waiting, 1);
}
