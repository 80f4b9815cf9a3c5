//! Threads that serve: one runtime and one socket each, so that a connection stays on its core.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use ipnet::IpNet;
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, watch};

use crate::addresses::AddressLimit;
use crate::config::Limits;
use crate::listen::{self, Answer, Door};
use crate::telemetry::EdgeFigures;
use crate::tls::Tls;

/// What threads have, after the time of the drain, before nobody waits for them any more.
const WORKER_GRACE: Duration = Duration::from_secs(2);

/// The threads of all listeners.
pub(crate) struct Workers {
    limits: Limits,
    tls: Option<Arc<Tls>>,
    stopped: watch::Receiver<bool>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    /// Every thread has a sender, which it drops when it ends.
    ended: (Sender<()>, Receiver<()>),
    figures: Arc<EdgeFigures>,
    /// Proxies, which may have any number of connections.
    proxies: Vec<IpNet>,
}

impl Workers {
    pub(crate) fn new(
        limits: Limits,
        tls: Option<Arc<Tls>>,
        stopped: watch::Receiver<bool>,
        figures: Arc<EdgeFigures>,
        proxies: Vec<IpNet>,
    ) -> Self {
        Self { limits, tls, stopped, threads: Vec::new(), ended: channel(), figures, proxies }
    }

    /// Serves these listeners, a thread for each. What answers is asked for on the thread's runtime.
    pub(crate) fn start<A: Answer>(
        &mut self,
        name: &str,
        listeners: Vec<TcpListener>,
        answers: impl Fn() -> Arc<A> + Clone + Send + 'static,
        http2_only: bool,
    ) -> io::Result<()> {
        let door = Door {
            limits: self.limits,
            slots: Arc::new(Semaphore::new(self.limits.max_connections)),
            addresses: AddressLimit::new(
                self.limits.max_connections_per_address,
                self.proxies.clone(),
            ),
            tls: self.tls.clone(),
            http2_only,
        };
        if !listeners.is_empty() {
            self.figures.listens(name, &door.slots, self.limits.max_connections);
        }
        for (index, listener) in listeners.into_iter().enumerate() {
            let (answers, door, stopped) = (answers.clone(), door.clone(), self.stopped.clone());
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let ended = self.ended.0.clone();
            let serve = move || {
                let _ended = ended;
                let served = runtime.block_on(async move {
                    listen::accept(listener, answers(), door, stopped).await
                });
                // Work that blocks has had its time.
                runtime.shutdown_background();
                served
            };
            let thread = std::thread::Builder::new().name(format!("{name}-{index}"));
            self.threads.push(thread.spawn(serve)?);
        }
        Ok(())
    }

    /// Waits for all of them to finish, after the listeners have closed. A thread that is stuck is left behind, so that
    /// what follows, such as the last flush of the journal, is still done.
    pub(crate) fn wait(self) -> io::Result<()> {
        let Self { limits, threads, ended: (ended, all_ended), .. } = self;
        drop(ended);
        let max_wait = limits.drain_timeout.saturating_add(WORKER_GRACE);
        let is_late = all_ended.recv_timeout(max_wait) == Err(RecvTimeoutError::Timeout);
        if is_late {
            tracing::warn!("a worker is stuck; its requests are cut");
        }
        for thread in threads.into_iter().filter(|thread| !is_late || thread.is_finished()) {
            let Ok(served) = thread.join() else {
                tracing::error!("a worker had panicked");
                continue;
            };
            served?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::Empty;
    use hyper::body::Incoming;
    use parking_lot::Mutex;

    use super::*;
    use crate::config::{Config, Overrides};
    use crate::listen::Connection;

    /// Keeps its thread for ever.
    struct Stuck(Mutex<Sender<()>>);

    impl Answer for Stuck {
        type Body = Empty<Bytes>;

        async fn answer(
            self: Arc<Self>,
            _: Request<Incoming>,
            _: Connection,
        ) -> Response<Self::Body> {
            let _ = self.0.lock().send(());
            loop {
                std::thread::park();
            }
        }

        fn is_endless(_: &Response<Self::Body>) -> bool {
            false
        }
    }

    #[test]
    fn a_stuck_worker_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        let config = Config::load(None, std::iter::empty(), &Overrides::default()).unwrap();
        let limits = Limits { drain_timeout: Duration::ZERO, ..config.limits };
        let (stop, stopped) = watch::channel(false);
        let mut workers = Workers::new(limits, None, stopped, Arc::default(), Vec::new());
        let (entered, has_entered) = channel();
        let stuck = Arc::new(Stuck(Mutex::new(entered)));
        workers.start("test", vec![listener], move || Arc::clone(&stuck), false).unwrap();
        let mut client = std::net::TcpStream::connect(addr).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost: t\r\n\r\n").unwrap();
        has_entered.recv().unwrap();
        stop.send(true).unwrap();
        workers.wait().unwrap();
    }
}
