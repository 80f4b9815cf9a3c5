//! Price tables: what is refused, which entry applies, and what usages cost.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail like tests"
)]

use num_bigint::BigUint;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tollgate_policy::prices::{
    Currency, MAX_AMOUNT_NANOS, Money, Price, PriceTable, TokenKind, Usage,
};

fn table(text: &str) -> PriceTable {
    PriceTable::parse(text, "prices.yaml").unwrap()
}

fn problems(text: &str) -> Vec<String> {
    let problems = PriceTable::parse(text, "prices.yaml").unwrap_err();
    problems.0.iter().map(ToString::to_string).collect()
}

/// A table of one entry with these fields in addition to model and currency.
fn one(fields: &str) -> String {
    format!("prices:\n- {{model: m, currency: USD, {fields}}}\n")
}

#[test]
fn wrong_amounts_are_refused_with_their_place() {
    let cases = [
        ("\"-1\"", "must not be negative"),
        ("\"five\"", "must be a decimal number in quotes"),
        ("2.5", "must be a decimal number in quotes"),
        ("[1]", "must be a decimal number in quotes"),
        ("\"1e3\"", "must be a decimal number in quotes"),
        ("\"0.0000000001\"", "must not have more than 9 digits after the point"),
        ("\"9007199.254740992\"", "must not be above 9007199.254740991"),
        ("\"99999999999999999999999999999\"", "must not be above 9007199.254740991"),
    ];
    for (amount, message) in cases {
        for (field, fields) in [
            ("per_million.input", format!("per_million: {{input: {amount}, output: \"1\"}}")),
            ("per_request", format!("per_request: {amount}")),
            (
                "long_context.output",
                format!("per_request: \"1\", long_context: {{above: 9, output: {amount}}}"),
            ),
        ] {
            let found = problems(&one(&fields));
            let start = format!("field prices[0].{field}: {message}");
            assert!(found[0].starts_with("prices.yaml:2:"), "{found:?}");
            assert!(found[0].contains(&start), "{found:?} lacks {start}");
        }
    }
}

#[test]
fn incomplete_and_unknown_fields_are_refused() {
    let cases = [
        ("prices: [{currency: USD, per_request: \"1\"}]", "prices[0].model: is missing"),
        ("prices: [{model: m, per_request: \"1\"}]", "prices[0].currency: is missing"),
        (
            "prices: [{model: m, currency: BTC, per_request: \"1\"}]",
            "prices[0].currency: is not a currency code of ISO 4217",
        ),
        ("prices: [{model: m, currency: USD}]", "prices[0].per_million: is missing; give"),
        (
            "prices: [{model: m, currency: USD, per_million: {input: \"1\"}}]",
            "prices[0].per_million.output: is missing; \"0\" says",
        ),
        (
            "prices: [{model: m, currency: USD, per_million: {input: \"1\", output: \"1\", images: \"1\"}}]",
            "prices[0].per_million.images: is not a known field",
        ),
        (
            "prices: [{model: \"a*b*\", currency: USD, per_request: \"1\"}]",
            "prices[0].model: must not have more than one *",
        ),
        (
            "prices: [{model: m, currency: USD, per_request: \"1\", long_context: {input: \"1\"}}]",
            "long_context.above: must be a number of input tokens",
        ),
        (
            "prices: [{model: m, currency: USD, per_request: \"1\", \
             long_context: [{above: 5, input: \"1\"}, {above: 5, input: \"2\"}]}]",
            "prices[0].long_context[1].above: is the bound of another tier too",
        ),
        (
            "prices: [{model: m, currency: USD, per_request: \"1\", valid_from: \"2026-02-01T00:00:00Z\", \
             valid_until: \"2026-02-01T00:00:00Z\"}]",
            "prices[0].valid_until: must be after valid_from",
        ),
        (
            "prices: []\nunpriced: free",
            "unpriced: \"free\" is unknown; use one of reject, default_price",
        ),
        ("prices: []\nunpriced: default_price", "default_price: is missing"),
        (
            "prices: []\ndefault_price: {currency: USD, per_request: \"1\"}",
            "default_price: goes with unpriced: default_price only",
        ),
    ];
    for (text, message) in cases {
        let found = problems(text);
        assert!(found.iter().any(|found| found.contains(message)), "{found:?} lacks {message}");
    }
}

#[test]
fn a_tie_names_both_entries() {
    let entry = |model: &str, more: &str| {
        format!("- {{model: \"{model}\", currency: USD, per_request: \"1\"{more}}}\n")
    };
    let tied = format!("prices:\n{}{}", entry("gpt-*", ""), entry("*-pro", ""));
    let found = problems(&tied);
    assert_eq!(found.len(), 1, "{found:?}");
    let named = "prices.yaml:3:3: field prices[1].model: \"*-pro\" and \"gpt-*\" of prices[0] (line 2) match";
    assert!(found[0].starts_with(named), "{found:?}");
    let twice = format!("prices:\n{}{}", entry("a", ""), entry("a", ""));
    assert_eq!(problems(&twice).len(), 1);

    // Different lengths, no name in common, another time, and later entries of one pattern are no ties.
    let early = ", valid_until: \"2026-01-01T00:00:00Z\"";
    let late = ", valid_from: \"2026-01-01T00:00:00Z\"";
    for (one, other) in [
        (entry("gpt-*", ""), entry("*-mini", "")),
        (entry("gpt-*", ""), entry("cla-*", "")),
        (entry("gpt-*", early), entry("*-pro", late)),
        (entry("a", ""), entry("a", late)),
    ] {
        table(&format!("prices:\n{one}{other}"));
    }
}

#[test]
fn the_most_specific_valid_entry_applies() {
    let prices = table(
        "prices:
- {model: \"*\", currency: USD, per_request: \"1\"}
- {model: \"gpt-*\", currency: USD, per_request: \"2\"}
- {model: \"gpt-*-mini\", currency: USD, per_request: \"3\"}
- {model: gpt-4-mini, currency: EUR, per_request: \"4\", valid_from: \"1970-01-01T00:00:10Z\"}
- {model: gpt-4-mini, currency: EUR, per_request: \"5\", valid_from: \"1970-01-01T00:00:20Z\",
   valid_until: \"1970-01-01T00:00:30Z\"}
",
    );
    let at = |model: &str, seconds: u64| {
        prices.price(model, seconds * 1_000_000_000).unwrap().per_request / 1_000_000_000
    };
    assert_eq!([at("x", 0), at("gpt-4", 0), at("gpt-5-mini", 0)], [1, 2, 3]);
    let over_time = [0, 9, 10, 19, 20, 29, 30].map(|seconds| at("gpt-4-mini", seconds));
    assert_eq!(over_time, [3, 3, 4, 4, 5, 5, 4]);
    assert_eq!(prices.price("gpt-4-mini", 10_000_000_000).unwrap().currency.code(), "EUR");
    // The ends of a pattern do not share letters.
    assert_eq!(at("gpt-mini", 0), 2);
}

#[test]
fn an_unpriced_model_has_no_price_unless_a_default_is_stated() {
    let entry = "prices: [{model: m, currency: USD, per_request: \"1\"}]\n";
    assert!(table(entry).price("other", 0).is_none());
    assert!(table(&format!("{entry}unpriced: reject")).price("other", 0).is_none());
    let priced = table(&format!(
        "{entry}unpriced: default_price\ndefault_price: {{currency: USD, per_request: \"7\"}}"
    ));
    assert_eq!(priced.price("other", 0).unwrap().per_request, 7_000_000_000);
    assert!(table("").is_empty() && !priced.is_empty());
}

fn nanos(text: &str, usage: &Usage) -> u64 {
    table(text).price("m", 0).unwrap().money(usage).nanos
}

#[test]
fn a_request_is_rounded_up_once() {
    // 1e-9 per million tokens: one token is a millionth of a nano.
    let least = one("per_million: {input: \"0.000000001\", output: \"0.000000001\"}");
    for (input, output, cost) in [(0, 0, 0), (1, 0, 1), (1, 1, 1), (999_999, 1, 1), (999_999, 2, 2)]
    {
        assert_eq!(nanos(&least, &Usage::new(input, output)), cost, "{input} {output}");
    }
    let priced = one(
        "per_million: {input: \"2.50\", output: \"10\"}, per_request: \"0.01\", per_image: \"0.02\"",
    );
    let usage = Usage::new(1_000, 500).with_images(3);
    assert_eq!(nanos(&priced, &usage), 2_500_000 + 5_000_000 + 10_000_000 + 60_000_000);
    let huge = one("per_million: {input: \"9000000\", output: \"9000000\"}");
    assert_eq!(nanos(&huge, &Usage::new(u64::MAX, u64::MAX)), MAX_AMOUNT_NANOS);
}

#[test]
fn parts_have_their_own_price_and_contradictions_the_dearer_one() {
    let priced = one(
        "per_million: {input: \"10\", output: \"100\", cached_read: \"1\", cached_write: \"12\", audio_output: \"500\"}",
    );
    let cost = |usage: Usage| nanos(&priced, &usage) / 1_000;
    let usage = Usage::new(10, 10);
    assert_eq!(cost(usage), 100 + 1_000);
    assert_eq!(cost(usage.with(TokenKind::CachedRead, 4)), 60 + 4 + 1_000);
    assert_eq!(
        cost(usage.with(TokenKind::CachedRead, 4).with(TokenKind::CachedWrite, 6)),
        4 + 72 + 1_000
    );
    // Reasoning has no price of its own: that of the output.
    assert_eq!(cost(usage.with(TokenKind::Reasoning, 7)), 1_100);
    assert_eq!(cost(usage.with(TokenKind::AudioOutput, 1)), 100 + 900 + 500);
    // Cached above input: 20 cached cost 20, and the input of 10 alone would cost 100.
    assert_eq!(cost(usage.with(TokenKind::CachedRead, 20)), 100 + 1_000);
    assert_eq!(cost(usage.with(TokenKind::CachedRead, 200)), 200 + 1_000);
}

#[test]
fn long_requests_have_the_prices_of_their_tier() {
    let priced = one(
        "per_million: {input: \"1\", output: \"2\", cached_read: \"0.5\"}, long_context: \
         [{above: 100, input: \"10\", output: \"20\"}, {above: 1000, input: \"100\", cached_read: \"50\"}]",
    );
    let cost = |input, output, cached| {
        nanos(&priced, &Usage::new(input, output).with(TokenKind::CachedRead, cached)) / 100
    };
    assert_eq!(cost(100, 1, 0), 1_000 + 20);
    assert_eq!(cost(101, 1, 0), 10_100 + 200);
    // What a tier does not state has the price without tiers.
    assert_eq!(cost(101, 1, 1), 10_000 + 5 + 200);
    assert_eq!(cost(1_001, 1, 1), 1_000_000 + 500 + 20);
}

/// An amount below a million with up to nine decimals.
fn amount() -> impl Strategy<Value = String> {
    let digits = (0..1_000_000_u64, 0..1_000_000_000_u64, 0..=9_usize);
    prop_oneof![
        1 => Just("0".to_owned()),
        6 => digits.prop_map(|(units, nanos, length)| {
            let fraction: String = format!("{nanos:09}").chars().take(length).collect();
            if fraction.is_empty() { units.to_string() } else { format!("{}.{fraction}", units % 1_000) }
        }),
    ]
}

fn tokens() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0..100_u64, 0..1_000_000_u64, 0..(1_u64 << 40)]
}

/// A decimal number times 10^15, by moving its point.
fn scaled(text: &str) -> BigUint {
    let (units, fraction) = text.split_once('.').unwrap_or((text, ""));
    format!("{units}{fraction:0<15}").parse().unwrap()
}

#[derive(Debug)]
struct Case {
    prices: Vec<Option<String>>,
    per_request: String,
    per_image: String,
    tokens: Vec<u64>,
    images: u64,
}

impl Case {
    fn file(&self) -> String {
        let named = TokenKind::ALL.iter().zip(&self.prices);
        let prices: Vec<String> = named
            .filter_map(|(kind, price)| Some(format!("{}: \"{}\"", kind.name(), price.as_ref()?)))
            .collect();
        let (request, image) = (&self.per_request, &self.per_image);
        one(&format!(
            "per_request: \"{request}\", per_image: \"{image}\", per_million: {{{}}}",
            prices.join(", ")
        ))
    }

    fn usage(&self) -> Usage {
        let kinds = TokenKind::ALL.iter().zip(&self.tokens);
        let usage = Usage::default().with_images(self.images);
        kinds.fold(usage, |usage, (kind, tokens)| usage.with(*kind, *tokens))
    }

    /// The price by big decimals: units times 10^15, and from there up to the next 10^-9.
    fn expected(&self) -> BigUint {
        let [input, output, cached_read, cached_write, reasoning, audio_in, audio_out]: [u64; 7] =
            self.tokens.clone().try_into().unwrap();
        let price = |place: usize, whole: usize| {
            scaled(self.prices[place].as_deref().or(self.prices[whole].as_deref()).unwrap_or("0"))
        };
        let side = |whole: usize, all: u64, parts: &[(usize, u64)]| {
            let sum: BigUint =
                parts.iter().map(|(place, count)| price(*place, whole) * *count).sum();
            let counted: u128 = parts.iter().map(|(_, count)| u128::from(*count)).sum();
            if counted <= u128::from(all) {
                sum + price(whole, whole) * (u128::from(all) - counted)
            } else {
                sum.max(price(whole, whole) * all)
            }
        };
        let per_million = side(0, input, &[(2, cached_read), (3, cached_write), (5, audio_in)])
            + side(1, output, &[(4, reasoning), (6, audio_out)]);
        let flat = scaled(&self.per_request) + scaled(&self.per_image) * self.images;
        let million = BigUint::from(1_000_000_u32);
        // Of a price for a million, 10^15 times the sum is 10^21 times the money.
        let total = per_million + flat * &million;
        let to_nanos = BigUint::from(10_u32).pow(12);
        (total + &to_nanos - 1_u32) / to_nanos
    }
}

#[test]
fn ten_thousand_usages_cost_what_big_decimals_say() {
    let optional = || proptest::option::weighted(0.7, amount());
    let prices = (amount(), amount(), proptest::collection::vec(optional(), 5));
    let counts = proptest::collection::vec(tokens(), 7);
    let cases = (prices, amount(), amount(), counts, 0..20_u64, any::<bool>()).prop_map(
        |((input, output, parts), per_request, per_image, mut tokens, images, is_consistent)| {
            if is_consistent {
                tokens[0] += tokens[2] + tokens[3] + tokens[5];
                tokens[1] += tokens[4] + tokens[6];
            }
            let prices = [Some(input), Some(output)].into_iter().chain(parts).collect();
            Case { prices, per_request, per_image, tokens, images }
        },
    );
    let mut runner = TestRunner::new(Config { cases: 10_000, ..Config::default() });
    runner
        .run(&cases, |case| {
            let expected = case.expected().min(BigUint::from(MAX_AMOUNT_NANOS));
            let money = table(&case.file()).price("m", 0).unwrap().money(&case.usage());
            prop_assert_eq!(money.currency, Currency::USD);
            prop_assert_eq!(BigUint::from(money.nanos), expected);
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_example_file_is_good() {
    let prices = table(include_str!("../../../examples/prices.yaml"));
    let nanos = |model: &str, usage: &Usage| prices.price(model, 0).unwrap().money(usage).nanos;
    assert_eq!(nanos("gpt-4o", &Usage::new(1_000, 100)), 3_500_000);
    assert_eq!(nanos("gpt-4o-mini-2026", &Usage::new(1_000, 100)), 210_000);
    assert_eq!(nanos("dall-e-3", &Usage::default().with_images(2)), 80_000_000);
    assert_eq!(nanos("unknown", &Usage::new(1, 0)), 15_000);
}

#[test]
fn a_price_survives_its_bytes() {
    let prices = table(include_str!("../../../examples/prices.yaml"));
    for model in ["gpt-4o", "claude-sonnet-5", "dall-e-3", "unknown"] {
        let price = prices.price(model, 0).unwrap();
        let mut bytes = Vec::new();
        price.write(&mut bytes);
        bytes.push(7);
        assert_eq!(Price::read(&bytes), Some((price.clone(), &[7][..])));
        for length in 0..bytes.len() - 1 {
            assert_eq!(Price::read(&bytes[..length]), None);
        }
    }
}

#[test]
fn more_of_a_request_is_no_further_request() {
    let priced = one("per_million: {input: \"1\", output: \"1\"}, per_request: \"2\"");
    assert_eq!(nanos(&priced, &Usage::new(0, 5)), 2_000_005_000);
    assert_eq!(nanos(&priced, &Usage::new(0, 5).with_requests(0)), 5_000);
}

#[test]
fn money_prints_as_a_decimal() {
    let money = Money { currency: Currency::USD, nanos: 12_300_000 };
    assert_eq!(money.to_string(), "0.0123 USD");
}
