//! A thread that looks after the telemetry once a second: periods end, history is kept, labels follow
//! the traffic, and StatsD is sent to.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tollgate_core::Nanos;
use tollgate_engine::Clock;
use tollgate_policy::Known;

use super::decisions::{Label, RESULTS};
use super::history::STEP_NANOS;
use super::latency::{LATENCIES, Operation};
use super::{Observed, statsd::Statsd};

/// How often it looks.
const ROUND: Duration = Duration::from_secs(1);
/// Every so many rounds labels are given to those who are seen most.
const ROUNDS_PER_PREFERENCE: u64 = 10;
/// So many of those seen most are looked at.
const MAX_LOOKED_AT: usize = 1_000;
/// Every so many rounds another period of the highest shares begins.
const ROUNDS_PER_PERIOD: u64 = 60;

/// Runs until it is stopped.
pub(crate) struct TelemetryKeeper {
    stop: Sender<()>,
    thread: JoinHandle<()>,
    observed: Arc<Observed>,
}

impl TelemetryKeeper {
    pub(crate) fn start(
        observed: Arc<Observed>,
        clock: Arc<dyn Clock>,
        mut statsd: Option<Statsd>,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let own = Arc::clone(&observed);
        let keep = move || {
            let mut last_step = clock.now();
            for round in 1.. {
                let is_over = stopped.recv_timeout(ROUND) != Err(RecvTimeoutError::Timeout);
                let now = clock.now();
                look(&own, round, now, &mut last_step);
                if let Some(statsd) = &mut statsd {
                    statsd.report(now, is_over);
                }
                if is_over {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("telemetry".to_owned()).spawn(keep)?;
        Ok(Self { stop, thread, observed })
    }

    pub(crate) fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.thread.join();
        if let Some(log) = self.observed.witness.log() {
            log.stop();
        }
        if let Some(recorder) = self.observed.witness.recorder() {
            recorder.stop();
        }
    }
}

fn look(observed: &Observed, round: u64, now: Nanos, last_step: &mut Nanos) {
    let witness = &observed.witness;
    let series = witness.tally().read();
    let totals = witness.tally().totals();
    witness.tune(totals.iter().take(RESULTS.len()).sum());
    witness.tops().turn(now);
    // Steps end at the same instants on all nodes, so that their figures can be added.
    if now / STEP_NANOS != *last_step / STEP_NANOS {
        *last_step = now;
        let mut calls = LATENCIES.read(Operation::Allow);
        for operation in Operation::ALL.into_iter().filter(|one| *one != Operation::Allow) {
            calls.add(&LATENCIES.read(operation));
        }
        observed.history.step(&series, totals, &calls, now);
    }
    if round.is_multiple_of(ROUNDS_PER_PERIOD) {
        witness.tally().turn();
    }
    if round.is_multiple_of(ROUNDS_PER_PREFERENCE) {
        witness.tally().reclaim();
        for (label, known) in [(Label::Tenant, Known::TenantId), (Label::Model, Known::ModelId)] {
            let (busiest, floor) = witness.tops().busiest(known, MAX_LOOKED_AT);
            let seen: Vec<(&str, u64)> =
                busiest.iter().map(|one| (one.name.as_str(), one.count)).collect();
            witness.tally().prefer(label, &seen, floor);
        }
    }
}
