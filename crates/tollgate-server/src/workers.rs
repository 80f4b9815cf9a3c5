//! Threads that serve: one runtime and one socket each, so that a connection stays on its core.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use ipnet::IpNet;
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, watch};

use crate::addresses::AddressLimit;
use crate::config::Limits;
use crate::listen::{self, Answer, Door};
use crate::telemetry::EdgeFigures;
use crate::tls::Tls;

/// The threads of all listeners.
pub(crate) struct Workers {
    limits: Limits,
    tls: Option<Arc<Tls>>,
    stopped: watch::Receiver<bool>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    figures: Arc<EdgeFigures>,
    /// Proxies, which may have any number of connections.
    proxies: Vec<IpNet>,
}

impl Workers {
    pub(crate) const fn new(
        limits: Limits,
        tls: Option<Arc<Tls>>,
        stopped: watch::Receiver<bool>,
        figures: Arc<EdgeFigures>,
        proxies: Vec<IpNet>,
    ) -> Self {
        Self { limits, tls, stopped, threads: Vec::new(), figures, proxies }
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
            let serve = move || {
                runtime.block_on(
                    async move { listen::accept(listener, answers(), door, stopped).await },
                )
            };
            let thread = std::thread::Builder::new().name(format!("{name}-{index}"));
            self.threads.push(thread.spawn(serve)?);
        }
        Ok(())
    }

    /// Waits for all of them to finish.
    pub(crate) fn wait(self) -> io::Result<()> {
        for thread in self.threads {
            let Ok(served) = thread.join() else {
                tracing::error!("a worker had panicked");
                continue;
            };
            served?;
        }
        Ok(())
    }
}
