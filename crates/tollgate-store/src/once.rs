//! Ids of what was done already, remembered for a while and within a bound.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use tollgate_core::Nanos;

/// So many ids are remembered; beyond, the oldest go.
const MAX_IDS: usize = 1 << 18;

/// Sees to it that what is done under an id is done once.
#[derive(Default)]
pub(crate) struct Once<T = u64>(Mutex<Done<T>>);

#[derive(Default)]
struct Done<T> {
    /// What was noted of each.
    noted: HashMap<u128, T>,
    /// In the order they came.
    order: VecDeque<(Nanos, u128)>,
    has_warned: bool,
}

impl<T: Clone> Once<T> {
    /// Acts unless it was done before. Returns what `act` noted, now or then, and whether it was now.
    /// A concurrent call waits until it is done.
    pub(crate) fn run(
        &self,
        id: u128,
        until: Nanos,
        now: Nanos,
        act: impl FnOnce() -> T,
    ) -> (T, bool) {
        let mut done = self.0.lock();
        if let Some(noted) = done.noted.get(&id) {
            return (noted.clone(), false);
        }
        let noted = act();
        done.make_room(now);
        done.noted.insert(id, noted.clone());
        done.order.push_back((until, id));
        (noted, true)
    }
}

impl<T> Done<T> {
    fn make_room(&mut self, now: Nanos) {
        while let Some((until, id)) = self.order.front().copied() {
            if now < until && self.order.len() < MAX_IDS {
                break;
            }
            self.order.pop_front();
            self.noted.remove(&id);
            if now < until && !self.has_warned {
                self.has_warned = true;
                tracing::warn!(
                    most = MAX_IDS,
                    "more settlements than are remembered came in a short time; the oldest are \
                     forgotten early, and one that is repeated may be applied again"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_is_not_done_again_until_it_is_forgotten() {
        let once = Once::default();
        assert_eq!(once.run(1, 10, 0, || 7), (7, true));
        assert_eq!(once.run(1, 10, 5, || 8), (7, false));
        assert_eq!(once.run(2, 30, 11, || 9), (9, true), "and the first is forgotten");
        assert_eq!(once.run(1, 30, 12, || 8), (8, true));
    }

    #[test]
    fn the_bound_holds() {
        let once = Once::default();
        for id in 0..MAX_IDS as u128 + 10 {
            once.run(id, Nanos::MAX, 0, || 0);
        }
        assert_eq!(once.0.lock().noted.len(), MAX_IDS);
        assert!(once.run(0, Nanos::MAX, 0, || 0).1, "the oldest went");
    }
}
