//! Calls to the provider: what it offers, its keys, and codes exchanged for ID tokens. Each has a deadline and a size.

use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Request, StatusCode, Uri};
use http_body_util::Full;
use serde::Deserialize;
use tokio::sync::Mutex;
use tollgate_tower::identity::{
    IdClaims, IdTokenChecks, IdTokenError, IssuerClient, Jwks, MAX_ID_TOKEN_BYTES, MAX_JWKS_BYTES,
    issuer_uri,
};

use super::super::instant;
use super::attempt::Attempt;
use crate::config::OidcConfig;

/// The largest discovery document.
const MAX_DISCOVERY_BYTES: usize = 256 << 10;
/// The largest answer of the token endpoint: an ID token and others next to it.
const MAX_TOKEN_ANSWER: usize = 4 * MAX_ID_TOKEN_BYTES;
/// What the provider offers is asked again after this long.
const DISCOVERY_MAX_AGE: Duration = Duration::from_secs(3_600);
/// Its keys, too. A token with an unknown key has them fetched at once.
const KEYS_MAX_AGE: Duration = Duration::from_secs(300);
/// After a failure the provider is not asked what it offers for this long.
const FAILURE_PAUSE: Duration = Duration::from_secs(2);
/// The longest error code of the provider that is repeated.
const MAX_CODE_BYTES: usize = 64;
/// The most of a discovery document that is named in the log.
const MAX_SHOWN: usize = 200;

/// What went wrong at the provider.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProviderError {
    /// It does not answer, or not as it should.
    #[error("{0}")]
    Unavailable(String),
    /// It does not know the code: it was used, has ended, or was made up.
    #[error("the provider does not accept the code")]
    Code,
    /// The ID token is wrong.
    #[error("the ID token is refused: {0}")]
    Token(IdTokenError),
}

fn unavailable(what: &str, error: &dyn fmt::Display) -> ProviderError {
    ProviderError::Unavailable(format!("{what}: {error}"))
}

/// What the provider offers.
#[derive(Debug, Clone)]
struct Metadata {
    authorization: String,
    token: Uri,
    keys: Uri,
    end_session: Option<String>,
    /// The secret goes into the body, where the provider takes it nowhere else.
    is_secret_in_body: bool,
    /// It names itself in each answer (RFC 9207).
    names_issuer: bool,
}

/// The discovery document.
#[derive(Deserialize)]
struct Discovered {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    end_session_endpoint: Option<String>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

/// The answer of the token endpoint, as far as it is used.
#[derive(Deserialize)]
struct Tokens {
    id_token: String,
}

/// Something fetched, and when.
type Fetched<T> = Mutex<Option<(T, Instant)>>;

/// The provider, as far as it is known.
pub(super) struct Provider {
    issuer: String,
    client_id: String,
    client_secret: String,
    redirect_uri: String,
    scopes: String,
    checks: IdTokenChecks,
    client: OnceLock<IssuerClient>,
    metadata: Fetched<Result<Metadata, ProviderError>>,
    keys: Fetched<Jwks>,
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

impl Provider {
    pub(super) fn new(issuer: &str, client_secret: &str, config: &OidcConfig) -> Self {
        Self {
            issuer: issuer.to_owned(),
            client_id: config.client_id.clone(),
            client_secret: client_secret.to_owned(),
            redirect_uri: config.redirect_uri.clone(),
            scopes: config.scopes.join(" "),
            checks: IdTokenChecks::new(issuer, &config.client_id),
            client: OnceLock::new(),
            metadata: Mutex::default(),
            keys: Mutex::default(),
        }
    }

    /// The host of the provider, for people.
    pub(super) fn host(&self) -> String {
        let uri: Option<Uri> = self.issuer.parse().ok();
        uri.and_then(|uri| uri.host().map(str::to_owned)).unwrap_or_default()
    }

    /// Where a browser signs in.
    pub(super) async fn authorization_url(
        &self,
        attempt: &Attempt,
    ) -> Result<String, ProviderError> {
        let endpoint = self.metadata().await?.authorization;
        let query = form_urlencoded::Serializer::new(String::new())
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.client_id)
            .append_pair("redirect_uri", &self.redirect_uri)
            .append_pair("scope", &self.scopes)
            .append_pair("state", &attempt.state)
            .append_pair("nonce", &attempt.nonce)
            .append_pair("code_challenge", &attempt.challenge())
            .append_pair("code_challenge_method", "S256")
            .finish();
        Ok(with_query(&endpoint, &query))
    }

    /// Where a browser signs out of the provider, if the provider has such a page and was asked before.
    pub(super) fn end_session_url(&self) -> Option<String> {
        let known = self.metadata.try_lock().ok()?;
        let (metadata, _) = known.as_ref()?;
        let endpoint = metadata.as_ref().ok()?.end_session.as_ref()?;
        let query = form_urlencoded::Serializer::new(String::new())
            .append_pair("client_id", &self.client_id)
            .finish();
        Some(with_query(endpoint, &query))
    }

    /// Whether an answer names its issuer as it should: an answer of another provider is never exchanged at this one.
    pub(super) async fn is_own_answer(&self, named: Option<&str>) -> Result<bool, ProviderError> {
        let must = self.metadata().await?.names_issuer;
        Ok(named.map_or(!must, |named| named == self.issuer))
    }

    /// Who has signed in, by the code of the provider's answer.
    pub(super) async fn identify(
        &self,
        code: &str,
        attempt: &Attempt,
        now_nanos: u64,
    ) -> Result<IdClaims, ProviderError> {
        let token = self.exchange(code, &attempt.verifier).await?;
        let known = self.keys(false).await?;
        match self.checks.verify(&token, &known, &attempt.nonce, now_nanos) {
            Err(IdTokenError::UnknownKey) => {
                let newer = self.keys(true).await?;
                self.checks.verify(&token, &newer, &attempt.nonce, now_nanos)
            }
            verified => verified,
        }
        .map_err(ProviderError::Token)
    }

    async fn exchange(&self, code: &str, verifier: &str) -> Result<String, ProviderError> {
        let what = "the token endpoint of the provider";
        let metadata = self.metadata().await?;
        let request = self.token_request(metadata, code, verifier)?;
        let answer = self.client()?.call(request, MAX_TOKEN_ANSWER).await;
        let answer = answer.map_err(|error| unavailable(what, &error))?;
        if answer.status != StatusCode::OK {
            return Err(match error_code(&answer.body).as_deref() {
                Some("invalid_grant") => ProviderError::Code,
                Some(code) => unavailable(what, &format!("{} {code}", answer.status)),
                None => unavailable(what, &answer.status),
            });
        }
        let tokens: Result<Tokens, _> = serde_json::from_slice(&answer.body);
        // The cause is not repeated: it may hold a part of the answer.
        tokens.map(|tokens| tokens.id_token).map_err(|_| unavailable(what, &"no ID token"))
    }

    fn token_request(
        &self,
        metadata: Metadata,
        code: &str,
        verifier: &str,
    ) -> Result<Request<Full<Bytes>>, ProviderError> {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "authorization_code")
            .append_pair("code", code)
            .append_pair("redirect_uri", &self.redirect_uri)
            .append_pair("code_verifier", verifier);
        let mut request = Request::post(metadata.token)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        if metadata.is_secret_in_body {
            form.append_pair("client_id", &self.client_id)
                .append_pair("client_secret", &self.client_secret);
        } else {
            request = request.header(AUTHORIZATION, self.basic()?);
        }
        let body = Full::new(Bytes::from(form.finish()));
        request.body(body).map_err(|error| unavailable("a request to the provider", &error))
    }

    /// RFC 6749, section 2.3.1: both parts are encoded before they are joined.
    fn basic(&self) -> Result<HeaderValue, ProviderError> {
        let encode =
            |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
        let joined = format!("{}:{}", encode(&self.client_id), encode(&self.client_secret));
        let value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(joined)));
        let mut value = value.map_err(|error| unavailable("the client's secret", &error))?;
        value.set_sensitive(true);
        Ok(value)
    }

    fn client(&self) -> Result<&IssuerClient, ProviderError> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let is_https = self.issuer.starts_with("https://");
        let client = IssuerClient::new(is_https, None);
        let client = client.map_err(|error| unavailable("TLS to the provider", &error))?;
        Ok(self.client.get_or_init(|| client))
    }

    async fn get(&self, uri: Uri, max_bytes: usize, what: &str) -> Result<Bytes, ProviderError> {
        let request = Request::get(uri).header(ACCEPT, "application/json");
        let request = request.body(Full::default()).map_err(|error| unavailable(what, &error))?;
        let answer = self.client()?.call(request, max_bytes).await;
        let answer = answer.map_err(|error| unavailable(what, &error))?;
        match answer.status {
            StatusCode::OK => Ok(answer.body),
            status => Err(unavailable(what, &status)),
        }
    }

    /// What the provider offers. One fetches it, the others wait for that; a failure is remembered for a moment.
    async fn metadata(&self) -> Result<Metadata, ProviderError> {
        let mut known = self.metadata.lock().await;
        if let Some((metadata, at)) = &*known {
            let max_age = if metadata.is_ok() { DISCOVERY_MAX_AGE } else { FAILURE_PAUSE };
            if instant().saturating_duration_since(*at) < max_age {
                return metadata.clone();
            }
        }
        let metadata = self.discover().await;
        *known = Some((metadata.clone(), instant()));
        metadata
    }

    async fn discover(&self) -> Result<Metadata, ProviderError> {
        let what = "the discovery document of the provider";
        let url = format!("{}/.well-known/openid-configuration", self.issuer.trim_end_matches('/'));
        let uri = url.parse().map_err(|error| unavailable(what, &error))?;
        let body = self.get(uri, MAX_DISCOVERY_BYTES, what).await?;
        let found: Discovered =
            serde_json::from_slice(&body).map_err(|error| unavailable(what, &error))?;
        if found.issuer != self.issuer {
            let named: String = found.issuer.chars().take(MAX_SHOWN).collect();
            let message = format!("it names the issuer {named:?}, and oidc.issuer another one");
            return Err(unavailable(what, &message));
        }
        let methods = found.token_endpoint_auth_methods_supported.unwrap_or_default();
        let takes = |method: &str| methods.iter().any(|one| one == method);
        Ok(Metadata {
            authorization: self.endpoint(&found.authorization_endpoint)?.to_string(),
            token: self.endpoint(&found.token_endpoint)?,
            keys: self.endpoint(&found.jwks_uri)?,
            end_session: match &found.end_session_endpoint {
                Some(url) => Some(self.endpoint(url)?.to_string()),
                None => None,
            },
            is_secret_in_body: takes("client_secret_post") && !takes("client_secret_basic"),
            names_issuer: found.authorization_response_iss_parameter_supported,
        })
    }

    /// An address of the provider. With TLS if the provider itself is.
    fn endpoint(&self, url: &str) -> Result<Uri, ProviderError> {
        let what = "an address in the discovery document of the provider";
        let (uri, is_https) = issuer_uri(url, false).map_err(|error| unavailable(what, &error))?;
        if self.issuer.starts_with("https://") && !is_https {
            return Err(unavailable(what, &"it has no TLS, and the provider does"));
        }
        Ok(uri)
    }

    async fn keys(&self, must_be_new: bool) -> Result<Jwks, ProviderError> {
        let uri = self.metadata().await?.keys;
        let mut known = self.keys.lock().await;
        if let Some((keys, at)) = &*known
            && !must_be_new
            && instant().saturating_duration_since(*at) < KEYS_MAX_AGE
        {
            return Ok(keys.clone());
        }
        let what = "the keys of the provider";
        let body = self.get(uri, MAX_JWKS_BYTES, what).await?;
        let keys = Jwks::parse(&body).map_err(|error| unavailable(what, &error))?;
        *known = Some((keys.clone(), instant()));
        Ok(keys)
    }
}

fn with_query(endpoint: &str, query: &str) -> String {
    let joint = if endpoint.contains('?') { '&' } else { '?' };
    format!("{endpoint}{joint}{query}")
}

fn error_code(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Problem {
        error: String,
    }
    let problem: Problem = serde_json::from_slice(body).ok()?;
    code_of(&problem.error)
}

/// An error code of OAuth, if it is one: nothing else of the provider's text is repeated.
pub(super) fn code_of(text: &str) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    let is_code = !text.is_empty() && text.len() <= MAX_CODE_BYTES && text.bytes().all(is_plain);
    is_code.then(|| text.to_owned())
}
