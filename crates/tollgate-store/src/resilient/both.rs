//! Deciding during a hand-over: on this node's share and on the shared counter.
//!
//! Every request is first held on the share; what fits there is asked of the store, and given back to
//! the share where the store refuses. What passes becomes final there: it takes no place of a hold whose request is not
//! decided yet. What does not fit is only examined on the store, for its figures. A request that the store does not
//! decide is decided as during the outage.

use smallvec::SmallVec;
use tollgate_core::{Examination, Limit, Nanos, Outcome, Receipt};

use super::Resilient;
use super::ask::Answer;
use super::fallback::{ASK_AGAIN, closed, is_closed};
use crate::{
    Charge, Decided, Degraded, Failure, Fallback, GiveBack, Membership, Mode, OnFailure, Outcomes,
    Request, Role, SharedStore, passes_as,
};

/// A charge that was decided on this node's share.
struct OnShare {
    share: Limit,
    outcome: Outcome,
}

impl OnShare {
    fn admits(&self) -> bool {
        self.outcome.examination.admits()
    }
}

/// A request of which this node's shares have been charged.
struct Held<'a> {
    /// One per charge; `None`: no share is kept of it.
    on_share: SmallVec<[Option<OnShare>; 4]>,
    /// Whether the shares have room for the request.
    passes: bool,
    /// The charges that the store is asked for.
    asked: SmallVec<[Charge<'a>; 4]>,
    /// How it is asked for them.
    mode: Mode,
    /// The generation of what is counted on the shares.
    generation: u32,
}

impl Held<'_> {
    /// Whether the store is asked for the charge of this number.
    fn is_asked(&self, charge: &Charge<'_>, on_share: Option<&OnShare>) -> bool {
        !self.passes || is_asked(self.mode, charge, on_share)
    }
}

/// Whether the store is asked for a charge of a request that the shares have room for: members of a
/// group, and rules that only watch, are left out where they have no room here.
fn is_asked(mode: Mode, charge: &Charge<'_>, on_share: Option<&OnShare>) -> bool {
    matches!(charge.role, Role::Must | Role::Alongside)
        || matches!(mode, Mode::Owe | Mode::Peek)
        || on_share.is_none_or(OnShare::admits)
}

impl<S: SharedStore> Resilient<S> {
    /// Decides requests on the shares and on the store.
    pub(super) async fn decide_on_both(
        &self,
        requests: &[Request<'_>],
        failure: Failure,
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Decided {
        let at = self.inner.clock(now);
        let held: SmallVec<[Held<'_>; 4]> =
            requests.iter().map(|request| self.hold_shares(request, at)).collect();
        let asked: SmallVec<[Request<'_>; 4]> =
            held.iter().map(|held| Request { charges: &held.asked, mode: held.mode }).collect();
        let answers = self.ask_each(&asked, now).await;
        let combined = requests.iter().zip(&held).zip(answers).map(|((request, held), answer)| {
            match answer.unwrap_or(Err(Failure::Protocol)) {
                Ok(answer) => {
                    self.handover.answered(at);
                    self.note_answer(now);
                    Ok(self.combine(request, held, answer, failure, at))
                }
                Err(failure) => Ok(self.fall_back_on_held(request, held, failure, now)),
            }
        });
        let combined = combined.map(Some).collect();
        self.put_together(requests, combined, now, outcomes)
    }

    /// Charges this node's shares, all or none.
    fn hold_shares<'a>(&self, request: &Request<'a>, at: Nanos) -> Held<'a> {
        let Membership { nodes, rank } = self.membership();
        let (is_partial, generation) = (self.handover.is_partial(), self.known.generation());
        let share_of = |charge: &Charge<'_>| {
            if charge.counter.home.on_failure != OnFailure::Local {
                return None;
            }
            let share = charge.limit.share(rank, nodes);
            self.carry(charge, &share, at);
            // Where only a part of the store is lost, counters that were not decided without it go on.
            (!is_partial || self.is_used_here(charge, &share, at)).then_some(share)
        };
        let shares: SmallVec<[Option<Limit>; 4]> = request.charges.iter().map(share_of).collect();
        let with_share = request.charges.iter().zip(&shares);
        let shared: SmallVec<[Charge<'_>; 4]> = with_share
            .clone()
            .filter_map(|(charge, limit)| {
                // What the store refuses is given back here, in whatever order.
                let ask = charge.ask.refundable_as_hold();
                Some(Charge { limit: limit.as_ref()?, ask, ..*charge })
            })
            .collect();
        // A group with members that have no share may pass by one of those.
        let is_group_open =
            with_share.clone().any(|(charge, share)| charge.role == Role::AnyOf && share.is_none());
        let mode = match request.mode {
            Mode::Charge if is_group_open => Mode::Hold,
            mode => mode,
        };
        let mut decided = Outcomes::new();
        if !shared.is_empty() {
            let memory = self.memory.read();
            memory.decide_now(&Request { charges: &shared, mode }, at, &mut decided);
        }
        let passes = mode == Mode::Owe || passes_as(mode, &shared, &decided);
        drop(shared);
        let mut decided = decided.into_iter();
        let on_share: SmallVec<[Option<OnShare>; 4]> = shares
            .into_iter()
            .map(|share| Some(OnShare { share: share?, outcome: decided.next()? }))
            .collect();
        let mode = if passes { request.mode } else { Mode::Peek };
        let asked = (request.charges.iter().zip(&on_share))
            .filter(|(charge, on_share)| !passes || is_asked(mode, charge, on_share.as_ref()))
            .map(|(charge, _)| *charge)
            .collect();
        Held { on_share, passes, asked, mode, generation }
    }

    /// Whether a counter was charged here since its window began.
    fn is_used_here(&self, charge: &Charge<'_>, share: &Limit, at: Nanos) -> bool {
        let charge = Charge { limit: share, ..*charge };
        self.memory().decide_single(&charge, Mode::Peek, at).status.used > 0
    }

    /// What the share and the store say together.
    fn combine(
        &self,
        request: &Request<'_>,
        held: &Held<'_>,
        answer: Answer,
        failure: Failure,
        at: Nanos,
    ) -> Answer {
        let Answer { outcomes: answered, decided } = answer;
        let would_pass = passes_as(request.mode, &held.asked, &answered);
        let charged: SmallVec<[bool; 8]> =
            answered.iter().map(|outcome| outcome.receipt != Receipt::Nothing).collect();
        let mut is_charged = charged.into_iter();
        self.end_holds(request, held, at, |is_asked| {
            is_asked && is_charged.next().unwrap_or(false)
        });
        let (mut answered, mut asked) = (answered.into_iter(), 0);
        let (mut outcomes, mut instants) = (Outcomes::new(), SmallVec::<[Nanos; 8]>::new());
        for (charge, on_share) in request.charges.iter().zip(&held.on_share) {
            let here = on_share.as_ref().map(|on_share| soon(on_share.outcome, at));
            let there = if held.is_asked(charge, on_share.as_ref()) {
                instants.push(decided.of(asked));
                asked += 1;
                answered.next()
            } else {
                instants.push(at);
                None
            };
            outcomes.push(match (here, there) {
                (Some(here), Some(there)) => stricter(here, there, request.mode),
                (None, Some(there)) => there,
                (Some(here), None) => Outcome { receipt: Receipt::Nothing, ..here },
                (None, None) => closed(at),
            });
        }
        let is_refused_here = !held.passes && would_pass;
        let first = instants.first().copied().unwrap_or(decided.at);
        let is_one_instant = instants.iter().all(|instant| *instant == first);
        let degraded = is_refused_here.then(|| {
            let fallback = Fallback::Local { nodes: self.membership().nodes };
            self.figures.count(fallback);
            Degraded { failure, fallback }
        });
        let each = (!is_one_instant).then(|| instants.into_vec().into_boxed_slice());
        let degraded = degraded.or(decided.degraded);
        Answer { outcomes, decided: Decided { each, degraded, ..Decided::at(first) } }
    }

    /// Decides a request without the store: what its shares were charged stands.
    fn fall_back_on_held(
        &self,
        request: &Request<'_>,
        held: &Held<'_>,
        failure: Failure,
        now: Nanos,
    ) -> Answer {
        let at = self.inner.clock(now);
        let is_local = |charge: &Charge<'_>| charge.counter.home.on_failure == OnFailure::Local;
        let mut with_share = request.charges.iter().zip(&held.on_share);
        let stands = failure != Failure::Contract
            && held.generation == self.known.generation()
            && !is_closed(request)
            && with_share.all(|(charge, on_share)| is_local(charge) == on_share.is_some());
        let mut outcomes = Outcomes::new();
        if !stands {
            self.end_holds(request, held, at, |_| false);
            let request = std::slice::from_ref(request);
            let decided = self.fall_back(request, failure, now, &mut outcomes);
            return Answer { outcomes, decided };
        }
        // As in `decide_without`: nobody ends the outage before all of it is noted.
        let noting = self.memory.read();
        self.lose(request, failure, at);
        let on_shares =
            held.on_share.iter().flatten().map(|on_share| (on_share.outcome, &on_share.share));
        let fallback = self.answer_without(request, on_shares, at, &mut outcomes);
        drop(noting);
        self.figures.count(fallback);
        let degraded = Some(Degraded { failure, fallback });
        Answer { outcomes, decided: Decided { degraded, ..Decided::at(at) } }
    }

    /// Gives back what was held on the shares, or makes it final where `keeps` says so; that is asked once per charge,
    /// with whether the store was asked for it. A charge that stays is known by the store's receipt from here on.
    fn end_holds(
        &self,
        request: &Request<'_>,
        held: &Held<'_>,
        at: Nanos,
        mut keeps: impl FnMut(bool) -> bool,
    ) {
        if self.known.generation() != held.generation {
            // A hand-over has ended meanwhile: the charge may be counted there no longer.
            return;
        }
        for (charge, on_share) in request.charges.iter().zip(&held.on_share) {
            let is_kept = keeps(held.is_asked(charge, on_share.as_ref()));
            let Some(OnShare { share, outcome }) = on_share else { continue };
            if outcome.receipt == Receipt::Nothing {
                continue;
            }
            let (counter, receipt) = (charge.counter, outcome.receipt);
            let hold = GiveBack { counter, limit: share, receipt };
            match receipt {
                Receipt::Open { .. } if is_kept => self.memory().close_now(&hold, at),
                _ if is_kept => {}
                _ => {
                    self.memory().give_back_now(&hold, at);
                }
            }
        }
    }

    /// Gives back to the share what is given back on the store. A bucket's receipt is of the store's own
    /// line and says nothing about the share's: that stays charged until the hand-over ends.
    pub(super) fn give_back_here(&self, give_back: &GiveBack<'_>, at: Nanos) {
        let is_foreign = give_back.limit.algorithm().is_bucket();
        if self.handover.is_open() && !is_foreign {
            let share = self.share(give_back.limit);
            self.memory().give_back_now(&GiveBack { limit: &share, ..*give_back }, at);
        }
    }
}

/// A share that has no room is soon joined by the rest of the limit again.
fn soon(outcome: Outcome, at: Nanos) -> Outcome {
    let Examination::Refuse { retry_at } = outcome.examination else { return outcome };
    let soon = at.saturating_add(ASK_AGAIN);
    let retry_at = Some(retry_at.map_or(soon, |retry_at| retry_at.min(soon)));
    Outcome { examination: Examination::Refuse { retry_at }, ..outcome }
}

/// The store's figures, with no more room than the share has.
fn stricter(here: Outcome, there: Outcome, mode: Mode) -> Outcome {
    let mut both = there;
    if there.examination.admits() && !here.examination.admits() && mode != Mode::Owe {
        both.examination = here.examination;
    }
    both.status.remaining = there.status.remaining.min(here.status.remaining);
    both
}
