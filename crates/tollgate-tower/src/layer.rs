//! The layer: what makes any HTTP service ask before it answers.
//!
//! In axum (feature `axum`), three requests per address pass in an hour:
//!
//! ```
//! # mod support { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/flood.rs")); }
//! use std::net::SocketAddr;
//! use std::sync::Arc;
//!
//! use axum::Router;
//! use axum::routing::get;
//! use tollgate_engine::{Engine, SystemClock};
//! use tollgate_policy::RuleSet;
//! use tollgate_store::MemoryStore;
//! use tollgate_tower::{HeaderFamilies, InProcess, TollgateLayer};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rules = "rules: [{rule_id: per-ip, identifier_type: ip, limit: 3, window: 1h}]";
//! let rules = RuleSet::from_yaml(rules, "rules")?;
//! let engine = Engine::new(MemoryStore::new(100_000), Arc::new(SystemClock::new()), rules);
//! let layer = TollgateLayer::new(InProcess::new(Arc::new(engine), HeaderFamilies::default()));
//!
//! let app = Router::new().route("/", get(async || "hello")).layer(layer);
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let address = listener.local_addr()?;
//! // Without the addresses of clients every request is refused: none could be limited.
//! let service = app.into_make_service_with_connect_info::<SocketAddr>();
//! # let server = tokio::spawn(async move {
//! axum::serve(listener, service).await?;
//! # Ok::<_, std::io::Error>(())
//! # });
//! # assert_eq!(support::flood(address, 200).await, [(200, 3), (429, 197)].into());
//! # server.abort();
//! # Ok(())
//! # }
//! ```

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::request::Parts;
use tokio::sync::Semaphore;
use tower_layer::Layer;

use crate::decide::{Decide, EdgeRequest};
use crate::identity::Identifier;
use crate::service::TollgateService;

/// How many requests may wait for their turn at the same time, by default.
pub const DEFAULT_MAX_WAITING: usize = 10_000;

/// The address of the client that is connected, as an extension of a request. The layer cannot see
/// sockets: what accepts connections puts it there. With the feature `axum` the layer also reads axum's
/// `ConnectInfo`; other extensions are read by [`TollgateLayer::peer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

type FindPeer = Arc<dyn Fn(&Parts) -> Option<IpAddr> + Send + Sync>;
type Refine = Arc<dyn Fn(&Parts, &mut EdgeRequest) + Send + Sync>;

/// Makes any HTTP service ask before it answers. A clone that is changed is a layer of its own: the
/// original stays as it is.
pub struct TollgateLayer<D> {
    pub(crate) shared: Arc<Shared<D>>,
}

pub(crate) struct Shared<D> {
    pub(crate) decide: Arc<D>,
    pub(crate) identifier: Arc<Identifier>,
    pub(crate) waiting: Arc<Semaphore>,
    pub(crate) find_peer: FindPeer,
    pub(crate) refine: Option<Refine>,
}

impl<D> Clone for Shared<D> {
    fn clone(&self) -> Self {
        Self {
            decide: Arc::clone(&self.decide),
            identifier: Arc::clone(&self.identifier),
            waiting: Arc::clone(&self.waiting),
            find_peer: Arc::clone(&self.find_peer),
            refine: self.refine.clone(),
        }
    }
}

impl<D> Clone for TollgateLayer<D> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<D: Decide> TollgateLayer<D> {
    /// Asks this; callers are known by their address ([`Peer`]). Without one, rules by address cannot
    /// limit a request: an engine in this process refuses it then, and the log says why
    /// ([`tollgate_engine::MissingKey`]).
    pub fn new(decide: D) -> Self {
        Self::build(decide)
    }

    fn build(decide: D) -> Self {
        let shared = Shared {
            decide: Arc::new(decide),
            identifier: Arc::new(Identifier::default()),
            waiting: Arc::new(Semaphore::new(DEFAULT_MAX_WAITING)),
            find_peer: Arc::new(peer_of),
            refine: None,
        };
        Self { shared: Arc::new(shared) }
    }

    fn change(mut self, change: impl FnOnce(&mut Shared<D>)) -> Self {
        // Copied where others have it, too.
        change(Arc::make_mut(&mut self.shared));
        self
    }

    /// Finds out who calls by this.
    #[must_use]
    pub fn identifier(self, identifier: Arc<Identifier>) -> Self {
        self.change(|shared| shared.identifier = identifier)
    }

    /// Lets so many requests wait for their turn at the same time; one more is refused.
    #[must_use]
    pub fn max_waiting(self, most: usize) -> Self {
        let most = most.min(Semaphore::MAX_PERMITS);
        self.change(|shared| shared.waiting = Arc::new(Semaphore::new(most)))
    }

    /// Finds the address of the connected peer by this.
    #[must_use]
    pub fn peer(self, find: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        self.change(|shared| shared.find_peer = Arc::new(find))
    }

    /// Adds what the application knows of a request: its model, its cost, a user of its own session.
    #[must_use]
    pub fn refine(self, refine: impl Fn(&Parts, &mut EdgeRequest) + Send + Sync + 'static) -> Self {
        self.change(|shared| shared.refine = Some(Arc::new(refine)))
    }
}

/// The address that comes with a request: a [`Peer`], a `SocketAddr`, or with the feature `axum` its `ConnectInfo`.
pub fn peer_of(head: &Parts) -> Option<IpAddr> {
    let own = head.extensions.get::<Peer>().map(|peer| peer.0);
    let own = own.or_else(|| head.extensions.get::<SocketAddr>().map(SocketAddr::ip));
    #[cfg(feature = "axum")]
    let own = own.or_else(|| {
        let info = head.extensions.get::<axum::extract::ConnectInfo<SocketAddr>>();
        info.map(|info| info.0.ip())
    });
    own
}

impl<D: Decide, S> Layer<S> for TollgateLayer<D> {
    type Service = TollgateService<D, S>;

    fn layer(&self, inner: S) -> Self::Service {
        TollgateService::new(Arc::clone(&self.shared), inner)
    }
}
