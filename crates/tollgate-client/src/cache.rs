//! Refusals that still hold, so that nobody is asked again before the answer can change.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::check::Check;
use crate::decision::Decision;

/// A full cache is looked through for what has ended at most this often.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Refusals by the content of what was refused.
#[derive(Debug)]
pub(crate) struct Refusals {
    most: usize,
    longest: Duration,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    by_content: HashMap<Check, Refusal>,
    swept_at: Option<Instant>,
}

#[derive(Debug)]
struct Refusal {
    cost: Option<u64>,
    tokens: Option<u64>,
    decision: Decision,
    /// When it would pass.
    passes_at: Instant,
    /// Until when that is believed.
    until: Instant,
}

impl Refusal {
    /// A limit that refuses a request also refuses one of a higher cost, but may allow one of a
    /// lower cost.
    fn covers(&self, check: &Check) -> bool {
        let at_least = |asked: Option<u64>, refused: Option<u64>| match (asked, refused) {
            (Some(asked), Some(refused)) => asked >= refused,
            // What is not stated is what the rules say, which is not known here.
            (asked, refused) => asked == refused,
        };
        at_least(check.cost, self.cost) && at_least(check.tokens, self.tokens)
    }
}

impl Refusals {
    /// Keeps at most so many, each for at most so long.
    pub(crate) fn new(most: usize, longest: Duration) -> Self {
        let kept = Kept { by_content: HashMap::new(), swept_at: None };
        Self { most, longest, kept: Mutex::new(kept) }
    }

    /// The refusal that still holds for this.
    pub(crate) fn find(&self, check: &Check, now: Instant) -> Option<Decision> {
        if self.most == 0 {
            return None;
        }
        let kept = self.kept.lock();
        let refusal = kept.by_content.get(&content(check))?;
        if now >= refusal.until || !refusal.covers(check) {
            return None;
        }
        let mut decision = refusal.decision.clone();
        decision.is_cached = true;
        decision.retry_after = Some(refusal.passes_at.saturating_duration_since(now));
        Some(decision)
    }

    /// Remembers a refusal that says how long it holds.
    pub(crate) fn note(&self, check: &Check, decision: &Decision, now: Instant) {
        let Some(retry_after) = decision.retry_after.filter(|_| self.most > 0) else { return };
        // A slot may be released at any time, and a fallback's answer ends with the outage.
        let is_slot = decision.deciding().is_some_and(|scope| scope.window_seconds == 0);
        if decision.allowed || decision.degraded || is_slot {
            return;
        }
        // Longer than time is counted is as good as never.
        let Some(passes_at) = now.checked_add(retry_after) else { return };
        let refusal = Refusal {
            cost: check.cost,
            tokens: check.tokens,
            decision: decision.clone(),
            passes_at,
            until: now.checked_add(self.longest).map_or(passes_at, |most| passes_at.min(most)),
        };
        let content = content(check);
        let mut kept = self.kept.lock();
        if kept.by_content.len() >= self.most && !kept.by_content.contains_key(&content) {
            if kept.swept_at.is_some_and(|at| now < at + SWEEP_INTERVAL) {
                return;
            }
            kept.swept_at = Some(now);
            kept.by_content.retain(|_, refusal| now < refusal.until);
            if kept.by_content.len() >= self.most {
                return;
            }
        }
        kept.by_content.insert(content, refusal);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.kept.lock().by_content.len()
    }
}

/// What rules look at, apart from what it costs.
fn content(check: &Check) -> Check {
    Check { cost: None, tokens: None, request_id: None, ..check.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Scope;

    fn refused(seconds: u64) -> Decision {
        let retry_after = Some(Duration::from_secs(seconds));
        Decision { reason: "HIT_X_LIMIT".to_owned(), retry_after, ..Decision::default() }
    }

    fn user(name: &str) -> Check {
        Check::new().user_id(name)
    }

    #[test]
    fn a_refusal_holds_until_its_time_and_no_longer() {
        let refusals = Refusals::new(10, Duration::from_secs(60));
        let now = Instant::now();
        refusals.note(&user("ann"), &refused(5), now);
        let found = refusals.find(&user("ann"), now + Duration::from_secs(2)).unwrap();
        assert!(found.is_cached && !found.allowed);
        assert_eq!(found.retry_after, Some(Duration::from_secs(3)), "what is left of it");
        assert!(refusals.find(&user("bob"), now).is_none());
        let end = now + Duration::from_secs(5);
        assert!(refusals.find(&user("ann"), end - Duration::from_nanos(1)).is_some());
        assert!(refusals.find(&user("ann"), end).is_none());
    }

    #[test]
    fn a_long_refusal_is_asked_about_again() {
        let refusals = Refusals::new(10, Duration::from_secs(60));
        let now = Instant::now();
        refusals.note(&user("ann"), &refused(3600), now);
        let found = refusals.find(&user("ann"), now + Duration::from_secs(59)).unwrap();
        assert_eq!(found.retry_after, Some(Duration::from_secs(3541)));
        assert!(refusals.find(&user("ann"), now + Duration::from_secs(60)).is_none());
    }

    #[test]
    fn a_smaller_request_is_not_answered_from_memory() {
        let now = Instant::now();
        let refusals = Refusals::new(10, Duration::from_secs(60));
        refusals.note(&user("ann").cost(5), &refused(5), now);
        let finds = |check: Check| refusals.find(&check, now).is_some();
        assert!(finds(user("ann").cost(5)) && finds(user("ann").cost(6)));
        assert!(!finds(user("ann").cost(4)) && !finds(user("ann")));
        assert!(!finds(user("ann").cost(5).tokens(1)));
        assert!(finds(user("ann").cost(5).request_id("x")), "an id changes nothing");
        assert!(!finds(user("ann").cost(5).attribute("a", "b")), "everything else does");
    }

    #[test]
    fn what_may_end_sooner_is_not_remembered() {
        let now = Instant::now();
        let refusals = Refusals::new(10, Duration::from_secs(60));
        let allowed = Decision { allowed: true, ..refused(5) };
        let degraded = Decision { degraded: true, ..refused(5) };
        let never = Decision { retry_after: None, ..refused(5) };
        let scope = Scope {
            name: "S".to_owned(),
            rule_id: "slots".to_owned(),
            limit: 1,
            burst: None,
            current: 1,
            remaining: 0,
            reset_at: None,
            window_seconds: 0,
        };
        let slot =
            Decision { rule_id: Some("slots".to_owned()), scopes: vec![scope], ..refused(5) };
        for decision in [allowed, degraded, never, slot] {
            refusals.note(&user("ann"), &decision, now);
            assert!(refusals.find(&user("ann"), now).is_none(), "{decision:?}");
        }
        let off = Refusals::new(0, Duration::from_secs(60));
        off.note(&user("ann"), &refused(5), now);
        assert!(off.find(&user("ann"), now).is_none());
    }

    #[test]
    fn memory_is_bounded() {
        let refusals = Refusals::new(100, Duration::from_secs(60));
        let now = Instant::now();
        for number in 0..1_000 {
            refusals.note(&user(&number.to_string()), &refused(5), now);
        }
        assert_eq!(refusals.len(), 100);
        refusals.note(&user("5"), &refused(9), now);
        assert_eq!(
            refusals.find(&user("5"), now).unwrap().retry_after,
            Some(Duration::from_secs(9))
        );
        // Those that have ended make room.
        refusals.note(&user("late"), &refused(5), now + Duration::from_secs(6));
        assert!(refusals.find(&user("late"), now + Duration::from_secs(6)).is_some());
        assert_eq!(refusals.len(), 2);
    }
}
