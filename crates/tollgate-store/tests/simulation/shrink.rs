//! Makes a plan that fails smaller, as long as it fails.

use crate::plan::{ClientCall, Plan, Shape, What};

/// So many smaller plans are tried.
const MAX_ATTEMPTS: u32 = 400;

/// Smaller plans that still promise what the plan's shape promises.
struct Shrinking<'a> {
    plan: Plan,
    fails: &'a dyn Fn(&Plan) -> bool,
    attempts: u32,
}

/// The smallest plan found that fails. What the shape of a plan presupposes is left alone: that all
/// nodes know what is used and lose the store together, or that callers are steady.
pub fn shrink(plan: Plan, fails: &dyn Fn(&Plan) -> bool) -> Plan {
    let mut shrinking = Shrinking { plan, fails, attempts: 0 };
    shrinking.drop_nodes();
    shrinking.drop_counters();
    shrinking.drop_faults();
    shrinking.drop_calls();
    shrinking.simplify();
    shrinking.plan
}

impl Shrinking<'_> {
    /// Takes a smaller plan if it fails too.
    fn attempt(&mut self, smaller: Plan) -> bool {
        if self.attempts >= MAX_ATTEMPTS {
            return false;
        }
        self.attempts += 1;
        let fails = (self.fails)(&smaller);
        if fails {
            self.plan = smaller;
        }
        fails
    }

    fn drop_nodes(&mut self) {
        while self.plan.nodes > 1 {
            let mut smaller = self.plan.clone();
            smaller.nodes -= 1;
            let last = smaller.nodes;
            smaller.calls.retain(|call| call.node != last);
            for fault in &mut smaller.faults {
                fault.nodes &= (1 << last) - 1;
            }
            smaller.faults.retain(|fault| fault.nodes > 0);
            if !self.attempt(smaller) {
                break;
            }
        }
    }

    fn drop_counters(&mut self) {
        while self.plan.counters.len() > 1 {
            let mut smaller = self.plan.clone();
            smaller.counters.pop();
            let all = (1 << smaller.counters.len()) - 1;
            for call in &mut smaller.calls {
                call.counters &= all;
            }
            smaller.calls.retain(|call| call.counters > 0);
            if !self.attempt(smaller) {
                break;
            }
        }
    }

    fn drop_faults(&mut self) {
        if self.plan.shape != Shape::Partitions {
            return;
        }
        for place in (0..self.plan.faults.len()).rev() {
            let mut smaller = self.plan.clone();
            smaller.faults.remove(place);
            self.attempt(smaller);
        }
    }

    fn drop_calls(&mut self) {
        if self.plan.shape == Shape::FarStore {
            return;
        }
        let mut size = self.plan.calls.len() / 2;
        while size > 0 {
            let mut first = 0;
            while first < self.plan.calls.len() {
                let mut smaller = self.plan.clone();
                let end = (first + size).min(smaller.calls.len());
                let is_kept = |(place, call): &(usize, ClientCall)| {
                    !(first..end).contains(place) || matches!(call.what, What::Look)
                };
                let kept = smaller.calls.into_iter().enumerate().filter(is_kept);
                smaller.calls = kept.map(|(_, call)| call).collect();
                let is_less = smaller.calls.len() < self.plan.calls.len();
                if !(is_less && self.attempt(smaller)) {
                    first += size;
                }
            }
            size /= 2;
        }
    }

    fn simplify(&mut self) {
        let mut smaller = self.plan.clone();
        (smaller.profile.losses, smaller.profile.duplicates) = (0, 0);
        self.attempt(smaller);
        let mut smaller = self.plan.clone();
        for call in &mut smaller.calls {
            if matches!(call.what, What::Reserve { .. }) {
                call.what = What::Allow;
            }
        }
        self.attempt(smaller);
        let mut smaller = self.plan.clone();
        for call in &mut smaller.calls {
            call.cost = 1;
        }
        self.attempt(smaller);
    }
}
