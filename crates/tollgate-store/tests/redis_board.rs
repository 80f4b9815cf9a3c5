//! Rule sets in Redis: who may replace which, that no reader sees half of one, and what happens when
//! servers go.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::large_futures,
    clippy::print_stderr,
    reason = "these are tests: a panic is how they fail"
)]

mod redis_board_support;
mod redis_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis_board_support::{
    Draw, Set, publishes_only_what_is_newer, read, read_manifest, until_published,
};
use redis_support::options;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate_store::Failure;
use tollgate_store::redis::{
    Board, BoardListener, MAX_FIGURE_NODES, MAX_FIGURES, Password, Published, RedisKind,
    RedisOptions, RedisStore,
};
use tollgate_testkit::{Cluster, PATIENCE, Redis, Reply, Sentinel, slot_of};

fn board(options: &RedisOptions) -> Board {
    RedisStore::new(options).unwrap().board()
}

/// What a listener receives next, before the test times out.
async fn next_change(listener: &mut BoardListener) -> Result<(), Failure> {
    tokio::time::timeout(PATIENCE, listener.changed()).await.unwrap()
}

#[tokio::test]
async fn a_single_server_keeps_the_newest_set() {
    let server = Redis::builder().user("tollgate", "secret").start();
    let board = board(&options(&[server.url()]));
    publishes_only_what_is_newer(&board).await;
    let kind = server.call(&["TYPE", "tg:{config}:set"]).unwrap().text();
    assert_eq!(kind, "hash");
    assert_eq!(server.call(&["PTTL", "tg:{config}:set"]).unwrap(), Reply::Int(-1));
}

#[tokio::test]
async fn a_server_behind_tls_keeps_the_newest_set() {
    let server = Redis::builder().password("secret").tls().start();
    let tls_ca_file = Some(server.ca_file());
    let board = board(&RedisOptions { tls_ca_file, ..options(&[server.tls_url()]) });
    let mut listener = board.listen().await.unwrap();
    publishes_only_what_is_newer(&board).await;
    assert_eq!(next_change(&mut listener).await, Ok(()));
}

#[tokio::test]
async fn a_master_under_sentinel_keeps_the_newest_set_and_the_next_one_goes_on() {
    let sentinel = Sentinel::start();
    let kind = RedisKind::Sentinel { master_name: sentinel.master_name().to_owned() };
    let board = board(&RedisOptions { kind, ..options(&sentinel.urls()) });
    publishes_only_what_is_newer(&board).await;
    sentinel.kill_master();
    assert!(board.revision().await.is_err(), "nobody is there yet");
    sentinel.wait_for_new_master();
    let set = Set { take_over: true, ..Set::new("after", 1, &["x", "y"]) };
    until_published(&board, &set).await;
    assert_eq!(read(&board).await, (1, set.parts.clone(), 0));
    let mut listener = board.listen().await.unwrap();
    Set::new("after", 2, &["x"]).publish(&board).await.unwrap();
    assert_eq!(next_change(&mut listener).await, Ok(()));
}

#[tokio::test]
async fn a_cluster_keeps_the_newest_set_wherever_its_slot_is() {
    let cluster = Cluster::start(3, 1);
    let board = board(&RedisOptions { kind: RedisKind::Cluster, ..options(&cluster.urls()) });
    publishes_only_what_is_newer(&board).await;
    let slot = slot_of("{config}");
    let other_master = || {
        let owner = cluster.master_of(slot);
        cluster.masters().into_iter().find(|master| *master != owner).unwrap()
    };
    let mut set = Set { take_over: true, ..Set::new("moving", 1, &["x", "y"]) };
    cluster.move_slot(slot, other_master());
    assert_eq!(set.publish(&board).await, Ok(Published::Written), "MOVED");
    let to = other_master();
    cluster.begin_move(slot, to);
    while cluster.move_keys(slot, to, 10) > 0 {}
    set.revision = 2;
    assert_eq!(set.publish(&board).await, Ok(Published::Written), "ASK");
    assert_eq!(read(&board).await.0, 2);
    cluster.finish_move(slot, to);
    // The listener and the publisher need not be connected to the same node.
    let mut listener = board.listen().await.unwrap();
    cluster.move_slot(slot, other_master());
    set.revision = 3;
    assert_eq!(set.publish(&board).await, Ok(Published::Written));
    assert_eq!(next_change(&mut listener).await, Ok(()));
}

#[tokio::test]
async fn a_cluster_that_loses_the_master_of_the_set_goes_on() {
    let cluster = Cluster::start(3, 1);
    let board = board(&RedisOptions { kind: RedisKind::Cluster, ..options(&cluster.urls()) });
    let mut set = Set::new("here", 1, &["x", "y"]);
    assert_eq!(set.publish(&board).await, Ok(Published::Written));
    let mut listener = board.listen().await.unwrap();
    cluster.kill_master_of(slot_of("{config}"));
    assert_eq!(next_change(&mut listener).await, Err(Failure::Connection));
    set.revision = 2;
    until_published(&board, &set).await;
    assert_eq!(read(&board).await, (2, set.parts.clone(), 0));
    let mut listener = board.listen().await.unwrap();
    set.revision = 3;
    assert_eq!(set.publish(&board).await, Ok(Published::Written));
    assert_eq!(next_change(&mut listener).await, Ok(()));
}

#[tokio::test]
async fn a_listener_hears_of_sets_and_of_the_servers_death() {
    let server = Redis::start();
    let board = board(&options(&[server.url()]));
    let mut listener = board.listen().await.unwrap();
    let silent = tokio::time::timeout(Duration::from_millis(100), listener.changed()).await;
    assert!(silent.is_err(), "nothing has changed");
    Set::new("here", 1, &["a"]).publish(&board).await.unwrap();
    assert_eq!(next_change(&mut listener).await, Ok(()));
    Set::new("here", 1, &["a"]).publish(&board).await.unwrap();
    let silent = tokio::time::timeout(Duration::from_millis(100), listener.changed()).await;
    assert!(silent.is_err(), "the same set is no change");
    server.kill();
    assert_eq!(next_change(&mut listener).await, Err(Failure::Connection));
    assert_eq!(board.revision().await, Err(Failure::Connection));
    server.restart();
    assert_eq!(board.revision().await, Ok(None));
    // One that is there and says nothing is found out too, even by callers of little patience.
    let mut listener = board.listen().await.unwrap();
    server.pause();
    let began = Instant::now();
    let failure = loop {
        if let Ok(word) = tokio::time::timeout(Duration::from_millis(500), listener.changed()).await
        {
            break word;
        }
        assert!(began.elapsed() < PATIENCE, "the listener is deaf");
    };
    assert_eq!(failure, Err(Failure::Timeout));
    assert_eq!(board.revision().await, Err(Failure::Timeout));
    server.resume();
    assert_eq!(board.revision().await, Ok(None));
}

#[tokio::test]
async fn a_user_who_may_not_publish_may_write() {
    // What decisions need, and what it takes to be heard.
    let least = "~tg:* resetchannels +@read +@write +@scripting +@connection +time +info";
    let server = Redis::builder()
        .config(&format!("user quiet on >secret {least}"))
        .config(&format!("user loud on >secret {least} +publish +subscribe &tg:*"))
        .start();
    let as_user = |name: &str| {
        let (username, password) =
            (Some(name.to_owned()), Password::new(Some("secret".to_owned())));
        board(&RedisOptions { username, password, ..options(&[server.url()]) })
    };
    let (quiet, loud) = (as_user("quiet"), as_user("loud"));
    let mut listener = loud.listen().await.unwrap();
    assert_eq!(quiet.listen().await.err(), Some(Failure::Denied));
    let mut set = Set::new("here", 1, &["a"]);
    assert_eq!(set.publish(&quiet).await, Ok(Published::Written));
    let silent = tokio::time::timeout(Duration::from_millis(100), listener.changed()).await;
    assert!(silent.is_err(), "it may not");
    set.revision = 2;
    assert_eq!(set.publish(&loud).await, Ok(Published::Written));
    assert_eq!(next_change(&mut listener).await, Ok(()));
    assert!(quiet.push_records(b"a", 1 << 20).await.unwrap());
    assert_eq!(quiet.pull_records("reader", 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn usage_waits_within_a_bound_until_it_is_done() {
    let server = Redis::start();
    let board = board(&options(&[server.url()]));
    let events = |count: u8| (0..count).map(|number| vec![number]).collect::<Vec<_>>();
    assert_eq!(board.usage_waiting().await, Ok(0));
    assert_eq!(board.push_usage(&events(3), 5).await, Ok(true));
    assert_eq!(board.push_usage(&events(3), 5).await, Ok(false), "all of them or none");
    assert_eq!(board.usage_waiting().await, Ok(3));
    let first = board.pull_usage("control", 10).await.unwrap();
    assert_eq!(first.iter().map(|(_, event)| event[0]).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(board.pull_usage("control", 10).await.unwrap(), first, "until it is done");
    let ids: Vec<String> = first.into_iter().map(|(id, _)| id).collect();
    board.done_usage(&ids).await.unwrap();
    assert_eq!(board.usage_waiting().await, Ok(0));
    assert_eq!(board.records_waiting().await, Ok(0), "decisions have a stream of their own");
}

#[tokio::test]
async fn a_foreign_key_is_reported() {
    let server = Redis::start();
    let board = board(&options(&[server.url()]));
    server.call(&["SET", "tg:{config}:set", "a word"]).unwrap().ok().unwrap();
    let published = Set::new("here", 1, &["a"]).publish(&board).await;
    assert_eq!(published, Err(Failure::ForeignKey));
    assert_eq!(board.revision().await, Err(Failure::ForeignKey));
}

/// A part that was put before, as by a writer that had no time left, is not sent again.
#[tokio::test]
async fn what_is_there_is_not_sent_again() {
    let server = Redis::start();
    let board = board(&options(&[server.url()]));
    let set = Set::new("here", 1, &["a", "b"]);
    let name = Board::part_name(b"a");
    server.call(&["HSET", "tg:{config}:set", &name, "marked"]).unwrap().ok().unwrap();
    assert_eq!(set.publish(&board).await, Ok(Published::Written));
    let parts = board.parts(&set.names()).await.unwrap();
    assert_eq!(parts, [Some(b"marked".to_vec()), Some(b"b".to_vec())]);
}

#[test]
fn a_board_works_on_any_runtime() {
    let server = Redis::start();
    let board = board(&options(&[server.url()]));
    for revision in 1..=3 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let set = Set::new("here", revision, &["a"]);
        assert_eq!(runtime.block_on(set.publish(&board)), Ok(Published::Written));
        assert_eq!(runtime.block_on(read(&board)).0, revision);
    }
}

/// Publishes until there are `last` revisions, each of some parts of the one before and some new ones.
async fn write(board: Board, seed: u64, last: i64) -> u32 {
    let mut draw = Draw(seed);
    let (mut written, mut before) = (0, Vec::new());
    loop {
        let manifest = board.manifest().await.unwrap();
        let (revision, names) = manifest.map_or((0, Vec::new()), |bytes| read_manifest(&bytes));
        if revision >= last {
            return written;
        }
        // Few contents, so that parts go and come back.
        let content = |draw: &mut Draw| format!("{:>2000}", draw.next(60)).into_bytes();
        let mut parts: Vec<_> = (0..=draw.next(19)).map(|_| content(&mut draw)).collect();
        let is_there = |part: &Vec<u8>| names.contains(&Board::part_name(part));
        parts.sort_by_key(|part| !is_there(part));
        parts.dedup();
        let kept = parts.iter().filter(|part| is_there(part)).count();
        // Sometimes at once, so that readers find parts missing.
        let remove = if draw.next(4) == 0 { names.clone() } else { std::mem::take(&mut before) };
        let set = Set { parts, kept, remove, ..Set::new("here", revision + 1, &[]) };
        match set.publish(&board).await.unwrap() {
            Published::Written => {
                written += 1;
                before = names;
            }
            Published::NeedsAll => {
                let all = Set { kept: 0, ..set };
                written += u32::from(all.publish(&board).await.unwrap() == Published::Written);
            }
            Published::Older { .. } | Published::AlreadyThere => {}
            other @ Published::OtherInstallation { .. } => panic!("seed {seed}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_sees_half_a_set_or_an_older_one() {
    const SETS: i64 = 200;
    let server = Redis::start();
    let store = RedisStore::new(&options(&[server.url()])).unwrap();
    Set::new("here", 1, &["a"]).publish(&store.board()).await.unwrap();
    let mut readers = JoinSet::new();
    for _ in 0..2 {
        let board = store.board();
        readers.spawn(async move {
            let (mut seen, mut begun_again, mut last) = (0, 0, 0);
            while last < SETS {
                let (_, current) = board.revision().await.unwrap().unwrap();
                let (revision, _, again) = read(&board).await;
                assert!(current >= last && revision >= current, "{last}, {current}, {revision}");
                (seen, begun_again, last) = (seen + 1, begun_again + again, revision);
            }
            (seen, begun_again)
        });
    }
    let mut writers = JoinSet::new();
    for seed in [1, 2] {
        writers.spawn(write(store.board(), seed, SETS));
    }
    let written: u32 = writers.join_all().await.into_iter().sum();
    assert_eq!(i64::from(written), SETS - 1, "each revision was written once");
    for (seen, begun_again) in readers.join_all().await {
        eprintln!("read {seen} sets whole; {begun_again} times a part had gone meanwhile");
        assert!(seen > 10, "{seen}");
    }
}

/// How long the longest of many pings took.
fn ping_until(server: &Redis, is_over: &AtomicBool) -> Duration {
    let mut longest = Duration::ZERO;
    while !is_over.load(Ordering::Relaxed) {
        let began = Instant::now();
        server.call(&["PING"]).unwrap().ok().unwrap();
        longest = longest.max(began.elapsed());
    }
    longest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_of_a_hundred_megabytes_travels_in_time() {
    let server = Arc::new(Redis::start());
    let board = board(&options(&[server.url()]));
    let mut draw = Draw(7);
    let mut set = Set::new("here", 1, &[]);
    set.parts = (0..1_000).map(|_| draw.bytes(100_000)).collect();
    for what in ["published", "read", "replaced"] {
        let is_over = Arc::new(AtomicBool::new(false));
        let (pinged, over) = (Arc::clone(&server), Arc::clone(&is_over));
        let pings = tokio::task::spawn_blocking(move || ping_until(&pinged, &over));
        let began = Instant::now();
        match what {
            "published" => assert_eq!(set.publish(&board).await, Ok(Published::Written)),
            "read" => assert_eq!(read(&board).await, (1, set.parts.clone(), 0)),
            _ => {
                let next = Set { remove: set.names(), ..Set::new("here", 2, &["small"]) };
                assert_eq!(next.publish(&board).await, Ok(Published::Written));
            }
        }
        let took = began.elapsed();
        is_over.store(true, Ordering::Relaxed);
        let longest = pings.await.unwrap();
        eprintln!("100 MB {what} in {took:?}; the longest ping took {longest:?}");
    }
    assert_eq!(board.part_names().await.unwrap(), [Board::part_name(b"small")]);
}

/// Nodes come and go; what they leave is bounded in number, length and time.
#[tokio::test]
async fn figures_of_nodes_are_bounded_and_kept_for_a_while() {
    let server = Redis::start();
    let board = board(&options(&[server.url()]));
    let (kept, live) = (Duration::from_secs(60), Duration::from_millis(300));
    let fields = |text: &str| vec![("state".to_owned(), text.to_owned())];
    let state = ["state".to_owned(), "other".to_owned()];
    assert_eq!(board.put_figures("a", &fields("1"), kept, live).await, Ok(true));
    assert_eq!(board.put_figures("a", &fields("2"), kept, live).await, Ok(true));
    assert_eq!(board.figures("a", &state).await, Ok(vec![Some(b"2".to_vec()), None]));
    assert_eq!(board.figures("nobody", &state).await, Ok(vec![None, None]));
    let nodes = board.figure_nodes().await.unwrap();
    assert!(nodes.len() == 1 && nodes[0].0 == "a" && nodes[0].1 < kept, "{nodes:?}");
    for key in ["tg:{config}:figures", "tg:{config}:figures:a"] {
        let Reply::Int(left) = server.call(&["PTTL", key]).unwrap() else { panic!("{key}") };
        assert!((1..=60_000).contains(&left), "{key}: {left}");
    }
    // What is too long is neither written nor read.
    let long = fields(&"x".repeat(MAX_FIGURES + 1));
    assert_eq!(board.put_figures("a", &long, kept, live).await, Err(Failure::Protocol));
    server.call(&["HSET", "tg:{config}:figures:a", "state", &long[0].1]).unwrap();
    assert_eq!(board.figures("a", &state).await, Ok(vec![None, None]));

    // While all others live there is no room for one more; then the one that was silent for longest goes.
    for number in 1..MAX_FIGURE_NODES {
        assert_eq!(
            board.put_figures(&format!("n{number}"), &fields("1"), kept, kept).await,
            Ok(true)
        );
    }
    assert_eq!(board.put_figures("late", &fields("1"), kept, kept).await, Ok(false));
    tokio::time::sleep(live).await;
    assert_eq!(board.put_figures("late", &fields("1"), kept, live).await, Ok(true));
    let nodes = board.figure_nodes().await.unwrap();
    assert_eq!(nodes.len(), MAX_FIGURE_NODES);
    assert!(nodes[0].0 == "late" && nodes.iter().all(|(name, _)| name != "a"), "{nodes:?}");
    assert_eq!(server.call(&["EXISTS", "tg:{config}:figures:a"]).unwrap(), Reply::Int(0));
}
