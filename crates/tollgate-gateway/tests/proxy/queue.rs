//! Requests that are kept for later.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use parking_lot::Mutex;
use tollgate_gateway::{Gateway, Postpone, PostponeError};
use tollgate_queue::{Forward as _, StoredRequest};
use tollgate_tower::render::problem;
use tollgate_tower::{Identifier, Postponed, Rejection, Ruling, Unsent};

use crate::ground::{Decider, Front, Upstream, dead_url, options, text};

/// Keeps up to one request.
#[derive(Default)]
struct Shelf(Mutex<Vec<StoredRequest>>);

/// The longest body that the shelf has room for.
const SHELF_BYTES: usize = 1_000;

#[async_trait]
impl Postpone for Shelf {
    async fn has_room(
        &self,
        _postponed: &Postponed,
        _tenant: &str,
        bytes: usize,
    ) -> Result<(), PostponeError> {
        let full = || PostponeError::Full("it is too long".to_owned());
        (bytes <= SHELF_BYTES).then_some(()).ok_or_else(full)
    }

    async fn postpone(
        &self,
        postponed: &Postponed,
        stored: StoredRequest,
    ) -> Result<Response<Bytes>, PostponeError> {
        assert_eq!(postponed.lane, "slow:1");
        if !self.0.lock().is_empty() {
            return Err(PostponeError::Full("one is enough".to_owned()));
        }
        self.0.lock().push(stored);
        Ok(problem(StatusCode::ACCEPTED, "QUEUED", "later"))
    }
}

fn queueing() -> Decider {
    Decider::new(|_| {
        let status = StatusCode::TOO_MANY_REQUESTS;
        let refusal = Rejection::new(status, "RATE_LIMIT_EXCEEDED", "no");
        Ruling::Queue(Postponed {
            refusal: Box::new(refusal),
            rule_id: "slow".to_owned(),
            lane: "slow:1".to_owned(),
            retry_after: Duration::from_secs(3),
        })
    })
}

#[tokio::test]
async fn without_a_queue_it_is_refused() {
    let upstream = Upstream::named("x").await;
    let front = Front::with(options(&[&upstream.url()]), queueing()).await;
    assert_eq!(front.get("/").await.status, 429);
    assert_eq!(upstream.served(), 0);
}

#[tokio::test]
async fn a_request_is_kept_whole_and_sent_later() {
    let upstream = Upstream::echo().await;
    let shelf = Arc::new(Shelf::default());
    let mut options = options(&[&upstream.url()]);
    options.max_stored_body_bytes = 10;
    let gateway = Gateway::new(options, queueing(), Arc::new(Identifier::default())).unwrap();
    let front = Front::of(gateway.with_queue(Arc::clone(&shelf) as Arc<dyn Postpone>)).await;
    let post = |body: &'static str| {
        Request::post(front.url("/a//b?q=1"))
            .header("host", "api.example.com")
            .header("authorization", "kept")
            .header("connection", "x-hop")
            .header("x-hop", "1")
            .header("x-tollgate-ticket", "forged")
            .body(text(body))
            .unwrap()
    };
    let answer = front.send(post("more than ten bytes")).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "BODY_TOO_LARGE"));
    assert_eq!(front.send(post("ten bytes!")).await.status, 202);
    // The shelf is full now.
    assert_eq!(front.send(post("another")).await.status, 429);
    assert_eq!(upstream.served(), 0);

    let stored = shelf.0.lock().remove(0);
    assert_eq!(stored.host, "api.example.com");
    let response = front.worker.forward(&stored, "0123", &Unsent::default().sent()).await.unwrap();
    let body = String::from_utf8(response.body).unwrap();
    // As much as is kept of an answer.
    assert_eq!((response.status, response.is_truncated, body.as_str()), (200, true, "POST /a/b?"));
}

/// Where there is no room, nobody waits for the body.
#[tokio::test]
async fn a_body_that_does_not_fit_is_not_read() {
    let upstream = Upstream::echo().await;
    let shelf = Arc::new(Shelf::default());
    let gateway =
        Gateway::new(options(&[&upstream.url()]), queueing(), Arc::new(Identifier::default()));
    let front =
        Front::of(gateway.unwrap().with_queue(Arc::clone(&shelf) as Arc<dyn Postpone>)).await;
    // The rest of the body never comes.
    let head = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\nx",
        SHELF_BYTES + 1
    );
    let answer = front.raw(&head).await;
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    assert!(shelf.0.lock().is_empty());
}

#[tokio::test]
async fn what_is_sent_later_carries_its_ticket() {
    let upstream = Upstream::echo().await;
    let shelf = Arc::new(Shelf::default());
    let gateway =
        Gateway::new(options(&[&upstream.url()]), queueing(), Arc::new(Identifier::default()));
    let front =
        Front::of(gateway.unwrap().with_queue(Arc::clone(&shelf) as Arc<dyn Postpone>)).await;
    assert_eq!(front.get("/x").await.status, 202);
    let stored = shelf.0.lock().remove(0);
    let response = front.worker.forward(&stored, "0123", &Unsent::default().sent()).await.unwrap();
    let body = String::from_utf8(response.body).unwrap();
    for line in ["idempotency-key: 0123", "x-tollgate-ticket: 0123", "x-forwarded-for: 127.0.0.1"] {
        assert!(body.contains(line), "{line} in {body}");
    }
}

#[tokio::test]
async fn failures_say_whether_another_time_may_be_better() {
    let busy =
        Upstream::start(|_| async { Response::builder().status(503).body(text("")).unwrap() })
            .await;
    for (url, route, retryable) in [
        (dead_url().await, "default", true),
        (busy.url(), "default", true),
        (busy.url(), "gone", false),
    ] {
        let shelf = Arc::new(Shelf::default());
        let gateway = Gateway::new(options(&[&url]), queueing(), Arc::new(Identifier::default()));
        let front =
            Front::of(gateway.unwrap().with_queue(Arc::clone(&shelf) as Arc<dyn Postpone>)).await;
        assert_eq!(front.get("/x").await.status, 202);
        let mut stored = shelf.0.lock().remove(0);
        route.clone_into(&mut stored.route);
        let error =
            front.worker.forward(&stored, "0123", &Unsent::default().sent()).await.unwrap_err();
        assert_eq!(error.retryable, retryable, "{error:?}");
        assert!(!error.message.contains("127.0.0.1"), "{error:?}");
    }
}
