//! From the shares back to the shared counter, after an outage.
//!
//! A node that lost the store and reaches it again cannot know what the others admitted without it. It
//! therefore admits only what fits both its share and the shared counter, until every node that it knew
//! before has announced that it has reported, or [`MAX_HANDOVER`] has passed. Nobody waits for that.
//!
//! This file is the state of it, without a clock or a store: `both.rs` decides, `heal.rs` announces.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tollgate_core::{Nanos, SECOND};

use crate::{Failure, Roll};

/// How long a node waits for the reports of others, from its own first announcement that it has
/// reported, or where announcements fail from the first decision of the store.
pub(super) const MAX_HANDOVER: Nanos = 10 * SECOND;

/// How a hand-over ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// Every node has reported.
    AllReported,
    /// The time was up.
    TimedOut,
}

/// An outage whose hand-over has not ended.
#[derive(Debug, Clone, Copy)]
struct Open {
    failure: Failure,
    /// The store's clock at this node's first announcement that it has reported.
    reported_at: Option<Nanos>,
    /// The store was lost again after that announcement.
    is_lost_again: bool,
    /// The first announcement after the store was lost again.
    reported_again_at: Option<Nanos>,
    /// The store decided something since it was lost, and yet it did not recover: only a part of it is
    /// lost.
    is_partial: bool,
    /// When the store first decided something since it was lost.
    answered_at: Option<Nanos>,
}

impl Open {
    const fn new(failure: Failure) -> Self {
        Self {
            failure,
            reported_at: None,
            is_lost_again: false,
            reported_again_at: None,
            is_partial: false,
            answered_at: None,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    open: Option<Open>,
    /// How often the store was lost, so that an announcement that was under way meanwhile is ignored.
    losses: u64,
}

/// The hand-over of a node.
#[derive(Debug, Default)]
pub(super) struct Handover {
    /// Whether one is open, so that no decision locks to find none.
    is_open: AtomicBool,
    state: Mutex<State>,
}

impl Handover {
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// The first failure of the outage; `None`: no hand-over is open.
    pub(super) fn failure(&self) -> Option<Failure> {
        if !self.is_open() {
            return None;
        }
        self.state.lock().open.map(|open| open.failure)
    }

    /// Only a part of the store was lost.
    pub(super) fn is_partial(&self) -> bool {
        self.state.lock().open.is_some_and(|open| open.is_partial)
    }

    /// The store did not answer.
    pub(super) fn lost(&self, failure: Failure) {
        let mut state = self.state.lock();
        state.losses += 1;
        let open = state.open.get_or_insert(Open::new(failure));
        open.answered_at = None;
        if open.reported_at.is_some() {
            (open.is_lost_again, open.reported_again_at) = (true, None);
        }
        self.is_open.store(true, Ordering::Release);
    }

    /// The store decided a request.
    pub(super) fn answered(&self, at: Nanos) {
        if let Some(open) = &mut self.state.lock().open {
            open.answered_at.get_or_insert(at);
        }
    }

    /// What failed before fails still.
    pub(super) fn still_lost(&self) {
        if let Some(open) = &mut self.state.lock().open {
            open.is_partial |= open.answered_at.is_some();
        }
    }

    /// To be compared when an announcement is answered.
    pub(super) fn losses(&self) -> u64 {
        self.state.lock().losses
    }

    /// The store took this node's announcement that it has reported, which was sent after `losses`.
    pub(super) fn announced(&self, at: Nanos, losses: u64) {
        let mut state = self.state.lock();
        if state.losses != losses {
            return;
        }
        let Some(open) = &mut state.open else { return };
        if open.reported_at.is_none() {
            open.reported_at = Some(at);
        } else if open.is_lost_again && open.reported_again_at.is_none() {
            open.reported_again_at = Some(at);
        }
    }

    /// Ends what can be ended. `has_reported`: whether all nodes have announced since an instant of the
    /// store's clock that they have reported.
    pub(super) fn end(&self, at: Nanos, has_reported: impl Fn(Nanos) -> bool) -> Option<Ended> {
        let mut state = self.state.lock();
        let open = state.open.as_mut()?;
        let mut ended = None;
        while let Some(since) = open.reported_at.or(open.answered_at) {
            let how = if open.reported_at.is_some() && has_reported(since) {
                Ended::AllReported
            } else if at >= since.saturating_add(MAX_HANDOVER) {
                Ended::TimedOut
            } else {
                break;
            };
            ended = Some(how);
            if !open.is_lost_again {
                state.open = None;
                self.is_open.store(false, Ordering::Release);
                break;
            }
            // The hand-over of the later outage is next.
            (open.reported_at, open.is_lost_again) = (open.reported_again_at.take(), false);
        }
        ended
    }
}

/// The nodes that share the store, as last known before an outage.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    names: BTreeSet<String>,
}

impl Awaited {
    /// Takes in who is alive. During a hand-over nobody is forgotten.
    pub(super) fn hear(&mut self, roll: &Roll, forgets: bool) {
        if forgets {
            self.names.clear();
        }
        let alive = roll.nodes.iter().filter(|node| node.is_alive);
        self.names.extend(alive.map(|node| node.name.clone()));
    }

    /// Since when all nodes but `own` have announced that they have reported; 0: some have not.
    pub(super) fn reported_since(&self, roll: &Roll, own: &str) -> Nanos {
        if roll.is_cut_short {
            return 0;
        }
        let reported: BTreeMap<&str, Nanos> =
            roll.nodes.iter().map(|node| (node.name.as_str(), node.reported_at)).collect();
        let others = self.names.iter().filter(|name| *name != own);
        let since = others.map(|name| reported.get(name.as_str()).copied().unwrap_or(0));
        since.min().unwrap_or(Nanos::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Membership, RollEntry};

    const NEVER: Nanos = 0;

    #[test]
    fn a_handover_ends_when_all_have_reported_since() {
        let handover = Handover::default();
        assert!(!handover.is_open());
        handover.lost(Failure::Timeout);
        assert!(handover.is_open());
        assert_eq!(handover.end(5, |_| true), None, "this node has not reported");
        handover.announced(10, handover.losses());
        assert_eq!(handover.end(11, |since| 9 >= since), None, "an older report is of before");
        assert_eq!(handover.end(12, |since| 12 >= since), Some(Ended::AllReported));
        assert!(!handover.is_open());
        assert_eq!(handover.end(13, |_| true), None);
    }

    #[test]
    fn a_handover_ends_after_its_time() {
        let handover = Handover::default();
        handover.lost(Failure::Timeout);
        assert_eq!(handover.end(99 * MAX_HANDOVER, |_| false), None, "the outage lasts");
        handover.announced(7, handover.losses());
        assert_eq!(handover.end(6 + MAX_HANDOVER, |_| false), None);
        assert_eq!(handover.end(7 + MAX_HANDOVER, |_| false), Some(Ended::TimedOut));
        assert!(!handover.is_open());
        // Nobody hears of it, but the store decides again.
        handover.lost(Failure::Timeout);
        handover.answered(8);
        handover.lost(Failure::Timeout);
        handover.answered(20);
        handover.answered(30);
        assert_eq!(handover.end(19 + MAX_HANDOVER, |_| true), None);
        assert_eq!(handover.end(20 + MAX_HANDOVER, |_| false), Some(Ended::TimedOut));
        assert!(!handover.is_open());
    }

    #[test]
    fn an_outage_in_a_handover_has_one_of_its_own() {
        let handover = Handover::default();
        handover.lost(Failure::Timeout);
        handover.announced(10, handover.losses());
        handover.lost(Failure::Connection);
        assert_eq!(handover.end(20, |since| 15 >= since), Some(Ended::AllReported));
        assert!(handover.is_open(), "the second has not");
        assert_eq!(handover.end(20, |_| true), None, "this node has not reported for it");
        handover.announced(30, handover.losses());
        assert_eq!(handover.end(31, |since| 29 >= since), None);
        assert_eq!(handover.end(31, |since| 30 >= since), Some(Ended::AllReported));
        assert!(!handover.is_open());
        // A third one before the second has its reports.
        handover.lost(Failure::Timeout);
        handover.announced(40, handover.losses());
        handover.lost(Failure::Timeout);
        handover.announced(50, handover.losses());
        handover.lost(Failure::Timeout);
        assert_eq!(handover.end(60, |since| 60 >= since), Some(Ended::AllReported));
        assert!(handover.is_open());
        assert_eq!(handover.end(60, |since| 60 >= since), None, "the report at 50 is of before");
    }

    #[test]
    fn an_announcement_under_way_when_the_store_is_lost_counts_for_nothing() {
        let handover = Handover::default();
        handover.lost(Failure::Timeout);
        let losses = handover.losses();
        handover.lost(Failure::Timeout);
        handover.announced(10, losses);
        assert_eq!(handover.end(11, |_| true), None);
    }

    #[test]
    fn all_nodes_that_were_known_are_awaited() {
        let roll = |entries: &[(&str, bool, Nanos)]| Roll {
            at: 0,
            membership: Membership::ALONE,
            nodes: (entries.iter())
                .map(|(name, is_alive, reported_at)| RollEntry {
                    name: (*name).to_owned(),
                    is_alive: *is_alive,
                    reported_at: *reported_at,
                })
                .collect(),
            is_cut_short: false,
        };
        let mut awaited = Awaited::default();
        assert_eq!(awaited.reported_since(&roll(&[]), "a"), Nanos::MAX, "alone");
        awaited.hear(&roll(&[("a", true, 5), ("b", true, NEVER), ("c", true, 7)]), true);
        assert_eq!(awaited.reported_since(&roll(&[("a", true, 9), ("c", true, 9)]), "a"), NEVER);
        awaited.hear(&roll(&[("a", true, 9), ("d", true, 9)]), false);
        let all = [("a", true, 1), ("b", false, 4), ("c", true, 3), ("d", true, 9)];
        assert_eq!(awaited.reported_since(&roll(&all), "a"), 3, "b has gone, after it reported");
        assert_eq!(awaited.reported_since(&roll(&all[..3]), "a"), NEVER, "d is awaited too");
        let cut_short = Roll { is_cut_short: true, ..roll(&all) };
        assert_eq!(awaited.reported_since(&cut_short, "a"), NEVER);
    }
}
