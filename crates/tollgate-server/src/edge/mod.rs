//! Where traffic is: the gRPC port, and the gateway with its queue.

pub(crate) mod gateway;
pub(crate) mod grpc;
mod identity;
pub(crate) mod queue;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::runtime::Builder;
use tokio::sync::watch;
use tollgate_engine::Engine;
use tollgate_gateway::Gateway;
use tollgate_policy::RuleSet;
use tollgate_tower::{HeaderFamilies, InProcess};

pub(crate) use gateway::{check_pool, options as gateway_options};
pub(crate) use identity::{Callers, IdentityConfigError, read_api_keys, trusted_proxies};

use crate::check_files::keys_without_tenant;
use crate::config::Config;
use crate::control::ControlFigures;
use crate::reservation_shares::ReservationShares;
use crate::stores::{Shared, Stores};
use crate::workers::Workers;
use gateway::{Decider, GatewayDoor};
use queue::{QueueKeeper, Tickets};

/// Why the edge cannot be as the configuration says.
#[derive(Debug, thiserror::Error)]
pub enum EdgeError {
    /// Callers cannot be identified.
    #[error(transparent)]
    Identity(#[from] IdentityConfigError),
    /// Something else is wrong.
    #[error("{0}")]
    Wrong(String),
    /// The system refused something.
    #[error(transparent)]
    Io(io::Error),
}

/// The gateway, who calls it, and its queue.
pub(crate) struct Edge {
    engine: Arc<Engine<Stores>>,
    callers: Arc<Callers>,
    gateway: Arc<Gateway<Decider>>,
    queue: Option<QueueKeeper>,
    /// The queue ends after the doors: until then it is given requests.
    stop_queue: watch::Sender<bool>,
    decide: Decider,
}

impl Edge {
    /// Checks everything, and connects to nothing.
    pub(crate) fn build(
        config: &Config,
        engine: &Arc<Engine<Stores>>,
        reservations: &Arc<ReservationShares>,
        node: &str,
        figures: &Arc<ControlFigures>,
    ) -> Result<Self, EdgeError> {
        if config.gateway.listen.is_none() {
            let message = "gateway.listen is null: a gateway has to listen somewhere";
            return Err(EdgeError::Wrong(message.to_owned()));
        }
        let callers = Callers::new(&config.identity)?;
        let source = Arc::clone(engine);
        callers.identifier.set_virtual_keys(Arc::new(move || {
            (Arc::clone(source.rules().set.virtual_keys()), source.clock().now())
        }));
        let mut gateway = gateway::build(config, engine, reservations, &callers, node)?;
        let (stop_queue, stopped) = watch::channel(false);
        let redis = engine.store().shared().first().map(Shared::remote);
        let queue = QueueKeeper::open(config, redis, figures, stopped)?;
        if let Some(queue) = &queue {
            gateway = gateway.with_queue(Arc::new(queue.tickets()));
        }
        // The queue's worker needs all headers of a refusal, whichever of them clients get.
        let decide = Decider(InProcess::new(Arc::clone(engine), HeaderFamilies::default()));
        Ok(Self {
            engine: Arc::clone(engine),
            callers: Arc::new(callers),
            gateway: Arc::new(gateway),
            queue,
            stop_queue,
            decide,
        })
    }

    /// The gateway itself.
    pub(crate) const fn gateway(&self) -> &Arc<Gateway<Decider>> {
        &self.gateway
    }

    /// The tickets of the queue, where there is one.
    pub(crate) fn tickets(&self) -> Option<Tickets> {
        self.queue.as_ref().map(QueueKeeper::tickets)
    }

    /// Reports what is most likely not meant with these rules.
    pub(crate) fn report_odd_keys(&self, rules: &RuleSet) {
        let keys = self.callers.identifier.api_keys();
        if let Some(warning) = keys_without_tenant(&keys, rules) {
            tracing::warn!("{warning}");
        }
    }

    /// Serves these listeners, checks targets, keeps keys up to date, and works off the queue.
    pub(crate) fn start(
        self,
        config: &Config,
        listeners: Vec<TcpListener>,
        workers: &mut Workers,
        stopped: &watch::Receiver<bool>,
    ) -> io::Result<RunningEdge> {
        let tickets = self.tickets();
        let (gateway, callers) = (Arc::clone(&self.gateway), Arc::clone(&self.callers));
        let engine = Arc::clone(&self.engine);
        let door = move || {
            Arc::new(GatewayDoor::new(&gateway, &callers, tickets.clone(), Arc::clone(&engine)))
        };
        workers.start("gateway", listeners, door, false)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (gateway, callers) = (Arc::clone(&self.gateway), Arc::clone(&self.callers));
        let mut stop = stopped.clone();
        let look_after = move || {
            runtime.block_on(async move {
                let _checks = gateway.spawn_health_checks(&stop);
                callers.keep_up_to_date(stop.clone()).await;
                let _ = stop.wait_for(|stop| *stop).await;
            });
        };
        let mut helpers =
            vec![std::thread::Builder::new().name("edge".to_owned()).spawn(look_after)?];
        if let Some(queue) = self.queue {
            let drain = config.limits.drain_timeout;
            helpers.push(queue.begin(self.gateway, self.decide, drain));
        }
        Ok(RunningEdge { callers: self.callers, stop_queue: self.stop_queue, helpers })
    }
}

/// The edge at work.
pub(crate) struct RunningEdge {
    callers: Arc<Callers>,
    stop_queue: watch::Sender<bool>,
    helpers: Vec<JoinHandle<()>>,
}

impl RunningEdge {
    /// Reads files anew.
    pub(crate) fn reload(&self) {
        self.callers.reload();
    }

    /// Waits until it has ended; the doors are closed already.
    pub(crate) fn wait(self) {
        self.stop_queue.send_replace(true);
        for helper in self.helpers {
            let _ = helper.join();
        }
    }
}
