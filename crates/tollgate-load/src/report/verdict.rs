//! Whether the figures are the server's or the generator's.

use super::{Generator, Schedule};

/// A thread that uses more of its core than this has no time to be idle.
const BUSY_SHARE: f64 = 0.9;
/// By how much the generator may be late with one request in a hundred.
const MAX_LAG_MICROS: f64 = 5_000.0;
/// How many requests may wait for a connection before it is worth a word.
const MAX_WAITED_SHARE: f64 = 0.01;

pub(crate) fn of(threads: usize, busiest: f64, schedule: Option<&Schedule>) -> Generator {
    let mut notes = Vec::new();
    let is_busy = busiest >= BUSY_SHARE;
    if is_busy {
        notes.push(format!(
            "The generator was the bottleneck: one of its threads used {:.0} % of a core. \
             Give it more threads, or a machine of its own.",
            busiest * 100.0
        ));
    }
    let lag = schedule.map_or(0.0, |schedule| schedule.lag_micros.p99);
    let is_late = lag > MAX_LAG_MICROS;
    if is_late {
        notes.push(format!(
            "The generator was late by itself: one request in a hundred was sent {:.1} ms or more \
             after it was due, although a connection was free. Latencies from the schedule hold \
             this delay; service times do not.",
            lag / 1_000.0
        ));
    }
    if let Some(schedule) = schedule {
        let waited = schedule.waited_share > MAX_WAITED_SHARE;
        if waited {
            notes.push(format!(
                "{:.1} % of the requests were due while no connection was free: {} did not keep up \
                 with the rate, or there were too few connections.",
                schedule.waited_share * 100.0,
                if is_busy || is_late { "server or generator" } else { "the server" }
            ));
        }
        if schedule.unsent > 0 {
            notes.push(format!(
                "{} requests that were due were never sent. The latencies are those of the others, \
                 and too good.",
                schedule.unsent
            ));
        }
    }
    Generator { threads, busiest_thread_share: busiest, is_bottleneck: is_busy || is_late, notes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Latency;

    fn schedule(lag: f64, waited_share: f64, unsent: u64) -> Schedule {
        let lag_micros = Latency { p99: lag, ..Latency::default() };
        Schedule { scheduled: 100, unsent, waited_share, lag_micros }
    }

    #[test]
    fn the_slow_one_is_named() {
        let calm = of(2, 0.5, Some(&schedule(90.0, 0.0, 0)));
        assert!(!calm.is_bottleneck && calm.notes.is_empty());
        let busy = of(2, 0.97, None);
        assert!(busy.is_bottleneck && busy.notes.join("").contains("97 %"));
        let late = of(2, 0.5, Some(&schedule(9_000.0, 0.0, 0)));
        assert!(late.is_bottleneck && late.notes.join("").contains("9.0 ms"));
        let slow_server = of(2, 0.5, Some(&schedule(90.0, 0.4, 12)));
        assert!(!slow_server.is_bottleneck);
        assert_eq!(slow_server.notes.len(), 2);
    }
}
