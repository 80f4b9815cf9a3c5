//! Starts the real `tollgate` binary and talks to it as a client would.

pub mod admin;
pub mod fleet;
pub mod flood;
pub mod http;
pub mod model;
pub mod server;
pub mod stream;
pub mod upstream;

pub use admin::{ADMIN, ADMIN_TOKEN, Admin};
pub use fleet::{Answer, Fleet};
pub use http::{Client, Response};
pub use model::Model;
pub use server::{Server, ServerBuilder};
pub use stream::EventStream;
pub use upstream::{Arrived, ClosedPort, Upstream};

use std::time::{Duration, Instant};

/// How long an event may take before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Ends a runtime and waits until its sockets are closed: who connects afterwards is refused, not
/// accepted and then reset.
fn end(runtime: tokio::runtime::Runtime) {
    // On a thread of its own, since a test may itself be asynchronous.
    let ended = std::thread::spawn(move || runtime.shutdown_timeout(PATIENCE)).join();
    drop(ended);
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    eventually_within(PATIENCE, what, condition);
}

/// Waits until `condition` holds, for an event whose stated time is longer than [`PATIENCE`].
pub fn eventually_within(patience: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !condition() {
        assert!(Instant::now() < deadline, "did not happen within {patience:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Keeps tests that load the machine, or that a loaded machine would mislead, from running beside each
/// other where a runner has all tests in one process.
pub fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
