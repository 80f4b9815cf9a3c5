//! Real servers for tests. Nothing here is mocked: a test that needs Redis gets a Redis process of its
//! own on a free port, a cluster of them, or a pair under Sentinel, one that needs PostgreSQL,
//! Prometheus or a provider of identities gets that, and a proxy in between when the network has to fail.
//!
//! All of it is synchronous and panics when something does not come about within [`PATIENCE`]. What was
//! started is stopped when its value is dropped, and at the latest when the test's process has gone,
//! however it went.

mod cluster;
mod edge;
mod oidc;
mod port;
mod postgres;
mod process;
mod prometheus;
mod proxy;
mod redis;
mod resp;
mod sentinel;
mod shapes;
mod slots;
mod tls;

pub use cluster::Cluster;
pub use edge::{Edge, EdgeKind, Neighbours, Upstream, free_addr, of_the_tools};
pub use oidc::{OIDC_CLIENT_SECRET, OidcProvider};
pub use postgres::Postgres;
pub use prometheus::Prometheus;
pub use proxy::FaultProxy;
pub use redis::{Redis, RedisBuilder};
pub use resp::Reply;
pub use sentinel::Sentinel;
pub use shapes::{RefusedShape, Shape};
pub use slots::{SLOTS, slot_of};
pub use tls::Certificates;

use std::time::{Duration, Instant};

/// How long an event may take before a test gives up on it. Events take milliseconds to seconds; the rest
/// is for machines that are busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How often a condition is looked at while it is waited for.
const LOOK_IN: Duration = Duration::from_millis(10);

/// Waits until `condition` holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || if condition() { Ok(()) } else { Err(String::new()) });
}

/// Waits until `attempt` succeeds; panics with its last error if it never does.
fn wait_for<T>(what: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(error) => {
                assert!(
                    Instant::now() < deadline,
                    "did not happen within {PATIENCE:?}: {what}: {error}"
                );
            }
        }
        std::thread::sleep(LOOK_IN);
    }
}
