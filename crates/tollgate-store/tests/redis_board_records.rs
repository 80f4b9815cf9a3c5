//! Records of decisions on their way through Redis: all arrive, and none stays.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::large_futures,
    reason = "these are tests: a panic is how they fail"
)]

mod redis_support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis_support::options;
use tokio::task::JoinSet;
use tollgate_store::Failure;
use tollgate_store::redis::{Board, RedisKind, RedisOptions, RedisStore};
use tollgate_testkit::{Cluster, Redis, Reply, eventually, slot_of};

const STREAM: &str = "tg:{config}:decisions";
const PUSHERS: usize = 4;
const BATCHES: usize = 100;
/// More than the batches of a test take.
const MAX_BYTES: u64 = 16 << 20;

fn must(server: &Redis, words: &[&str]) -> Reply {
    server.call(words).unwrap().ok().unwrap()
}

/// How many entries somebody still has to be done with.
fn pending(server: &Redis) -> String {
    must(server, &["XPENDING", STREAM, "control"]).list()[0].text()
}

/// As if a reader had been silent for a minute.
fn let_time_pass(server: &Redis, reader: &str) {
    let pending = must(server, &["XPENDING", STREAM, "control", "-", "+", "1000", reader]);
    for entry in pending.list() {
        let id = entry.list()[0].text();
        let claim = ["XCLAIM", STREAM, "control", reader, "0", &id, "IDLE", "60000", "JUSTID"];
        must(server, &claim);
    }
}

fn ids(batches: &[(String, Vec<u8>)]) -> Vec<String> {
    batches.iter().map(|(id, _)| id.clone()).collect()
}

fn texts(batches: &[(String, Vec<u8>)]) -> Vec<String> {
    batches.iter().map(|(_, batch)| String::from_utf8(batch.clone()).unwrap()).collect()
}

/// Pulls until all have arrived; `dies_after` so many pulls it takes one more batch and is not seen again.
async fn drain(
    board: Board,
    reader: &'static str,
    dies_after: usize,
    left: Arc<AtomicUsize>,
) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    for pull in 0.. {
        let batches = board.pull_records(reader, 7).await.unwrap();
        if pull >= dies_after && !batches.is_empty() {
            break;
        }
        let new = texts(&batches).into_iter().filter(|text| seen.insert(text.clone())).count();
        board.done_records(&ids(&batches)).await.unwrap();
        if left.fetch_sub(new, Ordering::Relaxed) == new {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_arrives_though_a_reader_dies_and_nothing_stays() {
    let server = Arc::new(Redis::start());
    let store = RedisStore::new(&options(&[server.url()])).unwrap();
    let mut pushers = JoinSet::new();
    for pusher in 0..PUSHERS {
        let board = store.board();
        pushers.spawn(async move {
            for batch in 0..BATCHES {
                let text = format!("{pusher}-{batch}");
                assert!(board.push_records(text.as_bytes(), MAX_BYTES).await.unwrap());
            }
        });
    }
    let left = Arc::new(AtomicUsize::new(PUSHERS * BATCHES));
    let mortal = tokio::spawn(drain(store.board(), "mortal", 5, Arc::clone(&left)));
    let immortal = tokio::spawn(drain(store.board(), "immortal", usize::MAX, Arc::clone(&left)));
    pushers.join_all().await;
    let mut seen = mortal.await.unwrap();
    assert_ne!(pending(&server), "0", "it died with a batch in its hands");
    let_time_pass(&server, "mortal");
    seen.extend(tokio::time::timeout(Duration::from_secs(30), immortal).await.unwrap().unwrap());
    assert_eq!(seen.len(), PUSHERS * BATCHES);
    assert_eq!(store.board().records_waiting().await, Ok(0));
    assert_eq!(pending(&server), "0");
    assert_eq!(must(&server, &["PTTL", STREAM]), Reply::Int(-1));
}

#[tokio::test]
async fn own_batches_come_first_then_those_of_the_dead_then_new_ones() {
    let server = Redis::start();
    let board = RedisStore::new(&options(&[server.url()])).unwrap().board();
    assert_eq!(board.records_waiting().await, Ok(0));
    for batch in ["a", "b", "c", "d", "e"] {
        assert!(board.push_records(batch.as_bytes(), MAX_BYTES).await.unwrap());
    }
    assert!(board.pull_records("one", 0).await.unwrap().is_empty());
    assert_eq!(texts(&board.pull_records("one", 2).await.unwrap()), ["a", "b"]);
    assert_eq!(texts(&board.pull_records("one", 2).await.unwrap()), ["a", "b"], "not done");
    assert_eq!(texts(&board.pull_records("two", 1).await.unwrap()), ["c"]);
    let_time_pass(&server, "one");
    assert_eq!(texts(&board.pull_records("one", 3).await.unwrap()), ["a", "b", "d"], "once each");
    let_time_pass(&server, "one");
    let all = board.pull_records("two", 10).await.unwrap();
    assert_eq!(texts(&all), ["c", "a", "b", "d", "e"]);
    assert!(board.pull_records("one", 10).await.unwrap().is_empty(), "they are another's now");
    board.done_records(&ids(&all)).await.unwrap();
    board.done_records(&[]).await.unwrap();
    assert_eq!((board.records_waiting().await, pending(&server).as_str()), (Ok(0), "0"));
    server.call(&["DEL", STREAM]).unwrap();
    server.call(&["SET", STREAM, "a word"]).unwrap();
    assert_eq!(board.pull_records("one", 1).await, Err(Failure::ForeignKey));
    assert_eq!(board.push_records(b"a", MAX_BYTES).await, Err(Failure::ForeignKey));
}

#[tokio::test]
async fn batches_are_bounded_in_bytes() {
    const BOUND: u64 = 1 << 20;
    let server = Redis::start();
    let board = RedisStore::new(&options(&[server.url()])).unwrap().board();
    // The first ones are small: what they take says nothing of the next.
    for _ in 0..1_000 {
        assert!(board.push_records(&[b'x'; 100], BOUND).await.unwrap());
    }
    let batch = vec![b'x'; 64 << 10];
    let mut pushed = 0_u64;
    while board.push_records(&batch, BOUND).await.unwrap() {
        pushed += 1;
        assert!(pushed < 100, "there is no bound");
    }
    assert!((8..16).contains(&pushed), "{pushed}");
    assert!(!board.push_records(&batch, BOUND).await.unwrap());
    assert_eq!(board.records_waiting().await, Ok(1_000 + pushed));
    let batches = board.pull_records("reader", 2_000).await.unwrap();
    board.done_records(&ids(&batches)).await.unwrap();
    assert!(board.push_records(&batch, BOUND).await.unwrap(), "there is room again");
    // A user that may not ask how much memory is used.
    must(&server, &["ACL", "SETUSER", "default", "-memory"]);
    let mut count = 1;
    while board.push_records(b"x", BOUND).await.unwrap() {
        count += 1;
        assert!(count < 100, "there is no bound");
    }
    assert_eq!(count, 64);
}

/// Nodes of the version before drop the oldest batches.
#[tokio::test]
async fn a_reader_forgets_batches_that_were_dropped() {
    let server = Redis::start();
    let board = RedisStore::new(&options(&[server.url()])).unwrap().board();
    for batch in 0..50 {
        assert!(board.push_records(format!("{batch}").as_bytes(), MAX_BYTES).await.unwrap());
    }
    assert_eq!(board.pull_records("reader", 50).await.unwrap().len(), 50);
    for batch in 50..300 {
        assert!(board.push_records(format!("{batch}").as_bytes(), MAX_BYTES).await.unwrap());
    }
    must(&server, &["XTRIM", STREAM, "MAXLEN", "200"]);
    let waiting = board.records_waiting().await.unwrap();
    assert_eq!(waiting, 200);
    assert_eq!(pending(&server), "50");
    let batches = board.pull_records("reader", 50).await.unwrap();
    assert_eq!((batches.len(), pending(&server).as_str()), (50, "50"), "others in their place");
    let mut pulled = 0;
    loop {
        let batches = board.pull_records("reader", 64).await.unwrap();
        if batches.is_empty() {
            break;
        }
        pulled += batches.len() as u64;
        board.done_records(&ids(&batches)).await.unwrap();
    }
    assert_eq!(pulled, waiting);
    assert_eq!((board.records_waiting().await, pending(&server).as_str()), (Ok(0), "0"));
}

#[tokio::test]
async fn records_outlive_the_master_of_their_slot() {
    let cluster = Cluster::start(3, 1);
    let options = RedisOptions { kind: RedisKind::Cluster, ..options(&cluster.urls()) };
    let board = RedisStore::new(&options).unwrap().board();
    board.push_records(b"before", MAX_BYTES).await.unwrap();
    assert_eq!(texts(&board.pull_records("reader", 10).await.unwrap()), ["before"]);
    let master = &cluster.nodes()[cluster.master_of(slot_of("{config}"))];
    let written = master.info("replication", "master_repl_offset").unwrap().parse::<u64>().unwrap();
    eventually("the replica knows", || {
        let replica = master.info("replication", "slave0").unwrap_or_default();
        let offset = replica.split(',').find_map(|word| word.strip_prefix("offset="));
        offset.and_then(|offset| offset.parse::<u64>().ok()).is_some_and(|known| known >= written)
    });
    cluster.kill_master_of(slot_of("{config}"));
    let mut pushed = Err(Failure::Timeout);
    for _ in 0..600 {
        pushed = board.push_records(b"after", MAX_BYTES).await;
        if pushed.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(pushed, Ok(true));
    let all = board.pull_records("reader", 10).await.unwrap();
    assert_eq!(texts(&all), ["before", "after"]);
    board.done_records(&ids(&all)).await.unwrap();
    assert_eq!(board.records_waiting().await, Ok(0));
}
