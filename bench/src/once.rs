//! Runs a future that never waits.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Polls once. On the memory store the engine never waits, so once is enough.
#[inline]
pub fn poll<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a decision on the memory store waited"),
    }
}
