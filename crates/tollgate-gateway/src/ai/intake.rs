//! Bodies of requests for models. They are read whole, so they are bounded: each in length and time, and all together.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use parking_lot::Mutex;

use crate::body::BodyError;
use crate::postpone::read_whole;
use crate::respond::Fault;

/// Of the memory for bodies, a caller has at most one in so many parts: nobody shuts all others out.
const SHARES: usize = 4;

/// The memory that all bodies together may take up.
#[derive(Debug)]
pub(crate) struct Room {
    most: usize,
    /// The most of one caller.
    share: usize,
    taken: Mutex<Shares>,
}

#[derive(Debug, Default)]
struct Shares {
    total: usize,
    of: HashMap<Box<str>, usize>,
}

impl Room {
    /// So much in all. One body of the greatest length always fits into a caller's share.
    pub(crate) fn new(most: usize, max_body_bytes: usize) -> Arc<Self> {
        let share = (most / SHARES).max(max_body_bytes);
        Arc::new(Self { most, share, taken: Mutex::default() })
    }

    /// None of it yet.
    pub(crate) fn enter(self: &Arc<Self>, caller: &str) -> Taken {
        Taken { room: Arc::clone(self), caller: caller.into(), bytes: 0 }
    }
}

/// What one body takes up. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    room: Arc<Room>,
    caller: Box<str>,
    bytes: usize,
}

impl Taken {
    /// Takes up so much in all. False if there is not so much left, and then it stays as it was.
    pub(crate) fn grow(&mut self, to: usize) -> bool {
        let more = to.saturating_sub(self.bytes);
        let mut taken = self.room.taken.lock();
        let own = taken.of.get(&self.caller).copied().unwrap_or(0);
        let is_room = taken.total.saturating_add(more) <= self.room.most
            && own.saturating_add(more) <= self.room.share;
        if is_room && more > 0 {
            taken.total += more;
            taken.of.insert(self.caller.clone(), own + more);
            self.bytes += more;
        }
        is_room
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let mut taken = self.room.taken.lock();
        taken.total -= self.bytes;
        let own = taken.of.get(&self.caller).map_or(0, |own| own - self.bytes);
        if own == 0 {
            taken.of.remove(&self.caller);
        } else {
            taken.of.insert(self.caller.clone(), own);
        }
    }
}

/// Reads a body to its end. However steadily it comes in, it must be here in time.
pub(crate) async fn read(
    body: impl Body<Data = Bytes, Error = BodyError> + Unpin,
    max_bytes: usize,
    timeout: Duration,
    taken: &mut Taken,
) -> Result<Bytes, Fault> {
    let whole = read_whole(body, max_bytes, |bytes| taken.grow(bytes));
    tokio::time::timeout(timeout, whole).await.unwrap_or(Err(Fault::ClientTooSlow))
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http_body::Frame;
    use tokio::time::{Instant, Sleep, sleep};

    use super::*;

    /// Sends pieces of this length, one each period.
    struct Drip {
        left: usize,
        piece: usize,
        period: Duration,
        timer: Option<Pin<Box<Sleep>>>,
    }

    fn drip(pieces: usize, piece: usize, period: Duration) -> Drip {
        Drip { left: pieces, piece, period, timer: None }
    }

    impl Body for Drip {
        type Data = Bytes;
        type Error = BodyError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
            if self.left == 0 {
                return Poll::Ready(None);
            }
            let period = self.period;
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(period)));
            std::task::ready!(timer.as_mut().poll(context));
            self.timer = None;
            self.left -= 1;
            Poll::Ready(Some(Ok(Frame::data(vec![b'x'; self.piece].into()))))
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn who_sends_a_byte_now_and_then_is_let_go() {
        let room = Room::new(1 << 20, 1 << 20);
        let began = Instant::now();
        let mut taken = room.enter("ann");
        let slow = drip(usize::MAX, 1, Duration::from_secs(3));
        let read_slow = read(slow, 1 << 20, LONG, &mut taken).await;
        assert_eq!(read_slow, Err(Fault::ClientTooSlow));
        assert_eq!(began.elapsed(), LONG);
        let steady = drip(19, 1, Duration::from_secs(3));
        assert_eq!(read(steady, 1 << 20, LONG, &mut taken).await.map(|it| it.len()), Ok(19));
        drop(taken);
        assert_eq!(room.taken.lock().total, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn all_bodies_together_are_bounded() {
        let room = Room::new(1_000, 1_000);
        let now = Duration::ZERO;
        let (mut one, mut two) = (room.enter("ann"), room.enter("bob"));
        assert!(read(drip(6, 100, now), 2_000, LONG, &mut one).await.is_ok());
        let taken = room.taken.lock().total;
        assert!((600..=1_000).contains(&taken), "{taken}");
        let full = read(drip(6, 100, now), 2_000, LONG, &mut two).await;
        assert_eq!(full, Err(Fault::TooManyBodies));
        drop((one, two));
        assert_eq!(room.taken.lock().total, 0, "all of it is given back");
        let mut three = room.enter("ann");
        assert!(read(drip(1, 1_000, now), 2_000, LONG, &mut three).await.is_ok());
        let mut four = room.enter("bob");
        let long = read(drip(3, 1_000, now), 2_000, LONG, &mut four).await;
        assert!(long == Err(Fault::TooManyBodies), "{long:?}");
        drop(three);
        let long = read(drip(3, 500, now), 999, LONG, &mut four).await;
        assert_eq!(long, Err(Fault::BodyTooLarge), "each has a bound of its own");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_takes_all_of_it() {
        let room = Room::new(4_000, 500);
        let now = Duration::ZERO;
        let mut bodies: Vec<Taken> = (0..3).map(|_| room.enter("ann")).collect();
        for (place, taken) in bodies.iter_mut().enumerate() {
            let read = read(drip(1, 500, now), 500, LONG, taken).await;
            assert_eq!(read.is_ok(), place < 2, "a quarter of it is a caller's share");
        }
        let mut another = room.enter("bob");
        assert!(read(drip(1, 500, now), 500, LONG, &mut another).await.is_ok());
        drop(bodies.pop());
        drop(bodies.pop());
        let mut again = room.enter("ann");
        assert!(read(drip(1, 500, now), 500, LONG, &mut again).await.is_ok());
        drop((bodies, another, again));
        let left = room.taken.lock();
        assert!(left.total == 0 && left.of.is_empty(), "{left:?}");
    }
}
