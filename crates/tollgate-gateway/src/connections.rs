//! The connections of one worker to one target.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Context;
use std::time::Duration;

use hyper::client::conn::http2;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::body::RequestBody;
use crate::connect::{ConnectError, Link};
use crate::http1::Http1;
use crate::options::Http2Mode;
use crate::target::Target;

/// How long a connection whose answer has ended may take until it takes the next request. A request
/// that was answered before it was sent in full takes longer, and its connection is not worth it.
const LINGER: Duration = Duration::from_secs(5);

/// What kind of connection is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Any.
    Usual,
    /// Not an idle one: those have turned out to be stale.
    Fresh,
    /// One that can be upgraded.
    ForUpgrade,
}

/// A connection to send a request on.
pub(crate) struct Checkout {
    pub(crate) link: Link,
    /// Whether it has been used before.
    pub(crate) is_reused: bool,
    /// Which of the shared connections it is, one after the other.
    pub(crate) generation: u64,
}

/// The HTTP/2 connection that all requests share.
struct Shared {
    sender: http2::SendRequest<RequestBody>,
    generation: u64,
}

struct Idle {
    connection: Http1,
    since: Instant,
}

/// The connections of one worker to one target.
pub(crate) struct Connections {
    pub(crate) target: Arc<Target>,
    max_idle: usize,
    idle_timeout: Duration,
    /// The oldest in front.
    idle: Mutex<VecDeque<Idle>>,
    shared: Mutex<Option<Shared>>,
    generations: AtomicU64,
    /// Held while the shared connection is made, so that a burst makes one and not many.
    connecting: tokio::sync::Mutex<()>,
    speaks_http2: AtomicBool,
}

impl Connections {
    pub(crate) fn new(target: Arc<Target>, max_idle: usize, idle_timeout: Duration) -> Self {
        let speaks_http2 = target.connector.http2 == Http2Mode::PriorKnowledge;
        Self {
            target,
            max_idle,
            idle_timeout,
            idle: Mutex::default(),
            shared: Mutex::default(),
            generations: AtomicU64::new(0),
            connecting: tokio::sync::Mutex::default(),
            speaks_http2: AtomicBool::new(speaks_http2),
        }
    }

    /// A connection.
    pub(crate) async fn checkout(
        &self,
        wanted: Wanted,
        timeout: Duration,
    ) -> Result<Checkout, ConnectError> {
        if wanted == Wanted::Usual
            && let Some(checkout) = self.idle_one().or_else(|| self.shared_one())
        {
            return Ok(checkout);
        }
        // Connections are seldom made, and what makes them is large: it is no part of every request.
        let connect = Box::pin(async {
            if wanted == Wanted::ForUpgrade {
                let link = self.target.connector.connect(true).await?;
                return Ok(Checkout { link, is_reused: false, generation: 0 });
            }
            self.connect().await
        });
        // A request that waits for another request's attempt waits no longer than for its own.
        tokio::time::timeout(timeout, connect).await.map_err(|_| ConnectError::Timeout)?
    }

    fn idle_one(&self) -> Option<Checkout> {
        let mut idle = self.idle.lock();
        while let Some(Idle { mut connection, since }) = idle.pop_back() {
            connection.look();
            if connection.is_ready() && since.elapsed() < self.idle_timeout {
                let link = Link::Http1(connection);
                return Some(Checkout { link, is_reused: true, generation: 0 });
            }
        }
        None
    }

    fn shared_one(&self) -> Option<Checkout> {
        if !self.speaks_http2.load(Ordering::Relaxed) {
            return None;
        }
        let shared = self.shared.lock();
        let Shared { sender, generation } = shared.as_ref().filter(|it| !it.sender.is_closed())?;
        let link = Link::Http2(sender.clone());
        Some(Checkout { link, is_reused: true, generation: *generation })
    }

    async fn connect(&self) -> Result<Checkout, ConnectError> {
        let mut one = None;
        if self.speaks_http2.load(Ordering::Relaxed) {
            one = Some(self.connecting.lock().await);
            if let Some(checkout) = self.shared_one() {
                return Ok(checkout);
            }
        }
        let link = self.target.connector.connect(false).await?;
        let generation = self.generations.fetch_add(1, Ordering::Relaxed) + 1;
        let is_http2 = if let Link::Http2(sender) = &link {
            *self.shared.lock() = Some(Shared { sender: sender.clone(), generation });
            true
        } else {
            false
        };
        // It may have begun to, or ceased to.
        self.speaks_http2.store(is_http2, Ordering::Relaxed);
        drop(one);
        Ok(Checkout { link, is_reused: false, generation })
    }

    /// The connection of this generation takes no requests any more, although it is not closed yet.
    pub(crate) fn discard(&self, generation: u64) {
        let mut shared = self.shared.lock();
        if shared.as_ref().is_some_and(|shared| shared.generation == generation) {
            *shared = None;
        }
    }

    fn put(&self, connection: Http1) {
        let mut idle = self.idle.lock();
        if idle.len() < self.max_idle {
            idle.push_back(Idle { connection, since: Instant::now() });
        }
    }

    /// Closes what has been idle for too long, or was closed by the other side.
    pub(crate) fn sweep(&self) {
        let idle_timeout = self.idle_timeout;
        self.idle.lock().retain_mut(|idle| {
            idle.connection.look();
            !idle.connection.is_closed() && idle.since.elapsed() < idle_timeout
        });
        let mut shared = self.shared.lock();
        if shared.as_ref().is_some_and(|shared| shared.sender.is_closed()) {
            *shared = None;
        }
    }
}

/// A request that is under way on a connection. Dropped before its end, the connection is not used
/// again.
pub(crate) struct Lease {
    connections: Arc<Connections>,
    connection: Option<Http1>,
}

impl Lease {
    pub(crate) fn new(connections: Arc<Connections>) -> Self {
        connections.target.begin();
        Self { connections, connection: None }
    }

    /// The connection that comes back when the answer has ended.
    pub(crate) fn keep(&mut self, connection: Http1) {
        self.connection = Some(connection);
    }

    /// Moves the connection on behalf of this task. False if it moves by itself.
    pub(crate) fn drive(&mut self, context: &mut Context<'_>) -> bool {
        self.connection.as_mut().is_some_and(|connection| connection.drive(context))
    }

    /// Takes what has come over the connection, see [`Http1::take`].
    pub(crate) fn take<T>(&self, take: impl FnOnce() -> T) -> (T, bool) {
        match &self.connection {
            Some(connection) => connection.take(take),
            None => (take(), false),
        }
    }

    pub(crate) fn target(&self) -> &Target {
        &self.connections.target
    }

    /// The answer has ended: the connection can be used again.
    pub(crate) fn finish(mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        if connection.is_ready() {
            self.connections.put(connection);
        } else if !connection.is_closed() {
            let connections = Arc::clone(&self.connections);
            tokio::spawn(async move {
                if matches!(tokio::time::timeout(LINGER, connection.ready()).await, Ok(true)) {
                    connections.put(connection);
                }
            });
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.connections.target.end();
    }
}
