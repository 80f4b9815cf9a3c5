//! The layer: what makes any HTTP service ask before it answers.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use tollgate_engine::{Engine, SystemClock};
//! use tollgate_policy::RuleSet;
//! use tollgate_store::MemoryStore;
//! use tollgate_tower::{HeaderFamilies, InProcess, TollgateLayer};
//!
//! let rules = "rules: [{rule_id: per-ip, identifier_type: ip, limit: 100, window: 1m}]";
//! let rules = RuleSet::from_yaml(rules, "rules").expect("good rules");
//! let engine = Engine::new(MemoryStore::new(100_000), Arc::new(SystemClock::new()), rules);
//! let layer = TollgateLayer::new(InProcess::new(Arc::new(engine), HeaderFamilies::default()));
//! // let app = axum::Router::new().route("/", get(hello)).layer(layer);
//! ```

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::request::Parts;
use tokio::sync::Semaphore;
use tower_layer::Layer;

use crate::decide::{Asked, Decide};
use crate::identity::Identifier;
use crate::service::TollgateService;

/// How many requests may wait for their turn at the same time, by default.
pub const DEFAULT_MAX_WAITING: usize = 10_000;

/// The address of whoever is connected, as an extension of a request. The layer cannot see sockets:
/// whoever accepts connections puts it there. `axum`'s `ConnectInfo` can be read by
/// [`TollgateLayer::peer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

type FindPeer = Arc<dyn Fn(&Parts) -> Option<IpAddr> + Send + Sync>;
type Refine = Arc<dyn Fn(&Parts, &mut Asked) + Send + Sync>;

/// Makes any HTTP service ask before it answers.
pub struct TollgateLayer<D> {
    pub(crate) shared: Arc<Shared<D>>,
}

pub(crate) struct Shared<D> {
    pub(crate) decide: D,
    pub(crate) identifier: Arc<Identifier>,
    pub(crate) waiting: Arc<Semaphore>,
    pub(crate) find_peer: FindPeer,
    pub(crate) refine: Option<Refine>,
}

impl<D> Clone for TollgateLayer<D> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<D: Decide> TollgateLayer<D> {
    /// Asks this; callers are known by their address ([`Peer`]).
    pub fn new(decide: D) -> Self {
        Self::build(decide)
    }

    fn build(decide: D) -> Self {
        let find_peer: FindPeer = Arc::new(|head: &Parts| {
            let own = head.extensions.get::<Peer>().map(|peer| peer.0);
            own.or_else(|| head.extensions.get::<SocketAddr>().map(SocketAddr::ip))
        });
        let shared = Shared {
            decide,
            identifier: Arc::new(Identifier::default()),
            waiting: Arc::new(Semaphore::new(DEFAULT_MAX_WAITING)),
            find_peer,
            refine: None,
        };
        Self { shared: Arc::new(shared) }
    }

    fn change(self, change: impl FnOnce(&mut Shared<D>)) -> Self {
        match Arc::try_unwrap(self.shared) {
            Ok(mut shared) => {
                change(&mut shared);
                Self { shared: Arc::new(shared) }
            }
            // Only a layer that is in use already is shared; it stays as it is.
            Err(shared) => Self { shared },
        }
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

    /// Finds the address of whoever is connected by this.
    #[must_use]
    pub fn peer(self, find: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        self.change(|shared| shared.find_peer = Arc::new(find))
    }

    /// Adds what the application knows of a request: its model, its cost, a user of its own session.
    #[must_use]
    pub fn refine(self, refine: impl Fn(&Parts, &mut Asked) + Send + Sync + 'static) -> Self {
        self.change(|shared| shared.refine = Some(Arc::new(refine)))
    }
}

impl<D: Decide, S> Layer<S> for TollgateLayer<D> {
    type Service = TollgateService<D, S>;

    fn layer(&self, inner: S) -> Self::Service {
        TollgateService::new(Arc::clone(&self.shared), inner)
    }
}
