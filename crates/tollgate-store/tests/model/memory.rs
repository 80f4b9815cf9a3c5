//! The memory store: exact, to the nanosecond.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use tollgate_core::Nanos;
use tollgate_store::MemoryStore;

use crate::driver::{Ground, play};
use crate::history::{History, SendOptions};
use crate::run::{check, seeds};

const HISTORIES: u64 = 10_000;
const SHRINK_TRIES: u32 = 20_000;
const MANNER: SendOptions =
    SendOptions { grain: 1, has_records: true, reuses_slots: true, gives_up: false };

pub struct Memory {
    store: MemoryStore,
    now: AtomicU64,
}

impl Memory {
    pub fn new() -> Self {
        Self { store: MemoryStore::new(1_000), now: AtomicU64::new(0) }
    }
}

impl Ground for Memory {
    type Store = MemoryStore;

    fn store(&self) -> &MemoryStore {
        &self.store
    }

    fn now(&self, _: u8) -> Nanos {
        self.now.load(Ordering::Relaxed)
    }

    async fn set_now(&self, now: Nanos) {
        self.now.store(now, Ordering::Relaxed);
    }

    fn tidy(&self) {
        self.store.tidy(0, 1, self.now(0));
    }
}

/// Futures of the memory store are ready at once.
pub fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the memory store does not wait"),
    }
}

#[test]
fn memory() {
    check(
        seeds(HISTORIES),
        |seed| History::new(seed, MANNER),
        SHRINK_TRIES,
        |history| ready(play(&Memory::new(), history, "h")),
    );
}
