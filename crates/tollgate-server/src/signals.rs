//! Signals, handled from the first moment of the process until its end.

use std::io;
use std::pin::pin;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// What is left to do after the drain (work of stuck threads, the journal, leases, the audit) has this long. Then the
/// process ends without it.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// A signal that follows the first one within this time is the same request: tools such as `timeout` send it to the
/// process and to its group.
const REPEAT_WITHIN: Duration = Duration::from_millis(500);

/// Handles signals before the service starts: while flags and files are read, SIGTERM and SIGINT end the process at
/// once with exit code 0, because nothing is open yet that would have to be closed.
#[derive(Debug)]
pub struct EarlySignals {
    thread: JoinHandle<Signals>,
    /// The service takes the signals over.
    taken: oneshot::Sender<()>,
}

impl EarlySignals {
    /// Handles signals from now on.
    pub fn install() -> io::Result<Self> {
        let mut signals = Signals::new()?;
        let (taken, take) = oneshot::channel();
        let wait = move || {
            if signals.run_until_signal(take).is_none() {
                std::process::exit(0);
            }
            signals
        };
        let thread = std::thread::Builder::new().name("early-signals".to_owned()).spawn(wait)?;
        Ok(Self { thread, taken })
    }

    /// The signals, for the service. One that came and was not handled yet is not lost.
    pub(crate) fn take(self) -> io::Result<Signals> {
        let _ = self.taken.send(());
        self.thread.join().map_err(|_| io::Error::other("the thread for early signals failed"))
    }
}

/// The signals that end the service, or make it look at its rules.
#[derive(Debug)]
pub(crate) struct Signals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    /// A signal to end came while the process was starting.
    is_ending: bool,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (terminate, interrupt, hang_up) = {
            let _context = runtime.enter();
            (
                signal(SignalKind::terminate())?,
                signal(SignalKind::interrupt())?,
                signal(SignalKind::hangup())?,
            )
        };
        Ok(Self { runtime, terminate, interrupt, hang_up, is_ending: false })
    }

    /// Whether a signal to end came while the process was starting.
    pub(crate) const fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Runs a step of the start; `None` if SIGTERM or SIGINT came before its end.
    pub(crate) fn run_until_signal<T>(&mut self, step: impl Future<Output = T>) -> Option<T> {
        let done = self.runtime.block_on(async {
            tokio::select! {
                _ = self.terminate.recv() => None,
                _ = self.interrupt.recv() => None,
                done = step => Some(done),
            }
        });
        self.is_ending = done.is_none();
        done
    }

    /// Returns on SIGTERM or SIGINT; SIGHUP reads files anew.
    pub(crate) fn wait_for_the_end(mut self, read_anew: impl Fn()) -> Self {
        if self.is_ending {
            return self;
        }
        self.runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = self.terminate.recv() => return,
                    _ = self.interrupt.recv() => return,
                    _ = self.hang_up.recv() => read_anew(),
                }
            }
        });
        self
    }

    /// Ends the process where its end takes too long: at a second signal at once, because nobody wants to wait for the
    /// drain, and otherwise [`SHUTDOWN_GRACE`] after the time of the drain.
    pub(crate) fn bound_the_end(mut self, drain: Duration) -> io::Result<()> {
        let max_wait = drain.saturating_add(SHUTDOWN_GRACE);
        let wait = move || {
            let is_late = self.runtime.block_on(async {
                let mut late = pin!(tokio::time::sleep(max_wait));
                let began = tokio::time::Instant::now();
                loop {
                    tokio::select! {
                        _ = self.terminate.recv() => {}
                        _ = self.interrupt.recv() => {}
                        () = &mut late => return true,
                    }
                    if began.elapsed() >= REPEAT_WITHIN {
                        return false;
                    }
                }
            });
            if is_late {
                tracing::warn!("some work did not end in time; the process ends without it");
                std::process::exit(0);
            }
            tracing::warn!("asked twice: ended without draining");
            std::process::exit(1);
        };
        std::thread::Builder::new().name("end".to_owned()).spawn(wait).map(drop)
    }
}
