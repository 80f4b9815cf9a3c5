//! The admin API: who asks, whether it may, and the call that answers.
//!
//! Calls run on the control plane's own thread, so that decisions never wait for them.
//!
//! | file | |
//! |---|---|
//! | `routes.rs` | every call, and who may make it |
//! | `damping.rs` | guessing tokens is made slow |
//! | `read.rs` | queries, conditions and bodies |
//! | `entries.rs` | rules, lists, tiers, grants, settings |
//! | `candidates.rs` | candidates of rules and their rollout |
//! | `records.rs` | the audit log |
//! | `decisions.rs`, `sentence.rs` | searching decisions; a decision as a sentence |
//! | `clients.rs` | what a client has used; which rules a request meets |
//! | `keys.rs` | virtual keys |
//! | `tokens.rs` | tokens |
//! | `tenant_changes.rs` | how often a tenant's admins change anything |
//! | `events.rs` | changes, as they happen |
//! | `session.rs`, `sign_in_link.rs` | signing in from a browser |
//! | `oidc/` | the same through a provider of identities |
//! | `playground.rs` | requests made up to see what happens |
//! | `slots.rs` | slots that are held |
//! | `installation.rs` | top keys, history and nodes of the whole installation |
//! | `seen.rs` | how this node is |
//! | `view.rs`, `respond.rs` | answers and errors |
//! | `openapi.rs`, `openapi_audit.rs`, `openapi_keys.rs`, `openapi_seen.rs`, `openapi_session.rs`, `schemas.rs`, `schemas_seen.rs` | all of it described |

mod candidates;
mod client_page;
mod clients;
mod csv;
mod damping;
mod decisions;
mod entries;
mod events;
mod feed;
mod file_entries;
mod installation;
mod keys;
mod oidc;
pub(crate) mod openapi;
mod openapi_audit;
mod openapi_keys;
mod openapi_seen;
mod openapi_session;
mod playground;
mod queue;
mod read;
mod records;
mod respond;
mod routes;
mod schemas;
mod schemas_seen;
mod seen;
mod sentence;
mod session;
mod sign_in_link;
mod slots;
mod spend;
mod tenant_changes;
mod tenant_places;
mod tokens;
mod view;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, Response};
use tokio::sync::{Semaphore, watch};
use tollgate_control::{Actor, Control, Identity, Kind, Millis, Role};
use tollgate_engine::Engine;

use crate::config::Config;
use crate::control::installation::Installation;
use crate::http::read as http_read;
use crate::stores::Stores;
use damping::Damping;
pub(crate) use oidc::CALLBACK as OIDC_CALLBACK;
pub(crate) use respond::ProblemBody;
use respond::{AdminError, Answer, Obstacle};
use routes::{Call, Found, Route};
pub(crate) use seen::Seen;
use tenant_changes::TenantChanges;
use tenant_places::{TenantPlaces, TenantSearches};

/// Admin calls under way at the same time.
const MAX_CALLS: usize = 128;
/// Of these, the most of all tenants' admins together: they keep no admin of the installation out.
const MAX_TENANT_CALLS: usize = 64;

/// The largest body of a tenant admin's call.
const TENANT_BODY: usize = 256 << 10;

/// The longest `X-Request-Id` that is kept.
const MAX_REQUEST_ID: usize = 128;

/// An answer on its way. Boxed one by one, so that none carries the others.
type Boxed<'a> = Pin<Box<dyn Future<Output = Result<Answer, AdminError>> + Send + 'a>>;

/// The admin API of this process.
pub(crate) struct Admin {
    control: Arc<Control>,
    engine: Arc<Engine<Stores>>,
    config: Arc<Config>,
    /// Where calls run.
    runtime: tokio::runtime::Handle,
    damping: Arc<Damping>,
    tenant_changes: TenantChanges,
    calls: Arc<Semaphore>,
    tenant_calls: Arc<TenantPlaces>,
    tenant_searches: TenantSearches,
    listeners: Arc<events::Listeners>,
    feed_listeners: Arc<events::Listeners>,
    ending: watch::Sender<bool>,
    sign_in_codes: sign_in_link::SignInCodes,
    oidc: Option<oidc::Oidc>,
    queue: std::sync::OnceLock<crate::edge::queue::Tickets>,
    seen: std::sync::OnceLock<Seen>,
    installation: Arc<Installation>,
}

/// Through which door a call came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Door {
    pub(crate) peer: Option<IpAddr>,
    pub(crate) is_tls: bool,
}

/// A call on its way.
pub(crate) struct Asked {
    pub(crate) route: &'static Route,
    pub(crate) places: Vec<String>,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) identity: Identity,
    pub(crate) actor: Actor,
    pub(crate) body: Bytes,
    pub(crate) now: Millis,
}

impl Asked {
    /// What stands in the first place of the path.
    pub(crate) fn id(&self) -> &str {
        self.places.first().map_or("", String::as_str)
    }

    /// What stands in the second.
    pub(crate) fn second(&self) -> &str {
        self.places.get(1).map_or("", String::as_str)
    }

    /// The tenant to which a tenant admin is confined.
    pub(crate) fn tenant(&self) -> Option<&str> {
        match self.identity.role {
            Role::TenantAdmin => Some(self.identity.tenant.as_deref().unwrap_or_default()),
            _ => None,
        }
    }

    /// The tenant to filter by: a tenant's admin sees its own and may not name another.
    pub(crate) fn filtered_tenant(
        &self,
        given: Option<String>,
    ) -> Result<Option<String>, AdminError> {
        match self.tenant() {
            None => Ok(given),
            Some(own) if given.as_deref().is_none_or(|given| given == own) => {
                Ok(Some(own.to_owned()))
            }
            Some(_) => Err(AdminError::invalid("tenant_id", "this token sees its own tenant only")),
        }
    }
}

impl Admin {
    pub(crate) fn new(
        control: Arc<Control>,
        engine: Arc<Engine<Stores>>,
        config: Arc<Config>,
        runtime: tokio::runtime::Handle,
        installation: Arc<Installation>,
    ) -> Self {
        let damping = Arc::new(Damping::new(config.control.wrong_tokens));
        let oidc = oidc::Oidc::new(&config);
        Self {
            control,
            engine,
            config,
            runtime,
            damping,
            tenant_changes: TenantChanges::default(),
            calls: Arc::new(Semaphore::new(MAX_CALLS)),
            tenant_calls: TenantPlaces::new(MAX_TENANT_CALLS),
            tenant_searches: TenantSearches::default(),
            listeners: events::Listeners::of_events(),
            feed_listeners: events::Listeners::of_feeds(),
            ending: watch::Sender::new(false),
            sign_in_codes: sign_in_link::SignInCodes::default(),
            oidc,
            queue: std::sync::OnceLock::new(),
            seen: std::sync::OnceLock::new(),
            installation,
        }
    }

    /// Ends all streams, so that nobody waits for them.
    pub(crate) fn end_streams(&self) {
        self.ending.send_replace(true);
    }

    /// Answers an admin call.
    pub(crate) async fn answer<B>(
        self: &Arc<Self>,
        head: &Parts,
        body: B,
        door: Door,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match self.try_answer(head, body, door).await {
            Ok(response) => response,
            Err(error) => {
                if let (AdminError::Control(failed), Some(seen)) = (&error, self.seen.get()) {
                    seen.figures.database_failed(failed);
                }
                error.respond()
            }
        }
    }

    async fn try_answer<B>(
        self: &Arc<Self>,
        head: &Parts,
        body: B,
        door: Door,
    ) -> Result<Response<Body>, AdminError>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if head.uri.path() == session::PATH {
            return self.session(head, body, door).await;
        }
        if Self::is_oidc(head.uri.path()) {
            return self.oidc(head, door).await;
        }
        let peer = door.peer;
        // Nothing here answers without a token, not even what there is and what not.
        let identity = self.identify_any(head, peer).await?;
        let (route, places) = match routes::find(&head.method, head.uri.path()) {
            Found::Route(route, places) => (route, places),
            Found::OtherMethods(others) => {
                return Err(AdminError::MethodNotAllowed(others.join(", ")));
            }
            Found::Nothing => return Err(AdminError::NotFound),
        };
        if !route.access.admits(identity.role) {
            let role = identity.role.name();
            let message = format!("a token of the role {role} may not do this");
            return Err(AdminError::Forbidden(message));
        }
        let is_change = head.method != http::Method::GET && head.method != http::Method::HEAD;
        if let Some(tenant) = identity.tenant.as_deref().filter(|_| is_change) {
            let admitted = self.tenant_changes.admit(tenant, instant());
            let wait = |wait: Duration| wait.as_secs() + 1;
            admitted.map_err(|left| AdminError::TooManyChanges { seconds: wait(left) })?;
        }
        let patience = self.config.limits.body_timeout;
        let max_body = match identity.role {
            Role::TenantAdmin => route.max_body.min(TENANT_BODY),
            _ => route.max_body,
        };
        let body = http_read::body(body, max_body, patience).await?;
        let actor = Actor {
            name: identity.name.clone(),
            token_id: identity.token_id.clone(),
            request_id: request_id(&head.headers),
            address: peer.map(|peer| peer.to_string()),
            tenant: identity.tenant.clone(),
        };
        let asked = Asked {
            route,
            places,
            query: head.uri.query().unwrap_or_default().to_owned(),
            headers: head.headers.clone(),
            identity,
            actor,
            body,
            now: now(),
        };
        // Not before its body is here: who sends slowly keeps nobody out.
        let place = self.tenant_calls.enter(&asked.identity);
        let place = place.zip(Arc::clone(&self.calls).try_acquire_owned().ok());
        let Some(place) = place else { return Err(AdminError::Busy) };
        let admin = Arc::clone(self);
        let call = async move {
            let _place = place;
            admin.call(&asked).await
        };
        self.on_control_thread(call).await
    }

    /// Runs something on the control plane's thread. It continues if the caller hangs up: a change is
    /// made or not, never cut off.
    async fn on_control_thread<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, AdminError>> + Send + 'static,
    ) -> Result<T, AdminError> {
        match self.runtime.spawn(work).await {
            Ok(done) => done,
            // It panicked, or the process is about to end.
            Err(_) => Err(AdminError::Busy),
        }
    }

    pub(crate) async fn identify(
        self: &Arc<Self>,
        headers: &HeaderMap,
        peer: Option<IpAddr>,
    ) -> Result<Identity, AdminError> {
        self.identify_token(bearer(headers), peer).await
    }

    async fn identify_token(
        self: &Arc<Self>,
        token: Option<String>,
        peer: Option<IpAddr>,
    ) -> Result<Identity, AdminError> {
        self.identify_sent(token, peer, false).await
    }

    /// A token that a browser has kept and sends by itself is no guess, as long as such are few.
    async fn identify_sent(
        self: &Arc<Self>,
        token: Option<String>,
        peer: Option<IpAddr>,
        is_kept: bool,
    ) -> Result<Identity, AdminError> {
        let caller = peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let damped = |wait: Duration| AdminError::Damped { seconds: wait.as_secs() + 1 };
        let Some(token) = token else {
            let wait = self.damping.wait(caller, instant());
            return Err(wait.map_or(AdminError::Unauthorized, damped));
        };
        let attempt = self.damping.begin(caller, instant());
        let refusal = attempt.wait.map_or(AdminError::Unauthorized, damped);
        let admin = Arc::clone(self);
        // The attempt ends with the check, not with the connection: closing it early does not make an attempt uncounted.
        let found = self.on_control_thread(async move {
            let found = admin.look_up(&token, attempt.is_known_for_mistakes).await?;
            if found.is_none() && !(is_kept && admin.damping.is_kept_forgiven(instant())) {
                attempt.fail(instant());
            }
            Ok(found)
        });
        found.await?.ok_or(refusal)
    }

    /// Whose token this is. A caller that sends wrong tokens must not keep the correct ones of its neighbours out, nor the
    /// database busy.
    async fn look_up(
        &self,
        token: &str,
        is_known_for_mistakes: bool,
    ) -> Result<Option<Identity>, AdminError> {
        if is_known_for_mistakes && !self.control.may_be_token(token, now()).await? {
            return Ok(None);
        }
        Ok(self.control.authenticate(token, now()).await?)
    }

    /// Records that a client's counters are about to be reset by another API than this one.
    pub(crate) async fn note_reset(
        self: &Arc<Self>,
        actor: Actor,
        client: Option<(&str, &str)>,
        rule_ids: &[String],
    ) -> Result<(), AdminError> {
        let (kind, name) = client.unwrap_or(("client", "unnamed"));
        let name = if kind == "api_key" { self.control.hide_key(name) } else { name.to_owned() };
        let (id, rules) = (format!("{kind}:{name}"), rule_ids.to_vec());
        let control = Arc::clone(&self.control);
        let note = async move { Ok(control.note_reset(&actor, id, None, &rules).await?) };
        self.on_control_thread(note).await
    }

    async fn call(self: &Arc<Self>, asked: &Asked) -> Result<Response<Body>, AdminError> {
        let call = asked.route.call;
        if let Some(file) = self.file_that_decides(call) {
            let file = file.display();
            let message = format!(
                "the rules of this node come from {file}: change that, or start without it and \
                 `tollgate rules apply -f {file}`"
            );
            return Err(AdminError::Conflict(Obstacle::RulesFromFile, message));
        }
        let answer: Boxed<'_> = match call {
            Call::List(kind) => Box::pin(self.list(asked, kind)),
            Call::Post(Kind::Token) => Box::pin(self.create_token(asked)),
            Call::Post(kind) | Call::Put(kind) => Box::pin(self.put(asked, kind)),
            Call::Get(kind) => Box::pin(self.get(asked, kind)),
            Call::Delete(Kind::Token) => Box::pin(self.revoke_token(asked)),
            Call::Delete(kind) => Box::pin(self.delete(asked, kind)),
            Call::RotateToken => Box::pin(self.rotate_token(asked)),
            Call::Keys(call) => Box::pin(self.keys(asked, call)),
            Call::Versions => Box::pin(self.versions(asked)),
            Call::Version => Box::pin(self.version(asked)),
            Call::RollBack => Box::pin(self.roll_back(asked)),
            Call::Candidate => return self.candidate(asked).map(Answer::respond),
            Call::PromoteCandidate | Call::HaltCandidate | Call::AdvanceCandidate => {
                Box::pin(self.change_candidate(asked))
            }
            Call::Apply => Box::pin(self.apply(asked)),
            Call::Document => Box::pin(self.document(asked)),
            Call::Settings => Box::pin(self.settings(asked)),
            Call::PutSetting | Call::DeleteSetting => Box::pin(self.set(asked)),
            Call::Audit => Box::pin(self.audit(asked)),
            Call::AuditExport => Box::pin(self.audit_export(asked)),
            Call::AuditKey => return self.audit_key(asked).map(Answer::respond),
            Call::Decisions => Box::pin(self.search_decisions(asked)),
            Call::Explain => Box::pin(self.explain(asked)),
            Call::Decide | Call::Peek => Box::pin(self.decide(asked)),
            Call::Client => Box::pin(self.client_page(asked)),
            Call::Usage => Box::pin(self.usage(asked)),
            Call::ResetUsage => Box::pin(self.reset_usage(asked)),
            Call::Slots => Box::pin(self.held_slots(asked)),
            Call::Queue => Box::pin(self.queued(asked)),
            Call::RetryQueued => Box::pin(self.retry_queued(asked)),
            Call::DropQueued => Box::pin(self.drop_queued(asked)),
            Call::Top => Box::pin(self.top(asked)),
            Call::History => Box::pin(self.history(asked)),
            Call::Incidents => return self.incidents(asked).map(Answer::respond),
            Call::Nodes => Box::pin(self.nodes(asked)),
            Call::Overview => Box::pin(self.overview(asked)),
            Call::Node => return self.node(asked).map(Answer::respond),
            Call::SetLogLevel => return Self::set_log_level(asked).map(Answer::respond),
            Call::WhoAmI => return Ok(Answer::ok(view::identity(&asked.identity)).respond()),
            Call::Events => return self.events(asked),
            Call::UsageReport => return self.usage_report(asked).await,
            Call::DecisionFeed => return self.decision_feed(asked).await,
        };
        answer.await.map(Answer::respond)
    }

    /// The rule file that this node goes by, if the call would change what it says.
    fn file_that_decides(&self, call: Call) -> Option<&PathBuf> {
        let changes = call.changes_rule_set();
        self.config.rules.as_ref().filter(|_| changes)
    }
}

/// The token of the `Authorization` header.
fn bearer(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
}

fn request_id(headers: &HeaderMap) -> Option<String> {
    let given = headers.get("x-request-id")?.to_str().ok()?;
    Some(given.chars().take(MAX_REQUEST_ID).collect()).filter(|id: &String| !id.is_empty())
}

#[expect(clippy::disallowed_methods, reason = "how long a caller waits is no decision")]
fn instant() -> Instant {
    Instant::now()
}

/// The system's clock: what is kept in a database outlives every other.
#[expect(clippy::disallowed_methods, reason = "tokens and records are dated by the calendar")]
pub(crate) fn now() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
