//! The layer: what makes an HTTP service ask a gate before it answers.

mod admit;
#[cfg(feature = "axum")]
mod axum;
mod service;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use http_body_util::Full;
use tokio::sync::Semaphore;
use tollgate_policy::Known;
use tollgate_tower::identity::{ApiKeys, Identifier, KeyOwner};
use tollgate_tower::layer::DEFAULT_MAX_WAITING;
use tollgate_tower::{EdgeRequest, HeaderFamilies, InProcess, peer_of};
use tower_layer::Layer;

use crate::gate::Inner;
use crate::store::GateStore;
use crate::{Client, Denial, Gate};

pub use service::GateService;

type FindPeer = Arc<dyn Fn(&Parts) -> Option<IpAddr> + Send + Sync>;
type Refine = Arc<dyn Fn(&Parts, &mut EdgeRequest) + Send + Sync>;
type OnRefusal<R> = Arc<dyn Fn(&Denial) -> Response<R> + Send + Sync>;

/// Makes an HTTP service ask a [`Gate`] before it answers, from [`Gate::axum_layer`] or [`Gate::tower_layer`].
///
/// Rules see the attributes `ip`, `endpoint`, `method` and `domain`, and those of [`GateLayer::api_keys`] and
/// [`GateLayer::attribute`]. A request that lacks the attribute of a rule is refused, as the gate's
/// [`MissingKey`](crate::MissingKey) says: by default with status 500, because the service is not set up to limit it. A slot
/// of a rule with [`Rule::concurrent`](crate::Rule::concurrent) is held until the body of the response has ended. `R` is the
/// body of a refusal.
///
/// ```
/// use axum::Router;
/// use axum::http::StatusCode;
/// use axum::routing::get;
/// use tollgate::{Client, Gate, Hold, Quota, Rule, Usage};
///
/// async fn chat(hold: Hold) -> Result<&'static str, StatusCode> {
///     hold.settle(Usage::tokens(250)).await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
///     Ok("an answer of 250 tokens")
/// }
///
/// let gate = Gate::builder()
///     .rule(Rule::per("ip").quota(Quota::per_minute(60)))
///     .rule(Rule::per("ip").tokens(Quota::per_day(10_000)).tier("pro", Quota::per_day(1_000_000)))
///     .build()?;
/// let layer = gate
///     .axum_layer()
///     .api_keys([("k1", Client::user("ann").tier("pro"))])
///     .cost(|parts| if parts.uri.path() == "/report" { 5 } else { 1 })
///     .tokens(|_| 1_000)
///     .on_refusal(|denial| (StatusCode::TOO_MANY_REQUESTS, denial.to_string()));
/// let app: Router = Router::new().route("/chat", get(chat)).layer(layer);
/// // Serve `app.into_make_service_with_connect_info::<SocketAddr>()`, so that addresses are known.
/// # let _ = app;
/// # Ok::<(), tollgate::Error>(())
/// ```
#[must_use = "a layer limits nothing until a service wears it"]
pub struct GateLayer<R = Full<Bytes>> {
    shared: Arc<Shared<R>>,
}

struct Shared<R> {
    gate: Arc<Inner>,
    engine: InProcess<GateStore>,
    identifier: Arc<Identifier>,
    waiting: Arc<Semaphore>,
    find_peer: FindPeer,
    refine: Vec<Refine>,
    on_refusal: Option<OnRefusal<R>>,
    /// Whether a rule counts tokens or money: only then there is something to settle.
    counts_tokens: bool,
}

impl Gate {
    /// A layer for any tower service of HTTP, such as one of hyper or tonic. What accepts connections inserts a
    /// [`Peer`](crate::Peer) into the extensions of each request.
    ///
    /// ```
    /// # use tollgate::{Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::per("ip").quota(Quota::per_minute(60))).build()?;
    /// let layer = gate.tower_layer();
    /// # let _ = layer;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn tower_layer(&self) -> GateLayer {
        GateLayer::new(self)
    }
}

impl<R> GateLayer<R> {
    fn new(gate: &Gate) -> Self {
        let gate = Arc::clone(&gate.inner);
        let rules = gate.engine.rules();
        let mut all = rules.set.rules().iter().chain(rules.set.default_rule());
        let shared = Shared {
            engine: InProcess::new(Arc::clone(&gate.engine), HeaderFamilies::default()),
            identifier: Arc::new(Identifier::default()),
            waiting: Arc::new(Semaphore::new(DEFAULT_MAX_WAITING)),
            find_peer: Arc::new(peer_of),
            refine: Vec::new(),
            on_refusal: None,
            counts_tokens: all.any(|rule| rule.unit.counts_usage()),
            gate: Arc::clone(&gate),
        };
        Self { shared: Arc::new(shared) }
    }

    fn change(mut self, change: impl FnOnce(&mut Shared<R>)) -> Self {
        // Copied where others have it, too.
        change(Arc::make_mut(&mut self.shared));
        self
    }

    /// Registers API keys, which callers send in the header `x-api-key`. A key stands for a user, a tenant, a tier and a
    /// client type; further attributes of the client have no effect. Other keys are refused with status 401. Only
    /// hashes of the keys are kept.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// # let gate = Gate::builder().rule(Rule::per("api_key").quota(Quota::per_minute(60))).build()?;
    /// let layer = gate.tower_layer().api_keys([
    ///     ("k1", Client::user("ann").tier("pro")),
    ///     ("k2", Client::user("bob").tenant("acme")),
    /// ]);
    /// # let _ = layer;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn api_keys<'a, K: AsRef<str>>(
        self,
        keys: impl IntoIterator<Item = (K, Client<'a>)>,
    ) -> Self {
        let mut registered = ApiKeys::new();
        for (key, client) in keys {
            let value = |known| client.value(known).map(str::to_owned);
            let owner = KeyOwner {
                user_id: value(Known::UserId),
                tenant_id: value(Known::TenantId),
                tier: value(Known::Tier),
                client_type: value(Known::ClientType),
            };
            registered.register(key.as_ref(), owner);
        }
        self.identifier(Arc::new(Identifier::with_api_keys(registered)))
    }

    /// Finds out who calls by this: API keys that change, trusted proxies, or with the feature `jwt` bearer tokens. Replaces
    /// [`GateLayer::api_keys`].
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate::{Gate, Quota, Rule};
    /// use tollgate::identity::{Identifier, IdentityOptions};
    ///
    /// # let gate = Gate::builder().rule(Rule::per("ip").quota(Quota::per_minute(60))).build()?;
    /// let options = IdentityOptions { ipv6_prefix: 56, ..IdentityOptions::default() };
    /// let layer = gate.tower_layer().identifier(Arc::new(Identifier::new(options)?));
    /// # let _ = layer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn identifier(self, identifier: Arc<Identifier>) -> Self {
        self.change(|shared| shared.identifier = identifier)
    }

    /// Finds the address of the connected peer by this.
    ///
    /// ```
    /// # use std::net::{IpAddr, Ipv4Addr};
    /// # use tollgate::{Gate, Quota, Rule};
    /// # let gate = Gate::builder().rule(Rule::per("ip").quota(Quota::per_minute(60))).build()?;
    /// let layer = gate.tower_layer().peer(|parts| parts.extensions.get::<IpAddr>().copied());
    /// # let _ = layer;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn peer(self, find: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        self.change(|shared| shared.find_peer = Arc::new(find))
    }

    /// Sets an attribute of each request, such as `user_id` from a session, or one of your own that rules count by. `None`
    /// leaves it as it is.
    ///
    /// ```
    /// # use tollgate::{Gate, Quota, Rule};
    /// # let gate = Gate::builder().rule(Rule::per("region").quota(Quota::per_minute(60))).build()?;
    /// let layer = gate.tower_layer().attribute("region", |parts| {
    ///     parts.headers.get("x-region").and_then(|value| value.to_str().ok()).map(str::to_owned)
    /// });
    /// # let _ = layer;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn attribute(
        self,
        name: impl Into<String>,
        find: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let name = name.into();
        self.refine(move |parts, asked| {
            if let Some(value) = find(parts) {
                admit::set_attribute(asked, &name, value);
            }
        })
    }

    /// What each request costs on rules of requests; without it 1.
    ///
    /// ```
    /// # use tollgate::{Gate, Quota, Rule};
    /// # let gate = Gate::builder().rule(Rule::per("ip").quota(Quota::per_minute(60))).build()?;
    /// let layer = gate.tower_layer().cost(|parts| if parts.uri.path() == "/report" { 5 } else { 1 });
    /// # let _ = layer;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.refine(move |parts, asked| asked.cost = Some(cost(parts)))
    }

    /// An estimate of the tokens that each request uses; without it 0. The handler settles its [`Hold`](crate::Hold) with the
    /// truth.
    ///
    /// ```
    /// # use tollgate::{Gate, Quota, Rule};
    /// # let gate = Gate::builder().rule(Rule::per("ip").tokens(Quota::per_day(10_000))).build()?;
    /// let layer = gate.tower_layer().tokens(|_| 1_000);
    /// # let _ = layer;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn tokens(self, tokens: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.refine(move |parts, asked| asked.tokens = Some(tokens(parts)))
    }

    fn refine(self, refine: impl Fn(&Parts, &mut EdgeRequest) + Send + Sync + 'static) -> Self {
        self.change(|shared| shared.refine.push(Arc::new(refine)))
    }
}

impl GateLayer<Full<Bytes>> {
    /// Answers requests that rules or lists refuse with this. The headers of the limit are added where they are missing.
    /// Requests that cannot be decided are not refusals, and are answered by the layer: a missing peer, a wrong API key, a
    /// store that fails.
    ///
    /// ```
    /// # use tollgate::{Gate, Quota, Rule};
    /// # let gate = Gate::builder().rule(Rule::per("ip").quota(Quota::per_minute(60))).build()?;
    /// let layer = gate.tower_layer().on_refusal(|denial| {
    ///     let mut response = http::Response::new(denial.to_string().into());
    ///     *response.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
    ///     response
    /// });
    /// # let _ = layer;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn on_refusal(
        self,
        answer: impl Fn(&Denial) -> Response<Full<Bytes>> + Send + Sync + 'static,
    ) -> Self {
        self.change(|shared| shared.on_refusal = Some(Arc::new(answer)))
    }
}

impl<R> Clone for Shared<R> {
    fn clone(&self) -> Self {
        Self {
            gate: Arc::clone(&self.gate),
            engine: self.engine.clone(),
            identifier: Arc::clone(&self.identifier),
            waiting: Arc::clone(&self.waiting),
            find_peer: Arc::clone(&self.find_peer),
            refine: self.refine.clone(),
            on_refusal: self.on_refusal.clone(),
            counts_tokens: self.counts_tokens,
        }
    }
}

impl<R> Clone for GateLayer<R> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<R> fmt::Debug for GateLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let identifier = &self.shared.identifier;
        f.debug_struct("GateLayer").field("identifier", identifier).finish_non_exhaustive()
    }
}

impl<R, S> Layer<S> for GateLayer<R> {
    type Service = GateService<S, R>;

    fn layer(&self, inner: S) -> Self::Service {
        GateService::new(Arc::clone(&self.shared), inner)
    }
}
