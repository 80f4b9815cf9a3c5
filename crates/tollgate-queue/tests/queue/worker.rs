//! The worker, on real stores and a running clock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tollgate_queue::{
    Forward, ForwardError, Queue, QueueOptions, StoredRequest, StoredResponse, Ticket, TicketState,
    Worker, WorkerOptions,
};
use tollgate_tower::{Decide, EdgeRequest, Held, Pass, Postponed, Rejection, Ruling, Sent};

use crate::ground::{Ground, request, response};

const MOMENT: Duration = Duration::from_millis(20);

/// Everything passes.
#[derive(Clone)]
pub(crate) struct Open;

impl Decide for Open {
    async fn decide(&self, _: &EdgeRequest) -> Ruling {
        Ruling::Pass(Pass::default())
    }
}

/// Rules as a list says, and then lets everything pass.
#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<VecDeque<Ruling>>>);

impl Scripted {
    fn new(rulings: impl IntoIterator<Item = Ruling>) -> Self {
        Self(Arc::new(Mutex::new(rulings.into_iter().collect())))
    }
}

impl Decide for Scripted {
    async fn decide(&self, _: &EdgeRequest) -> Ruling {
        self.0.lock().pop_front().unwrap_or_else(|| Ruling::Pass(Pass::default()))
    }
}

/// Lets one pass per [`MOMENT`], and says when the next may.
#[derive(Clone, Default)]
struct Paced {
    next: Arc<Mutex<Option<Instant>>>,
    passed: Arc<Mutex<Vec<Instant>>>,
}

impl Decide for Paced {
    async fn decide(&self, _: &EdgeRequest) -> Ruling {
        let now = Instant::now();
        let mut next = self.next.lock();
        if let Some(next) = *next
            && next > now
        {
            return not_yet(next.saturating_duration_since(now));
        }
        *next = Some(now + MOMENT);
        self.passed.lock().push(now);
        Ruling::Pass(Pass::default())
    }
}

/// Notes what it is given, and answers as a list says, and then well.
#[derive(Clone, Default)]
struct Upstream {
    seen: Arc<Mutex<Vec<(String, String)>>>,
    answers: Arc<Mutex<VecDeque<ForwardError>>>,
    takes: Duration,
}

impl Forward for Upstream {
    async fn forward(
        &self,
        request: &StoredRequest,
        ticket: &str,
        _: &Sent,
    ) -> Result<StoredResponse, ForwardError> {
        let name = String::from_utf8(request.body.clone()).unwrap();
        self.seen.lock().push((name, ticket.to_owned()));
        tokio::time::sleep(self.takes).await;
        let error = self.answers.lock().pop_front();
        error.map_or_else(|| Ok(response(&request.body)), Err)
    }
}

struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    fn start(queue: &Queue, decide: impl Decide, forward: impl Forward) -> Self {
        let (stop, stopped) = oneshot::channel();
        let worker = Worker::new(queue.clone(), decide, forward, WorkerOptions::default());
        let task = tokio::spawn(worker.run(async {
            let _ = stopped.await;
        }));
        Self { stop, task }
    }

    async fn stop(self) {
        let _ = self.stop.send(());
        self.task.await.unwrap();
    }
}

/// Waits until a ticket has reached its end.
async fn ended(queue: &Queue, ticket: &str) -> Ticket {
    let look = async {
        loop {
            let found = queue.ticket(ticket).await.unwrap().unwrap();
            if matches!(found.state, TicketState::Done | TicketState::Failed) {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(tollgate_testkit::PATIENCE, look).await.expect("an end")
}

fn quick() -> QueueOptions {
    QueueOptions {
        first_back_off: Duration::from_millis(2),
        max_back_off: MOMENT,
        max_attempts: 4,
        ..QueueOptions::default()
    }
}

async fn queue(ground: &Ground, options: QueueOptions) -> Queue {
    Queue::new(ground.open_running(options).await)
}

async fn push(queue: &Queue, lane: &str, name: &str) -> String {
    queue.push(lane, &request(name), Duration::ZERO).await.unwrap().ticket
}

fn error(retryable: bool, message: &str) -> ForwardError {
    ForwardError { retryable, message: message.to_owned() }
}

fn not_yet(retry_after: Duration) -> Ruling {
    Ruling::Queue(Postponed {
        refusal: Box::new(Rejection::new(StatusCode::TOO_MANY_REQUESTS, "CODE", "not yet")),
        rule_id: "rule".to_owned(),
        lane: "lane".to_owned(),
        retry_after,
    })
}

fn refused(status: u16, retry_after: Option<u64>) -> Ruling {
    let status = StatusCode::from_u16(status).unwrap();
    let mut rejection = Rejection::new(status, "CODE", "the gate is shut");
    rejection.retry_after = retry_after.map(Duration::from_secs);
    Ruling::Refuse(Box::new(rejection))
}

macro_rules! on_both {
    ($($check:ident),* $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test] async fn $check() { super::$check(&crate::ground::Ground::sqlite()).await; })*
        }
        mod on_redis {
            $(#[tokio::test] async fn $check() { super::$check(&crate::ground::Ground::redis()).await; })*
        }
    };
}

on_both!(
    requests_are_sent_in_order_and_their_tickets_report_it,
    what_may_not_pass_yet_is_asked_again,
    requests_go_out_at_the_rate_that_is_permitted,
    a_request_that_can_never_pass_is_a_dead_letter,
    failures_are_tried_again_until_they_are_too_many,
    a_long_request_is_sent_once,
    what_another_handle_pushes_is_seen,
    a_stopped_worker_ends_what_it_began,
    slots_are_held_until_the_answer,
);

async fn requests_are_sent_in_order_and_their_tickets_report_it(ground: &Ground) {
    let queue = queue(ground, quick()).await;
    let upstream = Upstream::default();
    let running = Running::start(&queue, Open, upstream.clone());
    let mut tickets = Vec::new();
    for name in ["a", "b", "c", "d"] {
        tickets.push((name.to_owned(), push(&queue, "lane", name).await));
    }
    for (name, ticket) in &tickets {
        let ticket = ended(&queue, ticket).await;
        assert_eq!((ticket.state, ticket.attempts), (TicketState::Done, 1));
        assert_eq!(ticket.response, Some(response(name.as_bytes())));
    }
    assert_eq!(*upstream.seen.lock(), tickets);
    for odd in ["", "../..", "zz", &"0".repeat(32)] {
        assert_eq!(queue.ticket(odd).await.unwrap(), None);
    }
    running.stop().await;
}

async fn what_may_not_pass_yet_is_asked_again(ground: &Ground) {
    let queue = queue(ground, QueueOptions { max_attempts: 1, ..quick() }).await;
    let rulings =
        [not_yet(MOMENT), not_yet(Duration::ZERO), refused(429, Some(0)), refused(503, None)];
    let decide = Scripted::new(rulings);
    let upstream = Upstream::default();
    let running = Running::start(&queue, decide.clone(), upstream.clone());
    let ticket = ended(&queue, &push(&queue, "lane", "a").await).await;
    // None of that was an attempt.
    assert_eq!((ticket.state, ticket.attempts), (TicketState::Done, 1));
    assert!(decide.0.lock().is_empty());
    assert_eq!(upstream.seen.lock().len(), 1);
    running.stop().await;
}

async fn requests_go_out_at_the_rate_that_is_permitted(ground: &Ground) {
    let queue = queue(ground, QueueOptions { max_attempts: 1, ..quick() }).await;
    let (decide, upstream) = (Paced::default(), Upstream::default());
    let running = Running::start(&queue, decide.clone(), upstream.clone());
    let mut tickets = Vec::new();
    for number in 0..20 {
        tickets.push(push(&queue, "lane", &format!("{number:02}")).await);
    }
    for ticket in &tickets {
        assert_eq!(ended(&queue, ticket).await.state, TicketState::Done);
    }
    running.stop().await;
    let passed = decide.passed.lock().clone();
    assert_eq!(passed.len(), 20, "each was let pass once");
    assert!(passed.windows(2).all(|pair| pair[1] >= pair[0] + MOMENT));
    let seen: Vec<String> = upstream.seen.lock().iter().map(|(_, ticket)| ticket.clone()).collect();
    assert_eq!(seen, tickets);
}

async fn a_request_that_can_never_pass_is_a_dead_letter(ground: &Ground) {
    let queue = queue(ground, quick()).await;
    let decide = Scripted::new([refused(403, None), refused(429, None)]);
    let upstream = Upstream::default();
    let running = Running::start(&queue, decide, upstream.clone());
    let (denied, never) = (push(&queue, "lane", "a").await, push(&queue, "lane", "b").await);
    let after = push(&queue, "lane", "c").await;
    let ticket = ended(&queue, &denied).await;
    assert_eq!(ticket.state, TicketState::Failed);
    assert_eq!(ticket.error.as_deref(), Some("refused with 403: the gate is shut"));
    assert_eq!(ended(&queue, &never).await.state, TicketState::Failed);
    assert_eq!(ended(&queue, &after).await.state, TicketState::Done);
    assert_eq!(*upstream.seen.lock(), [("c".to_owned(), after)]);
    // By hand it goes on, and the worker is woken for it.
    queue.retry(&denied).await.unwrap();
    assert_eq!(ended(&queue, &denied).await.state, TicketState::Done);
    running.stop().await;
}

async fn failures_are_tried_again_until_they_are_too_many(ground: &Ground) {
    let queue = queue(ground, quick()).await;
    let upstream = Upstream::default();
    let away = || error(true, "connection refused");
    upstream.answers.lock().extend([
        away(),
        away(),
        away(),
        away(),
        away(),
        error(false, "garbage"),
    ]);
    let running = Running::start(&queue, Open, upstream.clone());
    let (dead, garbage) = (push(&queue, "lane", "a").await, push(&queue, "lane", "b").await);
    let ticket = ended(&queue, &dead).await;
    assert_eq!((ticket.state, ticket.attempts), (TicketState::Failed, 4));
    assert_eq!(ticket.error.as_deref(), Some("connection refused"));
    let ticket = ended(&queue, &garbage).await;
    assert_eq!((ticket.state, ticket.attempts), (TicketState::Failed, 2));
    assert_eq!(ticket.error.as_deref(), Some("garbage"));
    let names: String = upstream.seen.lock().iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, "aaaabb");
    running.stop().await;
}

async fn a_long_request_is_sent_once(ground: &Ground) {
    let options = QueueOptions { lease: Duration::from_millis(1_200), ..quick() };
    let (one, other) = (queue(ground, options.clone()).await, queue(ground, options).await);
    let upstream = Upstream { takes: Duration::from_millis(2_800), ..Upstream::default() };
    let first = Running::start(&one, Open, upstream.clone());
    let second = Running::start(&other, Open, upstream.clone());
    let ticket = ended(&one, &push(&one, "lane", "a").await).await;
    assert_eq!((ticket.state, ticket.attempts), (TicketState::Done, 1));
    assert_eq!(upstream.seen.lock().len(), 1);
    first.stop().await;
    second.stop().await;
}

async fn what_another_handle_pushes_is_seen(ground: &Ground) {
    let (one, other) = (queue(ground, quick()).await, queue(ground, quick()).await);
    let running = Running::start(&one, Open, Upstream::default());
    let ticket = push(&other, "lane", "a").await;
    assert_eq!(ended(&other, &ticket).await.state, TicketState::Done);
    running.stop().await;
}

async fn a_stopped_worker_ends_what_it_began(ground: &Ground) {
    let queue = queue(ground, quick()).await;
    let upstream = Upstream { takes: Duration::from_secs(1), ..Upstream::default() };
    let running = Running::start(&queue, Open, upstream.clone());
    let (under_way, waiting) = (push(&queue, "lane", "a").await, push(&queue, "lane", "b").await);
    let began = async {
        while upstream.seen.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(tollgate_testkit::PATIENCE, began).await.unwrap();
    running.stop().await;
    assert_eq!(queue.ticket(&under_way).await.unwrap().unwrap().state, TicketState::Done);
    assert_eq!(queue.ticket(&waiting).await.unwrap().unwrap().state, TicketState::Queued);
    assert_eq!(upstream.seen.lock().len(), 1);
}

async fn slots_are_held_until_the_answer(ground: &Ground) {
    let queue = queue(ground, quick()).await;
    let released = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&released);
    let held = Held::new(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let pass = Pass { wait: MOMENT, held: Some(held), ..Pass::default() };
    let upstream = Upstream { takes: Duration::from_millis(500), ..Upstream::default() };
    let running = Running::start(&queue, Scripted::new([Ruling::Pass(pass)]), upstream.clone());
    let ticket = push(&queue, "lane", "a").await;
    while upstream.seen.lock().is_empty() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(released.load(Ordering::SeqCst), 0);
    ended(&queue, &ticket).await;
    running.stop().await;
    assert_eq!(released.load(Ordering::SeqCst), 1);
}
