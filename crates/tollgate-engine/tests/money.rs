//! Budgets in money: prices, reservations, settlements, and what is refused.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tollgate_core::SECOND;
use tollgate_engine::{
    Actual, Amounts, Enforcement, Engine, EngineError, ManualClock, Request, new_reservation_id,
};
use tollgate_policy::prices::{Currency, Money, PriceTable, TokenKind, Usage};
use tollgate_policy::{Known, RuleSet};
use tollgate_store::{MemoryStore, Mode};

/// 2026-01-31 23:59:00 in UTC.
const JANUARY: u64 = 1_769_903_940 * SECOND;
const TTL: u64 = 60 * SECOND;

const PRICES: &str = r#"
prices:
  - model: gpt-*
    currency: USD
    per_million: {input: "2.50", output: "10", cached_read: "1.25"}
    per_request: "0.000000007"
  - {model: euro, currency: EUR, per_request: "1"}
  - {model: embed, currency: USD, per_million: {input: "0.02", output: "0"}}
"#;

struct Bed {
    engine: Engine<MemoryStore>,
    clock: Arc<ManualClock>,
}

/// The memory store answers at once.
fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the memory store answers at once"),
    }
}

fn usd(nanos: u64) -> Money {
    Money { currency: Currency::USD, nanos }
}

impl Bed {
    fn new(rules: &str) -> Self {
        let clock = Arc::new(ManualClock::new(JANUARY));
        let rules = RuleSet::from_yaml(rules, "rules").unwrap();
        let engine = Engine::new(MemoryStore::new(1_000), Arc::<ManualClock>::clone(&clock), rules);
        engine.swap_prices(PriceTable::parse(PRICES, "prices").unwrap());
        Self { engine, clock }
    }

    /// Whether such a request is reserved, and under which id.
    fn reserve(&self, model: &str, usage: &Usage) -> Result<Option<u128>, EngineError> {
        self.decide(model, Amounts::of_usage(usage), Some(usage))
    }

    #[expect(clippy::redundant_closure_for_method_calls, reason = "a method is not general enough")]
    fn decide(
        &self,
        model: &str,
        amounts: Amounts,
        usage: Option<&Usage>,
    ) -> Result<Option<u128>, EngineError> {
        let rules = self.engine.rules();
        let mut request =
            Request { amounts, usage: usage.copied(), reserve: Some(TTL), ..Request::default() };
        request.attributes.set(Known::UserId, "ann");
        request.attributes.set(Known::ModelId, model);
        ready(self.engine.decide_once(&rules, &request, |decision| decision.reservation_id()))
    }

    /// What is used of every limit.
    fn used(&self) -> Vec<u64> {
        let rules = self.engine.rules();
        let amounts = Amounts { cost: Some(0), money: Some(usd(0)), ..Amounts::NONE };
        let mut request = Request { amounts, ..Request::default() };
        request.attributes.set(Known::UserId, "ann");
        let decision = ready(self.engine.decide(&rules, &request, Mode::Peek)).unwrap();
        decision.scopes().map(|scope| scope.outcome.status.used).collect()
    }
}

const BUDGET: &str = r#"
default: none
rules:
  - {rule_id: budget, identifier_type: user_id, unit: money, currency: USD, limit: "0.01", calendar: month}
  - {rule_id: tokens, identifier_type: user_id, unit: tokens, limit: 2000, calendar: day}
"#;

const LARGE: &str = r#"
default: none
rules:
  - {rule_id: budget, identifier_type: user_id, unit: money, currency: USD, limit: "100", calendar: month}
"#;

#[test]
fn money_and_tokens_are_charged_together_or_not_at_all() {
    let bed = Bed::new(BUDGET);
    // 1,000 input and 500 output tokens: 0.0025 + 0.005 + 7 nanos.
    let usage = Usage::new(1_000, 500);
    assert!(bed.reserve("gpt-4", &usage).unwrap().is_some());
    assert_eq!(bed.used(), [7_500_007, 1_500]);
    // The budget has room for 300 output tokens, the token limit has not.
    assert!(bed.reserve("gpt-4", &Usage::new(600, 0)).unwrap().is_none());
    assert_eq!(bed.used(), [7_500_007, 1_500]);
    // The token limit has room for 400, the budget has not.
    assert!(bed.reserve("gpt-4", &Usage::new(0, 300)).unwrap().is_none());
    assert_eq!(bed.used(), [7_500_007, 1_500]);
    assert!(bed.reserve("gpt-4", &Usage::new(400, 0)).unwrap().is_some());
    assert_eq!(bed.used(), [8_500_014, 1_900]);
}

#[test]
fn settling_gives_money_back_to_the_nano() {
    let bed = Bed::new(BUDGET);
    let id = bed.reserve("gpt-4", &Usage::new(1_000, 500)).unwrap().unwrap();
    // 999 input, of them 333 cached, and 3 output: 0.001665 + 0.00041625 + 0.00003 + 7 nanos.
    let truth = Actual::of_usage(Usage::new(999, 3).with(TokenKind::CachedRead, 333));
    let spent = 1_665_000 + 416_250 + 30_000 + 7;
    let settled = ready(bed.engine.settle_reservation(id, truth)).unwrap();
    assert_eq!(settled.refunded.money, Some(usd(7_500_007 - spent)));
    assert_eq!((settled.refunded.tokens, settled.extra), (Some(498), Amounts::NONE));
    assert_eq!(bed.used(), [spent, 1_002]);
    assert_eq!(ready(bed.engine.settle_reservation(id, truth)).unwrap(), settled, "once");
    assert_eq!(bed.used(), [spent, 1_002]);

    // Beyond the estimate it is charged, above the limit if need be.
    let id = bed.reserve("gpt-4", &Usage::new(1, 0)).unwrap().unwrap();
    let truth = Actual::of_usage(Usage::new(1, 1_000));
    let settled = ready(bed.engine.settle_reservation(id, truth)).unwrap();
    assert_eq!(settled.extra.money, Some(usd(10_000_000)));
    assert_eq!(bed.used()[0], spent + 2_507 + 10_000_000);

    let id = bed.decide("gpt-4", Amounts { money: Some(usd(0)), ..Amounts::NONE }, None);
    assert_eq!(id.unwrap(), None, "a budget in debt admits nothing");
}

#[test]
fn what_is_reserved_without_a_usage_is_settled_by_it() {
    let bed = Bed::new(BUDGET);
    let id = bed.decide("gpt-4", Amounts::NONE, None).unwrap().unwrap();
    assert_eq!(bed.used(), [7, 0], "the price of a request");
    ready(bed.engine.settle_reservation(id, Actual::of_usage(Usage::new(10, 0)))).unwrap();
    assert_eq!(bed.used(), [25_007, 10]);
    // Tokens of no kind are priced as output, which is dearer here, in advance and in the end.
    let id = bed.decide("gpt-4", Amounts::tokens(100), None).unwrap().unwrap();
    assert_eq!(bed.used(), [1_025_014, 110]);
    ready(bed.engine.settle_reservation(id, Amounts::tokens(10).into())).unwrap();
    assert_eq!(bed.used(), [125_014, 20]);
}

#[test]
fn the_price_at_admission_holds_at_settlement() {
    let bed = Bed::new(BUDGET);
    let id = bed.reserve("gpt-4", &Usage::new(1_000, 500)).unwrap().unwrap();
    let dearer = PRICES.replace("\"10\"", "\"1000\"").replace("\"2.50\"", "\"1000\"");
    bed.engine.swap_prices(PriceTable::parse(&dearer, "prices").unwrap());
    let settled = ready(bed.engine.settle_reservation(id, Actual::of_usage(Usage::new(1_000, 0))));
    assert_eq!(settled.unwrap().refunded.money, Some(usd(5_000_000)));
    assert_eq!(bed.used()[0], 2_500_007);
    assert!(bed.reserve("gpt-4", &Usage::new(100, 0)).unwrap().is_none(), "0.1 at the new price");
}

#[test]
fn a_calendar_month_renews_the_budget() {
    let bed = Bed::new(BUDGET);
    let all = Amounts { money: Some(usd(10_000_000)), ..Amounts::NONE };
    assert!(bed.decide("any", all, None).unwrap().is_some());
    assert!(bed.decide("gpt-4", Amounts::NONE, None).unwrap().is_none(), "7 nanos are too many");
    bed.clock.advance(59 * SECOND);
    assert!(bed.decide("gpt-4", Amounts::NONE, None).unwrap().is_none());
    bed.clock.advance(SECOND);
    assert!(bed.decide("any", all, None).unwrap().is_some(), "it is February");
}

#[test]
fn a_model_without_a_price_is_refused_and_nothing_is_charged() {
    let bed = Bed::new(BUDGET);
    let usage = Usage::new(10, 10);
    let unpriced = |model: &str| {
        let (rule_id, model) = ("budget".to_owned(), model.to_owned());
        Err(EngineError::Unpriced { rule_id, model })
    };
    assert_eq!(bed.reserve("llama", &usage), unpriced("llama"));
    assert_eq!(
        bed.decide("llama", Amounts::NONE, None),
        unpriced("llama"),
        "not even without usage"
    );
    let error = bed.reserve("", &usage).unwrap_err();
    assert_eq!(error, EngineError::UsageWithoutModel { rule_id: "budget".to_owned() });
    assert!(bed.decide("", Amounts::tokens(5), None).is_err(), "nor do tokens of no model pass");
    assert_eq!(bed.used(), [0, 0]);
    // A stated amount needs no price.
    let stated = Amounts { money: Some(usd(5)), ..Amounts::NONE };
    assert!(bed.decide("llama", stated, None).unwrap().is_some());
    assert_eq!(bed.used(), [5, 0]);
    // Where nothing is refused, the request passes and the limit is left out.
    bed.engine.set_enforcement(Enforcement::Shadow);
    assert!(bed.reserve("llama", &usage).unwrap().is_some());
    bed.engine.set_enforcement(Enforcement::On);
    assert_eq!(bed.used(), [5, 20]);
    let watched = Bed::new(&BUDGET.replace("calendar: month", "calendar: month, action: log_only"));
    assert!(watched.reserve("llama", &usage).unwrap().is_some());
}

#[test]
fn currencies_are_not_mixed() {
    let bed = Bed::new(BUDGET);
    let other = |given| {
        let (rule_id, expected) = ("budget".to_owned(), Currency::USD);
        EngineError::OtherCurrency { rule_id, expected, given }
    };
    let eur = Currency::from_code("EUR").unwrap();
    let euros = Amounts { money: Some(Money { currency: eur, nanos: 1 }), ..Amounts::NONE };
    assert_eq!(bed.decide("gpt-4", euros, None).unwrap_err(), other(eur));
    assert_eq!(bed.decide("euro", Amounts::NONE, None).unwrap_err(), other(eur));
    assert_eq!(bed.used(), [0, 0]);
    let id = bed.reserve("gpt-4", &Usage::new(1_000, 0)).unwrap().unwrap();
    let settled = ready(bed.engine.settle_reservation(id, Actual::from(euros)));
    assert_eq!(settled.unwrap_err(), other(eur));
    // The reservation is still open, and can be settled with dollars.
    let dollars = Actual::from(Amounts { money: Some(usd(7)), ..Amounts::NONE });
    let settled = ready(bed.engine.settle_reservation(id, dollars)).unwrap();
    assert_eq!(settled.refunded.money, Some(usd(2_500_000)));
    let two = BUDGET.replace("unit: tokens", "unit: money, currency: EUR").replace("2000", "\"1\"");
    let mixed = Bed::new(&two);
    assert!(matches!(
        mixed.reserve("gpt-4", &Usage::new(1, 0)).unwrap_err(),
        EngineError::OtherCurrency { .. }
    ));
}

#[test]
fn a_usage_settles_only_what_has_a_price() {
    let bed = Bed::new(BUDGET);
    let stated = Amounts { money: Some(usd(9_000_000)), ..Amounts::tokens(10) };
    let id = bed.decide("llama", stated, None).unwrap().unwrap();
    let usage = Actual::of_usage(Usage::new(1, 1));
    let error = ready(bed.engine.settle_reservation(id, usage)).unwrap_err();
    assert_eq!(error, EngineError::ReservationUnpriced);
    let money = Amounts { money: Some(usd(1)), ..usage.amounts };
    let settled = ready(bed.engine.settle_reservation(id, Actual { amounts: money, ..usage }));
    assert_eq!(settled.unwrap().refunded.money, Some(usd(8_999_999)));
    assert_eq!(bed.used(), [1, 2]);
}

#[test]
fn input_output_and_cached_tokens_have_limits_of_their_own() {
    let bed = Bed::new(
        "default: none
rules:
  - {rule_id: a-in, identifier_type: user_id, unit: input_tokens, limit: 100, calendar: day}
  - {rule_id: b-out, identifier_type: user_id, unit: output_tokens, limit: 50, calendar: day}
  - {rule_id: c-cached, identifier_type: user_id, unit: cached_tokens, limit: 10, calendar: day}
",
    );
    let usage = Usage::new(60, 20).with(TokenKind::CachedRead, 5);
    let id = bed.reserve("llama", &usage).unwrap().unwrap();
    assert_eq!(bed.used(), [60, 20, 5]);
    assert!(bed.reserve("llama", &Usage::new(41, 0)).unwrap().is_none());
    assert!(bed.reserve("llama", &Usage::new(0, 31)).unwrap().is_none());
    assert!(
        bed.reserve("llama", &Usage::new(6, 0).with(TokenKind::CachedRead, 6)).unwrap().is_none()
    );
    assert_eq!(bed.used(), [60, 20, 5]);
    let truth = Actual::of_usage(Usage::new(50, 30));
    let settled = ready(bed.engine.settle_reservation(id, truth)).unwrap();
    assert_eq!((settled.refunded.input_tokens, settled.extra.output_tokens), (Some(10), Some(10)));
    assert_eq!(settled.refunded.cached_tokens, Some(5));
    assert_eq!(bed.used(), [50, 30, 0]);
}

#[test]
fn an_explanation_shows_money_as_a_decimal() {
    let bed = Bed::new(BUDGET);
    let rules = bed.engine.rules();
    let amounts = Amounts { money: Some(usd(12_300_000)), ..Amounts::NONE };
    let mut request = Request { amounts, ..Request::default() };
    request.attributes.set(Known::UserId, "ann");
    let decision = ready(bed.engine.decide(&rules, &request, Mode::Charge)).unwrap();
    let text = decision.explain();
    assert!(text.contains("0 of 0.01 USD used in 2592000 s"), "{text}");
    assert!(text.ends_with("this request costs 0.0123, which can never pass"), "{text}");
    assert_ne!(new_reservation_id(), 0);
}

#[test]
fn tokens_without_usage_are_priced_by_their_kind() {
    let bed = Bed::new(LARGE);
    for (amounts, nanos) in [
        // Of unknown kind: output is dearer, or input where output is free.
        (Amounts::tokens(100), 1_000_000 + 7),
        (Amounts { input_tokens: Some(100), ..Amounts::NONE }, 250_000 + 7),
        (Amounts { output_tokens: Some(10), ..Amounts::NONE }, 100_000 + 7),
        // 60 fresh, 40 from a cache, 10 written, 5 of which nobody says what they are.
        (
            Amounts {
                tokens: Some(115),
                input_tokens: Some(100),
                output_tokens: Some(10),
                cached_tokens: Some(40),
                ..Amounts::NONE
            },
            150_000 + 50_000 + 100_000 + 50_000 + 7,
        ),
    ] {
        let before = bed.used()[0];
        assert!(bed.decide("gpt-4", amounts, None).unwrap().is_some());
        assert_eq!(bed.used()[0] - before, nanos, "{amounts:?}");
        // And so it is settled.
        let before = bed.used()[0];
        let id = bed.reserve("gpt-4", &Usage::new(1_000, 1_000)).unwrap().unwrap();
        ready(bed.engine.settle_reservation(id, amounts.into())).unwrap();
        assert_eq!(bed.used()[0] - before, nanos, "{amounts:?}");
    }
    let before = bed.used()[0];
    assert!(bed.decide("embed", Amounts::tokens(1_000), None).unwrap().is_some());
    assert_eq!(bed.used()[0] - before, 20_000, "a free output is not taken for the price");
}

#[test]
fn more_does_not_pay_for_the_request_again() {
    let bed = Bed::new(LARGE);
    let usage = Usage::new(0, 10);
    let rules = bed.engine.rules();
    let mut request = Request {
        amounts: Amounts::of_usage(&usage),
        usage: Some(usage),
        reserve: Some(TTL),
        is_more: true,
        ..Request::default()
    };
    request.attributes.set(Known::UserId, "ann");
    request.attributes.set(Known::ModelId, "gpt-4");
    #[expect(clippy::redundant_closure_for_method_calls, reason = "a method is not general enough")]
    let id = ready(bed.engine.decide_once(&rules, &request, |decision| decision.reservation_id()));
    let id = id.unwrap().unwrap();
    assert_eq!(bed.used()[0], 100_000);
    ready(bed.engine.settle_reservation(id, Actual::of_usage(Usage::new(0, 5)))).unwrap();
    assert_eq!(bed.used()[0], 50_000);
}

#[test]
fn a_request_meets_a_hard_budget_only_where_it_is_enforced() {
    let hard = BUDGET.replace("calendar: month", "calendar: month, budget_mode: hard");
    for (rules, mode, is_met) in [
        (BUDGET.to_owned(), Enforcement::On, false),
        (hard.clone(), Enforcement::On, true),
        (hard.clone(), Enforcement::Shadow, false),
        (hard.clone(), Enforcement::Off, false),
        (format!("{hard}allow_list: [\"user_id:ann\"]\n"), Enforcement::On, false),
        (
            hard.replace("budget_mode: hard", "budget_mode: hard, applies_to: {models: [m]}"),
            Enforcement::On,
            false,
        ),
    ] {
        let bed = Bed::new(&rules);
        bed.engine.set_enforcement(mode);
        let active = bed.engine.rules();
        let mut request = Request::default();
        request.attributes.set(Known::UserId, "ann");
        request.attributes.set(Known::ModelId, "gpt-4");
        assert_eq!(bed.engine.meets_hard_budget(&active, &request), is_met, "{rules}");
    }
    // Nothing passes that cannot be counted.
    let rules = RuleSet::from_yaml(&hard, "rules").unwrap();
    let budget = rules.rule("budget").unwrap();
    assert_eq!(budget.on_store_failure, Some(tollgate_policy::OnStoreFailure::Closed));
}

#[test]
fn debts_of_hard_budgets_are_added_up_by_currency() {
    let bed = Bed::new(BUDGET);
    assert!(bed.engine.budget_debts().is_empty());
    let euro = Currency::from_code("EUR").unwrap();
    for money in [usd(5), usd(7), Money { currency: euro, nanos: 1 }] {
        bed.engine.note_budget_debt(money);
    }
    let debts: Vec<_> = bed
        .engine
        .budget_debts()
        .iter()
        .map(|debt| (debt.currency, debt.answers, debt.nanos))
        .collect();
    assert_eq!(debts, [(Currency::USD, 2, 12), (euro, 1, 1)]);
}
