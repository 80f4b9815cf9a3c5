//! What is reserved where the kinds of tokens are not known: no usage within the estimate costs more.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tollgate_policy::prices::{Price, PriceTable, TokenKind, Unstated, Usage};

const ANY: Unstated = Unstated::Unknown { may_hear: true, may_speak: true };
const TEXT: Unstated = Unstated::Unknown { may_hear: false, may_speak: false };

fn price(fields: &str) -> Price {
    let text = format!("prices: [{{model: m, currency: USD, {fields}}}]");
    PriceTable::parse(&text, "prices.yaml").unwrap().price("m", 0).unwrap().clone()
}

#[test]
fn tokens_of_an_unknown_kind_cost_the_dearest_that_they_may_be() {
    let price = price(
        "per_request: \"0.5\", per_million: {input: \"10\", output: \"20\", cached_read: \"1\", \
         cached_write: \"12\", reasoning: \"30\", audio_input: \"40\", audio_output: \"80\"}",
    );
    let nanos = |usage: &Usage| price.money(usage).nanos;
    let usage = Usage::new(1_000, 100);
    assert_eq!(nanos(&usage), 500_000_000 + 10_000_000 + 2_000_000);
    assert_eq!(nanos(&usage.with_unstated(TEXT)), 500_000_000 + 12_000_000 + 3_000_000);
    assert_eq!(nanos(&usage.with_unstated(ANY)), 500_000_000 + 40_000_000 + 8_000_000);
    // Parts that are stated keep their price.
    let stated = usage.with(TokenKind::CachedRead, 600).with(TokenKind::Reasoning, 40);
    let rest = 600_000 + 400 * 12_000 + 40 * 30_000 + 60 * 30_000;
    assert_eq!(nanos(&stated.with_unstated(TEXT)), 500_000_000 + rest);
}

#[test]
fn more_of_a_long_request_has_the_price_of_its_length() {
    let price = price(
        "per_request: \"1\", per_million: {input: \"1\", output: \"2\"}, \
         long_context: {above: 100, input: \"10\", output: \"20\"}",
    );
    let more = Usage::new(0, 10).with_requests(0).with_unstated(TEXT);
    assert_eq!(price.money(&more.with_earlier_input(100)).nanos, 20_000);
    assert_eq!(price.money(&more.with_earlier_input(101)).nanos, 200_000);
}

/// Prices of all kinds, the second line for long requests.
fn prices() -> impl Strategy<Value = Price> {
    let amounts = || proptest::collection::vec(0..100_u64, TokenKind::ALL.len());
    let tiers = proptest::collection::vec((1..2_000_u64, amounts()), 0..3);
    (amounts(), tiers).prop_map(|(base, mut tiers)| {
        tiers.sort();
        tiers.dedup_by_key(|(above, _)| *above);
        let named = |amounts: &[u64]| {
            let kinds = TokenKind::ALL.iter().zip(amounts);
            let one = |(kind, amount): (&TokenKind, &u64)| format!("{}: \"{amount}\"", kind.name());
            kinds.map(one).collect::<Vec<_>>().join(", ")
        };
        let long =
            |(above, amounts): &(u64, Vec<u64>)| format!("{{above: {above}, {}}}", named(amounts));
        let long: Vec<_> = tiers.iter().map(long).collect();
        let long = long.join(", ");
        price(&format!("per_million: {{{}}}, long_context: [{long}]", named(&base)))
    })
}

/// A usage of at most so much, by parts per thousand.
fn within(estimate: (u64, u64), shares: &[u64], has_sound: bool) -> Usage {
    let [all_in, all_out, read, write, reasoning, heard, said] = shares.try_into().unwrap();
    let (input, output) = (estimate.0 * all_in / 1_000, estimate.1 * all_out / 1_000);
    let part = |whole: u64, share: u64| whole * share / 3_000;
    let sound = u64::from(has_sound);
    Usage::new(input, output)
        .with(TokenKind::CachedRead, part(input, read))
        .with(TokenKind::CachedWrite, part(input, write))
        .with(TokenKind::AudioInput, part(input, heard) * sound)
        .with(TokenKind::Reasoning, part(output, reasoning))
        .with(TokenKind::AudioOutput, part(output, said) * sound)
}

#[test]
fn no_usage_within_an_estimate_costs_more_than_was_reserved() {
    let estimates = (0..5_000_u64, 0..5_000_u64, 0..3_000_u64);
    let shares = proptest::collection::vec(0..=1_000_u64, TokenKind::ALL.len());
    let mut runner = TestRunner::new(Config { cases: 20_000, ..Config::default() });
    runner
        .run(&(prices(), estimates, shares, any::<bool>()), |case| {
            let (price, (input, output, more), shares, has_sound) = case;
            let unstated = if has_sound { ANY } else { TEXT };
            let first = Usage::new(input, output).with_unstated(unstated);
            let top_up = Usage::new(0, more).with_requests(0).with_unstated(unstated);
            let reserved =
                price.money(&first).nanos + price.money(&top_up.with_earlier_input(input)).nanos;
            let used = within((input, output + more), &shares, has_sound);
            prop_assert!(price.money(&used).nanos <= reserved, "{used:?}");
            Ok(())
        })
        .unwrap();
}
