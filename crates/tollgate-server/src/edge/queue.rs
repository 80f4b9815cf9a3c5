//! The durable queue: where it is kept, the thread that works it off, and its tickets.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, Response, StatusCode};
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tollgate_gateway::{Gateway, Postpone, PostponeError};
use tollgate_queue::{
    Opening, ProblemObserver, Queue, QueueError, QueueOptions, QueueStore, RedisQueue, SqliteQueue,
    StoredRequest, SupervisedQueue, Worker, WorkerOptions, ticket_response,
};
use tollgate_store::redis::RedisStore;
use tollgate_tower::Postponed;
use tollgate_tower::render::problem;

use super::EdgeError;
use super::gateway::Decider;
use crate::config::{Config, QueueConfig};
use crate::control::ControlFigures;

/// The file of an embedded queue, in the data directory.
const FILE: &str = "queue.db";

/// What to do about a file that stays unusable.
const FILE_ADVICE: &str = " If the disk has room and the file is damaged: stop the node, move queue.db, \
     queue.db-wal and queue.db-shm of the data directory to another folder, and start the node.";

/// A queue on a thread of its own.
pub(crate) struct QueueKeeper {
    queue: Queue,
    runtime: Handle,
    thread: JoinHandle<()>,
    begin: tokio::sync::oneshot::Sender<Work>,
}

/// What the thread begins with once the gateway is there.
struct Work {
    gateway: Arc<Gateway<Decider>>,
    decide: Decider,
    drain: Duration,
}

impl QueueKeeper {
    /// Starts the queue; `None` where there is nowhere to store one. A store that cannot be opened does
    /// not stop the start: it is reported, and tried again.
    pub(crate) fn open(
        config: &Config,
        redis: Option<&RedisStore>,
        figures: &Arc<ControlFigures>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<Option<Self>, EdgeError> {
        let options = options(config.queue);
        options.check().map_err(|problem| EdgeError::Wrong(format!("queue: {problem}")))?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(EdgeError::Io)?;
        let store: Arc<dyn QueueStore> =
            match (config.shared_stores().next().zip(redis), &config.data_dir) {
                (Some((store, redis)), _) => {
                    let prefix = &store.prefix;
                    let queue: Arc<dyn QueueStore> =
                        Arc::new(RedisQueue::new(redis, prefix, options.clone()));
                    let open =
                        move || -> Opening { Box::pin(std::future::ready(Ok(Arc::clone(&queue)))) };
                    Arc::new(SupervisedQueue::new(open, options, reporter(figures, None)))
                }
                (None, Some(dir)) => {
                    let (dir, bounds) = (dir.clone(), options.clone());
                    let open =
                        move || -> Opening { Box::pin(open_file(dir.clone(), bounds.clone())) };
                    Arc::new(SupervisedQueue::new(
                        open,
                        options,
                        reporter(figures, Some(FILE_ADVICE)),
                    ))
                }
                // Without a place on disk nothing is durable: such requests are refused instead.
                (None, None) => return Ok(None),
            };
        let queue = Queue::new(store);
        let (begin, begun) = tokio::sync::oneshot::channel::<Work>();
        let handle = runtime.handle().clone();
        let worked = queue.clone();
        let run = move || {
            runtime.block_on(async move {
                let Ok(Work { gateway, decide, drain }) = begun.await else { return };
                let options = WorkerOptions { drain, ..WorkerOptions::default() };
                let worker = Worker::new(worked, decide, gateway.worker(), options);
                let stopped = async move {
                    let _ = stop.wait_for(|stop| *stop).await;
                };
                worker.run(stopped).await;
            });
        };
        let thread = std::thread::Builder::new().name("queue".to_owned()).spawn(run);
        let thread = thread.map_err(EdgeError::Io)?;
        Ok(Some(Self { queue, runtime: handle, thread, begin }))
    }

    /// What stores requests for later, and reports on them.
    pub(crate) fn tickets(&self) -> Tickets {
        Tickets { queue: self.queue.clone(), runtime: self.runtime.clone() }
    }

    /// Begins to send what is kept.
    pub(crate) fn begin(
        self,
        gateway: Arc<Gateway<Decider>>,
        decide: Decider,
        drain: Duration,
    ) -> JoinHandle<()> {
        let _ = self.begin.send(Work { gateway, decide, drain });
        self.thread
    }
}

/// Opens the file of an embedded queue, and creates it where there is none.
async fn open_file(dir: PathBuf, options: QueueOptions) -> Result<Arc<dyn QueueStore>, QueueError> {
    let failed = |error| QueueError::Unavailable(format!("the data directory: {error}"));
    std::fs::create_dir_all(&dir).map_err(failed)?;
    let clock = Arc::new(|| u64::try_from(crate::admin::now()).unwrap_or(0));
    Ok(Arc::new(SqliteQueue::open(dir.join(FILE), options, clock).await?))
}

/// Logs problems of the queue, and reports them at `/readyz` and in the admin API.
fn reporter(figures: &Arc<ControlFigures>, advice: Option<&'static str>) -> ProblemObserver {
    let (figures, advice) = (Arc::clone(figures), advice.unwrap_or_default());
    Box::new(move |problem| {
        let text = problem.map(|problem| {
            format!(
                "requests that should be queued are refused, and queued ones are not sent: \
                 {problem}. The node tries again every second.{advice}"
            )
        });
        if let Some(text) = &text {
            tracing::error!("{text}");
        } else {
            tracing::info!("the queue is available again");
        }
        figures.report_incident("queue", text);
    })
}

fn options(config: QueueConfig) -> QueueOptions {
    QueueOptions {
        max_depth: config.max_depth,
        max_lane_depth: config.max_depth_per_key,
        max_bytes: config.max_bytes,
        max_tenant_bytes: config.max_bytes_per_tenant,
        max_lane_bytes: config.max_bytes_per_key,
        // Headers come on top of the body.
        max_request_bytes: config.max_body_bytes + (256 << 10),
        max_response_bytes: config.max_body_bytes,
        max_age: config.max_age,
        max_attempts: config.max_attempts,
        keep_results: config.keep,
        lease: config.lease,
        max_results: config.max_depth.max(1),
        // Nothing that was accepted is thrown away before its time.
        max_dead: config.max_depth.max(1),
        ..QueueOptions::default()
    }
}

/// The queue as requests see it. Its connections belong to its own thread, and what was begun there is
/// finished, whether or not the client stays.
#[derive(Clone)]
pub(crate) struct Tickets {
    queue: Queue,
    runtime: Handle,
}

impl Tickets {
    /// The queue itself, and where its work is done.
    pub(crate) const fn parts(&self) -> (&Queue, &Handle) {
        (&self.queue, &self.runtime)
    }

    /// What became of a request.
    pub(crate) async fn response(&self, method: &Method, id: &str) -> Response<Bytes> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            let message = "a ticket can only be read";
            return problem(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", message);
        }
        let (queue, id) = (self.queue.clone(), id.to_owned());
        let found = self.runtime.spawn(async move { queue.ticket(&id).await }).await;
        if let Ok(Ok(ticket)) = found {
            return ticket_response(ticket);
        }
        let message = "the queue cannot be read at the moment; try again";
        problem(StatusCode::SERVICE_UNAVAILABLE, "QUEUE_UNAVAILABLE", message)
    }
}

#[async_trait]
impl Postpone for Tickets {
    async fn has_room(
        &self,
        postponed: &Postponed,
        tenant: &str,
        bytes: usize,
    ) -> Result<(), PostponeError> {
        let (queue, lane) = (self.queue.clone(), postponed.lane.clone());
        let tenant = tenant.to_owned();
        let asked = async move { queue.store().room(&lane, &tenant, bytes).await };
        let room = self.runtime.spawn(asked).await;
        let ended = || Err(PostponeError::Unavailable("it is ending".to_owned()));
        room.map_or_else(|_| ended(), |room| room.map_err(PostponeError::from))
    }

    async fn postpone(
        &self,
        postponed: &Postponed,
        stored: StoredRequest,
    ) -> Result<Response<Bytes>, PostponeError> {
        let (queue, kept) = (self.queue.clone(), postponed.clone());
        let pushed = self.runtime.spawn(async move { queue.postpone(&kept, stored).await }).await;
        pushed.unwrap_or_else(|_| Err(PostponeError::Unavailable("it is ending".to_owned())))
    }
}
