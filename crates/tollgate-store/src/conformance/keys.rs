//! Counters that a careless spelling of keys would mix up.

use std::sync::Arc;

use tollgate_core::Algorithm;

use super::Harness;
use super::meter::{LONG, Meter, limit};

/// Values that look like separators, hash tags, escapes or one another.
const VALUES: [&str; 22] = [
    "",
    ":",
    "::",
    "a",
    "b",
    "ab",
    "bc",
    "abc",
    "a:b",
    "a%3Ab",
    "a%253Ab",
    "{a}",
    "{",
    "}",
    "%",
    "a\0b",
    "a\nb",
    "a\r\nb",
    "\u{1F600}",
    "A",
    " a",
    "a ",
];

/// Every two values joined, split and alone are counters of their own.
pub async fn keys_do_not_collide<H: Harness>(harness: &Arc<H>) {
    let longest = ["x".repeat(256), format!("{}y", "x".repeat(255)), "x".repeat(255)];
    let mut keys: Vec<Vec<&str>> = VALUES.iter().map(|value| vec![*value]).collect();
    for first in VALUES {
        for second in VALUES {
            keys.push(vec![first, second]);
        }
    }
    keys.extend([vec!["a", "b", "c"], vec!["", "", ""], vec!["", "a", ""]]);
    // What a length-prefixed spelling of ("a", "b") looks like, as a single value.
    keys.push(vec!["\u{1}\0\0\0a\u{1}\0\0\0b"]);
    keys.extend(longest.iter().map(|value| vec![value.as_str()]));
    keys.extend(longest.iter().map(|value| vec![value.as_str(), value.as_str()]));
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindowLog] {
        let mut meters: Vec<Meter> =
            keys.iter().map(|key| Meter::new("keys", key, limit(algorithm, 1_000, LONG))).collect();
        for (cost, meter) in (1..).zip(&mut meters) {
            assert!(meter.charge(&**harness, cost).await.passes, "{meter:?}");
        }
        for (cost, meter) in (1..).zip(&mut meters) {
            assert_eq!(meter.used(&**harness).await, cost, "{meter:?}");
        }
    }
}

/// The same key under different rules and tags is a different counter.
pub async fn rules_and_tags_do_not_collide<H: Harness>(harness: &Arc<H>) {
    let names = ["r", "r:t", "t", "r:", ":t", "{r}", "R", "r%3At", "tt"];
    let mut meters = Vec::new();
    for rule_id in names {
        for tag in names {
            for key in [["k"], ["t:k"]] {
                let limit = limit(Algorithm::FixedWindow, 1_000, LONG);
                meters.push(Meter::tagged(rule_id, tag, &key, limit));
            }
        }
    }
    for (cost, meter) in (1..).zip(&mut meters) {
        assert!(meter.charge(&**harness, cost).await.passes, "{meter:?}");
    }
    for (cost, meter) in (1..).zip(&mut meters) {
        assert_eq!(meter.used(&**harness).await, cost, "{meter:?}");
    }
}
