//! What answers are settled at, from the bytes of an upstream to the counter of a budget, compared with big decimals.

use std::sync::Arc;

use bytes::Bytes;
use num_bigint::BigUint;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;
use tollgate_core::SECOND;
use tollgate_engine::{Amounts, Engine, ManualClock, Request};
use tollgate_policy::prices::{Currency, Money, PriceTable};
use tollgate_policy::{Known, RuleSet};
use tollgate_store::{MemoryStore, Mode};
use tollgate_tower::{Decide as _, EdgeRequest, EdgeUsage, HeaderFamilies, InProcess, Ruling};

use super::super::ask::Call;
use super::super::expect::HistoryKey;
use super::super::meter::{Ending, Estimate, Meter, Metering};
use super::super::options::Overrun;
use super::super::text::{Tariff, TextSink};
use crate::forward::SentFlag;

const RULES: &str = r#"default: false
rules:
  - {rule_id: budget, identifier_type: global, unit: money, currency: USD, limit: "9000000", calendar: year}
  - {rule_id: input, identifier_type: global, unit: input_tokens, limit: 9000000000, calendar: year}
  - {rule_id: output, identifier_type: global, unit: output_tokens, limit: 9000000000, calendar: year}
  - {rule_id: cached, identifier_type: global, unit: cached_tokens, limit: 9000000000, calendar: year}
"#;

/// What an upstream reports, and at which prices of a million tokens, in 1e-9 of a dollar.
#[derive(Debug)]
struct Case {
    is_anthropic: bool,
    is_stream: bool,
    /// Fresh input, written to a cache, read from one, sound.
    input: [u64; 4],
    /// Text, reasoning, sound.
    output: [u64; 3],
    prices: [u64; 7],
    per_request: u64,
    /// What was estimated.
    estimate: (u64, u64),
}

fn decimal(nanos: u64) -> String {
    format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

impl Case {
    fn prices(&self) -> PriceTable {
        let [input, output, read, write, reasoning, heard, said] = self.prices.map(decimal);
        let per_request = decimal(self.per_request);
        let text = format!(
            r#"prices: [{{model: m, currency: USD, per_request: "{per_request}", per_million:
              {{input: "{input}", output: "{output}", cached_read: "{read}", cached_write: "{write}",
              reasoning: "{reasoning}", audio_input: "{heard}", audio_output: "{said}"}}}}]"#
        );
        PriceTable::parse(&text, "prices").unwrap()
    }

    /// What it costs by big decimals, in nanos. Anthropic's API states neither reasoning nor sound.
    fn expected(&self) -> BigUint {
        let [fresh, written, read, heard] = self.input;
        let [text, thought, said] = self.output;
        let [input, output, of_read, of_write, reasoning, of_heard, of_said] =
            self.prices.map(BigUint::from);
        let sum = if self.is_anthropic {
            input * (fresh + heard)
                + of_write * written
                + of_read * read
                + output * (text + thought + said)
        } else {
            input * fresh
                + of_write * written
                + of_read * read
                + of_heard * heard
                + output * text
                + reasoning * thought
                + of_said * said
        };
        let million = BigUint::from(1_000_000_u32);
        (sum + &million - 1_u32) / million + self.per_request
    }

    fn usage(&self) -> serde_json::Value {
        let [fresh, written, read, heard] = self.input;
        let [text, thought, said] = self.output;
        if self.is_anthropic {
            return json!({"input_tokens": fresh + heard, "cache_creation_input_tokens": written,
                "cache_read_input_tokens": read, "output_tokens": text + thought + said});
        }
        let (prompt, answer) = (fresh + written + read + heard, text + thought + said);
        json!({"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer,
            "prompt_tokens_details":
                {"cached_tokens": read, "cache_write_tokens": written, "audio_tokens": heard},
            "completion_tokens_details": {"reasoning_tokens": thought, "audio_tokens": said}})
    }

    fn answer(&self) -> String {
        let usage = self.usage();
        match (self.is_anthropic, self.is_stream) {
            (_, false) => json!({"id": "1", "content": [], "usage": usage}).to_string(),
            (false, true) => {
                format!("data: {}\n\ndata: [DONE]\n\n", json!({"choices": [], "usage": usage}))
            }
            (true, true) => {
                let mut start = usage.clone();
                start["output_tokens"] = json!(self.output[0].min(1));
                let start = json!({"type": "message_start", "message": {"usage": start}});
                let end = json!({"type": "message_delta", "usage": {"output_tokens": usage["output_tokens"]}});
                format!("data: {start}\n\ndata: {end}\n\ndata: {{\"type\":\"message_stop\"}}\n\n")
            }
        }
    }

    fn meter(&self, decider: &InProcess<MemoryStore>) -> Box<Meter> {
        let (input, output) = self.estimate;
        let asked = EdgeRequest {
            model_id: Some("m".to_owned()),
            tokens: Some(input + output),
            usage: Some(EdgeUsage { input, output, ..EdgeUsage::default() }),
            ..EdgeRequest::default()
        };
        let Some(Ruling::Pass(pass)) = decider.decide_now(&asked) else { panic!("there is room") };
        let estimate = Estimate {
            call: if self.is_anthropic { Call::Messages } else { Call::Chat },
            model: "m".to_owned(),
            history_key: HistoryKey::default(),
            prompt: input,
            uncorrected: input,
            output,
            bound: None,
            thinking: 0,
            asks_thinking: false,
            answers: 1,
            prompts: 1,
            sink: TextSink::new(Tariff::default()),
            hides_usage: false,
            is_extended: false,
            may_hear: false,
            may_speak: false,
        };
        let sent = SentFlag::default();
        sent.set();
        let how = Metering {
            expectations: None,
            learns: false,
            overrun: Overrun::Run,
            more: None,
            sent,
            max_usage: u64::MAX,
            shown_name: None,
            ending: Ending::Settle,
        };
        Box::new(Meter::new(pass.charge.sent().take_pending(), estimate, how))
    }
}

/// What is used of each limit.
fn used(engine: &Engine<MemoryStore>) -> Vec<u64> {
    let rules = engine.rules();
    let money = Some(Money { currency: Currency::USD, nanos: 0 });
    let amounts = Amounts { cost: Some(0), money, ..Amounts::NONE };
    let mut request = Request { amounts, ..Request::default() };
    request.attributes.set(Known::ModelId, "m");
    let show = |scope: &tollgate_engine::Scope<'_>| scope.outcome.status.used;
    let decided =
        futures_util::FutureExt::now_or_never(engine.decide(&rules, &request, Mode::Peek));
    decided.unwrap().unwrap().scopes().map(show).collect()
}

fn cases() -> impl Strategy<Value = Case> {
    let tokens = || prop_oneof![Just(0_u64), 1..100_u64, 0..300_000_u64];
    let price = || prop_oneof![Just(0_u64), 1..1_000_u64, 0..100_000_000_000_u64];
    let many = (proptest::array::uniform4(tokens()), proptest::array::uniform3(tokens()));
    let flags = (any::<bool>(), any::<bool>());
    let estimate = (1..100_000_u64, 0..100_000_u64);
    (flags, many, proptest::array::uniform7(price()), price(), estimate).prop_map(
        |((is_anthropic, is_stream), (mut input, output), prices, per_request, estimate)| {
            // A prompt has a length.
            input[0] += 1;
            Case { is_anthropic, is_stream, input, output, prices, per_request, estimate }
        },
    )
}

#[test]
fn ten_thousand_answers_are_settled_at_what_big_decimals_say() {
    let clock = Arc::new(ManualClock::new(SECOND));
    let rules = RuleSet::from_yaml(RULES, "rules").unwrap();
    let mut runner = TestRunner::new(Config { cases: 10_000, ..Config::default() });
    runner
        .run(&cases(), |case| {
            let engine = Arc::new(Engine::new(
                MemoryStore::new(16),
                Arc::<ManualClock>::clone(&clock),
                rules.clone(),
            ));
            engine.swap_prices(case.prices());
            let decider = InProcess::new(Arc::clone(&engine), HeaderFamilies::default());
            let mut meter = case.meter(&decider);
            meter.begins(case.is_stream);
            meter.pass(Bytes::from(case.answer()));
            drop(meter);
            let used = used(&engine);
            prop_assert_eq!(BigUint::from(used[0]), case.expected());
            let all: [u64; 3] = [case.input[2], case.input.iter().sum(), case.output.iter().sum()];
            prop_assert_eq!(&used[1..], &all);
            Ok(())
        })
        .unwrap();
}
