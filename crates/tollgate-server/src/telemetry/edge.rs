//! Metrics of the edge: connections, the gateway's pools, and its queue.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use tokio::sync::Semaphore;
use tollgate_gateway::{Gateway, PoolPlaces, RESPONSE_CLASSES};
use tollgate_queue::Counts;

use super::stores::{counters, gauges};
use crate::edge::gateway::Decider;
use crate::edge::queue::Tickets;

/// How often the queue is asked how long it is.
const QUEUE_INTERVAL: Duration = Duration::from_secs(2);

/// What there is of an edge; parts come as they start.
#[derive(Default)]
pub(crate) struct EdgeFigures {
    /// Each listener, its places for connections, and how many of them there are.
    listeners: Mutex<Vec<(String, Arc<Semaphore>, usize)>>,
    gateway: Mutex<Option<Arc<Gateway<Decider>>>>,
    /// What is in the queue, and how many dead letters have made room for requests of this node.
    queue: Mutex<Option<(Counts, u64)>>,
}

impl EdgeFigures {
    /// A listener takes connections.
    pub(crate) fn listens(&self, name: &str, places: &Arc<Semaphore>, most: usize) {
        self.listeners.lock().push((name.to_owned(), Arc::clone(places), most));
    }

    /// There may be a gateway, and a queue behind it.
    pub(crate) fn begin(
        self: &Arc<Self>,
        gateway: Option<&Arc<Gateway<Decider>>>,
        tickets: Option<&Tickets>,
    ) {
        *self.gateway.lock() = gateway.cloned();
        if let Some(tickets) = tickets {
            self.follow(tickets);
        }
    }

    /// A queue is looked at now and then, on its own thread.
    fn follow(self: &Arc<Self>, tickets: &Tickets) {
        let (queue, runtime) = tickets.parts();
        let (queue, figures) = (queue.clone(), Arc::downgrade(self));
        runtime.spawn(async move {
            while let Some(figures) = figures.upgrade() {
                // One that cannot be read has no figures.
                let counts = queue.store().counts().await.ok();
                *figures.queue.lock() = counts.map(|it| (it, queue.removed_dead_letters()));
                drop(figures);
                tokio::time::sleep(QUEUE_INTERVAL).await;
            }
        });
    }
}

/// Reads them at every scrape.
pub(super) struct EdgeCollector(pub(super) Arc<EdgeFigures>);

impl fmt::Debug for EdgeCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EdgeCollector")
    }
}

impl Collector for EdgeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let listeners: Vec<_> = self
            .0
            .listeners
            .lock()
            .iter()
            .map(|(name, places, most)| {
                let open = most.saturating_sub(places.available_permits());
                (vec![("listener", name.clone())], number(open as u64))
            })
            .collect();
        gauges(&mut encoder, "connections", "Open connections, by listener", listeners)?;
        if let Some(gateway) = self.0.gateway.lock().clone() {
            pools(&mut encoder, &gateway)?;
        }
        let Some((counts, removed_dead)) = *self.0.queue.lock() else { return Ok(()) };
        let of = |state: &str, count| (vec![("state", state.to_owned())], number(count));
        let states =
            [of("waiting", counts.waiting), of("done", counts.done), of("dead", counts.dead)];
        gauges(
            &mut encoder,
            "queue_requests",
            "Requests in the queue, by what became of them",
            states,
        )?;
        counters(
            &mut encoder,
            "queue_dead_letters_removed",
            "Dead letters that were removed to make room for requests of this node",
            [(vec![], removed_dead)],
        )?;
        let age = counts.oldest_age.map_or(0.0, |age| age.as_secs_f64());
        let help = "How long the oldest request in the queue has waited";
        gauges(&mut encoder, "queue_oldest_age_seconds", help, [(vec![], age)])
    }
}

fn pools(
    encoder: &mut DescriptorEncoder<'_>,
    gateway: &Gateway<Decider>,
) -> Result<(), fmt::Error> {
    let pools = gateway.pools_status();
    let mut targets = Vec::new();
    let mut responses = Vec::new();
    let mut places = Vec::new();
    for pool in &pools {
        let healthy = pool.targets.iter().filter(|target| target.is_healthy).count();
        for (state, count) in
            [("healthy", healthy), ("unhealthy", pool.targets.len().saturating_sub(healthy))]
        {
            let labels = vec![("pool", pool.name.clone()), ("state", state.to_owned())];
            targets.push((labels, number(count as u64)));
        }
        if let Some(PoolPlaces { limit, held, waiting }) = pool.places {
            for (state, count) in [("held", held), ("waiting", waiting), ("limit", limit)] {
                let labels = vec![("pool", pool.name.clone()), ("state", state.to_owned())];
                places.push((labels, number(count as u64)));
            }
        }
        for (class, count) in RESPONSE_CLASSES.iter().zip(pool.responses) {
            let labels = vec![("pool", pool.name.clone()), ("class", (*class).to_owned())];
            responses.push((labels, count));
        }
    }
    gauges(encoder, "gateway_targets", "Targets of pools, by whether requests go there", targets)?;
    let help = "Answers of pools by the class of their status; failed: there was none";
    counters(encoder, "gateway_responses", help, responses)?;
    let help = "Places of pools with max_concurrency: held, how many there are (limit), and requests that wait for one";
    gauges(encoder, "gateway_pool_places", help, places)?;
    let help = "Requests that wait for their turn at the gateway";
    gauges(encoder, "gateway_waiting", help, [(vec![], number(gateway.waiting() as u64))])
}

fn number(value: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a metric; exact up to 2^53")]
    let value = value as f64;
    value
}
