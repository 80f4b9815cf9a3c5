//! Work that continues when the request that began it is gone.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::runtime::Handle;

/// Does it on this runtime. A process that ends waits for it.
pub(crate) fn go_on(runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
    let counted = Counted::new();
    runtime.spawn(async move {
        work.await;
        drop(counted);
    });
}

/// Runs it in the background, even if the caller is dropped meanwhile; a process that ends waits for it. False
/// without a runtime to run it on.
pub fn in_background(work: impl Future<Output = ()> + Send + 'static) -> bool {
    let runtime = Handle::try_current();
    if let Ok(runtime) = &runtime {
        go_on(runtime, work);
    }
    runtime.is_ok()
}

/// How many settlements and give-backs are under way in the background. A process that ends waits until there
/// are none: what is not settled stays charged as estimated.
pub fn unfinished() -> usize {
    UNFINISHED.load(Ordering::Relaxed)
}

/// This process stops: requests that end from now on were cut by it, and not left by their clients.
pub fn set_stopping() {
    STOPPING.store(true, Ordering::Relaxed);
}

/// Whether this process cuts the requests that are still under way.
pub fn is_stopping() -> bool {
    STOPPING.load(Ordering::Relaxed)
}

static STOPPING: AtomicBool = AtomicBool::new(false);

static UNFINISHED: AtomicUsize = AtomicUsize::new(0);

/// One of them.
struct Counted;

impl Counted {
    fn new() -> Self {
        UNFINISHED.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        UNFINISHED.fetch_sub(1, Ordering::Relaxed);
    }
}
