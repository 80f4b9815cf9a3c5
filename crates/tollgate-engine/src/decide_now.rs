//! Decisions without a future, on stores that answer at once.

use tollgate_store::{Mode, Outcomes, Store, SyncStore, passes};
use tracing::trace_span;

use crate::decide::{Charges, build_charges, check_answer};
use crate::decision::Decision;
use crate::limit_checks::{LimitChecks, Stores, check_slots, new_slot};
use crate::observer::{TRACE_TARGET, is_traced};
use crate::request::Request;
use crate::{ActiveRules, Engine, EngineError};

impl<S: Store> Engine<S> {
    /// Whether decisions are made at once: the store answers without being awaited.
    pub fn answers_now(&self) -> bool {
        self.store.as_sync().is_some()
    }

    /// [`Engine::decide`] without a future. `None`: the store has to be awaited, and nothing was decided.
    #[inline]
    pub fn decide_now<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        mode: Mode,
    ) -> Option<Result<Decision<'r>, EngineError>> {
        let store = self.store.as_sync()?;
        // A decision is large: it is made where it stays.
        let mut decision = Decision::pending(rules.version);
        if let Err(error) = self.decide_into_now(store, rules, request, mode, &mut decision) {
            return Some(Err(error));
        }
        if mode != Mode::Peek {
            self.notify_observer(request, &decision);
        }
        Some(Ok(decision))
    }

    /// [`Engine::decide_once`] without a future. `None`: the store has to be awaited, or another call under the same
    /// `request_id`, and nothing was decided.
    #[inline]
    pub fn decide_once_now<'r, T>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        show: impl FnOnce(&Decision<'_>) -> T,
    ) -> Option<Result<T, EngineError>> {
        if request.request_id.is_some() {
            return None;
        }
        let store = self.store.as_sync()?;
        Some(self.show_now(store, rules, request, show))
    }

    /// Decides, charges and shows a request without an id.
    #[inline]
    pub(crate) fn show_now<'r, T>(
        &self,
        store: &dyn SyncStore,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        show: impl FnOnce(&Decision<'_>) -> T,
    ) -> Result<T, EngineError> {
        let mut decision = Decision::pending(rules.version);
        self.decide_into_now(store, rules, request, Mode::Charge, &mut decision)?;
        self.notify_observer(request, &decision);
        Ok(show(&decision))
    }

    pub(crate) fn decide_into_now<'r>(
        &self,
        store: &dyn SyncStore,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        mode: Mode,
        decision: &mut Decision<'r>,
    ) -> Result<(), EngineError> {
        if request.reserve.is_some() && matches!(mode, Mode::Owe | Mode::Hold) {
            return Err(EngineError::NotReservable);
        }
        let mut checks = LimitChecks::new();
        self.resolve(rules, request, decision, &mut checks)?;
        check_slots(request, &checks, mode)?;
        if mode == Mode::Charge {
            self.check_room(request, &checks, decision.now)?;
        }
        if !checks.is_empty() {
            self.check_now(store, request, &checks, mode, decision)?;
        }
        self.apply_shadow_mode(decision);
        let holds = request.reserve.is_some() || decision.slot.is_some();
        if holds && mode == Mode::Charge {
            return self.hold_now(store, request, decision);
        }
        Ok(())
    }

    /// Checks all limits in one atomic step and settles the decision.
    #[inline]
    fn check_now<'r>(
        &self,
        store: &dyn SyncStore,
        request: &Request<'_>,
        checks: &LimitChecks<'r>,
        mode: Mode,
        decision: &mut Decision<'r>,
    ) -> Result<(), EngineError> {
        let slot = new_slot(checks, request.reserve.is_some());
        let stores = Stores::new(&self.store, request);
        let mut charges = Charges::new();
        build_charges(decision, checks, slot, &stores, &mut charges)?;
        let asked = [tollgate_store::Request { charges: &charges, mode }];
        let mut outcomes = Outcomes::new();
        let decided = {
            let limits = charges.len();
            let _store =
                is_traced().then(|| trace_span!(target: TRACE_TARGET, "store", limits).entered());
            store.decide_sync(&asked, decision.now, &mut outcomes)?
        };
        check_answer(&asked, &decided, &mut outcomes)?;
        let passes = passes(&charges, &outcomes);
        drop(charges);
        let slot = slot.filter(|_| passes && mode == Mode::Charge);
        self.conclude(decision, checks, &stores, (&decided, &outcomes), passes, slot);
        Ok(())
    }
}
