//! Wakes each task when its request is due. A thread takes its requests in the order they are due,
//! so the task that has waited longest wakes first, and one timer is enough.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::task::{Poll, Waker};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::timer::Timer;

/// Those who wait, in one thread.
#[derive(Debug, Default)]
pub(crate) struct Pacer {
    waiting: RefCell<VecDeque<(Instant, Waker)>>,
    changed: Notify,
    is_over: Cell<bool>,
}

impl Pacer {
    /// Waits until `due`. False if the run ended first.
    pub(crate) async fn until(&self, due: Instant) -> bool {
        let mut is_waiting = false;
        poll_fn(|context| {
            if self.is_over.get() {
                return Poll::Ready(false);
            }
            if Instant::now() >= due {
                return Poll::Ready(true);
            }
            // Woken by something else: its place in the queue is kept.
            if is_waiting {
                return Poll::Pending;
            }
            is_waiting = true;
            let mut waiting = self.waiting.borrow_mut();
            if waiting.is_empty() {
                self.changed.notify_one();
            }
            waiting.push_back((due, context.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// Lets everybody go.
    pub(crate) fn end(&self) {
        self.is_over.set(true);
        for (_, waker) in self.waiting.borrow_mut().drain(..) {
            waker.wake();
        }
        self.changed.notify_one();
    }

    /// Wakes those whose time has come, until the end.
    pub(crate) async fn run(&self) -> io::Result<()> {
        let mut timer = Timer::new()?;
        while !self.is_over.get() {
            let first = self.waiting.borrow().front().map(|(due, _)| *due);
            match first {
                None => self.changed.notified().await,
                Some(due) if due <= Instant::now() => {
                    let first = self.waiting.borrow_mut().pop_front();
                    if let Some((_, waker)) = first {
                        waker.wake();
                    }
                }
                Some(due) => timer.until(due).await?,
            }
        }
        Ok(())
    }
}
