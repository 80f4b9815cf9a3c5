//! One thread that sends: a runtime of its own, with its share of the connections.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::Poll;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::oneshot;
use tokio::task::{JoinSet, spawn_local};
use tokio::time::{Instant, interval_at, sleep_until, timeout};

use crate::endpoint::{Endpoint, Traffic};
use crate::grpc::{CallHead, Channel, StreamLane, UnaryLane};
use crate::http::HttpLane;
use crate::keys::Keys;
use crate::lane::{Lane, Shared, drive};
use crate::message::Message;
use crate::pacer::Pacer;
use crate::plan::Target;
use crate::random::Random;
use crate::recorder::{News, Recorder};
use crate::timetable::Timetable;

/// How often a thread looks whether it is to end, and whether a second is over.
const TICK: Duration = Duration::from_millis(50);
/// How long requests under way are waited for after the run was broken off.
const GRACE: Duration = Duration::from_secs(1);

/// What a thread needs; the same for all but for its number and its share.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) thread: usize,
    pub(crate) connections: usize,
    pub(crate) streams: usize,
    pub(crate) target: Target,
    pub(crate) endpoint: Endpoint,
    pub(crate) head: Option<CallHead>,
    pub(crate) message: Message,
    pub(crate) keys: Keys,
    pub(crate) seed: u64,
    pub(crate) timeout: Duration,
    pub(crate) news: Sender<News>,
}

/// Whether a thread could reach the server: how many of its connections were made.
pub(crate) type Connected = Sender<usize>;

impl Job {
    /// Connects, waits for the timetable, and sends until it ends.
    pub(crate) fn run(
        self,
        connected: &Connected,
        timetable: oneshot::Receiver<Arc<Timetable>>,
    ) -> std::io::Result<()> {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_all().build_local(LocalOptions::default())?;
        runtime.block_on(async {
            let traffic = Rc::new(Traffic::default());
            let endpoint = Rc::new(self.endpoint.clone());
            match &self.head {
                None => {
                    let has_batches = self.target.has_batches();
                    let new =
                        |_| HttpLane::new(Rc::clone(&endpoint), Rc::clone(&traffic), has_batches);
                    let lanes: Vec<HttpLane> = (0..self.connections).map(new).collect();
                    self.run_lanes(lanes, &traffic, connected, timetable).await;
                }
                Some(head) => {
                    let head = Rc::new(head.clone());
                    let new = |_| Rc::new(Channel::new(Rc::clone(&endpoint), Rc::clone(&traffic)));
                    let channels: Vec<Rc<Channel>> = (0..self.connections).map(new).collect();
                    // One lane of each connection before the second of any.
                    let channels = (0..self.streams).flat_map(|_| channels.iter());
                    if self.target == Target::GrpcStream {
                        let lanes = channels
                            .map(|channel| StreamLane::new(Rc::clone(channel), Rc::clone(&head)))
                            .collect();
                        self.run_lanes(lanes, &traffic, connected, timetable).await;
                    } else {
                        let new = |channel| {
                            UnaryLane::new(Rc::clone(channel), Rc::clone(&head), self.target)
                        };
                        let lanes = channels.map(new).collect();
                        self.run_lanes(lanes, &traffic, connected, timetable).await;
                    }
                }
            }
        });
        Ok(())
    }

    async fn run_lanes<L: Lane + 'static>(
        &self,
        lanes: Vec<L>,
        traffic: &Rc<Traffic>,
        connected: &Connected,
        timetable: oneshot::Receiver<Arc<Timetable>>,
    ) {
        let lanes = self.connect(lanes, connected).await;
        // Without a timetable the run was given up.
        let Ok(timetable) = timetable.await else { return };
        let (from, is_open) = (timetable.measured_from(), timetable.is_open());
        let news = self.news.clone();
        let recorder = Recorder::new(self.thread, news, Rc::clone(traffic), from, is_open);
        let shared = Rc::new(Shared {
            timetable,
            pacer: Pacer::default(),
            recorder,
            keys: self.keys.clone(),
            timeout: self.timeout,
        });
        let mut tasks = JoinSet::new();
        for (place, lane) in lanes.into_iter().enumerate() {
            let random = Random::new(self.seed, ((self.thread as u64) << 32) | place as u64);
            tasks.spawn_local(drive(lane, self.message.clone(), random, Rc::clone(&shared)));
        }
        let pacing = Rc::clone(&shared);
        let pacer = spawn_local(async move {
            if pacing.pacer.run().await.is_err() {
                // Without a timer nobody would ever be woken.
                pacing.timetable.halt();
                pacing.pacer.end();
            }
        });
        let cpu = watch(&shared, &mut tasks).await;
        pacer.abort();
        tasks.shutdown().await;
        shared.recorder.finish(cpu);
    }

    /// Opens all connections, so that the run does not begin with that.
    async fn connect<L: Lane + 'static>(&self, lanes: Vec<L>, connected: &Connected) -> Vec<L> {
        let wait = self.timeout;
        let mut tasks = JoinSet::new();
        for mut lane in lanes {
            tasks.spawn_local(async move {
                let made = timeout(wait, lane.connect()).await;
                (lane, matches!(made, Ok(Ok(()))))
            });
        }
        let mut lanes = Vec::new();
        let mut count = 0;
        while let Some(joined) = tasks.join_next().await {
            if let Ok((lane, is_connected)) = joined {
                count += usize::from(is_connected);
                lanes.push(lane);
            }
        }
        let _ = connected.send(count);
        lanes
    }
}

/// Waits for the lanes, and looks after seconds and halts meanwhile. Says how much of the processor this
/// thread used while requests were measured.
async fn watch(shared: &Shared, tasks: &mut JoinSet<()>) -> Duration {
    let from = shared.timetable.measured_from();
    let mut cpu_before = None;
    let mut ticks = interval_at(Instant::now() + TICK, TICK);
    let mut begin = std::pin::pin!(sleep_until(from));
    let mut give_up: Option<Instant> = None;
    loop {
        let is_done = poll_fn(|context| {
            loop {
                match tasks.poll_join_next(context) {
                    Poll::Ready(Some(_)) => {}
                    Poll::Ready(None) => return Poll::Ready(true),
                    Poll::Pending => break,
                }
            }
            if cpu_before.is_none() && begin.as_mut().poll(context).is_ready() {
                cpu_before = Some(cpu_time());
            }
            ticks.poll_tick(context).map(|_| false)
        })
        .await;
        let now = Instant::now();
        if now >= from {
            shared.recorder.tick(now);
        }
        if shared.timetable.is_halted() && give_up.is_none() {
            shared.pacer.end();
            give_up = Some(now + GRACE);
        }
        if is_done || give_up.is_some_and(|give_up| now >= give_up) {
            return cpu_time().saturating_sub(cpu_before.unwrap_or_else(cpu_time));
        }
    }
}

/// What this thread has used of the processor.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}
