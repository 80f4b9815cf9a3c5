//! Which part of something divided among threads a thread uses, so that threads do not meet.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So many parts there are; threads beyond share.
pub(crate) const SHARDS: usize = 16;

thread_local! {
    static OWN: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Numbers threads.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The part of this thread, below [`SHARDS`].
#[inline]
pub(crate) fn of_this_thread() -> usize {
    OWN.with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        own.get()
    })
}
