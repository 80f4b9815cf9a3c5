//! A request to an upstream and the head of its answer: which target, when another, when again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use http::uri::{Authority, PathAndQuery, Uri};
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;

use crate::balance::Tried;
use crate::body::{BodyProgress, BodyState, RequestBody};
use crate::connect::Link;
use crate::connections::{Checkout, Connections, Lease, Wanted};
use crate::headers::{for_http1, is_clear};
use crate::http1::Sent;
use crate::options::{RetryOptions, Timeouts};
use crate::respond::Fault;
use crate::target::Origin;
use crate::worker::WorkerPool;

const UPGRADE_TOKEN: HeaderValue = HeaderValue::from_static("upgrade");

/// How often a request meets a connection that was just closed before that counts as a failure.
const MAX_STALE: u32 = 3;

/// A request on its way out, clean.
pub(crate) struct Outgoing {
    /// It is large, and goes through several hands.
    pub(crate) request: Box<Request<RequestBody>>,
    /// What is asked for, before a target puts its own path in front.
    pub(crate) path: PathAndQuery,
    /// The host that the upstream sees, if it is not its own.
    pub(crate) host: Option<HeaderValue>,
    /// The protocol that the client wants to change to.
    pub(crate) upgrade: Option<HeaderValue>,
    pub(crate) timeouts: Timeouts,
    /// Set as soon as the request may have reached an upstream.
    pub(crate) sent: SentFlag,
}

/// Whether any part of a request may have reached an upstream. A request that is dropped before that owes nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct SentFlag(Arc<AtomicBool>);

impl SentFlag {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The head of an upstream's answer, with what is to be kept until its end.
pub(crate) struct Answered {
    pub(crate) response: Response<Incoming>,
    pub(crate) lease: Lease,
}

/// Why a request that had a connection has no answer.
enum Failure {
    /// The connection was closed before anything was sent: here is the request.
    Unsent(Box<Request<RequestBody>>),
    /// The connection was closed before the answer began.
    Closed,
    /// What came is no answer.
    Garbage,
    Timeout,
    /// It is the client's own doing.
    Client(Fault),
}

/// Where a request has been.
struct Road<'p> {
    pool: &'p WorkerPool,
    retries: RetryOptions,
    connect_timeout: Duration,
    tried: Tried,
    connects: u32,
    sends: u32,
    stale: u32,
    wanted: Wanted,
}

impl<'p> Road<'p> {
    /// A connection to the target whose turn it is, or to another if that is away. Nothing has been
    /// sent by then, so this is allowed for every request.
    async fn connect(&mut self) -> Result<(&'p Arc<Connections>, Checkout), Fault> {
        loop {
            let (index, connections) = self.pool.pick(self.tried).ok_or(Fault::NoUpstream)?;
            self.tried.insert(index);
            match connections.checkout(self.wanted, self.connect_timeout).await {
                Ok(checkout) => return Ok((connections, checkout)),
                Err(error) => {
                    connections.target.failed(&error.to_string());
                    self.connects += 1;
                    if self.connects >= self.retries.max_connects {
                        return Err(Fault::NoUpstream);
                    }
                }
            }
        }
    }

    /// Whether the request may be sent once more.
    fn may_repeat(&mut self) -> bool {
        if self.sends >= self.retries.max_attempts {
            return false;
        }
        self.wanted = self.fresh();
        // Another target if there is one; else the same again.
        if self.pool.pick(self.tried).is_none() {
            self.tried = Tried::default();
        }
        true
    }

    /// Whether the request may look for another connection, none of it having been sent.
    fn may_reconnect(&mut self, was_reused: bool) -> bool {
        if was_reused && self.stale < MAX_STALE {
            // The connection was closed while nobody looked. That is nobody's fault.
            self.stale += 1;
            self.tried = Tried::default();
        } else {
            self.connects += 1;
        }
        self.wanted = self.fresh();
        self.connects < self.retries.max_connects
    }

    fn fresh(&self) -> Wanted {
        if self.wanted == Wanted::ForUpgrade { Wanted::ForUpgrade } else { Wanted::Fresh }
    }
}

/// Sends a request and waits for the head of its answer.
pub(crate) async fn exchange(
    pool: &WorkerPool,
    outgoing: Outgoing,
    retries: RetryOptions,
) -> Result<Answered, Fault> {
    let Outgoing { mut request, path, host, upgrade, timeouts, sent } = outgoing;
    // A pool that cannot upgrade gets the request without the upgrade; a server may always decline one.
    let upgrade = upgrade.filter(|_| pool.can_upgrade());
    let mut road = Road {
        pool,
        retries,
        connect_timeout: pool.connect_timeout.unwrap_or(timeouts.connect),
        tried: Tried::default(),
        connects: 0,
        sends: 0,
        stale: 0,
        wanted: if upgrade.is_some() { Wanted::ForUpgrade } else { Wanted::Usual },
    };
    let may_repeat = retries.max_attempts > 1 && request.method().is_idempotent();
    let spare = if may_repeat { Spare::of(&request) } else { None };
    loop {
        let (connections, Checkout { link, is_reused, generation }) = road.connect().await?;
        road.sends += 1;
        let target = &connections.target;
        address(&mut request, &path, host.as_ref(), &target.connector.origin, &link);
        if let Some(protocol) = &upgrade {
            request.headers_mut().insert(CONNECTION, UPGRADE_TOKEN);
            request.headers_mut().insert(UPGRADE, protocol.clone());
        }
        let mut lease = Lease::new(Arc::clone(connections));
        sent.set();
        let failure = match send(link, request, timeouts.head, &mut lease).await {
            Ok(response) if !is_clear(response.headers()) => Failure::Garbage,
            Ok(response) => {
                if !is_gateway_status(response.status()) {
                    target.succeeded();
                    return Ok(Answered { response, lease });
                }
                target.failed("it answered 502, 503 or 504");
                if retries.on_gateway_status
                    && let Some(again) = spare.as_ref().and_then(Spare::request)
                    && road.may_repeat()
                {
                    request = Box::new(again);
                    continue;
                }
                return Ok(Answered { response, lease });
            }
            Err(failure) => failure,
        };
        let fault = match failure {
            Failure::Client(fault) => return Err(fault),
            Failure::Unsent(unsent) => {
                road.sends -= 1;
                connections.discard(generation);
                if !is_reused {
                    target.failed("it hung up at once");
                }
                if road.may_reconnect(is_reused) {
                    request = unsent;
                    continue;
                }
                return Err(Fault::NoUpstream);
            }
            Failure::Timeout => {
                target.failed("it did not answer in time");
                return Err(Fault::UpstreamTimeout);
            }
            Failure::Garbage => {
                target.failed("what it answered is not HTTP");
                return Err(Fault::BadUpstream);
            }
            Failure::Closed => {
                // A connection that had been idle may be closed at any time.
                if !is_reused {
                    target.failed("it hung up before it answered");
                }
                Fault::BadUpstream
            }
        };
        match spare.as_ref().and_then(Spare::request) {
            Some(again) if road.may_repeat() => request = Box::new(again),
            _ => return Err(fault),
        }
    }
}

fn is_gateway_status(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    )
}

/// What a request can be made of once more, where its body is at hand. Most are never needed: lines cost less to note
/// than a map.
struct Spare {
    method: Method,
    lines: Vec<(HeaderName, HeaderValue)>,
    body: RequestBody,
}

impl Spare {
    fn of(request: &Request<RequestBody>) -> Option<Self> {
        let lines = request.headers().iter().map(|(name, value)| (name.clone(), value.clone()));
        let body = request.body().duplicate()?;
        Some(Self { method: request.method().clone(), lines: lines.collect(), body })
    }

    fn request(&self) -> Option<Request<RequestBody>> {
        let mut request = Request::new(self.body.duplicate()?);
        request.method_mut().clone_from(&self.method);
        for (name, value) in &self.lines {
            request.headers_mut().append(name.clone(), value.clone());
        }
        Some(request)
    }
}

/// Writes down where a request goes, in the form that the connection's protocol wants.
pub(crate) fn address(
    request: &mut Request<RequestBody>,
    path: &PathAndQuery,
    host: Option<&HeaderValue>,
    origin: &Origin,
    link: &Link,
) {
    let path = if origin.base_path.is_empty() {
        path.clone()
    } else {
        let joined = format!("{}{path}", origin.base_path);
        PathAndQuery::try_from(joined).unwrap_or_else(|_| path.clone())
    };
    let headers: &mut HeaderMap = request.headers_mut();
    match link {
        Link::Http1(_) => {
            for_http1(headers);
            headers.insert(HOST, host.unwrap_or(&origin.host).clone());
            *request.uri_mut() = Uri::from(path);
            *request.version_mut() = Version::HTTP_11;
        }
        Link::Http2(_) => {
            // From an attempt over HTTP/1.1.
            headers.remove(CONNECTION);
            headers.remove(UPGRADE);
            headers.remove(HOST);
            let authority = host
                .and_then(|host| Authority::try_from(host.as_bytes()).ok())
                .unwrap_or_else(|| origin.authority.clone());
            let uri = Uri::builder()
                .scheme(origin.scheme.clone())
                .authority(authority)
                .path_and_query(path)
                .build();
            // Three valid parts make a valid whole.
            *request.uri_mut() = uri.unwrap_or_default();
            *request.version_mut() = Version::HTTP_2;
        }
    }
}

async fn send(
    link: Link,
    request: Box<Request<RequestBody>>,
    timeout: Duration,
    lease: &mut Lease,
) -> Result<Response<Incoming>, Failure> {
    let progress = request.body().progress();
    let sent = match link {
        Link::Http1(mut connection) => {
            let sent = connection.send(*request, timeout, progress.as_deref()).await;
            if must_go_on(sent.as_ref(), progress.as_deref()) {
                connection.let_go();
            }
            lease.keep(connection);
            sent
        }
        Link::Http2(mut sender) => {
            let sent = sender.try_send_request(*request);
            Box::pin(until_head(sent, timeout, progress.as_deref())).await
        }
    };
    let Some(sent) = sent else { return Err(Failure::Timeout) };
    if let Some(progress) = &progress {
        progress.answered();
    }
    sent.map_err(|error| failure(error, progress.as_deref()))
}

/// Whether a connection is to go on while nobody asks for the answer's body: what is sent is not all sent, or the
/// protocol changes.
fn must_go_on(sent: Option<&Sent>, progress: Option<&BodyProgress>) -> bool {
    let Some(Ok(response)) = sent else { return false };
    response.status() == StatusCode::SWITCHING_PROTOCOLS
        || progress.is_some_and(|progress| progress.state() != BodyState::Done)
}

fn failure(
    mut error: TrySendError<Request<RequestBody>>,
    progress: Option<&BodyProgress>,
) -> Failure {
    match progress.map(BodyProgress::state) {
        Some(BodyState::TimedOut) => return Failure::Client(Fault::ClientTooSlow),
        Some(BodyState::Broken) => return Failure::Client(Fault::BadBody),
        _ => {}
    }
    if let Some(request) = error.take_message() {
        return Failure::Unsent(Box::new(request));
    }
    let error = error.into_error();
    tracing::debug!(%error, "no answer from an upstream");
    if error.is_parse() { Failure::Garbage } else { Failure::Closed }
}

/// The time for an answer begins when the upstream has the request: as long as a body is on its way,
/// or the client is waited for, which has its own bound, it has not begun. None if it is over.
async fn until_head<T>(
    sent: impl Future<Output = T>,
    timeout: Duration,
    progress: Option<&BodyProgress>,
) -> Option<T> {
    let mut sent = std::pin::pin!(sent);
    let mut sleep = std::pin::pin!(tokio::time::sleep(timeout));
    let mut pieces_seen = 0;
    loop {
        tokio::select! {
            biased;
            answer = &mut sent => return Some(answer),
            () = &mut sleep => {
                let pieces = progress.map_or(0, BodyProgress::pieces);
                let is_waiting = progress.is_some_and(|it| it.state() == BodyState::Waiting);
                if pieces == pieces_seen && !is_waiting {
                    return None;
                }
                pieces_seen = pieces;
                sleep.as_mut().reset(tokio::time::Instant::now() + timeout);
            }
        }
    }
}
