//! Trying again, on a clock that does not run by itself.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::cell::RefCell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::Response;
use proptest::prelude::*;
use tokio::time::Instant;
use tollgate_client::retry::{Reply, Spent};
use tollgate_client::{ClientError, Decision, Retry, RetryAfter};

const NOW: Duration = Duration::from_secs(784_111_777);
const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

fn refused(retry_after: Option<&str>) -> Response<()> {
    let mut response = Response::builder().status(429);
    if let Some(value) = retry_after {
        response = response.header("retry-after", value).header("date", DATE);
    }
    response.body(()).unwrap()
}

#[test]
fn the_header_is_read_in_both_forms() {
    let now = UNIX_EPOCH + NOW;
    let rows = [
        ("0", Some(0)),
        ("120", Some(120)),
        (" 7 ", Some(7)),
        ("Sun, 06 Nov 1994 08:51:37 GMT", Some(120)),
        ("Sunday, 06-Nov-94 08:49:38 GMT", Some(1)),
        ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
        ("99999999999999999999999", Some(u64::MAX)),
        ("-1", None),
        ("1.5", None),
        ("", None),
        ("soon", None),
    ];
    for (text, seconds) in rows {
        let read = RetryAfter::parse(text).map(|after| after.delay(now).as_secs());
        assert_eq!(read, seconds, "{text}");
    }
}

/// Calls that are answered from a list, and when they were made.
async fn run(retry: Retry, answers: Vec<Response<()>>) -> (Response<()>, Vec<Duration>) {
    let start = Instant::now();
    let (answers, calls) = (RefCell::new(answers.into_iter()), RefCell::new(Vec::new()));
    let last = retry
        .run(|| {
            calls.borrow_mut().push(start.elapsed());
            let answer = answers.borrow_mut().next().unwrap_or_else(|| Response::new(()));
            async { answer }
        })
        .await;
    (last, calls.into_inner())
}

#[tokio::test(start_paused = true)]
async fn nobody_comes_back_before_the_server_said() {
    let retry = Retry::default();
    for header in ["5", "Sun, 06 Nov 1994 08:49:42 GMT"] {
        let (last, calls) = run(retry, vec![refused(Some(header))]).await;
        assert_eq!(last.status(), 200);
        let [_, second] = calls[..] else { unreachable!("{calls:?}") };
        assert!(second >= Duration::from_secs(5), "{second:?}");
        assert!(second <= Duration::from_secs(5) + retry.base, "{second:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_and_patience_end() {
    let retry = Retry { max_attempts: 3, ..Retry::default() };
    let endless = || (0..10).map(|_| refused(None)).collect::<Vec<_>>();
    let (last, calls) = run(retry, endless()).await;
    assert_eq!((last.status().as_u16(), calls.len()), (429, 3));
    // An hour is more than anybody waits: it is not tried too early instead.
    let (last, calls) = run(retry, vec![refused(Some("3600"))]).await;
    assert_eq!((last.status().as_u16(), calls.len()), (429, 1));
    let patient = Retry { budget: Duration::from_secs(7200), ..retry };
    let (last, calls) = run(patient, vec![refused(Some("3600"))]).await;
    assert_eq!((last.status().as_u16(), calls.len()), (200, 2));
    let twice = || vec![refused(Some("40")), refused(Some("40"))];
    let (_, calls) = run(Retry::default(), twice()).await;
    assert_eq!(calls.len(), 2, "the budget is for all waits together");
}

#[tokio::test(start_paused = true)]
async fn only_what_was_not_done_is_tried_again() {
    for (status, attempts) in [(200, 1), (400, 1), (403, 1), (429, 2), (500, 1), (502, 1), (503, 2)]
    {
        let answer = Response::builder().status(status).body(()).unwrap();
        let (_, calls) = run(Retry::default(), vec![answer]).await;
        assert_eq!(calls.len(), attempts, "{status}");
    }
    let refused = Decision { retry_after: Some(Duration::from_secs(1)), ..Decision::default() };
    let never = Decision::default();
    let allowed = Decision { allowed: true, ..Decision::default() };
    assert!(refused.is_retryable() && !never.is_retryable() && !allowed.is_retryable());
    let wrong: Result<Decision, _> = Err(ClientError::Unauthorized(String::new()));
    let away: Result<Decision, _> = Err(ClientError::Unavailable {
        message: String::new(),
        retry_after: Some(Duration::from_secs(2)),
    });
    assert!(!wrong.is_retryable() && away.is_retryable());
    assert_eq!(away.retry_after(), Some(RetryAfter::In(Duration::from_secs(2))));
}

proptest! {
    #[test]
    fn the_schedule_keeps_its_bounds(
        attempts in 0..80_u32,
        waited_ms in 0..100_000_u64,
        asked_seconds in proptest::option::of(0..200_u64),
        is_date in any::<bool>(),
        number in any::<u64>(),
        base_ms in 0..5_000_u64,
        cap_ms in 0..20_000_u64,
    ) {
        let now: SystemTime = UNIX_EPOCH + NOW;
        let retry = Retry {
            max_attempts: 64,
            base: Duration::from_millis(base_ms),
            cap: Duration::from_millis(cap_ms),
            budget: Duration::from_secs(120),
        };
        let spent = Spent { attempts, waited: Duration::from_millis(waited_ms) };
        let least = Duration::from_secs(asked_seconds.unwrap_or(0));
        let asked = asked_seconds.map(|_| {
            if is_date { RetryAfter::At(now + least) } else { RetryAfter::In(least) }
        });
        if let Some(wait) = retry.next(spent, asked, now, &mut || number) {
            prop_assert!(attempts < retry.max_attempts);
            prop_assert!(wait >= least, "never earlier than the server said");
            prop_assert!(wait <= least + retry.cap);
            prop_assert!(spent.waited + wait <= retry.budget);
        } else {
            let most = least + retry.cap;
            prop_assert!(attempts >= retry.max_attempts || spent.waited + most > retry.budget);
        }
    }

    #[test]
    fn waits_are_spread_over_all_that_they_may_be(number in any::<u64>()) {
        let retry = Retry::default();
        let spent = Spent { attempts: 1, waited: Duration::ZERO };
        let next = |number: u64| {
            retry.next(spent, None, UNIX_EPOCH, &mut || number).unwrap()
        };
        prop_assert_eq!(next(0), Duration::ZERO);
        prop_assert!(next(u64::MAX) > retry.base.mul_f64(0.999_999));
        prop_assert!(next(number) <= next(number.saturating_add(1 << 40)));
    }

    #[test]
    fn any_header_is_survived(text in "\\PC{0,40}") {
        if let Some(after) = RetryAfter::parse(&text) {
            let _ = after.delay(UNIX_EPOCH);
        }
    }
}
