//! Answers requests on one runtime.

use std::sync::Arc;
use std::time::Duration;

use http::header::HOST;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tollgate_policy::canonical_path;
use tollgate_tower::{
    Decide, EdgeRequest, Format, Held, Identity, Pass, Postponed, Rejection, Ruling, Sent,
    TRACE_TARGET,
};
use tracing::{Instrument as _, trace_span};

use crate::ai::{self, call_of, list_of};
use crate::balance::{Balancer, Tried};
use crate::body::{GatewayBody, RequestBody};
use crate::connections::Connections;
use crate::forward::{Answered, Outgoing, SentFlag, exchange};
use crate::forwarded::{self, Came};
use crate::gateway::{ConnectionInfo, Gateway, Pool};
use crate::headers;
use crate::hygiene;
use crate::places::Party;
use crate::postpone::{read_whole, stored};
use crate::respond::{Fault, own, rejected};
use crate::routes::{Asking, Route};
use crate::unread;
use crate::upgrade::{self, Upgrade};

/// How often idle connections are looked through.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// One worker's view of a pool.
pub(crate) struct WorkerPool {
    balancer: Mutex<Balancer>,
    connections: Vec<Arc<Connections>>,
    /// A pool's own, where it has one.
    pub(crate) connect_timeout: Option<Duration>,
}

impl WorkerPool {
    fn new(pool: &Pool) -> Self {
        let options = &pool.options;
        let connections = pool.targets.iter().map(|target| {
            let target = Arc::clone(target);
            let connections =
                Connections::new(target, options.max_idle_connections, options.idle_timeout);
            Arc::new(connections)
        });
        Self {
            balancer: Mutex::new(Balancer::new(pool.targets.iter().map(|target| target.weight))),
            connections: connections.collect(),
            connect_timeout: options.connect_timeout,
        }
    }

    /// Whether its targets can be spoken to in HTTP/1.1, which alone has upgrades.
    pub(crate) fn can_upgrade(&self) -> bool {
        self.connections.first().is_some_and(|it| it.target.connector.can_upgrade())
    }

    /// Whose turn it is. Where none is available, those that are not are tried nevertheless: they
    /// may be better than what is known of them, and an error is the worst they can give.
    pub(crate) fn pick(&self, tried: Tried) -> Option<(usize, &Arc<Connections>)> {
        let index = if self.connections.len() == 1 {
            Some(0).filter(|index| !tried.contains(*index))
        } else {
            let is_available = |index: usize| {
                self.connections.get(index).is_some_and(|it| it.target.is_available())
            };
            let mut balancer = self.balancer.lock();
            balancer
                .next(|index| !tried.contains(index) && is_available(index))
                .or_else(|| balancer.next(|index| !tried.contains(index)))
        };
        index.and_then(|index| Some((index, self.connections.get(index)?)))
    }
}

/// Answers requests on one runtime, with connections of its own.
pub struct Worker<D> {
    pub(crate) gateway: Arc<Gateway<D>>,
    pools: Vec<WorkerPool>,
}

impl<D> std::fmt::Debug for Worker<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("gateway", &self.gateway).finish_non_exhaustive()
    }
}

impl<D: Decide> Worker<D> {
    /// Made on the runtime that it is for. Idle connections are closed in time as long as that runs.
    pub(crate) fn new(gateway: Arc<Gateway<D>>) -> Arc<Self> {
        let pools: Vec<WorkerPool> = gateway.pools.iter().map(WorkerPool::new).collect();
        let worker = Arc::new(Self { gateway, pools });
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let worker = Arc::downgrade(&worker);
            runtime.spawn(async move {
                loop {
                    tokio::time::sleep(SWEEP_INTERVAL).await;
                    let Some(worker) = worker.upgrade() else { return };
                    for pool in &worker.pools {
                        pool.connections.iter().for_each(|connections| connections.sweep());
                    }
                }
            });
        }
        worker
    }

    /// What it is a worker of.
    pub const fn gateway(&self) -> &Arc<Gateway<D>> {
        &self.gateway
    }

    /// Answers a request.
    pub async fn answer(
        &self,
        request: Request<Incoming>,
        connection: &ConnectionInfo,
    ) -> Response<GatewayBody> {
        if self.gateway.options.cors_origins.is_empty() {
            return self.serve(request, connection).await;
        }
        Box::pin(self.answer_with_cors(request, connection)).await
    }

    pub(crate) async fn serve(
        &self,
        mut request: Request<Incoming>,
        connection: &ConnectionInfo,
    ) -> Response<GatewayBody> {
        let mut upgrade = Upgrade::wanted(&mut request, connection.permit.as_ref());
        let (mut parts, body) = request.into_parts();
        let (mut asked, route) = match self.examine(&mut parts, connection) {
            Ok(examined) => examined,
            Err(Stop::Fault(fault)) => {
                let format = self.gateway.routes.likely_format(&parts);
                return unread::unknown(not_served(fault, format, connection), &parts, &body);
            }
            Err(Stop::Rejected(rejection, format)) => {
                return unread::answer(rejected(*rejection, format), &parts, body).await;
            }
        };
        let mut is_list = false;
        if let Some(protocol) = route.protocol {
            let list = list_of(protocol, &parts, &asked, route);
            let call = call_of(protocol, &parts, &asked, route);
            is_list = list.is_some();
            if (call.is_some() || is_list)
                && let Err(rejection) = ai::restrict_query(protocol, &mut parts, is_list)
            {
                let refusal = rejected(*rejection, protocol.format());
                return unread::answer(refusal, &parts, body).await;
            }
            if let Some(call) = call {
                let answered = self.answer_ai(call, (parts, body), asked, route, connection);
                return Box::pin(answered).await;
            }
            if let Some(list) = list.and_then(|list| self.ai_list(protocol, list)) {
                return list;
            }
            let about_response = self.answer_response(&mut parts, &asked, route, connection);
            if let Some(answer) = Box::pin(about_response).await {
                return answer;
            }
            if !is_list && !self.gateway.ai.forwards_others(protocol, &asked) {
                let rejection = ai::unknown_call(protocol, &parts, &asked);
                let refusal = rejected(rejection, protocol.format());
                return unread::answer(refusal, &parts, body).await;
            }
            ai::clean_headers(&mut parts.headers, &asked);
            // What passes through an upgraded connection is counted by nobody.
            upgrade = upgrade.filter(|_| self.gateway.ai.may_upgrade(&asked));
            // The list of models is no model's work.
            asked.uses_no_tokens = is_list;
            asked.dialect = protocol.dialect();
        }
        let decide = &self.gateway.decide;
        let ruling = match decide.decide_now(&asked) {
            Some(ruling) => ruling,
            None => Box::pin(decide.decide(&asked)).await,
        };
        let pass = match ruling {
            // What is to become another protocol cannot be sent later, and nobody asks later for a list.
            Ruling::Queue(postponed) if upgrade.is_none() && !is_list => {
                self.clean(&mut parts, connection);
                let kept = Box::pin(self.postpone(postponed, asked, route, parts, body)).await;
                let format = route.error_format();
                return kept.unwrap_or_else(|fault| not_served(fault, format, connection));
            }
            ruling => match ruling.passed() {
                Ok(pass) => pass,
                Err(rejection) => {
                    let refusal = rejected(*rejection, format_of(route, &parts));
                    return unread::answer(refusal, &parts, body).await;
                }
            },
        };
        self.clean(&mut parts, connection);
        let body = RequestBody::from_client(body, &route.timeouts);
        // A future is moved into whatever awaits it, level by level: a large one costs less on the heap.
        let request = Box::new(Request::from_parts(parts, body));
        Box::pin(self.pass(route, request, pass, &asked.identity, upgrade)).await
    }

    /// Hygiene, identity and route: what is asked, and where it would go.
    fn examine(
        &self,
        parts: &mut Parts,
        connection: &ConnectionInfo,
    ) -> Result<(EdgeRequest, &Route), Stop> {
        let gateway = &*self.gateway;
        if connection.framing.as_ref().is_some_and(|framing| framing.is_ambiguous()) {
            return Err(Fault::AmbiguousFraming.into());
        }
        if let Some(via) = &gateway.options.via
            && forwarded::came_from(&parts.headers, via)
        {
            return Err(Fault::Loop.into());
        }
        let domain = hygiene::check(parts, gateway.options.max_header_bytes)?;
        let path = hygiene::path(parts)?;
        let mut asked = EdgeRequest::default();
        asked.set_path(&path).map_err(Fault::BadPath)?;
        let is_forwarded_so = asked.endpoint.as_deref() == Some(&*path);
        let model = match &gateway.options.model_header {
            Some(name) => hygiene::only_text(&parts.headers, name)?,
            None => None,
        };
        let asking =
            Asking { domain: domain.as_deref(), path: &path, method: &parts.method, model };
        let route = gateway.routes.find(&asking);
        let peer = Some(connection.peer.ip());
        let identity = gateway.identifier.identify(&parts.headers, peer).map_err(|rejection| {
            // A client of a model API gets the error in the format of that API.
            Stop::Rejected(rejection, route.map_or(Format::Json, Route::error_format))
        })?;
        let route = route.ok_or(Fault::NoRoute)?;
        if let Some(protocol) = route.protocol
            && gateway.ai.refuses(&identity, &gateway.identifier)
        {
            return Err(Stop::Rejected(Box::new(ai::no_key(protocol)), protocol.format()));
        }
        let asked = EdgeRequest {
            identity,
            model_id: model.map(str::to_owned),
            method: Some(parts.method.as_str().to_owned()),
            domain,
            ..asked
        };
        // Calls of models are known by their paths: one that upstreams read in several ways is none of them.
        if let Some(protocol) = route.protocol.filter(|_| !is_forwarded_so) {
            let rejection = Box::new(ai::unknown_call(protocol, parts, &asked));
            return Err(Stop::Rejected(rejection, protocol.format()));
        }
        Ok((asked, route))
    }

    /// What the upstream must not see goes, what it should know comes.
    pub(crate) fn clean(&self, parts: &mut Parts, connection: &ConnectionInfo) {
        let options = &self.gateway.options;
        parts.extensions = http::Extensions::default();
        let came = Came::new(connection, &self.gateway.identifier, &parts.headers);
        headers::clean_request(&mut parts.headers);
        forwarded::describe(&mut parts.headers, came, options.forwarded);
        if let Some(via) = &options.via {
            forwarded::describe_via(&mut parts.headers, via, parts.version);
        }
    }

    async fn postpone(
        &self,
        postponed: Postponed,
        asked: EdgeRequest,
        route: &Route,
        parts: Parts,
        body: Incoming,
    ) -> Result<Response<GatewayBody>, Fault> {
        let format = format_of(route, &parts);
        let refused = |postponed: Postponed| rejected(*postponed.refusal, format);
        let Some(queue) = &self.gateway.queue else {
            return Ok(unread::answer(refused(postponed), &parts, body).await);
        };
        let tenant = asked.identity.tenant_id.as_deref().unwrap_or_default();
        let least = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if let Err(error) = queue.has_room(&postponed, tenant, least).await {
            tracing::debug!(%error, rule = postponed.rule_id, "a request cannot be kept for later");
            return Ok(unread::answer(refused(postponed), &parts, body).await);
        }
        let body = RequestBody::from_client(body, &route.timeouts);
        // What is read at the same time is bounded, too, and shared among tenants.
        let share = if tenant.is_empty() { &postponed.lane } else { tenant };
        let mut buffered = self.gateway.queue_bodies.enter(share);
        let max_bytes = self.gateway.options.max_stored_body_bytes;
        let body = match read_whole(body, max_bytes, |bytes| buffered.grow(bytes)).await {
            Err(Fault::TooManyBodies) => {
                return Ok(unread::closing(refused(postponed), parts.version));
            }
            read => read?,
        };
        let stored = stored(&parts, &body, asked, &route.name);
        match queue.postpone(&postponed, stored).await {
            Ok(mut answer) => {
                postponed.refusal.headers.add_missing_to(answer.headers_mut());
                Ok(own(answer))
            }
            Err(error) => {
                tracing::debug!(%error, rule = postponed.rule_id, "a request cannot be kept for later");
                Ok(refused(postponed))
            }
        }
    }

    /// Waits if it must, forwards, and answers. Whatever the answer is, it carries the decision's
    /// headers.
    async fn pass(
        &self,
        route: &Route,
        request: Box<Request<RequestBody>>,
        pass: Pass,
        identity: &Identity,
        upgrade: Option<Upgrade>,
    ) -> Response<GatewayBody> {
        let Pass { wait, headers, held, charge, .. } = pass;
        let waited =
            if wait.is_zero() { Ok(()) } else { Box::pin(self.wait(wait, identity)).await };
        let outgoing =
            waited.and_then(|()| self.outgoing_to(route, route.pool, request, upgrade.as_ref()));
        let answered = match outgoing {
            Ok((pool, outgoing)) => {
                let sent = charge.sent();
                self.forward_to(route, route.pool, pool, outgoing, &sent).await
            }
            // The request goes nowhere, and the charge is dropped, which refunds it.
            Err(fault) => Err(fault),
        };
        let answer = match answered {
            Ok(answered) if answered.response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                upgrade::answer(answered, upgrade, held, route.timeouts.tunnel_idle)
            }
            Ok(answered) => Ok(plain_answer(answered, held, route.timeouts.response_idle)),
            Err(fault) => Err(fault),
        };
        let mut response = answer.unwrap_or_else(|fault| {
            tracing::debug!(
                ?fault,
                route = route.name,
                "a request was not answered by its upstream"
            );
            rejected(fault.rejection(), route.error_format())
        });
        if route.protocol.is_some() {
            ai::hide_account(response.headers_mut());
        }
        headers.put_into(response.headers_mut());
        response
    }

    /// Sends a request to its pool, and counts what comes of it. `_sent` shows that its charge is kept.
    pub(crate) async fn forward_to(
        &self,
        route: &Route,
        place: usize,
        pool: &WorkerPool,
        mut outgoing: Outgoing,
        _sent: &Sent,
    ) -> Result<Answered, Fault> {
        let retries = self.gateway.options.retries;
        let span = trace_span!(
            target: TRACE_TARGET,
            "upstream",
            otel.kind = "client",
            route = route.name,
            http.response.status_code = tracing::field::Empty,
        );
        let answered = if span.is_disabled() {
            exchange(pool, outgoing, retries).await
        } else {
            if let Some(inject) = self.gateway.options.inject_trace {
                inject(&span, outgoing.request.headers_mut());
            }
            let answered = exchange(pool, outgoing, retries).instrument(span.clone()).await;
            if let Ok(answered) = &answered {
                let status = answered.response.status().as_u16();
                span.record("http.response.status_code", status);
            }
            answered
        };
        if let Some(pool) = self.gateway.pools.get(place) {
            match &answered {
                Ok(answered) => pool.answered(Some(answered.response.status())),
                Err(fault) if fault.is_of_upstream() => pool.answered(None),
                Err(_) => {}
            }
        }
        answered
    }

    /// A request that waits holds no thread; it leaves with its client, which drops this.
    pub(crate) async fn wait(&self, wait: Duration, identity: &Identity) -> Result<(), Fault> {
        let Some(_place) = self.gateway.waiting.enter(Party::of(identity)) else {
            return Err(Fault::TooManyWaiting(wait));
        };
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// A request that was admitted, and the pool that it goes to.
    pub(crate) fn outgoing_to(
        &self,
        route: &Route,
        place: usize,
        mut request: Box<Request<RequestBody>>,
        upgrade: Option<&Upgrade>,
    ) -> Result<(&WorkerPool, Outgoing), Fault> {
        let original = request.uri().path_and_query().ok_or(Fault::BadTarget)?;
        let path = canonical_path(original.path()).map_err(Fault::BadPath)?;
        let path = route.rewrite(original, &path).ok_or(Fault::BadTarget)?;
        let pool = self.pools.get(place).ok_or(Fault::NoUpstream)?;
        // An address may serve several models, each under its own host.
        let (plain, models) = (&self.gateway.options, &self.gateway.ai.options);
        let preserves = route.protocol.map_or(plain.preserve_host, |_| models.preserves_host);
        let host = request.headers().get(HOST).filter(|_| preserves).cloned();
        let own_key = self.gateway.pools.get(place).and_then(|it| it.options.authorization.clone());
        if let Some(key) = own_key {
            route.protocol.unwrap_or_default().put_key(request.headers_mut(), key);
        }
        let outgoing = Outgoing {
            request,
            path,
            host,
            upgrade: upgrade.map(Upgrade::protocol),
            timeouts: route.timeouts,
            sent: SentFlag::default(),
        };
        Ok((pool, outgoing))
    }

    /// Sends a request that was kept for later on its route.
    pub(crate) async fn resend(
        &self,
        route: &str,
        request: Request<RequestBody>,
        sent: &Sent,
    ) -> Result<Response<GatewayBody>, Fault> {
        let route = self.gateway.routes.named(route).ok_or(Fault::NoRoute)?;
        let request = Box::new(request);
        let (pool, outgoing) = self.outgoing_to(route, route.pool, request, None)?;
        let answered = self.forward_to(route, route.pool, pool, outgoing, sent).await?;
        Ok(plain_answer(answered, None, route.timeouts.response_idle))
    }
}

/// Why a request goes no further than to be looked at.
enum Stop {
    Fault(Fault),
    /// It is rejected in this format.
    Rejected(Box<Rejection>, Format),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// The format in which a client of a route reads that rules refused its request.
fn format_of(route: &Route, parts: &Parts) -> Format {
    route.protocol.map_or_else(|| Format::accepted(&parts.headers), ai::Protocol::format)
}

fn not_served(fault: Fault, format: Format, connection: &ConnectionInfo) -> Response<GatewayBody> {
    let (peer, local) = (connection.peer, connection.local);
    tracing::debug!(?fault, %peer, %local, "a request is not served");
    rejected(fault.rejection(), format)
}

pub(crate) fn plain_answer(
    answered: Answered,
    held: Option<Held>,
    idle: Duration,
) -> Response<GatewayBody> {
    let Answered { response, lease } = answered;
    let (mut parts, incoming) = response.into_parts();
    headers::clean_response(&mut parts.headers);
    parts.extensions = http::Extensions::default();
    // What the upstream speaks is no business of the client's.
    parts.version = http::Version::HTTP_11;
    let mut body = GatewayBody::upstream(incoming, idle, lease);
    body.hold(held);
    Response::from_parts(parts, body)
}
