//! Several limits, all or none: `cargo run -p tollgate --example gate`.

use tollgate::{Client, Error, Gate, Quota, Rule, Usage};

fn main() -> Result<(), Error> {
    let gate = Gate::builder()
        .rule(Rule::per("user_id").quota(Quota::per_second(10)))
        .rule(Rule::per("tenant_id").quota(Quota::per_day(100)).tier("pro", Quota::per_day(5_000)))
        .rule(Rule::per("user_id").tokens(Quota::per_minute(1_000)))
        .build()?;
    let client = Client::user("ann").tenant("acme").tier("pro");
    println!("allowed: {}", gate.check_now(&client)?.is_allowed());
    let hold = gate.reserve_now(&client.clone().tokens(600))?;
    hold.settle_now(Usage::tokens(200))?; // 400 go back
    let verdict = gate.check_now(&client.tokens(900))?;
    println!("allowed: {}, by {:?}", verdict.is_allowed(), verdict.rule_id());
    Ok(())
}
