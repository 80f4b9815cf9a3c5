//! Bodies of requests for models. They are read whole, so they are bounded: each in length and time, and all together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;

use crate::body::BodyError;
use crate::postpone::read_whole;
use crate::respond::Fault;

/// The memory that all bodies together may take up.
#[derive(Debug)]
pub(crate) struct Room {
    most: usize,
    taken: AtomicUsize,
}

impl Room {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: AtomicUsize::new(0) })
    }

    /// None of it yet.
    pub(crate) fn enter(self: &Arc<Self>) -> Taken {
        Taken { room: Arc::clone(self), bytes: 0 }
    }
}

/// What one body takes up. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    room: Arc<Room>,
    bytes: usize,
}

impl Taken {
    /// Takes up so much in all. False if there is not so much left, and then it stays as it was.
    fn grow(&mut self, to: usize) -> bool {
        let more = to.saturating_sub(self.bytes);
        let (taken, most) = (&self.room.taken, self.room.most);
        let grown = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            taken.checked_add(more).filter(|taken| *taken <= most)
        });
        if grown.is_ok() {
            self.bytes += more;
        }
        grown.is_ok()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.bytes, Ordering::Relaxed);
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
        let room = Room::new(1 << 20);
        let began = Instant::now();
        let mut taken = room.enter();
        let slow = drip(usize::MAX, 1, Duration::from_secs(3));
        let read_slow = read(slow, 1 << 20, LONG, &mut taken).await;
        assert_eq!(read_slow, Err(Fault::ClientTooSlow));
        assert_eq!(began.elapsed(), LONG);
        let steady = drip(19, 1, Duration::from_secs(3));
        assert_eq!(read(steady, 1 << 20, LONG, &mut taken).await.map(|it| it.len()), Ok(19));
        drop(taken);
        assert_eq!(room.taken.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn all_bodies_together_are_bounded() {
        let room = Room::new(1_000);
        let now = Duration::ZERO;
        let (mut one, mut two) = (room.enter(), room.enter());
        assert!(read(drip(6, 100, now), 2_000, LONG, &mut one).await.is_ok());
        let taken = room.taken.load(Ordering::Relaxed);
        assert!((600..=1_000).contains(&taken), "{taken}");
        let full = read(drip(6, 100, now), 2_000, LONG, &mut two).await;
        assert_eq!(full, Err(Fault::TooManyBodies));
        drop((one, two));
        assert_eq!(room.taken.load(Ordering::Relaxed), 0, "all of it is given back");
        let mut three = room.enter();
        assert!(read(drip(1, 1_000, now), 2_000, LONG, &mut three).await.is_ok());
        let mut four = room.enter();
        let long = read(drip(3, 1_000, now), 2_000, LONG, &mut four).await;
        assert!(long == Err(Fault::TooManyBodies), "{long:?}");
        drop(three);
        let long = read(drip(3, 500, now), 999, LONG, &mut four).await;
        assert_eq!(long, Err(Fault::BodyTooLarge), "each has a bound of its own");
    }
}
