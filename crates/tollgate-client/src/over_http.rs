//! Calls over HTTP and JSON.

use std::fmt;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use http::{Request, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::caller::HttpCaller;
use crate::check::Check;
use crate::decision::{Decision, instant};
use crate::error::ClientError;
use crate::options::{ClientOptions, millis};
use crate::reservation::{Actual, Renewed, Reserved, Settled};

/// The largest answer that is read; a batch of a thousand is far below.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// A reservation that has expired or never was: an answer to the question, not a wrong address.
pub(crate) const RESERVATION_NOT_FOUND: &str = "RESERVATION_NOT_FOUND";

/// Calls one Tollgate over HTTP.
#[derive(Debug)]
pub(crate) struct HttpTransport {
    caller: HttpCaller,
}

#[derive(Serialize)]
struct BatchBody<'a> {
    requests: &'a [&'a Check],
}

#[derive(Serialize)]
struct ReserveBody<'a> {
    #[serde(flatten)]
    check: &'a Check,
    #[serde(rename = "ttlMs", skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    // Servers that do not know it must not see it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HeldBody<'a> {
    reservation_id: &'a str,
    #[serde(flatten)]
    actual: Actual,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
}

impl<'a> HeldBody<'a> {
    fn new(reservation_id: &'a str) -> Self {
        Self { reservation_id, actual: Actual::default(), ttl_ms: None }
    }
}

#[derive(Deserialize)]
struct ExpiresAt {
    #[serde(default, rename = "expiresAt", deserialize_with = "instant")]
    expires_at: Option<SystemTime>,
}

#[derive(Deserialize)]
struct BatchAnswer {
    decisions: Vec<BatchItem>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum BatchItem {
    Decision(Box<Decision>),
    Error(ErrorBody),
}

#[derive(Deserialize)]
struct ErrorBody {
    error: ErrorDetail,
}

#[derive(Deserialize)]
struct ErrorDetail {
    code: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    field: Option<String>,
}

impl HttpTransport {
    pub(crate) fn new(url: &str, options: &ClientOptions) -> Result<Self, ClientError> {
        Ok(Self { caller: HttpCaller::new(url, options)? })
    }

    pub(crate) async fn allow(&self, check: &Check) -> Result<Decision, ClientError> {
        self.decision("/rate-limit/allow", check).await
    }

    pub(crate) async fn peek(&self, check: &Check) -> Result<Decision, ClientError> {
        self.decision("/rate-limit/peek", check).await
    }

    pub(crate) async fn allow_batch(
        &self,
        checks: &[&Check],
    ) -> Result<Vec<Result<Decision, ClientError>>, ClientError> {
        let (status, headers, body) =
            self.call("/rate-limit/allow/batch", &BatchBody { requests: checks }).await?;
        if status != StatusCode::OK {
            return Err(failure(status, &headers, &body));
        }
        let answer: BatchAnswer =
            serde_json::from_slice(&body).map_err(|error| unreadable(&error))?;
        let items = answer.decisions.into_iter().map(|item| match item {
            BatchItem::Decision(decision) => Ok(*decision),
            BatchItem::Error(body) => Err(rejected(body.error)),
        });
        Ok(items.collect())
    }

    pub(crate) async fn reserve(
        &self,
        check: &Check,
        ttl: Option<Duration>,
        more: bool,
    ) -> Result<Reserved, ClientError> {
        let body = ReserveBody { check, ttl_ms: ttl.map(millis), more };
        let (status, headers, body) = self.call("/rate-limit/reserve", &body).await?;
        let decision = Self::decided(status, &headers, &body)?;
        let expires = serde_json::from_slice::<ExpiresAt>(&body);
        let expires_at = expires.map_err(|error| unreadable(&error))?.expires_at;
        Ok(Reserved { decision, expires_at })
    }

    pub(crate) async fn settle(&self, id: &str, actual: Actual) -> Result<Settled, ClientError> {
        self.plain("/rate-limit/settle", &HeldBody { actual, ..HeldBody::new(id) }).await
    }

    pub(crate) async fn release(&self, id: &str) -> Result<Settled, ClientError> {
        self.plain("/rate-limit/release", &HeldBody::new(id)).await
    }

    pub(crate) async fn renew(
        &self,
        id: &str,
        ttl: Option<Duration>,
    ) -> Result<Renewed, ClientError> {
        let body = HeldBody { ttl_ms: ttl.map(millis), ..HeldBody::new(id) };
        self.plain("/rate-limit/renew", &body).await
    }

    /// A call that is answered with 200 and nothing else.
    async fn plain<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let (status, headers, body) = self.call(path, body).await?;
        if status != StatusCode::OK {
            return Err(failure(status, &headers, &body));
        }
        serde_json::from_slice(&body).map_err(|error| unreadable(&error))
    }

    async fn decision(&self, path: &str, check: &Check) -> Result<Decision, ClientError> {
        let (status, headers, body) = self.call(path, check).await?;
        Self::decided(status, &headers, &body)
    }

    fn decided(
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<Decision, ClientError> {
        match status {
            StatusCode::OK => serde_json::from_slice(body).map_err(|error| unreadable(&error)),
            // A store that is away is an error and, where its rule says so, also a decision.
            StatusCode::SERVICE_UNAVAILABLE => {
                serde_json::from_slice(body).map_err(|_| failure(status, headers, body))
            }
            _ => Err(failure(status, headers, body)),
        }
    }

    async fn call(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<(StatusCode, HeaderMap, Bytes), ClientError> {
        let setup = |error: &dyn fmt::Display| ClientError::Setup(error.to_string());
        let bytes = serde_json::to_vec(body).map_err(|error| setup(&error))?;
        let request = Request::post(path)
            .header(CONTENT_TYPE, "application/json")
            .body(Bytes::from(bytes))
            .map_err(|error| setup(&error))?;
        let response = self.caller.call(request, MAX_ANSWER_BYTES).await?;
        let (head, body) = response.into_parts();
        Ok((head.status, head.headers, body))
    }
}

fn unreadable(error: &serde_json::Error) -> ClientError {
    ClientError::Unreadable(error.to_string())
}

fn rejected(error: ErrorDetail) -> ClientError {
    match error.code.as_str() {
        "STORE_UNAVAILABLE" | "INTERNAL" => {
            ClientError::Unavailable { message: error.message, retry_after: None }
        }
        _ => ClientError::Rejected { code: error.code, message: error.message, field: error.field },
    }
}

/// What an answer that is no decision says.
fn failure(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> ClientError {
    let error = serde_json::from_slice::<ErrorBody>(body).map(|body| body.error);
    let error = error.unwrap_or_else(|_| ErrorDetail {
        code: status.as_str().to_owned(),
        message: format!("answered {status}"),
        field: None,
    });
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            ClientError::Unauthorized(error.message)
        }
        status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
            let seconds =
                headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
            let retry_after = seconds.map(Duration::from_secs);
            ClientError::Unavailable { message: error.message, retry_after }
        }
        // Only a Tollgate names what is wrong with a request; anything else is somebody else's answer.
        _ if error.code == status.as_str() => ClientError::Unreadable(error.message),
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED
            if error.code != RESERVATION_NOT_FOUND =>
        {
            ClientError::Unreadable(error.message)
        }
        _ => rejected(error),
    }
}
