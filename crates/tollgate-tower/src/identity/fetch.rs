//! Fetching a set of keys from its issuer, within bounds.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, HeaderMap};
use http::{Request, StatusCode, Uri};
use http_body_util::Full;

use super::IdentityError;
use super::https::{IssuerClient, issuer_uri};
use super::jwks::{Jwks, MAX_JWKS_BYTES};
use super::key_ring::RefreshOptions;

/// Fetches one set of keys.
pub(super) struct JwksFetcher {
    client: IssuerClient,
    uri: Uri,
}

impl fmt::Debug for JwksFetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwksFetcher").field("host", &self.uri.host()).finish_non_exhaustive()
    }
}

impl JwksFetcher {
    pub(super) fn new(url: &str, options: &RefreshOptions) -> Result<Self, IdentityError> {
        let (uri, is_https) = issuer_uri(url, options.allow_http)?;
        let client = IssuerClient::new(is_https, options.ca_file.as_deref())?;
        Ok(Self { client, uri })
    }

    /// The set, and for how long its issuer says it is good.
    pub(super) async fn fetch(&self) -> Result<(Jwks, Option<Duration>), IdentityError> {
        let request = Request::get(self.uri.clone())
            .header(ACCEPT, "application/jwk-set+json, application/json")
            .body(Full::<Bytes>::default())
            .map_err(|error| IdentityError::Fetch(error.to_string()))?;
        let answer = self.client.call(request, MAX_JWKS_BYTES).await?;
        if answer.status != StatusCode::OK {
            return Err(IdentityError::Fetch(format!("answered {}", answer.status)));
        }
        Ok((Jwks::parse(&answer.body)?, max_age(&answer.headers)))
    }
}

fn max_age(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all(CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .filter_map(|directive| directive.trim().split_once('='))
        .find(|(name, _)| name.eq_ignore_ascii_case("max-age"))
        .and_then(|(_, seconds)| seconds.trim_matches('"').parse().ok())
        .map(Duration::from_secs)
}
