//! A lane has one request under way: a connection of HTTP/1.1, a call or a stream of gRPC.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::deadline::Deadline;
use crate::keys::Keys;
use crate::message::Message;
use crate::outcome::{Answer, Fault};
use crate::pacer::Pacer;
use crate::random::Random;
use crate::recorder::{Recorder, Sample};
use crate::timetable::Timetable;

/// How long a lane that cannot connect waits before it tries again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// How a request is sent and its answer read.
pub(crate) trait Lane {
    /// Makes sure there is a connection.
    async fn connect(&mut self) -> Result<(), Fault>;
    /// Sends a request and waits for its answer.
    async fn exchange(&mut self, request: &[u8]) -> Result<Answer, Fault>;
    /// The connection, or the stream, is not to be used on.
    fn disconnect(&mut self);
}

/// What the lanes of a thread share.
pub(crate) struct Shared {
    pub(crate) timetable: std::sync::Arc<Timetable>,
    pub(crate) pacer: Pacer,
    pub(crate) recorder: Recorder,
    pub(crate) keys: Keys,
    pub(crate) timeout: Duration,
}

/// Sends requests until the timetable ends.
pub(crate) async fn drive<L: Lane>(
    mut lane: L,
    mut message: Message,
    mut random: Random,
    shared: Rc<Shared>,
) {
    let is_open = shared.timetable.is_open();
    // Who has no timetable waits for the others here.
    if !is_open && !shared.pacer.until(shared.timetable.start()).await {
        return;
    }
    let mut now = Instant::now();
    let mut deadline = Deadline::new(shared.timeout, now);
    while let Some(slot) = shared.timetable.next(now) {
        let was_free = slot.due > now;
        message.fill(&shared.keys, &mut random);
        if is_open {
            if !shared.pacer.until(slot.due).await {
                break;
            }
            now = Instant::now();
        }
        let sent = now;
        shared.recorder.begin(slot);
        let exchanged = deadline.within(sent, exchange(&mut lane, message.bytes())).await;
        let result = exchanged.unwrap_or(Err(Fault::Timeout));
        now = Instant::now();
        shared.recorder.end(&Sample { slot, was_free, sent, done: now, result });
        match result {
            Ok(_) => {}
            Err(fault) if fault.is_answer() => {}
            Err(fault) => {
                lane.disconnect();
                if fault == Fault::Connect {
                    sleep(RECONNECT_PAUSE).await;
                    now = Instant::now();
                }
            }
        }
    }
}

async fn exchange<L: Lane>(lane: &mut L, request: &[u8]) -> Result<Answer, Fault> {
    lane.connect().await?;
    lane.exchange(request).await
}
