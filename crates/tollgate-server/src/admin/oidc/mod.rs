//! Single sign-on to the console by `OpenID` Connect: the authorization code flow with PKCE.
//!
//! | file | |
//! |---|---|
//! | `attempt.rs` | a sign-in under way, bound to a browser |
//! | `provider.rs` | calls to the provider |
//! | `roles.rs` | from claims to a role |
//! | `page.rs` | what a person sees if it fails |
//!
//! A session is a token in the database that ends by itself, in the cookie that signing in with a token sets as well.
//! Nothing here is needed by decisions or by tokens: without the provider, only new sign-ins through it fail.

mod attempt;
mod page;
mod provider;
mod roles;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::header::{CACHE_CONTROL, HeaderValue, LOCATION, REFERRER_POLICY, SET_COOKIE};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode};
use serde_json::json;
use tokio::sync::Semaphore;
use tollgate_control::draft::rfc3339;
use tollgate_control::{Actor, NewToken};

use super::respond::{AdminError, Answer};
use super::session::{self, Session};
use super::{Admin, Door, now, request_id};
use crate::config::{Config, OidcConfig};
use attempt::{Attempt, AttemptKey, LIFETIME_SECONDS, UsedAttempts};
use page::Failure;
use provider::{Provider, ProviderError, code_of};

/// Whether single sign-on is configured.
pub(crate) const PATH: &str = "/admin/api/v1/oidc";
/// Where it begins.
pub(crate) const START: &str = "/admin/api/v1/oidc/start";
/// Where the provider sends browsers back to.
pub(crate) const CALLBACK: &str = "/admin/api/v1/oidc/callback";

/// The page after a sign-in. No request chooses another.
const HOME: HeaderValue = HeaderValue::from_static("/");
/// Codes that are exchanged at the same time.
const MAX_EXCHANGES: usize = 16;
/// How long a sign-in waits for its turn.
const TURN_PATIENCE: Duration = Duration::from_secs(5);
/// The longest code of a provider.
const MAX_CODE_BYTES: usize = 4 << 10;

/// Single sign-on, where it is configured.
#[derive(Debug)]
pub(super) struct Oidc {
    config: OidcConfig,
    provider: Provider,
    key: AttemptKey,
    used: UsedAttempts,
    turns: Semaphore,
    /// Browsers reach this server by TLS, though it may be a proxy that has it.
    is_https: bool,
}

impl Oidc {
    pub(super) fn new(config: &Config) -> Option<Self> {
        let config = config.oidc.clone();
        let (issuer, secret) = (config.issuer.clone()?, config.client_secret.text.clone()?);
        Some(Self {
            provider: Provider::new(&issuer, &secret, &config),
            key: AttemptKey::new(&issuer, &config.client_id, &secret),
            used: UsedAttempts::default(),
            turns: Semaphore::new(MAX_EXCHANGES),
            is_https: config.redirect_uri.starts_with("https://"),
            config,
        })
    }

    /// Where a browser signs out of the provider, if that is known.
    pub(super) fn end_session_url(&self) -> Option<String> {
        self.provider.end_session_url()
    }
}

/// What the provider's answer says.
struct Returned {
    code: Option<String>,
    state: String,
    error: Option<String>,
    issuer: Option<String>,
}

impl Returned {
    /// None: it cannot be read, or says something twice.
    fn read(query: &str) -> Option<Self> {
        let mut returned = [const { None }; 4];
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let place = ["code", "state", "error", "iss"].iter().position(|known| *known == name);
            let Some(place) = place.and_then(|place| returned.get_mut(place)) else { continue };
            if place.replace(value.into_owned()).is_some() {
                return None;
            }
        }
        let [code, state, error, issuer] = returned;
        Some(Self { code, state: state?, error, issuer })
    }
}

impl Admin {
    /// Whether this path belongs to single sign-on, which nobody has a token for yet.
    pub(super) fn is_oidc(path: &str) -> bool {
        [PATH, START, CALLBACK].contains(&path)
    }

    pub(super) async fn oidc(
        self: &Arc<Self>,
        head: &Parts,
        door: Door,
    ) -> Result<Response<Body>, AdminError> {
        if head.method != Method::GET {
            return Err(AdminError::MethodNotAllowed("GET".to_owned()));
        }
        let path = head.uri.path();
        if path == PATH {
            let provider = self.oidc.as_ref().map(|oidc| oidc.provider.host());
            let body = json!({ "is_configured": provider.is_some(), "provider": provider });
            return Ok(Answer::ok(body).respond());
        }
        if self.oidc.is_none() {
            return Err(AdminError::NotFound);
        }
        if path == START {
            return Ok(self.begin_sign_in(head, door).await.unwrap_or_else(Failure::respond));
        }
        let mut response = match self.finish_sign_in(head, door).await {
            Ok(token) => {
                let mut response = redirect(HOME);
                let is_tls = self.is_tls(door);
                session::set(response.headers_mut(), head, Session::Begins(&token), is_tls);
                response
            }
            Err(failure) => failure.respond(),
        };
        // It is used up, whatever came of it.
        self.set_attempt(response.headers_mut(), head, None, door);
        Ok(response)
    }

    fn is_tls(&self, door: Door) -> bool {
        door.is_tls || self.oidc.as_ref().is_some_and(|oidc| oidc.is_https)
    }

    /// Sends the browser to the provider, with a cookie that its answer must fit.
    async fn begin_sign_in(
        self: &Arc<Self>,
        head: &Parts,
        door: Door,
    ) -> Result<Response<Body>, Failure> {
        let admin = Arc::clone(self);
        let begun = self.on_control_thread(async move {
            let oidc = admin.oidc.as_ref().ok_or(AdminError::NotFound)?;
            let attempt = oidc.key.begin(now()).ok_or(AdminError::Busy)?;
            Ok((oidc.provider.authorization_url(&attempt).await, attempt))
        });
        let (url, attempt) = begun.await?;
        let url = url.map_err(|error| failure_of(&error))?;
        let url = HeaderValue::try_from(url).map_err(|_| Failure::Unavailable)?;
        let mut response = redirect(url);
        self.set_attempt(response.headers_mut(), head, Some(&attempt), door);
        Ok(response)
    }

    /// The token of the session that the provider's answer begins.
    async fn finish_sign_in(self: &Arc<Self>, head: &Parts, door: Door) -> Result<String, Failure> {
        let returned = Returned::read(head.uri.query().unwrap_or_default());
        let (Some(returned), Some(oidc)) = (returned, self.oidc.as_ref()) else {
            return Err(Failure::Stale);
        };
        let cookie = session::cookie_named(head, &attempt_cookie(head));
        let attempt = cookie.and_then(|cookie| oidc.key.resume(&cookie, now()));
        let attempt = attempt.filter(|attempt| attempt.is_answered_by(&returned.state));
        let attempt = attempt.filter(|attempt| oidc.used.take(attempt, now()));
        let attempt = attempt.ok_or(Failure::Stale)?;
        if let Some(error) = returned.error {
            return Err(Failure::Refused(code_of(&error).unwrap_or_else(|| "an error".to_owned())));
        }
        let code = returned.code.filter(|code| (1..=MAX_CODE_BYTES).contains(&code.len()));
        let code = code.ok_or(Failure::Stale)?;
        let actor = Actor {
            request_id: request_id(&head.headers),
            address: door.peer.map(|peer| peer.to_string()),
            ..Actor::default()
        };
        let (admin, issuer) = (Arc::clone(self), returned.issuer);
        let work =
            async move { Ok(admin.begin_session(&attempt, &code, issuer.as_deref(), actor).await) };
        self.on_control_thread(work).await?
    }

    async fn begin_session(
        &self,
        attempt: &Attempt,
        code: &str,
        issuer: Option<&str>,
        mut actor: Actor,
    ) -> Result<String, Failure> {
        let oidc = self.oidc.as_ref().ok_or(Failure::Stale)?;
        let turn = tokio::time::timeout(TURN_PATIENCE, oidc.turns.acquire()).await;
        let Ok(Ok(_turn)) = turn else { return Err(Failure::Busy) };
        let failed = |error: ProviderError| failure_of(&error);
        if !oidc.provider.is_own_answer(issuer).await.map_err(failed)? {
            tracing::warn!("a sign-in is refused: the answer is of another provider");
            return Err(Failure::Unverified);
        }
        let nanos = u64::try_from(now()).unwrap_or(0).saturating_mul(1_000_000);
        let claims = oidc.provider.identify(code, attempt, nanos).await.map_err(failed)?;
        let (name, subject) = (roles::name_of(&claims).to_owned(), claims.subject());
        let Some(granted) = roles::granted(&oidc.config, &claims) else {
            tracing::info!(name, subject, "a sign-in is refused: no group has a role");
            return Err(Failure::NoRole { name });
        };
        let lifetime = i64::try_from(oidc.config.session_ttl.as_millis()).unwrap_or(0);
        actor.name.clone_from(&name);
        actor.tenant.clone_from(&granted.tenant);
        let new = NewToken {
            name,
            role: granted.role,
            tenant: granted.tenant,
            expires_at: Some(rfc3339(now().saturating_add(lifetime))),
        };
        let token = self.control.begin_session(&actor, &new, subject, now()).await;
        token.map_err(|error| AdminError::from(error).into())
    }

    /// Sets or removes the cookie of a sign-in under way. It is sent to this path alone, and also when the browser comes
    /// from the provider's page.
    fn set_attempt(
        &self,
        headers: &mut HeaderMap,
        head: &Parts,
        attempt: Option<&Attempt>,
        door: Door,
    ) {
        let (value, age) =
            attempt.map_or(("", 0), |attempt| (attempt.cookie.as_str(), LIFETIME_SECONDS));
        let secure = if self.is_tls(door) { "; Secure" } else { "" };
        let name = attempt_cookie(head);
        let cookie =
            format!("{name}={value}; Path={PATH}; Max-Age={age}; HttpOnly; SameSite=Lax{secure}");
        if let Ok(mut cookie) = HeaderValue::try_from(cookie) {
            cookie.set_sensitive(true);
            headers.append(SET_COOKIE, cookie);
        }
    }
}

fn attempt_cookie(head: &Parts) -> String {
    session::name_of("tollgate_sign_in", head)
}

fn failure_of(error: &ProviderError) -> Failure {
    match error {
        ProviderError::Unavailable(_) => {
            tracing::warn!(%error, "single sign-on is not available");
            Failure::Unavailable
        }
        ProviderError::Code => Failure::Stale,
        ProviderError::Token(_) => {
            tracing::warn!(%error, "a sign-in is refused");
            Failure::Unverified
        }
    }
}

fn redirect(to: HeaderValue) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let headers = response.headers_mut();
    headers.insert(LOCATION, to);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_everything_once() {
        let read = |query: &str| Returned::read(query);
        let whole = read("code=a%2Bb&state=s&iss=https%3A%2F%2Flogin.example&x=1").unwrap();
        assert_eq!((whole.code.as_deref(), whole.state.as_str()), (Some("a+b"), "s"));
        assert_eq!(whole.issuer.as_deref(), Some("https://login.example"));
        for wrong in ["", "code=a", "state=s&state=s&code=a", "code=a&code=b&state=s"] {
            assert!(read(wrong).is_none(), "{wrong}");
        }
    }
}
