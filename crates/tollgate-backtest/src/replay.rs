//! The replay: every request is decided by the rules to test, and by the baseline.

use std::path::PathBuf;
use std::sync::Arc;

use tollgate_engine::{Decision, Request};
use tollgate_policy::{RequestPath, RuleSet};
use tollgate_recording::Kind;

use crate::clock::VirtualClock;
use crate::error::BacktestError;
use crate::format::Format;
use crate::guard::{Aim, Guard};
use crate::mapping::Mapping;
use crate::record::{Malformed, Record};
use crate::recorded_rules::RecordedRules;
use crate::report::{self, Report};
use crate::shadows::Shadows;
use crate::side::Side;
use crate::tally::{AFTER, BEFORE, Tally};
use crate::trace::Trace;
use crate::traffic::Traffic;

/// Progress is reported after so many requests.
const PROGRESS_EVERY: u64 = 4_096;

/// The status of a request that was refused when it was logged.
pub(crate) const TOO_MANY_REQUESTS: u16 = 429;

/// What to replay, and through what.
pub struct Options {
    /// The rules to test.
    pub rules: RuleSet,
    /// What the rules are called in the report.
    pub rules_name: String,
    /// The rules to compare with, and what they are called.
    pub baseline: Option<(RuleSet, String)>,
    /// The files of traffic; gzip and zstd are recognized.
    pub files: Vec<PathBuf>,
    /// Their format.
    pub format: Format,
    /// Which field is which attribute.
    pub mapping: Mapping,
    /// What recommended limits must keep to.
    pub aim: Aim,
    /// Conditions on which the backtest fails.
    pub guards: Vec<Guard>,
}

/// How far a replay is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the files that were read, compressed where they are.
    pub read_bytes: u64,
    /// Bytes of all files.
    pub total_bytes: u64,
    /// Requests that were decided.
    pub requests: u64,
}

/// Replays the traffic and reports.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Report, BacktestError> {
    run_observed(options, progress, &mut |_| {})
}

/// [`run`], with every decision of the rules to test shown to `observe`, in order.
pub fn run_observed(
    options: &Options,
    progress: &mut dyn FnMut(Progress),
    observe: &mut dyn FnMut(&Decision<'_>),
) -> Result<Report, BacktestError> {
    let mut traffic = Traffic::open(&options.files, options.format, &options.mapping)?;
    let mut replay = Replay::new(options);
    let total_bytes = traffic.total_bytes;
    while let Some(record) = traffic.next()? {
        if let Err(problem) = replay.replay(&record, observe) {
            traffic.reject(&record, problem);
        }
        traffic.reuse(record);
        let requests = replay.tally.requests;
        if requests.is_multiple_of(PROGRESS_EVERY) {
            progress(Progress { read_bytes: traffic.read_bytes(), total_bytes, requests });
        }
    }
    let requests = replay.tally.requests;
    progress(Progress { read_bytes: total_bytes, total_bytes, requests });
    let mut input = traffic.faults.input;
    input.notes.extend(traffic.samples.notes(&options.rules));
    input.notes.extend(replay.notes());
    report::build(options, replay, input)
}

/// Everything that grows while traffic is replayed.
pub(crate) struct Replay {
    clock: Arc<VirtualClock>,
    pub(crate) before: Option<Side>,
    pub(crate) after: Side,
    pub(crate) tally: Tally,
    pub(crate) trace: Trace,
    pub(crate) shadows: Shadows,
    /// The rules in force while it was recorded, if they are the baseline.
    pub(crate) recorded: RecordedRules,
}

impl Replay {
    fn new(options: &Options) -> Self {
        let clock = Arc::new(VirtualClock::default());
        let side = |rules: &RuleSet| Side::new(rules, &clock);
        Self {
            before: options.baseline.as_ref().map(|(rules, _)| side(rules)),
            after: side(&options.rules),
            tally: Tally::new(),
            trace: Trace::default(),
            shadows: Shadows::default(),
            recorded: RecordedRules::new(options.baseline.is_none()),
            clock,
        }
    }

    fn replay(
        &mut self,
        record: &Record,
        observe: &mut dyn FnMut(&Decision<'_>),
    ) -> Result<(), Malformed> {
        self.clock.advance_to(record.at);
        match record.event.kind {
            Kind::Decision => self.decide(record, observe),
            Kind::Rules => {
                let first = self.tally.requests == 0;
                self.recorded.change(record, &mut self.before, first, &self.clock);
                Ok(())
            }
            Kind::Settled | Kind::Released | Kind::Renewed => {
                self.sides().for_each(|side| side.change_held(record));
                Ok(())
            }
            Kind::More | Kind::Reset => self.charge_or_reset(record),
        }
    }

    fn sides(&mut self) -> impl Iterator<Item = &mut Side> {
        self.before.iter_mut().chain([&mut self.after])
    }

    /// What charges or resets counters, and is no request of its own.
    fn charge_or_reset(&mut self, record: &Record) -> Result<(), Malformed> {
        let path = path(record)?;
        for side in self.sides() {
            let rules = Arc::clone(&side.rules);
            let mut attributes = record.attributes();
            if let Some(path) = &path {
                attributes.set_path(path);
            }
            let request = Request { attributes, amounts: record.amounts, ..Request::default() };
            if record.event.kind == Kind::Reset {
                side.reset(&rules, &request, &record.event.names);
            } else {
                side.charge_more(&rules, request, record);
            }
        }
        Ok(())
    }

    /// What the report has to say about events that could not be replayed.
    fn notes(&self) -> Vec<String> {
        let mut notes = self.recorded.notes();
        // A draft refuses other requests than the node did: what those held is no fault of the recording.
        let unlinked = self.before.as_ref().unwrap_or(&self.after).unlinked();
        if unlinked > 0 {
            notes.push(format!(
                "{unlinked} settlements or releases are of requests that were not replayed, or that did not pass"
            ));
        }
        notes
    }

    fn decide(
        &mut self,
        record: &Record,
        observe: &mut dyn FnMut(&Decision<'_>),
    ) -> Result<(), Malformed> {
        // A decision borrows from its rules as long as from the request.
        let before_rules = self.before.as_ref().map(|side| Arc::clone(&side.rules));
        let after_rules = Arc::clone(&self.after.rules);
        let path = path(record)?;
        let mut attributes = record.attributes();
        if let Some(path) = &path {
            attributes.set_path(path);
        }
        let now = tollgate_engine::Clock::now(&*self.clock);
        self.shadows.add(&after_rules.set, &attributes, now);
        let client = self.tally.client(&attributes);
        let mut request = Request { attributes, amounts: record.amounts, ..Request::default() };
        let mut before = None;
        if let (Some(side), Some(rules)) = (&mut self.before, &before_rules) {
            before = side.decide(rules, &mut request, record, now, |_| {});
        }
        let trace = &mut self.trace;
        let after = self.after.decide(&after_rules, &mut request, record, now, |decision| {
            trace.add(decision, client);
            observe(decision);
        });
        let mut refused = [false; 2];
        refused[BEFORE] = before.is_some_and(|fate| fate.is_refused);
        refused[AFTER] = after.is_some_and(|fate| fate.is_refused);
        if let (Some(was_refused), Some(fate)) = (record.was_refused, before.or(after)) {
            self.tally.recorded += 1;
            self.tally.recorded_differently += u64::from(fate.is_refused != was_refused);
        }
        let rule = after.map_or(u32::MAX, |fate| fate.rule);
        self.tally.logged_429 += u64::from(record.status == Some(TOO_MANY_REQUESTS));
        self.tally.add(now, &request.attributes, client, refused, rule);
        Ok(())
    }
}

/// The normalised path of a request; `None` where it has none.
fn path(record: &Record) -> Result<Option<RequestPath<'_>>, Malformed> {
    let endpoint = record.get(tollgate_policy::Known::Endpoint);
    if endpoint.is_empty() {
        return Ok(None);
    }
    RequestPath::parse(endpoint).map(Some).map_err(|_| Malformed::Path)
}
