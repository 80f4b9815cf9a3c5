//! The client: asks, within a deadline, and remembers refusals.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::cache::Refusals;
use crate::check::Check;
use crate::decision::{Decision, OnFailure};
use crate::error::ClientError;
use crate::options::ClientOptions;
use crate::over_grpc::GrpcTransport;
use crate::over_http::HttpTransport;
use crate::reservation::{Actual, Renewed, Reserved, Settled};

/// The most requests of one batch.
pub const MAX_BATCH: usize = 1_000;

/// A client of one Tollgate. Clones share connections and what is remembered.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    transport: Transport,
    refusals: Refusals,
    timeout: Duration,
}

#[derive(Debug)]
enum Transport {
    Http(Box<HttpTransport>),
    Grpc(Box<GrpcTransport>),
}

impl Client {
    /// Calls the HTTP API at this address.
    pub fn http(url: &str) -> Result<Self, ClientError> {
        Self::http_with(url, &ClientOptions::default())
    }

    /// Calls the HTTP API at this address, with a token or otherwise than usual.
    pub fn http_with(url: &str, options: &ClientOptions) -> Result<Self, ClientError> {
        let transport = Transport::Http(Box::new(HttpTransport::new(url, options)?));
        Ok(Self::new(transport, options))
    }

    /// Calls the gRPC service at this address.
    pub fn grpc(url: &str) -> Result<Self, ClientError> {
        Self::grpc_with(url, &ClientOptions::default())
    }

    /// Calls the gRPC service at this address, with a token or otherwise than usual.
    pub fn grpc_with(url: &str, options: &ClientOptions) -> Result<Self, ClientError> {
        let transport = Transport::Grpc(Box::new(GrpcTransport::new(url, options)?));
        Ok(Self::new(transport, options))
    }

    fn new(transport: Transport, options: &ClientOptions) -> Self {
        let refusals = Refusals::new(options.max_refusals, options.max_refusal_age);
        let timeout = options.timeout;
        Self { inner: Arc::new(Inner { transport, refusals, timeout }) }
    }

    /// Decides, and charges if it passes. A refusal that is known to hold still is not asked for again.
    pub async fn allow(&self, check: &Check) -> Result<Decision, ClientError> {
        if let Some(known) = self.inner.refusals.find(check, Instant::now()) {
            return Ok(known);
        }
        // Its time counts from before the call, so that a refusal never outlives the server's word.
        let asked_at = Instant::now();
        let decision = match &self.inner.transport {
            Transport::Http(http) => self.within_deadline(http.allow(check)).await?,
            Transport::Grpc(grpc) => self.within_deadline(grpc.allow(check)).await?,
        };
        self.inner.refusals.note(check, &decision, asked_at);
        Ok(decision)
    }

    /// As [`allow`](Self::allow); where nobody answers, what the policy says.
    pub async fn allow_or(&self, check: &Check, policy: OnFailure) -> Decision {
        match self.allow(check).await {
            Ok(decision) => decision,
            Err(error) => Decision::assumed(policy, &error),
        }
    }

    /// What would be decided; charges nothing.
    pub async fn peek(&self, check: &Check) -> Result<Decision, ClientError> {
        match &self.inner.transport {
            Transport::Http(http) => self.within_deadline(http.peek(check)).await,
            Transport::Grpc(grpc) => self.within_deadline(grpc.peek(check)).await,
        }
    }

    /// Decides at most [`MAX_BATCH`] requests in order, each for itself.
    pub async fn allow_batch(
        &self,
        checks: &[Check],
    ) -> Result<Vec<Result<Decision, ClientError>>, ClientError> {
        if checks.len() > MAX_BATCH {
            return Err(ClientError::Rejected {
                code: "INVALID_REQUEST".to_owned(),
                message: format!("at most {MAX_BATCH} requests are taken at once"),
                field: Some("requests".to_owned()),
            });
        }
        let asked_at = Instant::now();
        let known: Vec<Option<Decision>> =
            checks.iter().map(|check| self.inner.refusals.find(check, asked_at)).collect();
        let open: Vec<&Check> = checks
            .iter()
            .zip(&known)
            .filter_map(|(check, known)| known.is_none().then_some(check))
            .collect();
        let answers = match (&self.inner.transport, open.is_empty()) {
            (_, true) => Vec::new(),
            (Transport::Http(http), _) => self.within_deadline(http.allow_batch(&open)).await?,
            (Transport::Grpc(grpc), _) => self.within_deadline(grpc.allow_batch(&open)).await?,
        };
        if answers.len() != open.len() {
            let message = format!("{} answers to {} requests", answers.len(), open.len());
            return Err(ClientError::Unreadable(message));
        }
        for (check, answer) in open.iter().zip(&answers) {
            if let Ok(decision) = answer {
                self.inner.refusals.note(check, decision, asked_at);
            }
        }
        let mut answers = answers.into_iter();
        let missing = || Err(ClientError::Unreadable("an answer is missing".to_owned()));
        Ok(known
            .into_iter()
            .map(|known| known.map_or_else(|| answers.next().unwrap_or_else(missing), Ok))
            .collect())
    }

    /// Holds quota for a request whose true cost is known only later: what it costs is an estimate. Held
    /// for so long, or for the server's own default.
    pub async fn reserve(
        &self,
        check: &Check,
        ttl: Option<Duration>,
    ) -> Result<Reserved, ClientError> {
        self.held(check, ttl, false).await
    }

    /// Holds more tokens for a request that was let pass before: only limits of tokens are asked and charged, no
    /// request is counted, no slot is taken, and nothing waits. It is a reservation of its own.
    pub async fn reserve_more(
        &self,
        check: &Check,
        ttl: Option<Duration>,
    ) -> Result<Reserved, ClientError> {
        self.held(check, ttl, true).await
    }

    async fn held(
        &self,
        check: &Check,
        ttl: Option<Duration>,
        more: bool,
    ) -> Result<Reserved, ClientError> {
        match &self.inner.transport {
            Transport::Http(http) => self.within_deadline(http.reserve(check, ttl, more)).await,
            Transport::Grpc(grpc) => self.within_deadline(grpc.reserve(check, ttl, more)).await,
        }
    }

    /// Says what a reservation truly cost. May be repeated: the first answer is given again.
    pub async fn settle(&self, id: &str, actual: Actual) -> Result<Settled, ClientError> {
        match &self.inner.transport {
            Transport::Http(http) => self.within_deadline(http.settle(id, actual)).await,
            Transport::Grpc(grpc) => self.within_deadline(grpc.settle(id, actual)).await,
        }
    }

    /// Gives a reservation back, or the slot of a request that was allowed. May be repeated.
    pub async fn release(&self, id: &str) -> Result<Settled, ClientError> {
        match &self.inner.transport {
            Transport::Http(http) => self.within_deadline(http.release(id)).await,
            Transport::Grpc(grpc) => self.within_deadline(grpc.release(id)).await,
        }
    }

    /// Holds a reservation, or the slot of a request that was allowed, for so long from now on, or for its
    /// own lifetime again.
    pub async fn renew(&self, id: &str, ttl: Option<Duration>) -> Result<Renewed, ClientError> {
        match &self.inner.transport {
            Transport::Http(http) => self.within_deadline(http.renew(id, ttl)).await,
            Transport::Grpc(grpc) => self.within_deadline(grpc.renew(id, ttl)).await,
        }
    }

    async fn within_deadline<T>(
        &self,
        call: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        let most = self.inner.timeout;
        timeout(most, call).await.unwrap_or(Err(ClientError::Timeout(most)))
    }
}
