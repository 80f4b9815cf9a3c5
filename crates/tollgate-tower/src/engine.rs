//! Decisions by an engine in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::task::AbortHandle;
use tollgate_core::Nanos;
use tollgate_engine::{
    Actual, Amounts, Decision, Engine, EngineError, MAX_VALUE_BYTES, Receipts, Refunds, Request,
    Scope, Settled, Verdict, new_reservation_id,
};
use tollgate_policy::prices::{Money, Usage};
use tollgate_policy::{Action, Known, RequestPath, Unit};
use tollgate_store::Store;
use tracing::Instrument as _;

use crate::background::in_background;
use crate::decide::{Decide, EdgeRequest, Line, Pass, Postponed, Ruling, no_ruling};
use crate::headers::{HeaderFamilies, HeaderLines};
use crate::held::Held;
use crate::identity::Identity;
use crate::pending_charge::{Account, PendingCharge, Unsent};
use crate::rejection::Rejection;

/// A slot is renewed so often in its lifetime.
const RENEWALS_PER_LIFETIME: Nanos = 3;

/// But not more often than this.
const SHORTEST_PERIOD: Duration = Duration::from_millis(100);

/// After how long to try again where nobody knows.
const UNKNOWN_RETRY: Duration = Duration::from_secs(1);

/// Takes a place among open reservations for a caller, until the place is dropped.
pub type TakePlace = Arc<dyn Fn(&Identity) -> Result<Held, EngineError> + Send + Sync>;

/// Decides by an engine in this process.
pub struct InProcess<S> {
    engine: Arc<Engine<S>>,
    families: HeaderFamilies,
    take_place: Option<TakePlace>,
}

impl<S> Clone for InProcess<S> {
    fn clone(&self) -> Self {
        let take_place = self.take_place.clone();
        Self { engine: Arc::clone(&self.engine), families: self.families, take_place }
    }
}

impl<S: Store + 'static> InProcess<S> {
    /// Decides by this engine.
    pub const fn new(engine: Arc<Engine<S>>, families: HeaderFamilies) -> Self {
        Self { engine, families, take_place: None }
    }

    /// The same, where a request that is charged on an estimate takes a place among open reservations until it is
    /// settled. Without a place it is refused, and nothing is charged.
    #[must_use]
    pub fn with_places(self, take_place: TakePlace) -> Self {
        Self { take_place: Some(take_place), ..self }
    }

    /// The place that this request needs. More of a request that has one needs none.
    fn take_place(&self, asked: &EdgeRequest) -> Result<Option<Held>, EngineError> {
        match &self.take_place {
            Some(take_place) if asked.tokens.is_some() && !asked.is_more => {
                take_place(&asked.identity).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Whether all counters are in this process.
    fn is_alone(&self) -> bool {
        self.engine.store().is_in_process()
    }

    /// Decides, charges if it passes, and shows the decision with the request that it is about. `Err`: it could not be
    /// decided.
    pub async fn decide_with<T>(
        &self,
        asked: &EdgeRequest,
        show: impl FnOnce(&Request<'_>, &Decision<'_>) -> T,
    ) -> Result<T, Box<Rejection>> {
        let (rules, path) = (self.engine.rules(), asked.path());
        let request = request(asked, path.as_ref()).map_err(too_long)?;
        let decided =
            self.engine.decide_once(&rules, &request, |decision| show(&request, decision));
        decided.await.map_err(|error| undecided(&error))
    }

    async fn rule(&self, asked: &EdgeRequest) -> Ruling {
        let rules = self.engine.rules();
        let path = asked.path();
        let (request, place) = match self.prepare(asked, path.as_ref()) {
            Ok(prepared) => prepared,
            Err(rejection) => return Ruling::Refuse(rejection),
        };
        let show = |decision: &Decision<'_>| self.ruling(asked, &request, decision, place);
        self.engine
            .decide_once(&rules, &request, show)
            .await
            .unwrap_or_else(|error| Ruling::Refuse(undecided(&error)))
    }

    /// The request as the engine takes it, and the place that it needs; or why it is refused before it is decided.
    fn prepare<'a>(
        &self,
        asked: &'a EdgeRequest,
        path: Option<&'a RequestPath<'_>>,
    ) -> Result<(Request<'a>, Option<Held>), Box<Rejection>> {
        let request = request(asked, path).map_err(too_long)?;
        let place = self.take_place(asked).map_err(|error| Box::new(no_place(&error)))?;
        Ok((request, place))
    }

    fn ruling(
        &self,
        asked: &EdgeRequest,
        request: &Request<'_>,
        decision: &Decision<'_>,
        place: Option<Held>,
    ) -> Ruling {
        match decision.verdict {
            Verdict::Allowed | Verdict::Throttled => {
                let headers = HeaderLines::describing(decision, asked.dialect, self.families);
                let mut lines = Vec::new();
                if asked.dialect.is_model_api() {
                    let waited_for = decision.scopes().filter(|scope| is_waited_for(scope));
                    lines = waited_for.map(|scope| line_of(decision, scope)).collect();
                }
                let (mut held, mut charge) = (None, Unsent::default());
                if decision.slot.is_some() || decision.wait > 0 || asked.tokens.is_some() {
                    let receipts = self.engine.receipts(request, decision);
                    let rest = receipts.clone().without_slots();
                    if asked.tokens.is_some() {
                        let pending = self.pending(rest, request, place);
                        charge = pending.map(Unsent::estimated).unwrap_or_default();
                    } else if decision.wait > 0 {
                        let refund = self.hold(rest);
                        charge = refund.map(Unsent::refundable).unwrap_or_default();
                    }
                    held = self.hold(receipts.slots());
                }
                let wait = Duration::from_nanos(decision.wait);
                Ruling::Pass(Pass { wait, headers, held, charge, lines })
            }
            Verdict::Denied => {
                if asked.tokens.is_some() {
                    self.engine.note_refusal(request);
                }
                Ruling::Refuse(self.refusal(asked, decision))
            }
            Verdict::Queued => {
                let deciding = decision.deciding();
                Ruling::Queue(Postponed {
                    refusal: self.refusal(asked, decision),
                    lane: deciding.map(|scope| lane_of(decision, scope)).unwrap_or_default(),
                    rule_id: deciding.map(|scope| scope.rule.id.clone()).unwrap_or_default(),
                    retry_after: Duration::from_nanos(decision.retry_after().unwrap_or(0)),
                })
            }
        }
    }

    fn refusal(&self, asked: &EdgeRequest, decision: &Decision<'_>) -> Box<Rejection> {
        let line = if asked.dialect.is_model_api() { line(decision) } else { None };
        Box::new(Rejection::of(decision, line, asked.dialect, self.families))
    }

    /// What was charged on an estimate. Its id makes sure that it is settled once, whatever is retried.
    fn pending(
        &self,
        receipts: Receipts,
        request: &Request<'_>,
        place: Option<Held>,
    ) -> Option<PendingCharge> {
        if receipts.is_empty() && !receipts.has_spend() {
            return None;
        }
        if !receipts.is_empty() {
            self.engine.count_reserved(&receipts);
        }
        let (engine, money) = (Arc::clone(&self.engine), receipts.money());
        let id = new_reservation_id();
        self.engine.note_admitted(id, &receipts);
        let account = Charged { engine, receipts, id, _place: place };
        let tokens = request.amounts.tokens.unwrap_or(0);
        Some(PendingCharge::new(account, tokens).with_money(money))
    }

    /// What is given back when it is dropped. Slots are renewed until then; without a runtime to do it
    /// on they expire.
    pub fn hold(&self, receipts: Receipts) -> Option<Held> {
        if receipts.is_empty() {
            return None;
        }
        let engine = Arc::clone(&self.engine);
        let renewal = receipts.slot_ttl().and_then(|ttl| self.renew(receipts.clone(), ttl));
        Some(Held::new(move || {
            if let Some(renewal) = renewal {
                renewal.abort();
            }
            // At once where the store can, so that the next decision knows of it.
            if let Some(given_back) = engine.give_back_now(&receipts) {
                return report_kept_slot(given_back);
            }
            in_background(async move { report_kept_slot(engine.give_back(&receipts).await) });
        }))
    }
}

impl<S: Store + 'static> InProcess<S> {
    /// Renews slots for as long as it is let.
    fn renew(&self, receipts: Receipts, ttl: Nanos) -> Option<AbortHandle> {
        let engine = Arc::clone(&self.engine);
        let period = Duration::from_nanos(ttl / RENEWALS_PER_LIFETIME).max(SHORTEST_PERIOD);
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let task = runtime.spawn(async move {
            loop {
                tokio::time::sleep(period).await;
                // A store that is away is asked again in time; a slot that is gone stays gone.
                if matches!(engine.renew(&receipts).await, Ok(false)) {
                    return;
                }
            }
        });
        Some(task.abort_handle())
    }
}

/// A charge that an engine made.
struct Charged<S> {
    engine: Arc<Engine<S>>,
    receipts: Receipts,
    id: u128,
    /// Given back with the charge's end, however it ends.
    _place: Option<Held>,
}

impl<S: Store + 'static> Account for Charged<S> {
    fn settle(self: Box<Self>, used: Usage, top_ups: Vec<PendingCharge>) {
        let actual = Actual::of_usage(used);
        if let Some(settled) = self.engine.settle_now(self.id, &self.receipts, actual) {
            return self.end_settlement(settled, top_ups);
        }
        in_background(async move {
            let settled = self.engine.settle(self.id, &self.receipts, actual).await;
            self.end_settlement(settled, top_ups);
        });
    }

    fn release(self: Box<Self>) {
        if let Some(released) = self.engine.release_now(self.id, &self.receipts) {
            return report_unreleased(released);
        }
        in_background(async move {
            report_unreleased(self.engine.release(self.id, &self.receipts).await);
        });
    }
}

fn report_kept_slot(given_back: Result<(), EngineError>) {
    if let Err(error) = given_back {
        tracing::warn!(%error, "a slot could not be given back; it expires by itself");
    }
}

impl<S: Store + 'static> Charged<S> {
    /// Gives back what was charged on top, once all of it is settled.
    fn end_settlement(&self, settled: Result<Settled, EngineError>, top_ups: Vec<PendingCharge>) {
        match settled {
            Ok(settled) => {
                self.note_debt(&settled, &top_ups);
                top_ups.into_iter().for_each(PendingCharge::release);
            }
            Err(error) => {
                tracing::warn!(%error, "a request could not be settled: its estimate stays charged");
            }
        }
    }

    /// Notes what a hard budget owes: what was used beyond all that was reserved.
    fn note_debt(&self, settled: &Settled, top_ups: &[PendingCharge]) {
        let Some(extra) = settled.extra.money.filter(|_| self.receipts.is_hard()) else { return };
        let of_top_ups = top_ups.iter().filter_map(PendingCharge::money).map(|money| money.nanos);
        let nanos = of_top_ups.fold(extra.nanos, u64::saturating_sub);
        if nanos > 0 {
            self.engine.note_budget_debt(Money { nanos, ..extra });
        }
    }
}

fn report_unreleased(released: Result<Settled, EngineError>) {
    if let Err(error) = released {
        tracing::warn!(%error, "a charge could not be given back: it stays");
    }
}

impl<S: Store + 'static> Decide for InProcess<S> {
    fn decide_now(&self, asked: &EdgeRequest) -> Option<Ruling> {
        if !self.engine.answers_now() {
            return None;
        }
        let rules = self.engine.rules();
        let path = asked.path();
        let (request, place) = match self.prepare(asked, path.as_ref()) {
            Ok(prepared) => prepared,
            Err(rejection) => return Some(Ruling::Refuse(rejection)),
        };
        let show = |decision: &Decision<'_>| self.ruling(asked, &request, decision, place);
        let decided = self.engine.decide_once_now(&rules, &request, show)?;
        Some(decided.unwrap_or_else(|error| Ruling::Refuse(undecided(&error))))
    }

    fn meets_hard_budget(&self, asked: &EdgeRequest) -> bool {
        let (rules, path) = (self.engine.rules(), asked.path());
        let request = request(asked, path.as_ref());
        request.is_ok_and(|request| self.engine.meets_hard_budget(&rules, &request))
    }

    async fn decide(&self, asked: &EdgeRequest) -> Ruling {
        if self.is_alone() {
            return self.rule(asked).await;
        }
        // A client that hangs up must not stop a decision that other nodes and stores have begun to
        // count: it goes on by itself, and ends by its deadline.
        let (own, asked) = (self.clone(), asked.clone());
        let ruled = async move { own.rule(&asked).await };
        let decided = tokio::spawn(ruled.in_current_span());
        decided.await.unwrap_or_else(|_| no_ruling())
    }
}

/// The request as the engine takes it, or which value is too long for it.
fn request<'a>(
    asked: &'a EdgeRequest,
    path: Option<&'a RequestPath<'_>>,
) -> Result<Request<'a>, &'a str> {
    // What is charged on an estimate is settled; what waits for its turn may hang up.
    let refunds = if asked.tokens.is_some() { Refunds::Always } else { Refunds::WhileWaiting };
    let usage = asked.priced_usage();
    let own = Amounts { cost: asked.cost, tokens: asked.tokens, ..Amounts::NONE };
    let mut request = Request {
        amounts: own.or(usage.as_ref().map_or(Amounts::NONE, Amounts::of_usage)),
        usage,
        is_more: asked.is_more,
        uses_nothing: asked.uses_no_tokens,
        refunds,
        ..Request::default()
    };
    let identity = &asked.identity;
    let known = [
        (Known::UserId, &identity.user_id),
        (Known::TenantId, &identity.tenant_id),
        (Known::ApiKey, &identity.api_key),
        (Known::Ip, &identity.ip),
        (Known::Tier, &identity.tier),
        (Known::ClientType, &identity.client_type),
        (Known::ModelId, &asked.model_id),
        (Known::Method, &asked.method),
        (Known::Domain, &asked.domain),
    ];
    for (name, value) in known {
        let Some(value) = value else { continue };
        if value.len() > MAX_VALUE_BYTES {
            return Err(name.name());
        }
        request.attributes.set(name, value);
    }
    if let Some(path) = path {
        request.attributes.set_path(path);
    }
    for (name, value) in &identity.extra {
        if value.len() > MAX_VALUE_BYTES {
            return Err(name);
        }
        request.attributes.push_extra(name, value);
    }
    Ok(request)
}

/// Whether a request may wait for this limit although nobody knows how long.
fn is_waited_for(scope: &Scope<'_>) -> bool {
    scope.rule.unit == Unit::Concurrency && scope.rule.action == Action::Throttle
}

/// What a refused request may wait for: the slots of one rule, if nothing else was missing.
fn line(decision: &Decision<'_>) -> Option<Line> {
    let deciding = decision.deciding()?;
    let mut refusing = decision.scopes().filter(|scope| scope.refuses());
    (deciding.quota > 0 && refusing.all(is_waited_for)).then(|| line_of(decision, deciding))
}

fn line_of<'r>(decision: &Decision<'r>, scope: &Scope<'r>) -> Line {
    let max_wait = Duration::from_nanos(scope.rule.max_delay.unwrap_or(0));
    Line { lane: lane_of(decision, scope), max_wait }
}

fn lane_of<'r>(decision: &Decision<'r>, scope: &Scope<'r>) -> String {
    lane(&scope.rule.id, decision.key_values(scope))
}

/// The counter that a request waits for, by name. The key is hashed: an API key may be part of it.
fn lane(rule_id: &str, key: &[&str]) -> String {
    let mut hash = Sha256::new();
    for value in key {
        hash.update((value.len() as u64).to_be_bytes());
        hash.update(value.as_bytes());
    }
    let digest = hash.finalize();
    let short = digest.first_chunk().copied().map_or(0, u128::from_be_bytes);
    format!("{rule_id}:{short:032x}")
}

/// The request would not be limited by a rule that it should meet. That is a mistake in how the service
/// is set up, so clients are not asked to try again, and the log says what is missing: the 1st, 2nd,
/// 4th, 8th … time.
#[cold]
fn unlimited(error: &EngineError) -> Rejection {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    if count.is_power_of_two() {
        tracing::error!(%error, count, "a request is refused that a rule could not limit");
    }
    let status = http::StatusCode::INTERNAL_SERVER_ERROR;
    let message = "this service does not know what to limit this request by";
    Rejection::new(status, "MISSING_KEY", message)
}

#[cold]
fn undecided(error: &EngineError) -> Box<Rejection> {
    Box::new(match error {
        EngineError::MissingKey { .. } => unlimited(error),
        EngineError::Unpriced { .. }
        | EngineError::UsageWithoutModel { .. }
        | EngineError::OtherCurrency { .. } => unpriced(error),
        _ => unavailable(error),
    })
}

/// A rule counts money, and this request has no price in it.
fn unpriced(error: &EngineError) -> Rejection {
    let status = http::StatusCode::BAD_REQUEST;
    Rejection::new(status, "UNPRICED_MODEL", error.to_string()).param("model")
}

fn too_long(field: &str) -> Box<Rejection> {
    let message = format!("{field} must not be longer than {MAX_VALUE_BYTES} bytes");
    Box::new(Rejection::new(http::StatusCode::BAD_REQUEST, "INVALID_REQUEST", message))
}

fn no_place(error: &EngineError) -> Rejection {
    let status = http::StatusCode::SERVICE_UNAVAILABLE;
    Rejection::new(status, "RESERVATIONS_FULL", error.to_string()).retry_after(UNKNOWN_RETRY)
}

fn unavailable(error: &EngineError) -> Rejection {
    let status = http::StatusCode::SERVICE_UNAVAILABLE;
    Rejection::new(status, "STORE_UNAVAILABLE", error.to_string()).retry_after(UNKNOWN_RETRY)
}
