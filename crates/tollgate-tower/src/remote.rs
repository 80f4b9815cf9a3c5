//! Decisions by a remote Tollgate.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::StatusCode;
use http::header::{HeaderValue, RETRY_AFTER};
use sha2::{Digest, Sha256};
use tollgate_client::{Check, Client, ClientError, Decision, OnFailure, Scope};
use tollgate_engine::{Clock, Reason, SystemClock};
use tollgate_policy::prices::TokenKind;
use tracing::Instrument as _;

use crate::decide::{Decide, EdgeRequest, Pass, Postponed, Ruling, no_ruling};
use crate::headers::{
    HeaderFamilies, HeaderLines, RATE_LIMIT, RATE_LIMIT_POLICY, X_LIMIT, X_POLICY, X_REMAINING,
    X_RESET, X_WARNING, ascii, quoted, whole_seconds,
};
use crate::held::Held;
use crate::identity::Identity;
use crate::pending_charge::{PendingCharge, Unsent};
use crate::rejection::{RefusedBy, Rejection, code_of, status_of};
use crate::remote_hold::{Charged, End, RESERVED_FOR, RemoteHold};

/// Decides by asking a remote Tollgate.
///
/// ```no_run
/// use tollgate_client::{Client, OnFailure};
/// use tollgate_tower::{HeaderFamilies, Remote, TollgateLayer};
///
/// # fn example() -> Result<(), tollgate_client::ClientError> {
/// let tollgate = Client::grpc("http://127.0.0.1:8081")?;
/// let layer =
///     TollgateLayer::new(Remote::new(tollgate, OnFailure::Open, HeaderFamilies::default()));
/// // let app = axum::Router::new().route("/", get(hello)).layer(layer);
/// # Ok(())
/// # }
/// ```
///
/// A slot that a concurrency rule gives is renewed while the request is under way, every five seconds, and given back
/// when it is done. Tokens ([`EdgeRequest::tokens`]) are reserved there, and settled when the truth is known
/// ([`PendingCharge`]); without another word they stay as estimated.
#[derive(Clone)]
pub struct Remote {
    client: Client,
    on_failure: OnFailure,
    families: HeaderFamilies,
    clock: Arc<dyn Clock>,
    /// Whether the last call failed, so that an outage is logged once and not once per request.
    is_failing: Arc<AtomicBool>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote")
            .field("client", &self.client)
            .field("on_failure", &self.on_failure)
            .finish_non_exhaustive()
    }
}

impl Remote {
    /// Asks this Tollgate; what becomes of requests while it does not answer is `on_failure`.
    pub fn new(client: Client, on_failure: OnFailure, families: HeaderFamilies) -> Self {
        let clock = Arc::new(SystemClock::new());
        let is_failing = Arc::new(AtomicBool::new(false));
        Self { client, on_failure, families, clock, is_failing }
    }

    fn ruling(&self, decision: &Decision, asked: &EdgeRequest) -> Ruling {
        let headers = self.describe(decision);
        if decision.allowed {
            let (held, charge) = self.hold(decision, asked.tokens);
            return Ruling::Pass(Pass {
                wait: decision.wait,
                headers,
                held,
                charge,
                ..Pass::default()
            });
        }
        let refusal = Box::new(rejection(decision, headers));
        if decision.action.as_deref() != Some("queue") {
            return Ruling::Refuse(refusal);
        }
        let rule_id = decision.rule_id.clone().unwrap_or_default();
        Ruling::Queue(Postponed {
            refusal,
            lane: lane(&rule_id, &asked.identity),
            rule_id,
            retry_after: decision.retry_after.unwrap_or_default(),
        })
    }

    /// What a request holds there: slots until it is done, and tokens until it is known what it used. Both are one
    /// reservation, so it ends when both are done with.
    fn hold(&self, decision: &Decision, tokens: Option<u64>) -> (Option<Held>, Unsent) {
        let none = (None, Unsent::default());
        let Some(id) = decision.reservation_id.clone() else { return none };
        let unsaid = if tokens.is_some() { End::Settled(None) } else { End::Released };
        let Some(held) = RemoteHold::new(&self.client, id, unsaid) else { return none };
        let pending = tokens.map(|tokens| PendingCharge::new(Charged(Arc::clone(&held)), tokens));
        let charge = pending.map(Unsent::estimated).unwrap_or_default();
        (Some(Held::new(move || drop(held))), charge)
    }

    async fn ask(&self, asked: &EdgeRequest) -> Ruling {
        let check = check(asked);
        let ttl = Some(RESERVED_FOR);
        let decision = match asked.tokens {
            None => self.client.allow(&check).await,
            Some(_) if asked.is_more => {
                self.client.reserve_more(&check, ttl).await.map(|reserved| reserved.decision)
            }
            Some(_) => self.client.reserve(&check, ttl).await.map(|reserved| reserved.decision),
        };
        match decision {
            Ok(decision) => {
                if !decision.is_cached && self.is_failing.swap(false, Ordering::Relaxed) {
                    tracing::info!("Tollgate answers again");
                }
                self.ruling(&decision, asked)
            }
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&self, error: &ClientError) -> Ruling {
        // Nonsense opens no doors, whatever the policy.
        if let ClientError::Rejected { code, message, .. } = error {
            let (code, message) = (code.clone(), message.clone());
            return Ruling::refuse(Rejection::new(StatusCode::BAD_REQUEST, code, message));
        }
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            let policy = self.on_failure;
            tracing::warn!(%error, ?policy, "Tollgate does not answer; requests go by the policy");
        }
        match self.on_failure {
            OnFailure::Open => Ruling::Pass(Pass::default()),
            OnFailure::Closed => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                let message = "it cannot be decided whether this request may pass";
                let rejection = Rejection::new(status, "LIMITER_UNAVAILABLE", message);
                Ruling::refuse(rejection.retry_after(Duration::from_secs(1)))
            }
        }
    }

    /// As [`HeaderLines::describing`], of a decision that came over the wire.
    fn describe(&self, decision: &Decision) -> HeaderLines {
        let mut headers = HeaderLines::default();
        if let Some(scope) = decision.deciding() {
            if self.families.x_ratelimit {
                x_ratelimit(&mut headers, scope);
            }
            if self.families.ratelimit {
                let now = UNIX_EPOCH + Duration::from_nanos(self.clock.now());
                ratelimit(&mut headers, scope, now);
            }
        }
        if self.families.retry_after
            && let Some(after) = decision.retry_after
        {
            headers.push(RETRY_AFTER, HeaderValue::from(whole_seconds(after).max(1)));
        }
        if self.families.x_ratelimit {
            for warning in &decision.warnings {
                if let Ok(value) = HeaderValue::try_from(ascii(warning)) {
                    headers.push(X_WARNING, value);
                }
            }
        }
        headers
    }
}

impl Decide for Remote {
    async fn decide(&self, asked: &EdgeRequest) -> Ruling {
        if asked.tokens.is_none() {
            return self.ask(asked).await;
        }
        // A client that hangs up meanwhile must not leave a reservation behind.
        let (own, asked) = (self.clone(), asked.clone());
        let asking = async move { own.ask(&asked).await };
        let decided = tokio::spawn(asking.in_current_span());
        decided.await.unwrap_or_else(|_| no_ruling())
    }
}

/// The question, as the decision call takes it.
fn check(asked: &EdgeRequest) -> Check {
    type Set = fn(Check, String) -> Check;
    let identity = &asked.identity;
    // The call takes addresses: the first address of a network stands for it.
    let ip = identity.ip.as_deref().map(|ip| ip.split('/').next().unwrap_or(ip).to_owned());
    let texts: [(&Option<String>, Set); 9] = [
        (&identity.api_key, Check::api_key),
        (&identity.user_id, Check::user_id),
        (&identity.tenant_id, Check::tenant_id),
        (&identity.tier, Check::tier),
        (&identity.client_type, Check::client_type),
        (&ip, Check::ip),
        (&asked.method, Check::method),
        (&asked.domain, Check::domain),
        (&asked.model_id, Check::model_id),
    ];
    let mut check = Check::new();
    for (value, set) in texts {
        if let Some(value) = value {
            check = set(check, value.clone());
        }
    }
    // The other side reads the path itself: what was sent has both readings.
    if let Some(path) = asked.sent().or(asked.endpoint.as_deref()) {
        check = check.endpoint(path);
    }
    if let Some(cost) = asked.cost {
        check = check.cost(cost);
    }
    if let Some(tokens) = asked.tokens {
        check = check.tokens(tokens);
    }
    if let Some(usage) = asked.priced_usage() {
        let (input, output) = (usage.tokens(TokenKind::Input), usage.tokens(TokenKind::Output));
        check = check.usage(tollgate_client::Usage { input, output, ..Default::default() });
    }
    identity.extra.iter().fold(check, |check, (name, value)| check.attribute(name, value))
}

/// As [`Rejection::of`], of a decision that came over the wire.
fn rejection(decision: &Decision, headers: HeaderLines) -> Rejection {
    let known = Reason::ALL.into_iter().find(|reason| reason.code() == decision.reason);
    // A rule may call its own reason anything.
    let reason = known.unwrap_or(Reason::HitLimit);
    Rejection {
        status: status_of(reason),
        code: code_of(reason).into(),
        message: decision.to_string().into(),
        retry_after: decision.retry_after,
        headers,
        param: None,
        refused_by: (!reason.is_unauthorized()).then(|| RefusedBy {
            rule_id: decision.rule_id.clone(),
            scope: decision.scope_hit.clone(),
            unit: None,
            violated: decision.rule_id.clone().into_iter().collect(),
            line: None,
        }),
    }
}

fn x_ratelimit(headers: &mut HeaderLines, scope: &Scope) {
    headers.push(X_LIMIT, HeaderValue::from(scope.limit));
    headers.push(X_REMAINING, HeaderValue::from(scope.remaining));
    let reset = scope.reset_at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    // As headers.rs: a limit of 0 is never reset.
    if scope.limit > 0 {
        headers.push(X_RESET, HeaderValue::from(whole_seconds(reset.unwrap_or_default())));
    }
    if let Ok(policy) = HeaderValue::try_from(format!("{};w={}", scope.limit, scope.window_seconds))
    {
        headers.push(X_POLICY, policy);
    }
}

fn ratelimit(headers: &mut HeaderLines, scope: &Scope, now: SystemTime) {
    let until_reset = scope.reset_at.and_then(|at| at.duration_since(now).ok());
    let until_reset = whole_seconds(until_reset.unwrap_or_default());
    let mut name = String::with_capacity(scope.rule_id.len() + 2);
    quoted(&mut name, &scope.rule_id);
    let (mut state, mut policy) = (name.clone(), name);
    let _ = write!(state, ";r={}", scope.remaining);
    if scope.limit > 0 {
        let _ = write!(state, ";t={until_reset}");
    }
    let _ = write!(policy, ";q={};w={}", scope.limit, scope.window_seconds);
    if let (Ok(state), Ok(policy)) = (HeaderValue::try_from(state), HeaderValue::try_from(policy)) {
        headers.push(RATE_LIMIT, state);
        headers.push(RATE_LIMIT_POLICY, policy);
    }
}

/// The protocol does not say which counter refused, so requests keep their order per caller. Holds no secret.
fn lane(rule_id: &str, identity: &Identity) -> String {
    let mut hash = Sha256::new();
    let parts = [&identity.api_key, &identity.user_id, &identity.tenant_id, &identity.ip];
    for part in parts {
        let text = part.as_deref().unwrap_or_default();
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text.as_bytes());
    }
    let digest = hash.finalize();
    let short = digest.first_chunk().copied().map_or(0, u128::from_be_bytes);
    format!("{rule_id}:{short:032x}")
}
