//! Decisions: encoded, queued on lanes, and their outcomes rebuilt from the scripts' replies.

use std::mem;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tollgate_core::{MICRO, Nanos, Outcome};

use super::delivery::Acceptance;
use super::encode::{Encoded, Lines};
use super::figures::{self, SeenList};
use super::hub::{Hub, Topology};
use super::metrics::Operation;
use super::node_connection::{Answer, Job};
use super::several::HeldParts;
use super::turns::Turns;
use crate::{Decided, Failure, Mode, Outcomes, Request};

/// How often a request is sent again because no calendar window it brought fits the server's clock.
const LOOKS_AT_THE_CALENDAR: u32 = 3;

/// So many times the time of one decision is the most that a call of many takes, whose requests must go
/// one after another.
const MAX_TURNS: u32 = 4;

/// A request on its way.
struct Planned<'a> {
    request: Request<'a>,
    lines: Lines<'a>,
    slot: u16,
    turn: usize,
    /// Its charges are in several slots.
    is_several: bool,
    fate: Fate,
}

/// What became of a request.
#[expect(clippy::large_enum_variant, reason = "nearly all of them are judged, and boxing costs")]
enum Fate {
    Judged(Judged),
    /// Outcome and instant of every charge.
    Held(Vec<(Outcome, Nanos)>),
    Failed(Failure),
}

impl From<Result<Judged, Failure>> for Fate {
    fn from(judged: Result<Judged, Failure>) -> Self {
        judged.map_or_else(Self::Failed, Self::Judged)
    }
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
    turn: usize,
    encoded: Encoded,
    places: SmallVec<[usize; 4]>,
}

pub(super) type Waiting<T = Answer> = oneshot::Receiver<Result<T, Failure>>;

/// The answers of one call to the store, which are accepted together when it returns.
type Acceptances = SmallVec<[Acceptance; 1]>;

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
        let clock = clock.unwrap_or(now);
        let (mut plan, mut groups) = (SmallVec::<[_; 1]>::new(), SmallVec::<[_; 1]>::new());
        let (mut turns, mut acceptances) = (Turns::default(), Acceptances::new());
        for request in requests {
            plan.push(self.plan(request, clock, &mut turns, plan.len(), &mut groups));
        }
        // One request is on its own time. Those that must wait for others have it from their turn on.
        let began = Instant::now();
        let end = began + self.deadline().duration_since(began) * MAX_TURNS;
        for turn in 0..=turns.last {
            let deadline = self.deadline().min(end);
            self.take_turn(&mut plan, &mut groups, &mut acceptances, turn, clock, deadline).await;
        }
        let decided = tell(&plan, clock, outcomes);
        acceptances.into_iter().for_each(Acceptance::accept);
        decided
    }

    /// Decides when a request goes, and puts it to those of its slot that go at the same time.
    fn plan<'a>(
        &self,
        request: &Request<'a>,
        clock: Nanos,
        turns: &mut Turns,
        place: usize,
        groups: &mut SmallVec<[Group; 1]>,
    ) -> Planned<'a> {
        let (mut encoded, mut lines) = (Encoded::default(), Lines::new());
        let pushed = encoded.push(&self.speller, request, clock, &mut lines);
        let slot = encoded.keys.get(0).map_or(0, |key| self.slot_of(key));
        // Until the answer is here.
        let fate = Fate::Failed(Failure::Timeout);
        let is_several = matches!(self.topology, Topology::Cluster(_))
            && encoded.keys.iter().any(|key| self.slot_of(key) != slot);
        let mut planned = Planned { request: *request, lines, slot, turn: 0, is_several, fate };
        if let Err(failure) = pushed {
            planned.fate = Fate::Failed(failure);
            planned.is_several = false;
        } else if request.charges.is_empty() {
            let judged = Judged { charged: false, at: clock, seen: SeenList::new() };
            planned.fate = Fate::Judged(judged);
        } else if is_several {
            let slots: SmallVec<[_; 8]> =
                encoded.keys.iter().map(|key| self.slot_of(key)).collect();
            planned.turn = turns.of_several(&slots);
        } else {
            let turn = turns.of_one(slot, request.charges.len());
            planned.turn = turn;
            let same = |group: &&mut Group| group.slot == slot && group.turn == turn;
            if let Some(group) = groups.iter_mut().find(same) {
                group.encoded.append(&encoded);
                group.places.push(place);
            } else {
                let mut places = SmallVec::new();
                places.push(place);
                groups.push(Group { slot, turn, encoded, places });
            }
        }
        planned
    }

    /// Decides all that go at the same time. One that fails does not keep the others from it.
    async fn take_turn(
        self: &Arc<Self>,
        plan: &mut [Planned<'_>],
        groups: &mut [Group],
        acceptances: &mut Acceptances,
        turn: usize,
        clock: Nanos,
        deadline: Instant,
    ) {
        let mut several = SmallVec::<[_; 1]>::new();
        for (place, planned) in plan.iter().enumerate() {
            if planned.is_several && planned.turn == turn {
                several.push((place, self.hold_several(&planned.request, clock, deadline)));
            }
        }
        let mut waiting = SmallVec::<[_; 1]>::new();
        for group in groups.iter_mut().filter(|group| group.turn == turn) {
            let (encoded, places) = (mem::take(&mut group.encoded), mem::take(&mut group.places));
            waiting.push((self.submit(encoded, group.slot, deadline).await, places));
        }
        for (waiting, places) in waiting {
            let answer = match waiting {
                Ok(waiting) => wait(waiting, deadline).await,
                Err(failure) => Err(failure),
            };
            match answer {
                Ok(Answer { now, numbers, acceptance }) => {
                    acceptances.push(acceptance);
                    let mut numbers = numbers.into_iter();
                    for place in places {
                        let Some(planned) = plan.get_mut(place) else { continue };
                        let verdict = verdict(&planned.lines, now, &mut numbers);
                        let settled = self.settle(planned, verdict, acceptances, deadline).await;
                        planned.fate = settled.into();
                    }
                }
                Err(failure) => {
                    for place in places {
                        if let Some(planned) = plan.get_mut(place) {
                            planned.fate = Fate::Failed(failure);
                        }
                    }
                }
            }
        }
        for (place, waiting) in several {
            let held = wait(waiting, deadline).await;
            let Some(planned) = plan.get_mut(place) else { continue };
            planned.fate = match held {
                Ok(HeldParts { outcomes, acceptance }) => {
                    acceptances.push(acceptance);
                    Fate::Held(outcomes)
                }
                Err(failure) => Fate::Failed(failure),
            };
        }
    }

    /// Sends a request again whose calendar windows did not fit, with those that do.
    async fn settle(
        self: &Arc<Self>,
        planned: &Planned<'_>,
        verdict: Option<Verdict>,
        acceptances: &mut Acceptances,
        deadline: Instant,
    ) -> Result<Judged, Failure> {
        let judged = match verdict {
            Some(Verdict::Judged(judged)) => judged,
            other => Box::pin(self.settle_again(planned, other, acceptances, deadline)).await?,
        };
        if judged.charged {
            let mode = planned.request.mode;
            self.metrics.finalized(figures::finalized(mode, &planned.lines, &judged.seen));
        }
        Ok(judged)
    }

    async fn settle_again(
        self: &Arc<Self>,
        planned: &Planned<'_>,
        mut verdict: Option<Verdict>,
        acceptances: &mut Acceptances,
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
            let Answer { now, numbers, acceptance } = wait(waiting, deadline).await?;
            acceptances.push(acceptance);
            verdict = self::verdict(&lines, now, &mut numbers.into_iter());
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

pub(super) async fn wait<T>(mut waiting: Waiting<T>, deadline: Instant) -> Result<T, Failure> {
    match tokio::time::timeout_at(deadline, &mut waiting).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(Failure::Connection),
        Err(_) => {
            // From here on the sender finds that nobody listens, unless it has answered already.
            waiting.close();
            waiting.try_recv().unwrap_or(Err(Failure::Timeout))
        }
    }
}

/// Appends the outcomes. It is an error only if nothing was decided.
fn tell(plan: &[Planned<'_>], clock: Nanos, outcomes: &mut Outcomes) -> Result<Decided, Failure> {
    let failures = || {
        plan.iter().map(|planned| match planned.fate {
            Fate::Failed(failure) => Some(failure),
            Fate::Judged(_) | Fate::Held(_) => None,
        })
    };
    let first = failures().flatten().next();
    if let Some(failure) = first
        && failures().all(|failure| failure.is_some())
    {
        return Err(failure);
    }
    let mut instants = Instants::default();
    for Planned { request, lines, fate, .. } in plan {
        match fate {
            Fate::Judged(Judged { charged, at, seen }) => {
                instants.push(Some(*at), lines.len());
                let push = |outcome| outcomes.push(outcome);
                figures::replay(request.mode, lines, seen, *charged, *at, push);
            }
            Fate::Held(held) => {
                for (outcome, at) in held {
                    outcomes.push(*outcome);
                    instants.push(Some(*at), 1);
                }
            }
            Fate::Failed(_) => {
                instants.push(None, request.charges.len());
                outcomes.extend(std::iter::repeat_n(NOTHING, request.charges.len()));
            }
        }
    }
    let failed = first.map(|_| failures().collect());
    Ok(Decided { failed, ..instants.decided(clock) })
}

pub(super) use crate::REFUSED as NOTHING;

/// When charges were decided, if they were.
#[derive(Debug, Default)]
struct Instants {
    first: Option<Nanos>,
    differ: bool,
    each: SmallVec<[(Option<Nanos>, usize); 1]>,
}

impl Instants {
    fn push(&mut self, at: Option<Nanos>, charges: usize) {
        self.first = self.first.or(at);
        self.differ |= at.is_some() && self.first != at;
        self.each.push((at, charges));
    }

    fn decided(self, otherwise: Nanos) -> Decided {
        let first = self.first.unwrap_or(otherwise);
        let each = self.differ.then(|| {
            let repeated =
                |(at, charges): (Option<_>, _)| std::iter::repeat_n(at.unwrap_or(first), charges);
            self.each.into_iter().flat_map(repeated).collect()
        });
        Decided { each, ..Decided::at(first) }
    }
}

/// Whether a request passes whose charges fit or not.
pub(super) fn passes(mode: Mode, lines: &Lines<'_>, seen: &[figures::Seen]) -> bool {
    use crate::Role;
    if lines.len() != seen.len() {
        crate::report_broken("a script saw another number of charges than it was sent");
        return false;
    }
    let mut any_of = None;
    for (line, seen) in lines.iter().zip(seen) {
        match line.role {
            Role::Must if !seen.fits => return false,
            Role::AnyOf => any_of = Some(any_of.unwrap_or(false) || seen.fits),
            Role::Must | Role::Watch | Role::Alongside => {}
        }
    }
    mode == Mode::Hold || any_of.unwrap_or(true)
}
