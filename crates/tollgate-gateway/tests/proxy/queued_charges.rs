//! What a queued request was charged stays charged once it is sent: a gateway, its queue and its
//! worker on a real engine, all on one clock that the test sets.

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tollgate_core::{Nanos, SECOND};
use tollgate_engine::{Clock, Engine, ManualClock, Request};
use tollgate_gateway::{Gateway, Postpone};
use tollgate_policy::RuleSet;
use tollgate_queue::{
    Queue, QueueOptions, SqliteQueue, TicketState, Worker as QueueWorker, WorkerOptions,
};
use tollgate_store::{MemoryStore, Mode};
use tollgate_tower::{HeaderFamilies, Identifier, InProcess};

use crate::ground::{Front, PATIENCE, Upstream, options};

const MILLISECOND: Nanos = SECOND / 1_000;
const START: Nanos = 1_700_000_000 * SECOND;

/// One request per 50 ms; further ones are queued. Each of them also occupies a leaky bucket for 100 ms.
const RULES: &str = "
default: false
rules:
  - {rule_id: rate, identifier_type: global, limit: 1, window_ms: 50, algorithm: fixed_window, action: queue}
  - {rule_id: pace, identifier_type: global, limit: 10, window: 1s, burst: 10, algorithm: leaky_bucket,
     action: throttle, max_delay_ms: 60000}
";

struct Ground {
    clock: Arc<ManualClock>,
    engine: Arc<Engine<MemoryStore>>,
    queue: Queue,
    front: Front<InProcess<MemoryStore>>,
    upstream: Upstream,
    worker: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    _dir: TempDir,
}

impl Ground {
    async fn start() -> Self {
        let clock = Arc::new(ManualClock::new(START));
        let rules = RuleSet::from_yaml(RULES, "rules").unwrap();
        let memory = MemoryStore::new(1_000);
        let engine = Arc::new(Engine::new(memory, Arc::clone(&clock) as Arc<dyn Clock>, rules));
        let decide = InProcess::new(Arc::clone(&engine), HeaderFamilies::default());
        let dir = tempfile::tempdir().unwrap();
        let millis = Arc::clone(&clock);
        let queue_clock = Arc::new(move || millis.now() / MILLISECOND);
        let path = dir.path().join("queue.db");
        let store = SqliteQueue::open(path, QueueOptions::default(), queue_clock).await.unwrap();
        let queue = Queue::new(Arc::new(store));
        let upstream = Upstream::named("served").await;
        let options = options(&[&upstream.url()]);
        let gateway = Gateway::new(options, decide.clone(), Arc::new(Identifier::default()));
        let shelf = Arc::new(queue.clone()) as Arc<dyn Postpone>;
        let front = Front::of(gateway.unwrap().with_queue(shelf)).await;
        let (stop, stopped) = oneshot::channel();
        let forward = Arc::clone(&front.worker);
        let worker = QueueWorker::new(queue.clone(), decide, forward, WorkerOptions::default());
        let worker = tokio::spawn(worker.run(async {
            let _ = stopped.await;
        }));
        let worker = Some((stop, worker));
        Self { clock, engine, queue, front, upstream, worker, _dir: dir }
    }

    /// Usage of the window, and when the bucket is empty, in milliseconds after the start.
    async fn figures(&self) -> (u64, u64) {
        let rules = self.engine.rules();
        let request = Request::default();
        let decision = self.engine.decide(&rules, &request, Mode::Peek).await.unwrap();
        let status = |rule: &str| {
            let scope = decision.scopes().find(|scope| scope.rule.id == rule);
            scope.unwrap().outcome.status
        };
        let empty_at = status("pace").reset_at.saturating_sub(START) / MILLISECOND;
        (status("rate").used, empty_at)
    }

    async fn until_done(&self, ticket: &str) {
        let look = async {
            loop {
                let found = self.queue.ticket(ticket).await.unwrap().unwrap();
                if found.state == TicketState::Done {
                    return;
                }
                assert_ne!(found.state, TicketState::Failed, "{found:?}");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, look).await.expect("it is sent");
    }

    /// Stops the worker of the queue; afterwards it has done all that it does for a request.
    async fn stop_worker(&mut self) {
        let (stop, worker) = self.worker.take().unwrap();
        stop.send(()).unwrap();
        worker.await.unwrap();
    }
}

#[tokio::test]
async fn a_queued_request_that_was_throttled_stays_charged_once_it_is_sent() {
    let mut ground = Ground::start().await;
    assert_eq!(ground.front.get("/a").await.status, 200);
    assert_eq!(ground.figures().await, (1, 100), "sent directly");

    let queued = ground.front.get("/b").await;
    assert_eq!(queued.status, 202, "{queued:?}");
    assert_eq!(ground.figures().await, (1, 100), "a queued request is not charged yet");
    let location = queued.headers["location"].to_str().unwrap().to_owned();
    let ticket = location.rsplit('/').next().unwrap();

    // The window is over; the bucket is not empty, so the request waits for 50 ms and is then sent.
    ground.clock.advance(50 * MILLISECOND);
    ground.until_done(ticket).await;
    ground.stop_worker().await;
    assert_eq!(ground.upstream.served(), 2);
    assert_eq!(ground.figures().await, (1, 200), "what was sent stays charged, in both rules");
}
