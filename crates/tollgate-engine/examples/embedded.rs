//! Rate limiting inside your own process, without a server.
//!
//! Run it: `cargo run -p tollgate-engine --example embedded`

use std::error::Error;
use std::sync::Arc;

use tollgate_core::SECOND;
use tollgate_engine::{Engine, ManualClock, Request};
use tollgate_policy::{Attributes, Known, RequestPath, RuleSet};
use tollgate_store::{MemoryStore, Mode};

const RULES: &str = "
rules:
  - rule_id: search
    identifier_type: user_id
    limit: 3
    window: 1m
    algorithm: sliding_window_log
    applies_to: {endpoints: ['/search/*']}
";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // `SystemClock::new()` in a real program. A clock that is moved by hand makes this one exact.
    let clock = Arc::new(ManualClock::new(1_767_225_600 * SECOND));
    let rules = RuleSet::from_yaml(RULES, "rules")?;
    let engine = Engine::new(MemoryStore::new(100_000), Arc::<ManualClock>::clone(&clock), rules);

    // The path is normalised first, so that /search//./books is no way around the rule.
    let path = RequestPath::parse("/search//./books?page=2")?;
    for number in 1..=4 {
        // One rule set decides one request from beginning to end, whatever is swapped meanwhile.
        // The request borrows as long as the rules do, so it is made after them.
        let rules = engine.rules();
        let request = search_by("ann", &path);
        let decision = engine.decide(&rules, &request, Mode::Charge).await?;
        println!("{number}: {}: {}", decision.reason_code(), decision.explain());
        if let Some(after) = decision.retry_after() {
            clock.advance(after);
            let decision = engine.decide(&rules, &request, Mode::Charge).await?;
            println!("{} s later: {}", after / SECOND, decision.reason_code());
        }
    }

    // Other rules, at once; what was counted stays counted.
    engine.swap_rules(RuleSet::from_yaml(&RULES.replace("limit: 3", "limit: 5"), "rules")?);
    let rules = engine.rules();
    let request = search_by("ann", &path);
    let decision = engine.decide(&rules, &request, Mode::Peek).await?;
    println!("peek: {}", decision.explain());
    Ok(())
}

fn search_by<'a>(user: &'a str, path: &'a RequestPath<'_>) -> Request<'a> {
    let mut attributes = Attributes::default();
    attributes.set(Known::UserId, user);
    attributes.set_path(path);
    Request { attributes, ..Request::default() }
}
