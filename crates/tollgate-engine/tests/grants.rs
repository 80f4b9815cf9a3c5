//! Grants as decisions show them.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::sync::Arc;

use tollgate_engine::{Clock, Engine, ManualClock, Request};
use tollgate_policy::{Attributes, Known, RuleSet};
use tollgate_store::{MemoryStore, Mode};

const SECOND: u64 = 1_000_000_000;
const NEW_YEAR_2030: u64 = 1_893_456_000 * SECOND;

fn request(user: &str) -> Request<'_> {
    let mut attributes = Attributes::default();
    attributes.set(Known::UserId, user);
    Request { attributes, ..Request::default() }
}

struct Bed {
    engine: Engine<MemoryStore>,
    clock: Arc<ManualClock>,
}

impl Bed {
    fn new(algorithm: &str, at: u64) -> Self {
        let clock = Arc::new(ManualClock::new(at));
        let set = rules(algorithm, true);
        let engine = Engine::new(MemoryStore::new(1_000), Arc::clone(&clock) as Arc<_>, set);
        Self { engine, clock }
    }

    fn go_to(&self, at: u64) {
        self.clock.advance(at - self.clock.now());
    }

    /// How many requests of ann pass now, and what the first refusal says.
    async fn spend(&self) -> (u64, u64, String) {
        let rules = self.engine.rules();
        let mut passed = 0;
        loop {
            let asked = request("ann");
            let decision = self.engine.decide(&rules, &asked, Mode::Charge).await.unwrap();
            if !decision.is_allowed() {
                return (passed, decision.deciding().unwrap().quota, decision.explain());
            }
            passed += 1;
        }
    }
}

fn rules(algorithm: &str, granted: bool) -> RuleSet {
    let grants = if granted {
        "grants: [{rule_id: r, type: user_id, value: ann, extra: 5, expires_at: \"2030-01-01T00:00:00Z\"}]"
    } else {
        ""
    };
    let rule = format!("rule_id: r, identifier_type: user_id, limit: 10, algorithm: {algorithm}");
    let text = format!("default: false\nrules: [{{{rule}, window: 1d}}]\n{grants}\n");
    RuleSet::from_yaml(&text, "t").unwrap()
}

#[tokio::test]
async fn the_raised_limit_is_what_decisions_show() {
    for algorithm in
        ["fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket"]
    {
        let bed = Bed::new(algorithm, NEW_YEAR_2030 - 86_400 * SECOND);
        let (passed, limit, explained) = bed.spend().await;
        assert_eq!((passed, limit), (15, 15), "{algorithm}");
        assert!(explained.contains("15 of 15 requests used"), "{explained}");
        let rules = bed.engine.rules();
        let other = request("bob");
        let decision = bed.engine.decide(&rules, &other, Mode::Peek).await.unwrap();
        assert_eq!(decision.effective_limit(), Some(10));
    }
}

#[tokio::test]
async fn it_ends_exactly_at_its_instant_and_what_was_counted_stays() {
    // The log reaches over the turn of the year, so what ann spent before still counts.
    let bed = Bed::new("sliding_window_log", NEW_YEAR_2030 - SECOND);
    assert_eq!(bed.spend().await.0, 15);
    bed.go_to(NEW_YEAR_2030 - 1);
    assert_eq!(bed.spend().await.1, 15);
    bed.go_to(NEW_YEAR_2030);
    let (passed, limit, explained) = bed.spend().await;
    assert_eq!((passed, limit), (0, 10));
    assert!(explained.contains("15 of 10 requests used"), "{explained}");
    bed.go_to(NEW_YEAR_2030 + 86_399 * SECOND);
    assert_eq!(bed.spend().await.0, 10);
}

#[tokio::test]
async fn a_grant_given_later_adds_to_what_was_counted() {
    let bed = Bed::new("fixed_window", NEW_YEAR_2030 - 3_600 * SECOND);
    bed.engine.swap_rules(rules("fixed_window", false));
    assert_eq!(bed.spend().await.0, 10);
    bed.engine.swap_rules(rules("fixed_window", true));
    assert_eq!(bed.spend().await.0, 5);
    bed.engine.swap_rules(rules("fixed_window", false));
    let (passed, limit, explained) = bed.spend().await;
    assert_eq!((passed, limit), (0, 10));
    assert!(explained.contains("15 of 10"), "{explained}");
}
