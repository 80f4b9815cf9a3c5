//! The bytes of requests and answers that wait in memory for their clients, over all connections.
//!
//! A client that sends its body slowly, or does not read its answer, holds memory meanwhile. Each is bounded by itself;
//! this bounds them together, and no address holds more of it with its answers than it leaves to others.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::Response;
use parking_lot::Mutex;

use crate::addresses::group;

/// Bodies and answers of so many bytes are not counted: a request takes more than that in any case.
pub(crate) const UNCOUNTED_BYTES: usize = 2 << 10;

/// What an answer to one request takes at least, as room is reserved for it.
const MIN_DECISION_BYTES: usize = 512;

/// What a request of the last large answers took. It grows at once and shrinks by this part with every answer and every
/// refusal, so that unusually large decisions do not keep others out.
static DECISION_BYTES: AtomicUsize = AtomicUsize::new(MIN_DECISION_BYTES);

/// The same of calls with one request, whose answers are of more kinds than those in a batch.
static CALL_BYTES: AtomicUsize = AtomicUsize::new(MIN_DECISION_BYTES);
const SHRINKING_PART: usize = 8;

/// Those of this process. `limits.max_buffered_bytes` sets its bound.
pub(crate) static BUFFERED: BufferedBytes = BufferedBytes::new();

/// How much is held, and by whom.
#[derive(Debug)]
pub(crate) struct BufferedBytes(Mutex<Option<Counts>>);

#[derive(Debug)]
struct Counts {
    max: usize,
    held: usize,
    /// Of answers. There are no more entries than answers that are held.
    by_address: HashMap<IpAddr, usize>,
}

impl BufferedBytes {
    /// Without a bound.
    const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Sets the bound.
    pub(crate) fn set_max(&self, max: usize) {
        let mut counts = self.0.lock();
        let counts =
            counts.get_or_insert_with(|| Counts { max, held: 0, by_address: HashMap::new() });
        counts.max = max;
    }

    /// So many bytes, if there is room: for the body of a request, or for an answer to this address.
    pub(crate) fn hold(&'static self, address: Option<IpAddr>, bytes: usize) -> Option<Held> {
        let address = address.map(|address| group(address.to_canonical()));
        let mut counts = self.0.lock();
        let counted = match counts.as_mut() {
            Some(counts) => {
                if !counts.take(address, bytes) {
                    return None;
                }
                bytes
            }
            None => 0,
        };
        drop(counts);
        Some(Held { of: self, address, bytes: counted })
    }

    /// So many bytes of an answer to this address, whether there is room or not: what it answers was done.
    pub(crate) fn hold_anyway(&'static self, address: IpAddr, bytes: usize) -> Held {
        let mut held = self.nothing(Some(address));
        held.set(bytes);
        held
    }

    /// No bytes yet, for an answer to this address.
    fn nothing(&'static self, address: Option<IpAddr>) -> Held {
        let address = address.map(|address| group(address.to_canonical()));
        Held { of: self, address, bytes: 0 }
    }
}

/// Room for an answer, reserved before anything is charged: a request whose answer cannot be held must not be.
#[derive(Debug)]
pub(crate) struct AnswerRoom {
    held: Option<Held>,
    address: Option<IpAddr>,
    requests: usize,
}

impl AnswerRoom {
    /// For the answer to so many requests from this address, if there is room.
    pub(crate) fn reserve(address: Option<IpAddr>, requests: usize) -> Option<Self> {
        Self::reserve_in(&BUFFERED, expected_bytes(requests), address, requests)
    }

    fn reserve_in(
        buffered: &'static BufferedBytes,
        decision_bytes: &AtomicUsize,
        address: Option<IpAddr>,
        requests: usize,
    ) -> Option<Self> {
        let bytes = requests.saturating_mul(decision_bytes.load(Ordering::Relaxed));
        if bytes <= UNCOUNTED_BYTES {
            return Some(Self { held: None, address, requests });
        }
        let Some(held) = buffered.hold(address, bytes) else {
            learn(decision_bytes, 0);
            return None;
        };
        Some(Self { held: Some(held), address, requests })
    }

    /// The answer, which counts with its own length until it is sent. What it takes beyond its room is not refused any
    /// more, since its requests are charged; it is missing to the next ones.
    pub(crate) fn fill(self, answer: Vec<u8>) -> Bytes {
        let expected = expected_bytes(self.requests);
        self.fill_in(&BUFFERED, expected, answer)
    }

    fn fill_in(
        self,
        buffered: &'static BufferedBytes,
        decision_bytes: &AtomicUsize,
        answer: Vec<u8>,
    ) -> Bytes {
        // A vector that grew has taken more than it holds.
        match self.take(buffered, decision_bytes, answer.capacity()) {
            Some(held) => holding(answer.into(), held),
            None => answer.into(),
        }
    }

    /// As [`AnswerRoom::fill`], of a response: what it holds goes with it to the connection that sends it.
    pub(crate) fn hold<B: http_body::Body>(self, mut response: Response<B>) -> Response<B> {
        let bytes = usize::try_from(response.body().size_hint().lower()).unwrap_or(usize::MAX);
        let expected = expected_bytes(self.requests);
        if let Some(held) = self.take(&BUFFERED, expected, bytes) {
            response.extensions_mut().insert(Counted(Some(Arc::new(held))));
        }
        response
    }

    fn take(
        self,
        buffered: &'static BufferedBytes,
        decision_bytes: &AtomicUsize,
        bytes: usize,
    ) -> Option<Held> {
        let of_each = bytes.checked_div(self.requests).unwrap_or(0);
        // Of calls with small answers, which most are, nothing is to be learned.
        if self.requests > 1 || bytes.max(decision_bytes.load(Ordering::Relaxed)) > UNCOUNTED_BYTES
        {
            learn(decision_bytes, of_each);
        }
        if bytes <= UNCOUNTED_BYTES {
            return None;
        }
        let mut held = self.held.unwrap_or_else(|| buffered.nothing(self.address));
        held.set(bytes);
        Some(held)
    }
}

/// What a request of an answer to so many of them is expected to take.
const fn expected_bytes(requests: usize) -> &'static AtomicUsize {
    if requests == 1 { &CALL_BYTES } else { &DECISION_BYTES }
}

fn learn(decision_bytes: &AtomicUsize, seen: usize) {
    let last = decision_bytes.load(Ordering::Relaxed);
    let next = seen.max(last - last / SHRINKING_PART).max(MIN_DECISION_BYTES);
    decision_bytes.store(next, Ordering::Relaxed);
}

/// Marks a response whose bytes are counted already: by themselves, or by this.
#[derive(Debug, Clone)]
pub(crate) struct Counted(pub(crate) Option<Arc<Held>>);

impl Counts {
    fn take(&mut self, address: Option<IpAddr>, bytes: usize) -> bool {
        let held = self.held.saturating_add(bytes);
        let own = address.map_or(0, |address| self.by_address.get(&address).copied().unwrap_or(0));
        // The first answer of an address needs room only. Later ones leave as much as all of them take.
        let must_leave = if own == 0 { 0 } else { own.saturating_add(bytes) };
        if held.saturating_add(must_leave) > self.max {
            return false;
        }
        self.add(address, bytes);
        true
    }

    fn add(&mut self, address: Option<IpAddr>, bytes: usize) {
        self.held = self.held.saturating_add(bytes);
        if let Some(address) = address {
            *self.by_address.entry(address).or_default() += bytes;
        }
    }

    fn remove(&mut self, address: Option<IpAddr>, bytes: usize) {
        self.held = self.held.saturating_sub(bytes);
        let Some(address) = address else { return };
        if let Some(own) = self.by_address.get_mut(&address) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}

/// Bytes that are held. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Held {
    of: &'static BufferedBytes,
    address: Option<IpAddr>,
    bytes: usize,
}

impl Held {
    /// So many more, if there is room.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let mut counts = self.of.0.lock();
        let Some(counts) = counts.as_mut() else { return true };
        let has_room = counts.take(self.address, bytes);
        if has_room {
            self.bytes += bytes;
        }
        has_room
    }

    /// So many instead, whether there is room or not.
    fn set(&mut self, bytes: usize) {
        let mut counts = self.of.0.lock();
        let Some(counts) = counts.as_mut() else { return };
        counts.remove(self.address, self.bytes);
        counts.add(self.address, bytes);
        self.bytes = bytes;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut counts = self.of.0.lock();
        let Some(counts) = counts.as_mut() else { return };
        counts.remove(self.address, self.bytes);
    }
}

/// The same bytes, which are held for as long as anything refers to them.
pub(crate) fn holding<H: Send + 'static>(bytes: Bytes, held: H) -> Bytes {
    /// What holds them is dropped with them.
    struct Owner<H>(Bytes, H);

    impl<H> AsRef<[u8]> for Owner<H> {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    Bytes::from_owner(Owner(bytes, held))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaked(max: usize) -> &'static BufferedBytes {
        let buffered: &'static BufferedBytes = Box::leak(Box::new(BufferedBytes::new()));
        buffered.set_max(max);
        buffered
    }

    #[test]
    fn what_is_buffered_is_bounded_and_no_address_holds_all_of_it() {
        let buffered = leaked(100);
        let hold = |address: &str, bytes| buffered.hold(Some(address.parse().unwrap()), bytes);
        let first = hold("192.0.2.1", 30).unwrap();
        let _second = hold("::ffff:192.0.2.1", 20).unwrap();
        assert!(hold("192.0.2.1", 1).is_none(), "half is left to others");
        let other = hold("2001:db8::1", 20).unwrap();
        assert!(hold("2001:db8::2", 20).is_none(), "the same network");
        assert!(hold("192.0.2.3", 31).is_none(), "beyond the bound");
        drop(first);
        let mut body = buffered.hold(None, 40).unwrap();
        assert!(body.grow(20) && !body.grow(1));
        drop((other, body));
        assert_eq!(
            buffered.0.lock().as_ref().map(|it| (it.held, it.by_address.len())),
            Some((20, 1))
        );
    }

    #[test]
    fn room_for_an_answer_follows_what_answers_take() {
        let (buffered, decision_bytes) = (leaked(100_000), AtomicUsize::new(MIN_DECISION_BYTES));
        let reserve = || AnswerRoom::reserve_in(buffered, &decision_bytes, None, 10);
        let held = || buffered.0.lock().as_ref().map_or(0, |counts| counts.held);
        let room = reserve().unwrap();
        assert_eq!(held(), 5_120);
        let first = room.fill_in(buffered, &decision_bytes, vec![0; 60_000]);
        assert_eq!(held(), 60_000, "by its own length, which nobody knew");
        assert!(reserve().is_none(), "the next one may take as much");
        drop(first);
        let room = reserve().unwrap();
        assert_eq!(held(), 52_500, "a little less than the last one took");
        assert_eq!(room.fill_in(buffered, &decision_bytes, vec![0; 100]).len(), 100);
        assert_eq!(held(), 0, "small ones are not counted");
        let _others = buffered.hold(None, 90_000).unwrap();
        let refusals = (0..100).take_while(|_| reserve().is_none()).count();
        assert!(refusals < 100, "unusual answers are forgotten");
    }

    #[test]
    fn bytes_are_held_until_the_last_reference_is_dropped() {
        let buffered = leaked(10);
        let held = buffered.hold(None, 10).unwrap();
        let bytes = holding(Bytes::from_static(b"0123456789"), held);
        let part = bytes.slice(3..5);
        drop(bytes);
        assert!(buffered.hold(None, 1).is_none());
        assert_eq!(&*part, b"34");
        drop(part);
        assert!(buffered.hold(None, 10).is_some());
    }
}
