//! Decides requests of virtual keys, to count instructions: `virtual_key_decisions KEYS DECISIONS`. Run it under callgrind
//! with some decisions and with none; the difference is what the decisions cost.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "an example")]

use std::sync::Arc;

use serde_json::{Value, json};
use tollgate_engine::{Engine, ManualClock, Request};
use tollgate_policy::{Known, RuleSet, VirtualKeys, key_bucket};
use tollgate_store::{MemoryStore, Mode};

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<usize>().unwrap());
    let (keys, decisions) = (numbers.next().unwrap(), numbers.next().unwrap());
    let id = |number: usize| format!("key_{:02x}{number:014x}", number % 256);
    let mut buckets: Vec<Vec<Value>> = vec![Vec::new(); 256];
    for number in 0..keys {
        let (id, digest) = (id(number), format!("{number:064x}"));
        let bucket = usize::from(key_bucket(&id).unwrap());
        let limits = json!([{"limit": 1_000 + number % 16, "window": "1h"}]);
        let place = buckets.get_mut(bucket).unwrap();
        place.push(json!({"id": id, "digest": digest, "limits": limits}));
    }
    let buckets = (0_u16..).zip(&buckets).map(|(bucket, bodies)| (bucket, bodies.as_slice()));
    let all = VirtualKeys::default().with_buckets(buckets).unwrap();
    let rules = "rules: [{rule_id: r, identifier_type: api_key, limit: 1000000, window: 1h}]";
    let clock = Arc::new(ManualClock::new(1_000_000_000));
    let rules = RuleSet::from_yaml(rules, "t").unwrap();
    let engine = Engine::new(MemoryStore::new(1_000_000), clock, rules);
    engine.swap_virtual_keys(&Arc::new(all));
    let ids: Vec<String> = (0..100.min(keys)).map(|number| id(number * (keys / 100))).collect();
    let mut allowed = 0;
    for id in ids.iter().cycle().take(decisions) {
        let rules = engine.rules();
        let mut request = Request::default();
        request.attributes.set(Known::ApiKey, id);
        let decision = engine.decide_now(&rules, &request, Mode::Charge).unwrap().unwrap();
        allowed += usize::from(decision.is_allowed());
    }
    println!("{allowed} of {decisions} allowed");
}
