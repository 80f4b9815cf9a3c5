//! The housekeeping thread: journal, memory, clock.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tollgate_engine::{Engine, SystemClock};

use crate::stores::Stores;

/// The store is tidied part by part, all of it in so many rounds.
const TIDY_PARTS: usize = 60;

/// Runs until it is stopped.
pub(crate) struct Housekeeping {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Housekeeping {
    pub(crate) fn start(
        engine: Arc<Engine<Stores>>,
        clock: Arc<SystemClock>,
        interval: Duration,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new()
            .name("housekeeping".to_owned())
            .spawn(move || keep(&engine, &clock, interval, &stopped))?;
        Ok(Self { stop, thread })
    }

    /// Flushes the journal a last time and waits for it.
    pub(crate) fn stop(self) {
        // An error means that the thread is gone already.
        let _ = self.stop.send(());
        if self.thread.join().is_err() {
            tracing::error!("housekeeping had panicked; the last changes may not be on disk");
        }
    }
}

fn keep(engine: &Engine<Stores>, clock: &SystemClock, interval: Duration, stopped: &Receiver<()>) {
    for round in 0.. {
        let stop = stopped.recv_timeout(interval) != Err(RecvTimeoutError::Timeout);
        clock.follow();
        let now = engine.clock().now();
        engine.store().memory().flush(now);
        if stop {
            return;
        }
        engine.store().memory().tidy(round, TIDY_PARTS, now);
    }
}
