//! The right to answer a request id, which nodes share over the store.
//!
//! A claim whose answer is lost may have been made. It is repeated under the same owner, which finds it again. If the
//! store cannot be asked at all, nobody knows whether another node has charged the request: rules that are strict
//! and closed refuse it, the others decide it as without a request id.

use tollgate_store::{Claim, Consistency, Mode, OnFailure, RequestClaim, Store, StoreError};

use crate::answer::Answer;
use crate::decide::{Charges, build_charges};
use crate::decision::Decision;
use crate::idempotency::Place;
use crate::limit_checks::{LimitChecks, Stores};
use crate::request::Request;
use crate::{ActiveRules, Enforcement, Engine, EngineError};

/// How often a node looks whether another one has answered a request id that both were given.
const LOOKS_FOR_ANSWER: u32 = 8;

/// The time between two looks.
const LOOK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(5);

/// How often a claim or a publication is sent before its fate stays unknown.
const MAX_SENDS: u32 = 2;

/// What a node knows of its claim to a request id.
pub(crate) enum Claimed {
    /// Nobody else can have it: this node's own memory of answers is enough.
    NotShared,
    /// This node answers it, and publishes the answer.
    Ours,
    /// Another node has answered it.
    Answered(Answer),
    /// The store did not say.
    Unknown(StoreError),
}

impl Claimed {
    /// What another node answered.
    pub(crate) const fn answer(&self) -> Option<&Answer> {
        match self {
            Self::Answered(answer) => Some(answer),
            _ => None,
        }
    }
}

impl<S: Store> Engine<S> {
    fn request_claim(&self, place: &Place<'_>, request: &Request<'_>) -> RequestClaim {
        RequestClaim { id: place.id(), content: place.content(request), owner: self.instance }
    }

    /// Whether this node is to answer the request's id, and if another one did, what.
    pub(crate) async fn claim(
        &self,
        place: &Place<'_>,
        request: &Request<'_>,
    ) -> Result<Claimed, EngineError> {
        let claim = self.request_claim(place, request);
        let mut failures = 0;
        for _ in 0..LOOKS_FOR_ANSWER {
            match self.store.claim(&claim).await {
                Ok(Claim::NotShared) => return Ok(Claimed::NotShared),
                Ok(Claim::Yours) => return Ok(Claimed::Ours),
                Ok(Claim::OtherContent) => return Err(EngineError::RequestIdReused),
                Ok(Claim::Answered(bytes)) => match Answer::decode(&bytes) {
                    Some(answer) => return Ok(Claimed::Answered(answer)),
                    None => return Err(EngineError::RequestIdUnreadable),
                },
                Ok(Claim::Pending) => tokio::time::sleep(LOOK_INTERVAL).await,
                Err(error) => {
                    failures += 1;
                    if failures >= MAX_SENDS {
                        return Ok(Claimed::Unknown(error));
                    }
                }
            }
        }
        Err(EngineError::RequestIdInUse)
    }

    /// Shares the answer to a request id, or gives the claim up.
    pub(crate) async fn publish(
        &self,
        place: &Place<'_>,
        request: &Request<'_>,
        answer: Option<&[u8]>,
    ) {
        let claim = self.request_claim(place, request);
        for _ in 0..MAX_SENDS {
            // If all fail, the claim expires, and a repeated call to another node is charged again.
            if self.store.publish(&claim, answer).await.is_ok() {
                return;
            }
        }
    }

    /// A request whose claim has an unknown fate, where a limit that applies must not be charged twice: it is
    /// refused if the store refuses it, and fails otherwise. Nothing is charged. `false`: there is no such limit.
    pub(crate) async fn refuse_unclaimed<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        error: StoreError,
        decision: &mut Decision<'r>,
    ) -> Result<bool, EngineError> {
        if self.enforcement() != Enforcement::On || !self.is_strict(rules, request)? {
            return Ok(false);
        }
        self.decide_into(rules, request, Mode::Peek, None, decision).await?;
        if decision.is_allowed() { Err(EngineError::Store(error)) } else { Ok(true) }
    }

    /// Whether a limit that applies is strict, and closed when the store fails.
    fn is_strict<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
    ) -> Result<bool, EngineError> {
        let (mut decision, mut checks) = (Decision::pending(rules.version), LimitChecks::new());
        self.resolve(rules, request, &mut decision, &mut checks)?;
        let (stores, mut charges) = (Stores::new(&self.store, request), Charges::new());
        build_charges(&decision, &checks, None, &stores, &mut charges)?;
        Ok(charges.iter().any(|charge| {
            let home = &charge.counter.home;
            charge.role.can_refuse()
                && home.consistency == Consistency::Strict
                && home.on_failure == OnFailure::Closed
        }))
    }
}
