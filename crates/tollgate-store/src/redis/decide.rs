//! Decisions: encoded, put on lanes, and told by what the scripts saw.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tollgate_core::{Examination, MICRO, Nanos, Outcome, Receipt, Status};

use super::encode::{Encoded, Lines};
use super::figures::{self, SeenList};
use super::hub::{Hub, Topology};
use super::lane::{Answer, Job, MOST_CHARGES, MOST_REQUESTS};
use super::metrics::Operation;
use crate::{Decided, Failure, GiveBack, Mode, Outcomes, Request};

/// How often a request is sent again because no calendar window it brought fits the server's clock.
const LOOKS_AT_THE_CALENDAR: u32 = 3;

/// A request whose charges are all in one slot, on its way.
struct Planned<'a> {
    request: Request<'a>,
    lines: Lines<'a>,
    slot: u16,
    judged: Result<Judged, Failure>,
}

/// What a script made of a request.
#[derive(Debug, Clone)]
pub(super) struct Judged {
    pub(super) charged: bool,
    pub(super) at: Nanos,
    pub(super) seen: SeenList,
}

/// Requests of one slot that go together.
struct Group {
    slot: u16,
    encoded: Encoded,
    places: SmallVec<[usize; 4]>,
}

pub(super) type Waiting = oneshot::Receiver<Result<Answer, Failure>>;

/// What a script said about one request.
#[expect(clippy::large_enum_variant, reason = "nearly all of them are judged, and boxing costs")]
pub(super) enum Verdict {
    Judged(Judged),
    Foreign,
    /// No calendar window fits the server's clock, which shows this.
    Outside(Nanos),
}

/// Reads the verdict on one request.
pub(super) fn verdict(
    lines: &Lines<'_>,
    now: u64,
    numbers: &mut impl Iterator<Item = u64>,
) -> Option<Verdict> {
    let at = now.saturating_mul(MICRO);
    Some(match numbers.next()? {
        2 => Verdict::Foreign,
        3 => Verdict::Outside(at),
        charged => {
            let mut seen = SeenList::new();
            for line in lines {
                seen.push(figures::read(line.limit, numbers)?);
            }
            Verdict::Judged(Judged { charged: charged == 1, at, seen })
        }
    })
}

impl Hub {
    pub(super) async fn decide(
        self: &Arc<Self>,
        requests: &[Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, Failure> {
        let clock = self.clock();
        if let Some(clock) = clock {
            self.metrics.drift(clock.cast_signed().saturating_sub(now.cast_signed()));
        }
        let (first, mut instants) = (outcomes.len(), Instants::default());
        let decided =
            self.decide_runs(requests, clock.unwrap_or(now), outcomes, &mut instants).await;
        match decided {
            Ok(()) => Ok(instants.decided(clock.unwrap_or(now))),
            Err(failure) => {
                // All or nothing is charged, also of several requests.
                let charged: Vec<GiveBack<'_>> = requests
                    .iter()
                    .flat_map(|request| request.charges)
                    .zip(outcomes.iter().skip(first))
                    .filter(|(_, outcome)| outcome.receipt != Receipt::Nothing)
                    .map(|(charge, outcome)| GiveBack {
                        counter: charge.counter,
                        limit: charge.limit,
                        receipt: outcome.receipt,
                    })
                    .collect();
                outcomes.truncate(first);
                if !charged.is_empty() {
                    let _ = Box::pin(self.give_back(&charged)).await;
                }
                Err(failure)
            }
        }
    }

    /// Requests in order, as many at once as keeps them in order on every slot.
    async fn decide_runs(
        self: &Arc<Self>,
        mut requests: &[Request<'_>],
        clock: Nanos,
        outcomes: &mut Outcomes,
        instants: &mut Instants,
    ) -> Result<(), Failure> {
        let deadline = self.deadline();
        while let Some(request) = requests.first() {
            let mut run = SmallVec::<[Planned<'_>; 1]>::new();
            let mut groups = SmallVec::<[Group; 1]>::new();
            let mut charges = 0;
            while let Some((next, rest)) = requests.split_first() {
                charges += next.charges.len();
                if !run.is_empty() && (run.len() >= MOST_REQUESTS || charges > MOST_CHARGES) {
                    break;
                }
                if !self.plan(next, clock, &mut run, &mut groups)? {
                    break;
                }
                requests = rest;
            }
            if run.is_empty() {
                // The next one is over several slots.
                requests = requests.get(1..).unwrap_or_default();
                let several = self.decide_several(request, clock, deadline, outcomes, instants);
                Box::pin(several).await?;
            } else {
                self.decide_run(&mut run, groups, deadline).await?;
                tell(&run, outcomes, instants)?;
            }
        }
        Ok(())
    }

    /// Adds a request to a run; false if it is over several slots.
    fn plan<'a>(
        &self,
        request: &Request<'a>,
        clock: Nanos,
        run: &mut SmallVec<[Planned<'a>; 1]>,
        groups: &mut SmallVec<[Group; 1]>,
    ) -> Result<bool, Failure> {
        let (mut encoded, mut lines) = (Encoded::default(), Lines::new());
        encoded.push(&self.speller, request, clock, &mut lines)?;
        let slot = encoded.keys.get(0).map_or(0, |key| self.slot_of(key));
        if matches!(self.topology, Topology::Cluster(_))
            && encoded.keys.iter().any(|key| self.slot_of(key) != slot)
        {
            return Ok(false);
        }
        let judged = if request.charges.is_empty() {
            Ok(Judged { charged: false, at: clock, seen: SeenList::new() })
        } else {
            let place = run.len();
            if let Some(group) = groups.iter_mut().find(|group| group.slot == slot) {
                group.encoded.append(&encoded);
                group.places.push(place);
            } else {
                let mut places = SmallVec::new();
                places.push(place);
                groups.push(Group { slot, encoded, places });
            }
            // Until the answer is here.
            Err(Failure::Timeout)
        };
        run.push(Planned { request: *request, lines, slot, judged });
        Ok(true)
    }

    async fn decide_run(
        self: &Arc<Self>,
        run: &mut [Planned<'_>],
        groups: SmallVec<[Group; 1]>,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let mut waiting = SmallVec::<[_; 1]>::new();
        for Group { slot, encoded, places } in groups {
            waiting.push((self.submit(encoded, slot, deadline).await, places));
        }
        for (waiting, places) in waiting {
            let answer = match waiting {
                Ok(waiting) => wait(waiting, deadline).await,
                Err(failure) => Err(failure),
            };
            match answer {
                Ok(Answer { now, numbers }) => {
                    let mut numbers = numbers.into_iter();
                    for place in places {
                        let Some(planned) = run.get_mut(place) else { continue };
                        let verdict = verdict(&planned.lines, now, &mut numbers);
                        planned.judged = self.settle(planned, verdict, deadline).await;
                    }
                }
                Err(failure) => {
                    for place in places {
                        if let Some(planned) = run.get_mut(place) {
                            planned.judged = Err(failure);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Sends a request again whose calendar windows did not fit, with those that do.
    async fn settle(
        self: &Arc<Self>,
        planned: &Planned<'_>,
        verdict: Option<Verdict>,
        deadline: Instant,
    ) -> Result<Judged, Failure> {
        match verdict {
            Some(Verdict::Judged(judged)) => Ok(judged),
            other => Box::pin(self.settle_again(planned, other, deadline)).await,
        }
    }

    async fn settle_again(
        self: &Arc<Self>,
        planned: &Planned<'_>,
        mut verdict: Option<Verdict>,
        deadline: Instant,
    ) -> Result<Judged, Failure> {
        for _ in 0..LOOKS_AT_THE_CALENDAR {
            let clock = match verdict {
                Some(Verdict::Judged(judged)) => return Ok(judged),
                Some(Verdict::Foreign) => {
                    self.metrics.failed(Operation::Decide, Failure::ForeignKey);
                    self.report_foreign(&planned.request);
                    return Err(Failure::ForeignKey);
                }
                Some(Verdict::Outside(clock)) => clock,
                None => return Err(Failure::Protocol),
            };
            let (mut encoded, mut lines) = (Encoded::default(), Lines::new());
            encoded.push(&self.speller, &planned.request, clock, &mut lines)?;
            let waiting = self.submit(encoded, planned.slot, deadline).await?;
            let answer = wait(waiting, deadline).await?;
            verdict = self::verdict(&lines, answer.now, &mut answer.numbers.into_iter());
        }
        Err(Failure::Protocol)
    }

    /// Puts requests of one slot on the lane to its node.
    pub(super) async fn submit(
        self: &Arc<Self>,
        encoded: Encoded,
        slot: u16,
        deadline: Instant,
    ) -> Result<Waiting, Failure> {
        let node = self.node_of(slot, deadline).await?;
        let (reply, waiting) = oneshot::channel();
        let job = Job { encoded, slot, deadline, reply };
        match node.lane().submit(self, &node, job) {
            Ok(()) => Ok(waiting),
            Err(failure) => {
                self.metrics.failed(Operation::Decide, failure);
                Err(failure)
            }
        }
    }
}

pub(super) async fn wait(waiting: Waiting, deadline: Instant) -> Result<Answer, Failure> {
    match tokio::time::timeout_at(deadline, waiting).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(Failure::Connection),
        Err(_) => Err(Failure::Timeout),
    }
}

/// Appends the outcomes of a run. Where a request failed, nothing was charged, and that is what its
/// outcomes say.
fn tell(
    run: &[Planned<'_>],
    outcomes: &mut Outcomes,
    instants: &mut Instants,
) -> Result<(), Failure> {
    let mut result = Ok(());
    for Planned { request, lines, judged, .. } in run {
        match judged {
            Ok(Judged { charged, at, seen }) => {
                instants.push(*at, lines.len());
                let push = |outcome| outcomes.push(outcome);
                figures::replay(request.mode, lines, seen, *charged, *at, push);
            }
            Err(failure) => {
                result = Err(*failure);
                outcomes.extend(std::iter::repeat_n(NOTHING, lines.len()));
            }
        }
    }
    result
}

pub(super) const NOTHING: Outcome = Outcome {
    examination: Examination::Refuse { retry_at: None },
    status: Status { used: 0, remaining: 0, reset_at: 0 },
    receipt: Receipt::Nothing,
};

/// When charges were decided.
#[derive(Debug, Default)]
pub(super) struct Instants {
    first: Option<Nanos>,
    differ: bool,
    each: SmallVec<[(Nanos, usize); 1]>,
}

impl Instants {
    pub(super) fn push(&mut self, at: Nanos, charges: usize) {
        let first = *self.first.get_or_insert(at);
        self.differ |= first != at;
        self.each.push((at, charges));
    }

    fn decided(self, otherwise: Nanos) -> Decided {
        let at = self.first.unwrap_or(otherwise);
        let each = self.differ.then(|| {
            let repeated = |(at, charges)| std::iter::repeat_n(at, charges);
            self.each.into_iter().flat_map(repeated).collect()
        });
        Decided { each, ..Decided::at(at) }
    }
}

/// Whether a request passes whose charges fit or not.
pub(super) fn passes(mode: Mode, lines: &Lines<'_>, seen: &[figures::Seen]) -> bool {
    use crate::Role;
    let mut any_of = None;
    for (line, seen) in lines.iter().zip(seen) {
        match line.role {
            Role::Must if !seen.fits => return false,
            Role::AnyOf => any_of = Some(any_of.unwrap_or(false) || seen.fits),
            Role::Must | Role::Watch => {}
        }
    }
    mode == Mode::Hold || any_of.unwrap_or(true)
}
