//! Calls that may have run although nobody received their answer.
//!
//! The caller has been answered without the store by then, and the fallback has counted its
//! charges. So the charges of the call are refunded from its remembered answer, once, by a script
//! that also keeps a late copy of the call from running. That happens in the background: nobody
//! waits for it. A call that the server no longer remembers is left as it is, and counted.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::call::{Call, Sent, remember};
use super::hub::Hub;
use super::key::{Keys, once};
use super::metrics::Operation;
use super::msgpack::Elements;
use crate::Failure;

/// The most calls that are being undone at the same time.
const MAX_UNDOING: usize = 1_024;

/// For how long a call that was undone is kept from running: longer than a server may stand still with it
/// in a buffer.
const FORBIDDEN: Duration = Duration::from_secs(60);

/// What `scripts/undo.lua` reads per request.
const UNDO: u8 = b'u';
const KEEP: u8 = b'k';

/// Which requests of a call are undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Undo,
    Keep,
}

/// A call to be undone.
struct Undo {
    keys: Keys,
    body: Elements,
    slot: u16,
    /// How many requests are to be undone.
    requests: u64,
    /// Until when the server remembers the call in any case.
    remembered_until: Instant,
}

/// What became of it.
enum Undone {
    /// So many requests were refunded.
    Refunded(u64),
    /// The call is not known.
    Unknown,
}

impl Hub {
    /// Undoes some requests of a call in the background. `fates` has one entry per request.
    pub(super) fn undo_later(
        self: &Arc<Self>,
        call: &Call<'_>,
        sent: &Sent,
        fates: impl IntoIterator<Item = Fate>,
    ) {
        let Some(first_at) = sent.may_have_run().filter(|_| call.remember) else { return };
        let fates = fates.into_iter().map(|fate| if fate == Fate::Undo { UNDO } else { KEEP });
        let fates: Vec<u8> = fates.collect();
        let requests = undone_by(&fates);
        if requests == 0 {
            return;
        }
        if sent.is_bare() {
            // It was sent without a place for its answer.
            self.metrics.forgot(requests);
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            // Dropped outside a runtime: nothing can be sent from here.
            self.metrics.forgot(requests);
            return;
        };
        if self.undoing.fetch_add(1, Relaxed) >= MAX_UNDOING {
            self.undoing.fetch_sub(1, Relaxed);
            self.metrics.forgot(requests);
            return;
        }
        let remembered_until = first_at + Duration::from_millis(remember(call));
        let undo = undo_of(call, sent, &fates, remembered_until);
        drop(runtime.spawn(Arc::clone(self).undo_surely(undo)));
    }

    /// Tries until the server has answered, or no longer remembers the call.
    async fn undo_surely(self: Arc<Self>, undo: Undo) {
        let mut pause = self.timeout;
        let undone = loop {
            let asked = Instant::now();
            match self.undo(&undo).await {
                // It has not run, and will not.
                Ok(Undone::Unknown) if asked < undo.remembered_until => break Some(0),
                Ok(Undone::Unknown) => break None,
                Ok(Undone::Refunded(requests)) => break Some(requests),
                Err(_) if Instant::now() + pause >= undo.remembered_until => break None,
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause *= 2;
        };
        match undone {
            Some(requests) => self.metrics.refunded(requests),
            None => self.metrics.forgot(undo.requests),
        }
        self.undoing.fetch_sub(1, Relaxed);
    }

    async fn undo(self: &Arc<Self>, undo: &Undo) -> Result<Undone, Failure> {
        let call = Call {
            operation: Operation::Undo,
            script: &self.scripts.undo,
            keys: &undo.keys,
            body: &undo.body,
            remember: true,
            slot: undo.slot,
            deadline: self.deadline(),
            timeout: self.timeout,
            may_split: false,
        };
        let reply = self.call(&call, None).await?.ok_or(Failure::Protocol)?;
        match (reply.number(0), reply.number(1)) {
            (Some(0), _) => Ok(Undone::Unknown),
            (Some(1 | 2), Some(requests)) => Ok(Undone::Refunded(requests)),
            _ => Err(Failure::Protocol),
        }
    }
}

/// A call to be undone, by a letter per request.
fn undo_of(call: &Call<'_>, sent: &Sent, fates: &[u8], remembered_until: Instant) -> Undo {
    let mut keys = Keys::default();
    keys.push(&once(call.keys.get(0).unwrap_or_default(), sent.id()));
    keys.append(call.keys);
    let keys = keys.with_reset_marks(1);
    let mut body = Elements::default();
    body.number(u64::try_from(FORBIDDEN.as_millis()).unwrap_or(u64::MAX));
    body.text(fates);
    body.append(call.body);
    Undo { keys, body, slot: call.slot, requests: undone_by(fates), remembered_until }
}

fn undone_by(fates: &[u8]) -> u64 {
    fates.iter().map(|fate| u64::from(*fate == UNDO)).sum()
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "these are tests: a panic is how they fail"
)]
mod orders;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "these are tests: a panic is how they fail")]
mod tests {
    use tollgate_core::{Algorithm, Ask, Limit, LimitSpec, SECOND, SlotId, Window};
    use tollgate_testkit::Redis;

    use super::*;
    use crate::redis::encode::{Encoded, Lines};
    use crate::redis::{RedisOptions, RedisStore};
    use crate::{Charge, Counter, GiveBack, Home, Mode, Outcomes, Request, Role, Store as _};

    const MONTH: u64 = 30 * 24 * 3600 * SECOND;

    struct Bench {
        store: RedisStore,
        server: Redis,
        limits: Vec<Limit>,
        is_refundable: bool,
    }

    impl Bench {
        fn new() -> Self {
            Self::of(false)
        }

        fn of(is_refundable: bool) -> Self {
            let server = Redis::start();
            let timeout = Duration::from_secs(5);
            let options =
                RedisOptions { urls: vec![server.url()], timeout, ..RedisOptions::default() };
            let limit = |algorithm: Algorithm| {
                let burst = algorithm.is_bucket().then_some(100);
                let window = Window::Every(MONTH);
                let spec = LimitSpec { algorithm, quota: 100, window, burst, slot_ttl: MONTH };
                Limit::new(spec).unwrap()
            };
            let limits = Algorithm::ALL.into_iter().map(limit).collect();
            Self { store: RedisStore::new(&options).unwrap(), server, limits, is_refundable }
        }

        fn hub(&self) -> &Arc<Hub> {
            &self.store.hub
        }

        /// A charge of every algorithm.
        fn charges(&self, cost: u64, slot: u128) -> Vec<Charge<'_>> {
            let home = Home { partition: Some(0), ..Home::default() };
            let counter = |limit: &Limit| Counter {
                rule_id: limit.algorithm().name(),
                tag: "t",
                salt: 0,
                key: &["k"],
                home,
            };
            let ask = Ask { cost, ..Ask::slot(SlotId(slot)) };
            let ask = if self.is_refundable { ask.refundable() } else { ask };
            let charge = |limit| Charge { counter: counter(limit), limit, ask, role: Role::Must };
            self.limits.iter().map(charge).collect()
        }

        /// Requests as a call has them.
        fn encoded(&self, requests: &[(Mode, Vec<Charge<'_>>)]) -> Encoded {
            let mut encoded = Encoded::default();
            for (mode, charges) in requests {
                let request = Request { charges, mode: *mode };
                let pushed = encoded.push(&self.hub().speller, &request, 0, &mut Lines::new());
                pushed.unwrap();
            }
            encoded
        }

        fn call<'a>(&'a self, encoded: &'a Encoded) -> Call<'a> {
            Call {
                operation: Operation::Decide,
                script: &self.hub().scripts.decide,
                keys: &encoded.keys,
                body: &encoded.elements,
                remember: encoded.charges,
                slot: 0,
                deadline: self.hub().deadline(),
                timeout: self.hub().timeout,
                may_split: false,
            }
        }

        async fn undo(&self, encoded: &Encoded, sent: &Sent, fates: &[u8]) -> Undone {
            let call = self.call(encoded);
            let undo = undo_of(&call, sent, fates, Instant::now());
            self.hub().undo(&undo).await.unwrap()
        }

        async fn charge_now(&self, cost: u64, slot: u128) -> Outcomes {
            let (charges, mut outcomes) = (self.charges(cost, slot), Outcomes::new());
            let request = Request { charges: &charges, mode: Mode::Charge };
            self.store.decide(&[request], 0, &mut outcomes).await.unwrap();
            outcomes
        }

        async fn give_back(&self, made: &Outcomes) {
            let charges = self.charges(1, 0);
            let returns: Vec<GiveBack<'_>> = (charges.iter().zip(made))
                .map(|(Charge { counter, limit, .. }, outcome)| GiveBack {
                    counter: *counter,
                    limit,
                    receipt: outcome.receipt,
                })
                .collect();
            self.store.give_back(&returns, 0).await.unwrap();
        }

        /// What is used of every limit.
        async fn used(&self) -> Vec<u64> {
            let charges = self.charges(1, 99);
            let mut outcomes = Outcomes::new();
            let request = Request { charges: &charges, mode: Mode::Peek };
            self.store.decide(&[request], 0, &mut outcomes).await.unwrap();
            outcomes.iter().map(|outcome| outcome.status.used).collect()
        }
    }

    fn slots_or(cost: u64, slots: u64) -> Vec<u64> {
        let of = |algorithm| if algorithm == Algorithm::Concurrency { slots } else { cost };
        Algorithm::ALL.into_iter().map(of).collect()
    }

    /// Sets the clock that scripts read in tests, in microseconds.
    pub(super) fn set_clock(server: &Redis, micros: u64) {
        let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
        let words = ["clock:seconds", &seconds.to_string(), "clock:micros", &rest.to_string()];
        server.call(&[&["MSET"], &words[..]].concat()).unwrap().ok().unwrap();
    }

    pub(super) fn refunded(undone: &Undone) -> u64 {
        match undone {
            Undone::Refunded(requests) => *requests,
            Undone::Unknown => panic!("the call is known"),
        }
    }

    #[tokio::test]
    async fn a_call_is_undone_exactly_and_once() {
        for is_refundable in [false, true] {
            undo_exactly(&Bench::of(is_refundable)).await;
        }
    }

    async fn undo_exactly(bench: &Bench) {
        for mode in [Mode::Charge, Mode::Hold, Mode::Owe] {
            let kept = bench.encoded(&[(mode, bench.charges(3, 1))]);
            bench.hub().call(&bench.call(&kept), None).await.unwrap().unwrap();
            let before = bench.used().await;
            let lost = bench.encoded(&[
                (mode, bench.charges(5, 2)),
                (Mode::Peek, bench.charges(1, 3)),
                (mode, bench.charges(7, 4)),
            ]);
            let mut sent = bench.hub().unsent();
            bench.hub().call_as(&bench.call(&lost), None, &mut sent).await.unwrap().unwrap();
            assert_ne!(bench.used().await, before, "{mode:?}");
            for _ in 0..3 {
                assert_eq!(refunded(&bench.undo(&lost, &sent, b"uuu").await), 2, "{mode:?}");
                assert_eq!(bench.used().await, before, "{mode:?}");
            }
        }
        assert_eq!(bench.used().await, slots_or(9, 1));
    }

    #[tokio::test]
    async fn some_requests_of_a_call_are_kept() {
        let bench = Bench::new();
        let lost = bench.encoded(&[
            (Mode::Charge, bench.charges(5, 1)),
            (Mode::Charge, bench.charges(200, 2)),
            (Mode::Charge, bench.charges(7, 3)),
        ]);
        let mut sent = bench.hub().unsent();
        bench.hub().call_as(&bench.call(&lost), None, &mut sent).await.unwrap().unwrap();
        assert_eq!(bench.used().await, slots_or(12, 2), "200 do not fit");
        assert_eq!(refunded(&bench.undo(&lost, &sent, b"kuu").await), 1);
        assert_eq!(bench.used().await, slots_or(5, 1));
    }

    /// The same counter twice in a request, and a log that others have charged since.
    #[tokio::test]
    async fn what_came_after_stays() {
        for is_refundable in [false, true] {
            undo_the_first(&Bench::of(is_refundable)).await;
        }
    }

    async fn undo_the_first(bench: &Bench) {
        let twice = [bench.charges(4, 1), bench.charges(2, 2)].concat();
        let lost = bench.encoded(&[(Mode::Charge, twice)]);
        let mut sent = bench.hub().unsent();
        bench.hub().call_as(&bench.call(&lost), None, &mut sent).await.unwrap().unwrap();
        let later = bench.encoded(&[(Mode::Charge, bench.charges(10, 3))]);
        bench.hub().call(&bench.call(&later), None).await.unwrap().unwrap();
        assert_eq!(bench.used().await, slots_or(16, 3));
        assert_eq!(refunded(&bench.undo(&lost, &sent, b"u").await), 1);
        assert_eq!(bench.used().await, slots_or(10, 1));
    }

    /// Others reserve before and after the calls that are undone. Their refunds find their own charges, in either order.
    #[tokio::test]
    async fn undoing_a_call_leaves_the_reservations_of_others() {
        for in_order in [true, false] {
            let mut bench = Bench::new();
            let (mut lost, mut reserved) = (Vec::new(), Vec::new());
            for number in 0..3 {
                bench.is_refundable = false;
                let call = bench.encoded(&[(Mode::Charge, bench.charges(10, 100 + number))]);
                let mut sent = bench.hub().unsent();
                bench.hub().call_as(&bench.call(&call), None, &mut sent).await.unwrap().unwrap();
                lost.push((call, sent));
                bench.is_refundable = true;
                reserved.push(bench.charge_now(5, number).await);
            }
            for (call, sent) in &lost {
                assert_eq!(refunded(&bench.undo(call, sent, b"u").await), 1);
            }
            assert_eq!(bench.used().await, slots_or(15, 3));
            if !in_order {
                reserved.reverse();
            }
            for (place, outcomes) in (1..).zip(&reserved) {
                bench.give_back(outcomes).await;
                let left = slots_or(15 - 5 * place, 3 - place);
                assert_eq!(bench.used().await, left, "in order: {in_order}");
            }
        }
    }

    /// The request that was decided without the store goes on, and its slot was reported meanwhile.
    #[tokio::test]
    async fn a_slot_that_was_taken_again_is_kept() {
        let bench = Bench::new();
        let taken = bench.encoded(&[(Mode::Charge, bench.charges(1, 1))]);
        let mut sent = bench.hub().unsent();
        bench.hub().call_as(&bench.call(&taken), None, &mut sent).await.unwrap().unwrap();
        let reported = bench.encoded(&[(Mode::Owe, bench.charges(1, 1))]);
        bench.hub().call(&bench.call(&reported), None).await.unwrap().unwrap();
        bench.undo(&taken, &sent, b"u").await;
        assert_eq!(bench.used().await, slots_or(1, 1));
    }

    /// The call is still on its way when it is undone: it does nothing when it arrives.
    #[tokio::test]
    async fn a_late_copy_of_a_call_that_was_undone_does_nothing() {
        let bench = Bench::new();
        let late = bench.encoded(&[(Mode::Charge, bench.charges(5, 1))]);
        let mut sent = bench.hub().unsent();
        assert!(matches!(bench.undo(&late, &sent, b"u").await, Undone::Unknown));
        // Without a deadline, as from a node that does not know the server's clock.
        let arrived = bench.hub().call_as(&bench.call(&late), None, &mut sent).await;
        assert_eq!(arrived.err(), Some(Failure::Timeout));
        assert_eq!(bench.used().await, slots_or(0, 0));
        assert_eq!(refunded(&bench.undo(&late, &sent, b"u").await), 0);
        // And so does a copy of one that ran.
        let ran = bench.encoded(&[(Mode::Charge, bench.charges(5, 2))]);
        let mut sent = bench.hub().unsent();
        bench.hub().call_as(&bench.call(&ran), None, &mut sent).await.unwrap().unwrap();
        assert_eq!(refunded(&bench.undo(&ran, &sent, b"u").await), 1);
        let again = bench.hub().call_as(&bench.call(&ran), None, &mut sent).await;
        assert_eq!(again.err(), Some(Failure::Timeout));
        assert_eq!(bench.used().await, slots_or(0, 0));
    }

    #[tokio::test]
    async fn a_call_that_is_no_longer_known_is_left_and_counted() {
        let bench = Bench::new();
        let lost = bench.encoded(&[(Mode::Charge, bench.charges(5, 1))]);
        let mut sent = bench.hub().unsent();
        bench.hub().call_as(&bench.call(&lost), None, &mut sent).await.unwrap().unwrap();
        let name = once(lost.keys.get(0).unwrap(), sent.id());
        let name = String::from_utf8(name).unwrap();
        bench.server.call(&["DEL", &name]).unwrap().ok().unwrap();
        let call = bench.call(&lost);
        let undo = undo_of(&call, &sent, b"u", Instant::now());
        Arc::clone(bench.hub()).undo_surely(undo).await;
        assert_eq!(bench.store.metrics().lost_answers_forgotten(), 1);
        assert_eq!(bench.store.metrics().lost_answers_refunded(), 0);
        assert_eq!(bench.used().await, slots_or(5, 1), "nothing is undone");
    }
}
