//! What a fetch brought.

use tollgate_core::{Examination, Nanos, Outcome, Receipt};

use super::{Chunk, Lease, Plan, Refusal};
use crate::leased::figures::LeaseFigures;
use crate::leased::flight::Landing;
use crate::leased::sizing::Terms;
use crate::{LeaseGrant, StoreError};

impl Lease {
    /// Takes in what the store answered to a fetch.
    pub(in crate::leased) fn land(
        &mut self,
        plan: &Plan,
        answer: &Result<LeaseGrant, StoreError>,
        terms: &Terms<'_>,
        figures: &LeaseFigures,
    ) -> Landing {
        (self.flight, self.expected) = (None, 0);
        let landing = match answer {
            Ok(grant) => self.landed(plan, grant, terms, figures),
            Err(error) => Landing::Failed(*error),
        };
        LeaseFigures::add(&figures.lost, self.take_lapsed());
        landing
    }

    fn landed(
        &mut self,
        plan: &Plan,
        grant: &LeaseGrant,
        terms: &Terms<'_>,
        figures: &LeaseFigures,
    ) -> Landing {
        (self.others, self.seen) = (grant.others, grant.outcome.status);
        if plan.want == 0 || grant.granted > plan.least {
            self.prefetch_at = 0;
        }
        let landing = if grant.granted == 0 {
            self.refused(plan, grant, terms, figures)
        } else {
            self.granted(plan, grant)
        };
        self.renew(plan, grant);
        landing
    }

    fn granted(&mut self, plan: &Plan, grant: &LeaseGrant) -> Landing {
        let limit = &plan.owned.limit;
        self.refusal = None;
        let wait = match grant.outcome.examination {
            Examination::Admit { wait } => wait,
            Examination::Refuse { .. } => 0,
        };
        let sizing = &plan.sizing;
        let chunk = Chunk::new(
            limit,
            grant.outcome.receipt,
            grant.granted,
            plan.least,
            (grant.at, wait, grant.outcome.status.reset_at),
            (grant.expires_at.saturating_sub(sizing.margin), sizing.bridge),
        );
        let piece = chunk.piece(limit, plan.least, grant.at);
        self.drop_ended_windows(grant.at);
        match self.chunks.iter_mut().find(|chunk| chunk.left == 0) {
            Some(place) => {
                self.closing.extend(place.take_kept());
                *place = chunk;
            }
            // The plan left a place for it; without one it is charged and never spent.
            None => self.lapsed += chunk.left,
        }
        self.recorded = plan.held.saturating_add(chunk.left);
        if plan.least == 0 {
            return Landing::Nothing;
        }
        let examination = Examination::Admit { wait: piece.wait };
        let status = self.status(limit, grant.at);
        Landing::Granted(Outcome { examination, status, receipt: piece.receipt })
    }

    /// What the node goes on holding is recorded until the new lease ends, so it may be spent as long:
    /// but not if its own record may have ended before, when others could have taken the pool.
    fn renew(&mut self, plan: &Plan, grant: &LeaseGrant) {
        let until = grant.expires_at.saturating_sub(plan.sizing.margin);
        for chunk in &mut self.chunks {
            if chunk.left > 0 && grant.at < chunk.expires_at {
                chunk.expires_at = chunk.expires_at.max(until);
            }
        }
        self.chunks.sort_by_key(|chunk| (chunk.expires_at, chunk.starts_at));
        self.renew_at = self.next_renewal();
    }

    /// Chunks of a fixed window that has ended are not spent any longer than there is nothing else.
    fn drop_ended_windows(&mut self, at: Nanos) {
        let limit = &self.owned.limit;
        for chunk in &mut self.chunks {
            if chunk.left > 0 && chunk.is_worthless(limit, at) {
                self.lapsed += chunk.left;
                *chunk = Chunk::NONE;
            }
        }
    }

    fn refused(
        &mut self,
        plan: &Plan,
        grant: &LeaseGrant,
        terms: &Terms<'_>,
        figures: &LeaseFigures,
    ) -> Landing {
        if plan.least == 0 {
            return Landing::Nothing;
        }
        LeaseFigures::add(&figures.refused, 1);
        self.strayed.under(grant.others, plan.owned.limit.quota());
        let outcome = Outcome {
            status: self.status(&plan.owned.limit, grant.at),
            receipt: Receipt::Nothing,
            ..grant.outcome
        };
        let retry_at = match outcome.examination {
            Examination::Refuse { retry_at: Some(at) } => at,
            _ => Nanos::MAX,
        };
        // It has been on its way back for half a round trip.
        let heard_at = grant.at.saturating_add(terms.distance.smoothed() / 2);
        let until = retry_at.min(heard_at.saturating_add(terms.options.refusal));
        self.refusal = Some(Refusal { cost: plan.least, until, retry_at, outcome });
        Landing::Refused(outcome)
    }
}
