//! A TCP proxy whose connections can be made slow, silent, or cut, and can lose answers.
//!
//! It runs in a thread of its own. A switch has its effect, on existing connections and on new ones, when
//! its method has returned.

mod link;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc as blocking;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use self::link::Link;
use crate::{LOOK_IN, PATIENCE, port};

/// What is wrong at present.
#[derive(Clone, Copy, Default)]
struct Faults {
    delay: Duration,
    bytes_per_second: Option<u64>,
    is_silent: bool,
    holds_replies: bool,
}

/// What connections have in common.
#[derive(Default)]
struct Shared {
    open: AtomicUsize,
    accepted: AtomicUsize,
    to_swallow: AtomicUsize,
    swallowed: AtomicUsize,
    /// The last reply that was to be swallowed is.
    all_swallowed: Notify,
}

enum Order {
    Cut,
    Heal,
}

/// A proxy in front of one address; gone, with its connections, when dropped.
pub struct FaultProxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    faults: watch::Sender<Faults>,
    orders: Option<mpsc::UnboundedSender<(Order, blocking::Sender<()>)>>,
    thread: Option<JoinHandle<()>>,
}

impl FaultProxy {
    /// Starts one on a free port, which forwards to `upstream` faithfully.
    pub fn start(upstream: impl ToSocketAddrs) -> Self {
        let upstream = upstream.to_socket_addrs().ok().and_then(|mut addrs| addrs.next());
        let upstream = upstream.expect("an address to forward to");
        let shared = Arc::new(Shared::default());
        let (faults, watched) = watch::channel(Faults::default());
        let (orders, received) = mpsc::unbounded_channel();
        let (started, addr) = blocking::channel();
        let ours = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener = listen_on_a_free_port().await;
                let addr = listener.local_addr().expect("an address");
                let link = Link { upstream, faults: watched, shared: ours };
                let _ = started.send(addr);
                run(listener, addr, link, received).await;
            });
        });
        let addr = addr.recv_timeout(PATIENCE).expect("a proxy that listens");
        Self { addr, shared, faults, orders: Some(orders), thread: Some(thread) }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where it listens, such as `redis://127.0.0.1:PORT` for `redis`.
    pub fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}", self.addr)
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.shared.open.load(Ordering::Acquire)
    }

    /// How many connections there were, open or not.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Acquire)
    }

    /// How many replies were lost to [`swallow_replies`](Self::swallow_replies).
    pub fn swallowed(&self) -> usize {
        self.shared.swallowed.load(Ordering::Acquire)
    }

    /// From now on everything takes this much longer, each way. Nothing is reordered, and what follows
    /// does not wait for it a second time.
    pub fn delay(&self, delay: Duration) {
        self.faults.send_modify(|faults| faults.delay = delay);
    }

    /// From now on no more than this passes each connection in a second, each way.
    pub fn throttle(&self, bytes_per_second: u64) {
        self.faults.send_modify(|faults| faults.bytes_per_second = Some(bytes_per_second.max(1)));
    }

    /// From now on connections are accepted and read, and nothing is forwarded or answered. A connection
    /// that lost something this way, or that was opened meanwhile, stays silent also after
    /// [`heal`](Self::heal), until its client closes it.
    pub fn half_open(&self) {
        self.faults.send_modify(|faults| faults.is_silent = true);
    }

    /// From now on requests pass and replies do not, until [`release_replies`](Self::release_replies) or
    /// [`heal`](Self::heal). Nothing is lost.
    pub fn hold_replies(&self) {
        self.faults.send_modify(|faults| faults.holds_replies = true);
    }

    /// Lets the replies pass that were held, and all that follow.
    pub fn release_replies(&self) {
        self.faults.send_modify(|faults| faults.holds_replies = false);
    }

    /// The next `count` replies are read from the upstream and dropped; then the connections that lost
    /// one are closed. The requests were executed, and their answers are lost. What counts as a reply is
    /// what arrives at once: over TLS, or while a client greets the server, that is not an answer yet.
    pub fn swallow_replies(&self, count: usize) {
        self.shared.to_swallow.store(count, Ordering::Release);
    }

    /// Closes all connections and refuses new ones.
    pub fn cut(&self) {
        self.order(Order::Cut);
    }

    /// Takes all faults back.
    pub fn heal(&self) {
        self.shared.to_swallow.store(0, Ordering::Release);
        self.faults.send_replace(Faults::default());
        self.order(Order::Heal);
    }

    fn order(&self, order: Order) {
        let (done, is_done) = blocking::channel();
        let orders = self.orders.as_ref().expect("a proxy that is not dropped");
        assert!(orders.send((order, done)).is_ok(), "a proxy that runs");
        is_done.recv_timeout(PATIENCE).expect("a proxy that obeys");
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn listen_on_a_free_port() -> TcpListener {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port::free())).await {
            Ok(listener) => return listener,
            Err(error) => assert!(Instant::now() < deadline, "no port: {error}"),
        }
    }
}

/// Accepts and obeys, until nobody can give orders any more.
async fn run(
    listener: TcpListener,
    addr: SocketAddr,
    link: Link,
    mut orders: mpsc::UnboundedReceiver<(Order, blocking::Sender<()>)>,
) {
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            order = orders.recv() => {
                let Some((order, done)) = order else { return };
                match order {
                    Order::Cut => {
                        listener = None;
                        connections.shutdown().await;
                    }
                    Order::Heal => {
                        link.shared.all_swallowed.notify_waiters();
                        if listener.is_none() {
                            listener = Some(listen_again(addr).await);
                        }
                    }
                }
                let _ = done.send(());
            }
            accepted = accept(listener.as_ref()) => {
                if let Ok(client) = accepted {
                    link.shared.accepted.fetch_add(1, Ordering::AcqRel);
                    let open = Open::new(&link.shared);
                    let link = link.clone();
                    connections.spawn(async move {
                        let _ = link.serve(client).await;
                        drop(open);
                    });
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

/// The port has been ours, and is hardly anyone else's meanwhile.
async fn listen_again(addr: SocketAddr) -> TcpListener {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match TcpListener::bind(addr).await {
            Ok(listener) => return listener,
            Err(error) => assert!(Instant::now() < deadline, "{addr} is taken: {error}"),
        }
        sleep(LOOK_IN).await;
    }
}

/// Counts a connection for as long as it is open.
struct Open(Arc<Shared>);

impl Open {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.open.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(shared))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}
