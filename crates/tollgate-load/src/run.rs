//! A run: threads are started, their news gathered, and a report made of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::endpoint::Endpoint;
use crate::grpc::{CallHead, framed};
use crate::keys::Keys;
use crate::plan::{Length, Plan, PlanError};
use crate::recorder::{News, Seen};
use crate::report::{Ended, Report, Row};
use crate::timetable::Timetable;
use crate::worker::Job;
use crate::{headers, http};

/// How often the observer is called.
const OBSERVED_EVERY: Duration = Duration::from_millis(100);
/// The first request is due this long after the threads receive the timetable, so that none starts
/// late.
const LEAD: Duration = Duration::from_millis(20);

/// Ends a run early, from another thread; the run still reports.
#[derive(Debug, Clone, Default)]
pub struct Halt(Arc<AtomicBool>);

impl Halt {
    /// Ends the run.
    pub fn now(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// How far a run is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    /// Since the first request; the warm-up included.
    pub elapsed: Duration,
    /// How much of the run is over, from 0 to 1.
    pub share: f64,
    /// Whether nothing is counted yet.
    pub is_warmup: bool,
    /// Requests that have ended, to the last whole second.
    pub requests: u64,
    /// In the last whole second.
    pub requests_per_second: u64,
    /// Errors so far.
    pub errors: u64,
}

/// Why a run has no report.
#[derive(Debug, Error)]
pub enum RunError {
    /// The plan makes no sense.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// No connection could be made.
    #[error("no connection to {url} could be made: {cause}")]
    Unreachable {
        /// Where to.
        url: String,
        /// Why, by the last one that was tried.
        cause: String,
    },
    /// The machine did not give what a run needs.
    #[error("a thread of the generator could not be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// Carries out a plan, on threads of its own, and reports its progress to the observer ten times a
/// second.
pub fn run(
    plan: &Plan,
    halt: &Halt,
    mut observer: impl FnMut(Progress),
) -> Result<Report, RunError> {
    let (news_sender, news) = channel();
    let job = prepare(plan, news_sender)?;
    let (connected_sender, connected) = channel();
    let count = plan.threads.min(plan.connections);
    let mut starts = Vec::new();
    for thread in 0..count {
        let connections = plan.connections / count + usize::from(thread < plan.connections % count);
        let job = Job { thread, connections, ..job.clone() };
        let connected = connected_sender.clone();
        let (start, timetable) = oneshot::channel();
        let named = thread::Builder::new().name(format!("load-{thread}"));
        named.spawn(move || {
            if job.run(&connected, timetable).is_err() {
                // It has no runtime, and so reaches nobody.
                let _ = connected.send(0);
            }
        })?;
        starts.push(start);
    }
    let failure = job.endpoint.failure().clone();
    // Threads hold the other ends: when they are gone, so is the news.
    drop((job, connected_sender));
    let made: usize = connected.iter().take(count).sum();
    if made == 0 {
        let cause = failure.get().unwrap_or_else(|| "no answer in time".to_owned());
        return Err(RunError::Unreachable { url: plan.url.clone(), cause });
    }
    let start = Instant::now() + LEAD;
    let timetable = Timetable::new(start, plan.warmup, plan.length, plan.rate_per_second);
    let timetable = Arc::new(timetable);
    for start in starts {
        let _ = start.send(Arc::clone(&timetable));
    }
    let mut gathered = Gathered::new(count);
    gathered.listen(
        &news,
        || {
            if halt.is_set() {
                timetable.halt();
            }
        },
        |seen| observer(progress(plan, &timetable, start, seen)),
    );
    let mut report = gathered.report(plan, &timetable, halt.is_set());
    if let Some(cause) = failure.get().filter(|_| report.is_failure()) {
        report.generator.notes.push(format!("The last connection failed: {cause}."));
    }
    Ok(report)
}

fn prepare(plan: &Plan, news: std::sync::mpsc::Sender<News>) -> Result<Job, PlanError> {
    plan.check()?;
    let checked = headers::checked(plan)?;
    let endpoint = Endpoint::new(plan)?;
    let (head, message) = if plan.target.is_grpc() {
        let head = CallHead::new(plan, &endpoint, headers::for_grpc(checked))?;
        (Some(head), framed(plan)?)
    } else {
        (None, http::request(plan, &endpoint)?)
    };
    Ok(Job {
        thread: 0,
        connections: 0,
        streams: plan.streams,
        target: plan.target,
        endpoint,
        head,
        message,
        keys: Keys::new(plan.keys, plan.distribution),
        seed: plan.seed,
        timeout: plan.timeout,
        news,
    })
}

fn progress(plan: &Plan, timetable: &Timetable, start: Instant, gathered: &Gathered) -> Progress {
    let now = Instant::now();
    let measured = now.saturating_duration_since(timetable.measured_from());
    let share = match plan.length {
        Length::Duration(duration) => measured.as_secs_f64() / duration.as_secs_f64(),
        Length::Requests(count) => gathered.total.requests as f64 / count as f64,
    };
    Progress {
        elapsed: now.saturating_duration_since(start),
        share: share.clamp(0.0, 1.0),
        is_warmup: measured.is_zero(),
        requests: gathered.total.requests,
        requests_per_second: gathered.latest,
        errors: gathered.total.faults_sum(),
    }
}

/// What the threads have reported so far.
struct Gathered {
    total: Seen,
    /// Seconds that some thread may still add to.
    open: BTreeMap<u64, Seen>,
    rows: Vec<Row>,
    /// The second that each thread is past; `None` before its first.
    past: Vec<Option<u64>>,
    /// Requests in the last whole second.
    latest: u64,
    unfinished: u64,
    /// What each thread used of the processor.
    cpu: Vec<Duration>,
    last: Option<Instant>,
}

impl Gathered {
    fn new(threads: usize) -> Self {
        Self {
            total: Seen::default(),
            open: BTreeMap::new(),
            rows: Vec::new(),
            past: vec![None; threads],
            latest: 0,
            unfinished: 0,
            cpu: Vec::new(),
            last: None,
        }
    }

    /// Collects what the threads report until all have ended.
    fn listen(
        &mut self,
        news: &Receiver<News>,
        mut look: impl FnMut(),
        mut observer: impl FnMut(&Self),
    ) {
        let mut observed = Instant::now();
        loop {
            match news.recv_timeout(OBSERVED_EVERY) {
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            look();
            if observed.elapsed() >= OBSERVED_EVERY {
                observed = Instant::now();
                observer(self);
            }
        }
        self.close(u64::MAX);
        observer(self);
    }

    fn take(&mut self, message: News) {
        match message {
            News::Second { thread, index, seen } => {
                self.open.entry(index).or_default().add(&seen);
                if let Some(past) = self.past.get_mut(thread) {
                    *past = Some(index);
                }
            }
            News::Done { thread, unfinished, cpu, last } => {
                self.unfinished += unfinished;
                self.cpu.push(cpu);
                self.last = self.last.max(last);
                if let Some(past) = self.past.get_mut(thread) {
                    *past = Some(u64::MAX);
                }
            }
        }
        // A second is whole when every thread is past it.
        if let Some(Some(past)) = self.past.iter().min().copied() {
            self.close(past);
        }
    }

    fn close(&mut self, past: u64) {
        while let Some(first) = self.open.first_entry().filter(|first| *first.key() <= past) {
            let (index, seen) = first.remove_entry();
            self.total.add(&seen);
            if seen.requests > 0 {
                self.latest = seen.requests;
                self.rows.push(Row::new(index, &seen));
            }
        }
    }

    fn report(self, plan: &Plan, timetable: &Timetable, was_halted: bool) -> Report {
        let from = timetable.measured_from();
        let last = self.last.unwrap_or(from);
        // A run by the clock lasts at least as long as it was to last.
        let until = match timetable.end() {
            Some(end) if !was_halted => last.max(end),
            _ => last,
        };
        let elapsed = until.saturating_duration_since(from);
        let ended = Ended {
            elapsed,
            scheduled: timetable.due_until(until),
            unfinished: self.unfinished,
            cpu_busiest: self.cpu.into_iter().max().unwrap_or_default(),
            was_halted,
        };
        Report::new(plan, &self.total, self.rows, &ended)
    }
}
