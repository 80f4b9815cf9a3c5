//! What every store does.

use std::time::Duration;

use tollgate_queue::{
    Change, Claim, Counts, QueueError, QueueOptions, QueueStore, Shelf, StoredRequest, TicketState,
};

use crate::ground::{Ground, START, id, name_of, request, response};

const SECOND: Duration = Duration::from_secs(1);

/// Each check runs on each store.
macro_rules! suite {
    ($($check:ident),* $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test] async fn $check() { super::$check(&crate::ground::Ground::sqlite()).await; })*
        }
        mod on_redis {
            $(#[tokio::test] async fn $check() { super::$check(&crate::ground::Ground::redis()).await; })*
        }
    };
}

suite!(
    lanes_go_one_by_one_and_in_order,
    a_request_waits_until_it_is_due,
    a_postponed_lane_waits_and_that_is_no_attempt,
    a_claim_without_a_word_comes_back,
    a_renewed_claim_holds,
    a_failure_is_tried_again_before_the_next_of_its_lane,
    workers_that_die_too_often_make_a_dead_letter,
    there_is_no_room_beyond_the_bounds,
    bytes_are_bounded_by_lane_by_tenant_and_in_all,
    bytes_are_counted_until_the_request_goes,
    the_oldest_dead_letters_make_room,
    the_oldest_answers_go_when_they_take_too_much,
    the_same_push_twice_is_one_entry,
    what_is_too_old_is_not_sent,
    what_is_under_way_does_not_expire,
    many_expire_at_once,
    what_was_kept_long_enough_goes,
    the_oldest_results_go_when_they_are_too_many,
    tickets_tell_where_an_entry_stands,
    lists_have_pages,
    dead_letters_are_retried_at_the_end_of_their_lane,
    what_is_under_way_is_not_dropped,
    handles_see_the_same_queue,
);

async fn push(store: &dyn QueueStore, number: usize, lane: &str) {
    let pushed = store.push(&id(number), lane, &request(&number.to_string()), Duration::ZERO).await;
    pushed.unwrap();
}

async fn claim(store: &dyn QueueStore) -> Vec<Claim> {
    let mut claims = store.claim(10).await.unwrap().claims;
    claims.sort_by(|one, other| one.lane.cmp(&other.lane));
    claims
}

async fn claim_one(store: &dyn QueueStore) -> Claim {
    let mut claims = claim(store).await;
    assert_eq!(claims.len(), 1, "{claims:?}");
    claims.remove(0)
}

async fn state(store: &dyn QueueStore, number: usize) -> TicketState {
    store.ticket(&id(number)).await.unwrap().unwrap().state
}

async fn lanes_go_one_by_one_and_in_order(ground: &Ground) {
    let store = ground.open(QueueOptions::default()).await;
    for number in 0..6 {
        push(&*store, number, if number % 2 == 0 { "even" } else { "odd" }).await;
    }
    let mut order = Vec::new();
    loop {
        let claims = claim(&*store).await;
        if claims.is_empty() {
            break;
        }
        assert!(claim(&*store).await.is_empty(), "a lane was claimed twice");
        for claim in claims {
            assert_eq!(claim.attempts, 1);
            order.push(name_of(&claim));
            assert!(store.complete(&claim, &response(b"")).await.unwrap());
        }
    }
    assert_eq!(order, ["0", "1", "2", "3", "4", "5"]);
    let claimed = store.claim(1).await.unwrap();
    assert_eq!(claimed.next_due_in, None);
    assert_eq!(store.counts().await.unwrap(), Counts { done: 6, ..Counts::default() });
}

async fn a_request_waits_until_it_is_due(ground: &Ground) {
    let store = ground.open(QueueOptions::default()).await;
    store.push(&id(1), "lane", &request("1"), SECOND * 3).await.unwrap();
    // Others of the lane do not make it due earlier.
    push(&*store, 2, "lane").await;
    let claimed = store.claim(1).await.unwrap();
    assert!(claimed.claims.is_empty());
    assert_eq!(claimed.next_due_in, Some(SECOND * 3));
    ground.pass(Duration::from_millis(2_999));
    assert_eq!(store.claim(1).await.unwrap().next_due_in, Some(Duration::from_millis(1)));
    ground.pass(Duration::from_millis(1));
    assert_eq!(name_of(&claim_one(&*store).await), "1");
}

async fn a_postponed_lane_waits_and_that_is_no_attempt(ground: &Ground) {
    let options = QueueOptions { max_attempts: 1, ..QueueOptions::default() };
    let store = ground.open(options).await;
    push(&*store, 1, "lane").await;
    push(&*store, 2, "other").await;
    for _ in 0..5 {
        let claims = claim(&*store).await;
        assert_eq!(claims.len(), 2);
        for claim in &claims {
            assert_eq!(claim.attempts, 1);
            assert!(store.postpone(claim, SECOND).await.unwrap());
            assert!(!store.postpone(claim, SECOND).await.unwrap(), "it was given back");
        }
        let ticket = store.ticket(&id(1)).await.unwrap().unwrap();
        assert_eq!((ticket.state, ticket.attempts), (TicketState::Queued, 0));
        assert_eq!(ticket.next_attempt_at, Some(ground.now() + 1_000));
        assert!(claim(&*store).await.is_empty());
        ground.pass(SECOND);
    }
}

async fn a_claim_without_a_word_comes_back(ground: &Ground) {
    let store = ground.open(QueueOptions::default()).await;
    let lease = store.options().lease;
    push(&*store, 1, "lane").await;
    push(&*store, 2, "lane").await;
    let lost = claim_one(&*store).await;
    assert_eq!(store.claim(1).await.unwrap().next_due_in, Some(lease));
    ground.pass(lease);
    assert_eq!(state(&*store, 1).await, TicketState::Queued);
    let held = claim_one(&*store).await;
    assert_eq!((held.id.as_str(), held.attempts), (id(1).as_str(), 2));
    assert!(!store.renew(&lost).await.unwrap());
    assert!(!store.complete(&lost, &response(b"late")).await.unwrap());
    assert!(!store.fail(&lost, "late", None).await.unwrap());
    assert!(!store.fail(&lost, "late", Some(SECOND)).await.unwrap());
    assert!(!store.postpone(&lost, SECOND).await.unwrap());
    assert_eq!(state(&*store, 1).await, TicketState::Sending);
    assert!(store.complete(&held, &response(b"")).await.unwrap());
    assert_eq!(state(&*store, 1).await, TicketState::Done);
    // A word that comes late, but before anybody else has claimed, counts.
    let late = claim_one(&*store).await;
    ground.pass(lease * 2);
    assert!(store.complete(&late, &response(b"")).await.unwrap());
    assert_eq!(state(&*store, 2).await, TicketState::Done);
}

async fn a_renewed_claim_holds(ground: &Ground) {
    let store = ground.open(QueueOptions::default()).await;
    let lease = store.options().lease;
    push(&*store, 1, "lane").await;
    let held = claim_one(&*store).await;
    for _ in 0..4 {
        ground.pass(lease / 2);
        assert!(store.renew(&held).await.unwrap());
        assert!(claim(&*store).await.is_empty());
    }
    ground.pass(lease);
    assert_eq!(claim_one(&*store).await.attempts, 2);
    assert!(!store.renew(&held).await.unwrap());
}

async fn a_failure_is_tried_again_before_the_next_of_its_lane(ground: &Ground) {
    let store = ground.open(QueueOptions::default()).await;
    push(&*store, 1, "lane").await;
    push(&*store, 2, "lane").await;
    let failed = claim_one(&*store).await;
    assert!(store.fail(&failed, "no answer", Some(SECOND * 2)).await.unwrap());
    assert!(claim(&*store).await.is_empty());
    let ticket = store.ticket(&id(1)).await.unwrap().unwrap();
    assert_eq!((ticket.state, ticket.attempts), (TicketState::Queued, 1));
    assert_eq!(ticket.error.as_deref(), Some("no answer"));
    assert_eq!(ticket.next_attempt_at, Some(START + 2_000));
    ground.pass(SECOND * 2);
    let again = claim_one(&*store).await;
    assert_eq!((name_of(&again).as_str(), again.attempts), ("1", 2));
    assert!(store.fail(&again, &"ü".repeat(4_000), None).await.unwrap());
    let ticket = store.ticket(&id(1)).await.unwrap().unwrap();
    assert_eq!((ticket.state, ticket.attempts), (TicketState::Failed, 2));
    assert_eq!(ticket.finished_at, Some(ground.now()));
    assert!(ticket.error.unwrap().len() <= tollgate_queue::MAX_ERROR_BYTES);
    assert_eq!(name_of(&claim_one(&*store).await), "2");
}

async fn workers_that_die_too_often_make_a_dead_letter(ground: &Ground) {
    let options = QueueOptions { max_attempts: 1, max_lost_claims: 2, ..QueueOptions::default() };
    let store = ground.open(options).await;
    push(&*store, 1, "lane").await;
    push(&*store, 2, "lane").await;
    for attempts in 1..=3 {
        let claim = claim_one(&*store).await;
        assert_eq!((name_of(&claim).as_str(), claim.attempts), ("1", attempts));
        ground.pass(store.options().lease);
    }
    assert_eq!(name_of(&claim_one(&*store).await), "2");
    let ticket = store.ticket(&id(1)).await.unwrap().unwrap();
    assert_eq!(ticket.state, TicketState::Failed);
    assert!(ticket.error.unwrap().starts_with("given up"));
}

async fn there_is_no_room_beyond_the_bounds(ground: &Ground) {
    let options = QueueOptions {
        max_depth: 5,
        max_lane_depth: 3,
        max_request_bytes: 600,
        ..QueueOptions::default()
    };
    let store = ground.open(options).await;
    let ask = async |number: usize, lane: &str| {
        store.push(&id(number), lane, &request("x"), Duration::ZERO).await
    };
    for number in 0..3 {
        assert_eq!(ask(number, "one").await.unwrap().position, number as u64);
    }
    assert_eq!(ask(10, "one").await, Err(QueueError::LaneFull(3)));
    ask(3, "two").await.unwrap();
    ask(4, "three").await.unwrap();
    assert_eq!(ask(10, "four").await, Err(QueueError::Full(5)));
    // What is under way counts, what is done does not.
    let claims = claim(&*store).await;
    assert_eq!(claims.len(), 3);
    assert_eq!(ask(10, "four").await, Err(QueueError::Full(5)));
    let first = claims.iter().find(|claim| claim.lane == "one").unwrap();
    store.complete(first, &response(b"")).await.unwrap();
    assert_eq!(ask(10, "one").await.unwrap().position, 2);

    let mut long = request("x");
    long.body = vec![0; 601];
    let pushed = store.push(&id(11), "two", &long, Duration::ZERO).await;
    assert!(matches!(pushed, Err(QueueError::TooLarge { most: 600, .. })), "{pushed:?}");
    let pushed = store.push(&id(11), &"l".repeat(600), &request("x"), Duration::ZERO).await;
    assert!(matches!(pushed, Err(QueueError::TooLarge { .. })), "{pushed:?}");
    assert_eq!(store.ticket(&id(11)).await.unwrap(), None);
    assert_eq!(store.counts().await.unwrap().waiting, 5);
}

/// A request of a tenant with a body of so many bytes.
fn sized(tenant: &str, bytes: usize) -> StoredRequest {
    let mut request = request("x");
    request.asked.identity.tenant_id = Some(tenant.to_owned()).filter(|it| !it.is_empty());
    request.body = vec![b'x'; bytes];
    request
}

const KIB: usize = 1 << 10;

fn byte_bounds() -> QueueOptions {
    QueueOptions {
        max_lane_bytes: 50 << 10,
        max_tenant_bytes: 100 << 10,
        max_bytes: 200 << 10,
        ..QueueOptions::default()
    }
}

async fn bytes_are_bounded_by_lane_by_tenant_and_in_all(ground: &Ground) {
    let store = ground.open(byte_bounds()).await;
    let mut number = 0;
    let mut push = async |lane: &str, tenant: &str| {
        number += 1;
        let room = store.room(lane, tenant, 20 * KIB).await;
        let request = sized(tenant, 20 * KIB);
        let pushed = store.push(&id(number), lane, &request, Duration::ZERO).await;
        assert_eq!(room.is_ok(), pushed.is_ok(), "{room:?} {pushed:?}");
        match pushed {
            Ok(_) => "",
            Err(QueueError::FullOfBytes { of, .. }) => of,
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!([push("a1", "a").await, push("a1", "a").await], ["", ""]);
    assert_eq!(push("a1", "a").await, "this key");
    assert_eq!([push("a2", "a").await, push("a2", "a").await], ["", ""]);
    assert_eq!(push("a3", "a").await, "this tenant");
    // Others have their shares, also those without a tenant.
    assert_eq!([push("b1", "b").await, push("b1", "b").await], ["", ""]);
    assert_eq!([push("none", "").await, push("none", "").await], ["", ""]);
    assert_eq!(push("c1", "c").await, "");
    assert_eq!(push("c1", "c").await, "all callers");
}

async fn bytes_are_counted_until_the_request_goes(ground: &Ground) {
    let options = QueueOptions { max_lane_bytes: 30 << 10, ..byte_bounds() };
    let store = ground.open(options).await;
    let fits = async || store.room("lane", "a", 20 * KIB).await.is_ok();
    let push = async |number: usize| {
        store.push(&id(number), "lane", &sized("a", 20 * KIB), Duration::ZERO).await.unwrap();
    };
    push(1).await;
    assert!(!fits().await);
    let claim = claim_one(&*store).await;
    assert!(!fits().await, "it is under way");
    store.complete(&claim, &response(b"done")).await.unwrap();
    assert!(fits().await, "it is done");
    push(2).await;
    let claim = claim_one(&*store).await;
    store.fail(&claim, "no", None).await.unwrap();
    assert!(fits().await, "a dead letter makes room");
    assert_eq!(store.drop_entry(&id(2)).await.unwrap(), Change::Made);
    assert!(fits().await, "it was dropped");
    push(3).await;
    let claim = claim_one(&*store).await;
    store.fail(&claim, "no", None).await.unwrap();
    assert_eq!(store.retry(&id(3)).await.unwrap(), Change::Made);
    assert!(!fits().await, "it is tried again, and counted once");
    let claim = claim_one(&*store).await;
    store.fail(&claim, "no", None).await.unwrap();
    ground.pass(QueueOptions::default().keep_dead + SECOND);
    store.sweep().await.unwrap();
    assert!(fits().await, "it was kept long enough");
}

/// An endpoint that fails does not close the queue, neither for its own tenant nor for others.
async fn the_oldest_dead_letters_make_room(ground: &Ground) {
    let store = ground.open(byte_bounds()).await;
    let push = async |number: usize, lane: &str, tenant: &str| {
        let room = store.room(lane, tenant, 20 * KIB).await;
        let request = sized(tenant, 20 * KIB);
        let pushed = store.push(&id(number), lane, &request, Duration::ZERO).await;
        assert_eq!(room.is_ok(), pushed.is_ok(), "{room:?} {pushed:?}");
        ground.pass(SECOND);
        pushed.map(|accepted| accepted.removed_dead)
    };
    let bury = async || {
        for claim in claim(&*store).await {
            store.fail(&claim, "no", None).await.unwrap();
        }
    };
    let dead = async || -> Vec<String> {
        let page = store.list(Shelf::Dead, None, 100).await.unwrap();
        page.tickets.into_iter().map(|ticket| ticket.id).collect()
    };
    // Dead letters of four tenants fill the queue.
    let tenants = ["a", "a", "b", "c", "c", "d", "d", "a", "b"];
    for (number, tenant) in tenants.into_iter().enumerate() {
        assert_eq!(push(number, &format!("{tenant}-{number}"), tenant).await, Ok(0));
        bury().await;
    }
    assert_eq!(dead().await.len(), 9);
    // The bound of all: the oldest of any tenant go.
    assert_eq!(push(10, "e-1", "e").await, Ok(1));
    assert_eq!(dead().await[0], id(1));
    // The bound of a tenant: the oldest of its own.
    for number in 11..15 {
        push(number, &format!("b-{number}"), "b").await.unwrap();
    }
    let of_b = store.ticket(&id(8)).await.unwrap();
    assert!(of_b.is_none(), "b has four requests, and no dead letter left");
    // What waits is not removed.
    let refused = push(15, "b-15", "b").await;
    assert!(
        matches!(refused, Err(QueueError::FullOfBytes { of: "this tenant", .. })),
        "{refused:?}"
    );
    assert_eq!(store.counts().await.unwrap().waiting, 5);
    // The bound of a lane: a dead letter of the lane goes, though others are older.
    bury().await;
    let older = dead().await[0].clone();
    for number in 16..18 {
        push(number, "f", "f").await.unwrap();
    }
    store.fail(&claim_one(&*store).await, "no", None).await.unwrap();
    let before = store.counts().await.unwrap().dead;
    assert_eq!(push(18, "f", "f").await, Ok(1));
    assert!(store.ticket(&id(16)).await.unwrap().is_none());
    assert_eq!(store.counts().await.unwrap().dead, before - 1);
    assert_ne!(older, id(16));
    // A dead letter that is tried again does not make room.
    bury().await;
    for entry in dead().await {
        if entry != id(17) {
            store.drop_entry(&entry).await.unwrap();
        }
    }
    assert_eq!(store.retry(&id(17)).await.unwrap(), Change::Made);
    let refused = push(19, "f", "f").await;
    assert!(matches!(refused, Err(QueueError::FullOfBytes { of: "this key", .. })), "{refused:?}");
}

async fn the_oldest_answers_go_when_they_take_too_much(ground: &Ground) {
    let store = ground.open(byte_bounds()).await;
    for number in 0..6 {
        push(&*store, number, "lane").await;
        let claim = claim_one(&*store).await;
        store.complete(&claim, &response(&vec![b'y'; 60 * KIB])).await.unwrap();
        ground.pass(SECOND);
    }
    for number in 0..6 {
        let is_kept = store.ticket(&id(number)).await.unwrap().is_some();
        assert_eq!(is_kept, number >= 3, "{number}");
    }
}

async fn the_same_push_twice_is_one_entry(ground: &Ground) {
    let store = ground.open(QueueOptions::default()).await;
    push(&*store, 1, "lane").await;
    push(&*store, 1, "lane").await;
    assert_eq!(store.counts().await.unwrap().waiting, 1);
    let claim = claim_one(&*store).await;
    store.complete(&claim, &response(b"")).await.unwrap();
    push(&*store, 1, "lane").await;
    assert!(self::claim(&*store).await.is_empty());
}

async fn what_is_too_old_is_not_sent(ground: &Ground) {
    let store = ground.open(QueueOptions::default()).await;
    let max_age = store.options().max_age;
    push(&*store, 1, "lane").await;
    store.push(&id(2), "asleep", &request("2"), max_age * 3).await.unwrap();
    ground.pass(SECOND);
    push(&*store, 3, "lane").await;
    push(&*store, 4, "asleep").await;
    ground.pass(max_age.saturating_sub(SECOND));
    assert_eq!(store.sweep().await.unwrap().expired, 0);
    ground.pass(Duration::from_millis(1));
    // One is found by the claim, the other by the sweep.
    assert_eq!(name_of(&claim_one(&*store).await), "3");
    assert_eq!(store.sweep().await.unwrap().expired, 1);
    for number in [1, 2] {
        let ticket = store.ticket(&id(number)).await.unwrap().unwrap();
        assert_eq!(ticket.state, TicketState::Failed);
        assert!(ticket.error.unwrap().starts_with("expired"));
    }
    // The lane sleeps on.
    assert_eq!(state(&*store, 4).await, TicketState::Queued);
    assert!(claim(&*store).await.is_empty());
    let counts = store.counts().await.unwrap();
    assert_eq!((counts.waiting, counts.lanes, counts.dead), (2, 2, 2));
    assert_eq!(counts.oldest_age, Some(max_age.saturating_sub(Duration::from_millis(999))));
}

async fn what_is_under_way_does_not_expire(ground: &Ground) {
    let store = ground.open(QueueOptions { max_age: SECOND, ..QueueOptions::default() }).await;
    push(&*store, 1, "lane").await;
    push(&*store, 2, "lane").await;
    let held = claim_one(&*store).await;
    ground.pass(SECOND * 2);
    assert_eq!(store.sweep().await.unwrap().expired, 1);
    assert_eq!(state(&*store, 1).await, TicketState::Sending);
    assert_eq!(state(&*store, 2).await, TicketState::Failed);
    assert!(store.complete(&held, &response(b"")).await.unwrap());
    assert_eq!(store.counts().await.unwrap().lanes, 0);
    // One whose worker died does.
    push(&*store, 3, "lane").await;
    claim_one(&*store).await;
    ground.pass(store.options().lease);
    assert_eq!(store.sweep().await.unwrap().expired, 1);
    assert_eq!(state(&*store, 3).await, TicketState::Failed);
    assert_eq!(store.counts().await.unwrap().lanes, 0);
}

async fn many_expire_at_once(ground: &Ground) {
    let store =
        ground.open(QueueOptions { max_lane_depth: 9_000, ..QueueOptions::default() }).await;
    for number in 0..620 {
        push(&*store, number, "lane").await;
    }
    ground.pass(store.options().max_age + SECOND);
    push(&*store, 1_000, "lane").await;
    // A claim buries some and leaves the rest for the next.
    let mut rounds = 0;
    let found = loop {
        let claims = claim(&*store).await;
        if let Some(claim) = claims.first() {
            break name_of(claim);
        }
        rounds += 1;
        assert!(rounds < 3 || store.sweep().await.unwrap().expired > 0);
        assert!(rounds < 20);
    };
    assert_eq!(found, "1000");
    let counts = store.counts().await.unwrap();
    assert_eq!((counts.waiting, counts.dead), (1, 620));
}

async fn finish(store: &dyn QueueStore, number: usize, lives: bool) {
    push(store, number, "lane").await;
    let claim = claim_one(store).await;
    let noted = if lives {
        store.complete(&claim, &response(b"")).await
    } else {
        store.fail(&claim, "no", None).await
    };
    assert!(noted.unwrap());
}

async fn what_was_kept_long_enough_goes(ground: &Ground) {
    let options =
        QueueOptions { keep_results: SECOND * 5, keep_dead: SECOND * 9, ..QueueOptions::default() };
    let store = ground.open(options).await;
    finish(&*store, 1, true).await;
    finish(&*store, 2, false).await;
    ground.pass(SECOND * 5);
    finish(&*store, 3, true).await;
    assert_eq!(store.sweep().await.unwrap().removed, 0);
    ground.pass(SECOND);
    assert_eq!(store.sweep().await.unwrap().removed, 1);
    assert_eq!(store.ticket(&id(1)).await.unwrap(), None);
    assert_eq!(state(&*store, 2).await, TicketState::Failed);
    ground.pass(SECOND * 4);
    assert_eq!(store.sweep().await.unwrap().removed, 1);
    assert_eq!(store.ticket(&id(2)).await.unwrap(), None);
    ground.pass(SECOND * 4);
    assert_eq!(store.sweep().await.unwrap().removed, 1);
    assert_eq!(store.counts().await.unwrap(), Counts::default());
}

async fn the_oldest_results_go_when_they_are_too_many(ground: &Ground) {
    let options = QueueOptions { max_results: 3, max_dead: 2, ..QueueOptions::default() };
    let store = ground.open(options).await;
    for number in 0..10 {
        finish(&*store, number, number % 2 == 0).await;
        ground.pass(SECOND);
    }
    let swept = store.sweep().await.unwrap();
    assert_eq!((swept.removed, swept.expired, swept.is_partial), (5, 0, false));
    let mut left = Vec::new();
    for number in 0..10 {
        if store.ticket(&id(number)).await.unwrap().is_some() {
            left.push(number);
        }
    }
    assert_eq!(left, [4, 6, 7, 8, 9]);
}

async fn tickets_tell_where_an_entry_stands(ground: &Ground) {
    let store = ground.open(QueueOptions::default()).await;
    assert_eq!(store.ticket(&id(9)).await.unwrap(), None);
    for number in 0..3 {
        store.push(&id(number), "lane", &request("a"), SECOND).await.unwrap();
        ground.pass(Duration::from_millis(1));
    }
    let ticket = store.ticket(&id(2)).await.unwrap().unwrap();
    assert_eq!((ticket.state, ticket.position), (TicketState::Queued, Some(2)));
    assert_eq!((ticket.lane.as_str(), ticket.label.as_str()), ("lane", "POST /things/a"));
    assert_eq!((ticket.enqueued_at, ticket.next_attempt_at), (START + 2, None));
    let ticket = store.ticket(&id(0)).await.unwrap().unwrap();
    assert_eq!((ticket.position, ticket.next_attempt_at), (Some(0), Some(START + 1_000)));
    ground.pass(SECOND);
    let held = claim_one(&*store).await;
    let ticket = store.ticket(&id(0)).await.unwrap().unwrap();
    assert_eq!((ticket.state, ticket.position), (TicketState::Sending, Some(0)));
    assert_eq!((ticket.attempts, ticket.next_attempt_at), (1, None));
    let answer = response(&[0, 159, 146, 150, 255]);
    store.complete(&held, &answer).await.unwrap();
    let ticket = store.ticket(&id(0)).await.unwrap().unwrap();
    assert_eq!((ticket.state, ticket.position), (TicketState::Done, None));
    assert_eq!((ticket.response, ticket.error), (Some(answer), None));
    assert_eq!(ticket.finished_at, Some(ground.now()));
    assert_eq!(store.ticket(&id(2)).await.unwrap().unwrap().position, Some(1));
}

async fn lists_have_pages(ground: &Ground) {
    let store = ground.open(QueueOptions::default()).await;
    // Many come in the same instant.
    for number in 0..23 {
        push(&*store, number, &format!("lane {}", number % 4)).await;
        if number % 10 == 9 {
            ground.pass(SECOND);
        }
    }
    let mut found = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = store.list(Shelf::Waiting, after.as_deref(), 5).await.unwrap();
        assert!(page.tickets.len() <= 5);
        found.extend(page.tickets.into_iter().map(|ticket| ticket.id));
        let Some(next) = page.next else { break };
        if found.len() == 10 {
            // The entry that a page ended with goes before the next one is read.
            assert_eq!(store.drop_entry(found.last().unwrap()).await.unwrap(), Change::Made);
        }
        after = Some(next);
    }
    assert_eq!(found, (0..23).map(id).collect::<Vec<_>>());

    for claim in claim(&*store).await {
        if claim.lane == "lane 0" {
            store.complete(&claim, &response(b"long")).await.unwrap();
        } else if claim.lane == "lane 1" {
            store.fail(&claim, "no", None).await.unwrap();
        }
    }
    let done = store.list(Shelf::Done, None, 100).await.unwrap();
    assert_eq!(done.tickets.len(), 1);
    assert_eq!((done.tickets[0].state, &done.tickets[0].response), (TicketState::Done, &None));
    assert_eq!(done.tickets[0].label, "POST /things/0");
    let dead = store.list(Shelf::Dead, None, 100).await.unwrap();
    assert_eq!((dead.tickets.len(), dead.tickets[0].state), (1, TicketState::Failed));
    let waiting = store.list(Shelf::Waiting, Some("nonsense"), 100).await.unwrap();
    let sending = waiting.tickets.iter().filter(|ticket| ticket.state == TicketState::Sending);
    assert_eq!((waiting.tickets.len(), sending.count()), (20, 2));
}

async fn dead_letters_are_retried_at_the_end_of_their_lane(ground: &Ground) {
    let store = ground.open(QueueOptions { max_lane_depth: 2, ..QueueOptions::default() }).await;
    assert_eq!(store.retry(&id(1)).await.unwrap(), Change::NotThere);
    finish(&*store, 1, false).await;
    push(&*store, 2, "lane").await;
    assert_eq!(store.retry(&id(2)).await.unwrap(), Change::NotNow);
    ground.pass(store.options().max_age.saturating_sub(SECOND));
    assert_eq!(store.retry(&id(1)).await.unwrap(), Change::Made);
    assert_eq!(store.retry(&id(1)).await.unwrap(), Change::NotNow);
    let ticket = store.ticket(&id(1)).await.unwrap().unwrap();
    assert_eq!((ticket.state, ticket.position), (TicketState::Queued, Some(1)));
    assert_eq!((ticket.attempts, ticket.enqueued_at), (0, ground.now()));
    assert_eq!(ticket.finished_at, None);
    // What comes after it stays after it.
    let first = claim_one(&*store).await;
    assert_eq!(name_of(&first), "2");
    store.complete(&first, &response(b"")).await.unwrap();
    push(&*store, 3, "lane").await;
    let second = claim_one(&*store).await;
    assert_eq!((name_of(&second).as_str(), second.attempts), ("1", 1));
    store.fail(&second, "no", None).await.unwrap();
    push(&*store, 4, "lane").await;
    assert_eq!(store.retry(&id(1)).await, Err(QueueError::LaneFull(2)));
    assert_eq!(state(&*store, 1).await, TicketState::Failed);
    // Its age is counted from the retry.
    let third = claim_one(&*store).await;
    assert_eq!(name_of(&third), "3");
    store.complete(&third, &response(b"")).await.unwrap();
    assert_eq!(store.retry(&id(1)).await.unwrap(), Change::Made);
    ground.pass(SECOND * 10);
    assert_eq!(store.sweep().await.unwrap().expired, 0);
    let counts = store.counts().await.unwrap();
    assert_eq!((counts.waiting, counts.lanes, counts.done, counts.dead), (2, 1, 2, 0));
}

async fn what_is_under_way_is_not_dropped(ground: &Ground) {
    let store = ground.open(QueueOptions::default()).await;
    assert_eq!(store.drop_entry(&id(1)).await.unwrap(), Change::NotThere);
    for number in 0..3 {
        push(&*store, number, "lane").await;
    }
    let held = claim_one(&*store).await;
    assert_eq!(store.drop_entry(&id(0)).await.unwrap(), Change::NotNow);
    assert_eq!(store.drop_entry(&id(1)).await.unwrap(), Change::Made);
    assert_eq!(store.ticket(&id(1)).await.unwrap(), None);
    assert!(claim(&*store).await.is_empty());
    store.complete(&held, &response(b"")).await.unwrap();
    assert_eq!(store.drop_entry(&id(0)).await.unwrap(), Change::Made);
    let last = claim_one(&*store).await;
    assert_eq!(name_of(&last), "2");
    // Once its lease has ended nobody has it, and a late word finds nothing.
    ground.pass(store.options().lease);
    assert_eq!(store.drop_entry(&id(2)).await.unwrap(), Change::Made);
    assert!(!store.complete(&last, &response(b"")).await.unwrap());
    assert_eq!(store.counts().await.unwrap(), Counts::default());
    finish(&*store, 3, false).await;
    assert_eq!(store.drop_entry(&id(3)).await.unwrap(), Change::Made);
    assert_eq!(store.counts().await.unwrap(), Counts::default());
}

async fn handles_see_the_same_queue(ground: &Ground) {
    let options = QueueOptions::default();
    let (one, other) = (ground.open(options.clone()).await, ground.open(options.clone()).await);
    push(&*one, 1, "lane").await;
    let held = claim_one(&*other).await;
    assert!(claim(&*one).await.is_empty());
    assert_eq!(state(&*one, 1).await, TicketState::Sending);
    assert!(one.complete(&held, &response(b"")).await.unwrap());
    push(&*other, 2, "lane").await;
    // Handles that go without a word take nothing along.
    drop((one, other));
    let again = ground.open(options).await;
    assert_eq!(state(&*again, 1).await, TicketState::Done);
    assert_eq!(name_of(&claim_one(&*again).await), "2");
}
