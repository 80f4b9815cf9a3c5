//! What an answer of this API used, and what the events of its streams state.

use tollgate_policy::prices::{TokenKind, Usage};

use super::super::json::{self, Value};
use super::super::sse::Verdict;
use super::super::text::TextSink;
use super::super::usage::{Doubt, Edits, Plausible, StreamReport, View, count};

/// Counts of tokens by kind: fresh input, input written to a cache, input read from one, and output.
type Kinds = [u64; 4];

/// The counts of a `usage`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    /// Each of them where it is stated.
    own: [Option<u64>; 4],
    /// Those of work that the others do not contain, such as the summary of a conversation.
    further: Kinds,
}

fn sum(one: Kinds, other: Kinds) -> Kinds {
    std::array::from_fn(|kind| {
        let of = |kinds: Kinds| kinds.get(kind).copied().unwrap_or(0);
        of(one).saturating_add(of(other))
    })
}

impl Counts {
    /// Out of a `usage`. An error where a count is no count.
    fn of(value: Value<'_>) -> Result<Self, Doubt> {
        let mut counts = Self::without_steps(value)?;
        if let Some(steps) = value.get("iterations") {
            counts.add(steps)?;
        }
        Ok(counts)
    }

    fn without_steps(value: Value<'_>) -> Result<Self, Doubt> {
        let mut counts = Self::default();
        for member in value.members() {
            let [fresh, written, read, output] = &mut counts.own;
            let place = match member.name.as_ref() {
                "input_tokens" => fresh,
                "cache_creation_input_tokens" => written,
                "cache_read_input_tokens" => read,
                "output_tokens" => output,
                _ => continue,
            };
            *place = count(member.value)?.or(*place);
        }
        Ok(counts)
    }

    /// Adds the steps of which an answer was made. Those of the message are in the counts already; where they are more,
    /// they are right.
    fn add(&mut self, steps: Value<'_>) -> Result<(), Doubt> {
        let mut within = Kinds::default();
        for step in steps.elements() {
            let used = Self::without_steps(step)?.kinds();
            let kind = step.get("type").and_then(Value::string);
            if kind.is_some_and(|it| matches!(it.as_ref(), "message" | "fallback_message")) {
                within = sum(within, used);
            } else {
                self.further = sum(self.further, used);
            }
        }
        for (place, within) in self.own.iter_mut().zip(within) {
            if within > 0 {
                *place = (*place).max(Some(within));
            }
        }
        Ok(())
    }

    const fn is_empty(&self) -> bool {
        matches!(self.own, [None, None, None, None])
    }

    /// All of it by kind.
    fn kinds(&self) -> Kinds {
        sum(self.own.map(Option::unwrap_or_default), self.further)
    }

    fn usage(&self) -> Usage {
        let [fresh, written, read, output] = self.kinds();
        Usage::new(fresh.saturating_add(written).saturating_add(read), output)
            .with(TokenKind::CachedWrite, written)
            .with(TokenKind::CachedRead, read)
    }

    fn prompt(&self) -> u64 {
        self.usage().tokens(TokenKind::Input)
    }

    /// What was stated before and what is stated now, each of which counts from the beginning.
    fn merged(self, later: Self) -> Self {
        let (mut own, mut further) = (self.own, self.further);
        for (count, later) in own.iter_mut().zip(later.own) {
            *count = (*count).max(later);
        }
        for (count, later) in further.iter_mut().zip(later.further) {
            *count = (*count).max(later);
        }
        Self { own, further }
    }

    /// As a whole, if it can be.
    fn checked(&self, plausible: Plausible) -> Result<Usage, Doubt> {
        let usage = self.usage();
        if usage.total() > plausible.most {
            return Err(Doubt::TooMuch);
        }
        // A prompt that is not empty has a length, however long the answer is.
        if self.prompt() < plausible.least {
            return Err(Doubt::Nothing);
        }
        Ok(usage)
    }
}

/// Out of the `usage` of a whole answer. None where it states nothing.
pub(crate) fn read(value: Value<'_>, plausible: Plausible) -> Option<Result<Usage, Doubt>> {
    match Counts::of(value) {
        Ok(counts) if counts.is_empty() => None,
        Ok(counts) => Some(counts.checked(plausible)),
        Err(doubt) => Some(Err(doubt)),
    }
}

/// Looks at one event of a stream.
pub(crate) fn event(
    view: &View<'_>,
    data: &str,
    reported: &mut StreamReport,
    sink: &mut TextSink,
) -> Verdict {
    let whole = json::parse(data).ok();
    let kind = whole.and_then(|it| it.get("type")).and_then(Value::string);
    let (Some(whole), Some(kind)) = (whole, kind) else {
        sink.source(data);
        reported.is_unread = true;
        return Verdict::Pass;
    };
    let mut edits = Edits::default();
    match kind.as_ref() {
        "message_start" => {
            for member in whole.get("message").into_iter().flat_map(Value::members) {
                match member.name.as_ref() {
                    "model" => edits.rename(&member, view.model),
                    "usage" => starts(member.value, view.plausible, reported),
                    _ => {}
                }
            }
        }
        "message_delta" => {
            if let Some(usage) = whole.get("usage") {
                ends(usage, view.plausible, reported);
            }
        }
        "message_stop" => reported.is_done = true,
        "ping" | "content_block_stop" | "error" => {}
        "content_block_start" => {
            if let Some(block) = whole.get("content_block") {
                written(block, reported, sink);
            }
        }
        "content_block_delta" => {
            if let Some(delta) = whole.get("delta") {
                written(delta, reported, sink);
            }
        }
        // Of a kind that is not known, or of another API: it may bring an answer.
        _ => sink.source(data),
    }
    edits.verdict(data)
}

/// The prompt is stated before the answer. What is not plausible is stated again at the end, or not believed.
fn starts(usage: Value<'_>, plausible: Plausible, reported: &mut StreamReport) {
    let Ok(counts) = Counts::of(usage) else { return };
    reported.counts = counts;
    let prompt = counts.prompt();
    if (plausible.least.max(1)..=plausible.most).contains(&prompt) {
        reported.prompt = Some(prompt);
    }
}

/// All that was used until now, from the beginning.
fn ends(usage: Value<'_>, plausible: Plausible, reported: &mut StreamReport) {
    let counts = match Counts::of(usage) {
        Ok(counts) if counts.is_empty() => return,
        Ok(counts) => counts,
        Err(doubt) => {
            reported.take(Some(Err(doubt)));
            return;
        }
    };
    reported.counts = reported.counts.merged(counts);
    reported.take(Some(reported.counts.checked(plausible)));
    (reported.is_final, reported.is_outdated) = (true, false);
}

/// What a block or a part of one brings. What was found by a search, or comes of another tool of the upstream, was not
/// written by the model.
fn written(part: Value<'_>, reported: &mut StreamReport, sink: &mut TextSink) {
    let kind = part.get("type").and_then(Value::string).unwrap_or_default();
    if kind.ends_with("_result") || kind == "citations_delta" {
        return;
    }
    let before = sink.total();
    for member in part.members() {
        match member.name.as_ref() {
            "type" | "id" | "citations" | "caller" => {}
            _ if member.value.is_string() => sink.text(member.value),
            "input" => sink.source(member.value.text.trim_matches(['{', '}'])),
            _ if member.value.is_null() => {}
            _ => sink.source(member.value.text),
        }
    }
    if reported.usage.is_some() && sink.total() > before {
        (reported.is_final, reported.is_outdated) = (false, true);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::ask::Call;
    use super::super::super::text::Tariff;
    use super::*;

    const ANY: Plausible = Plausible { least: 1, most: 10_000, prompt: 0 };

    fn run(events: &[&str]) -> (StreamReport, u64) {
        let tariff = Tariff { characters_per_token: 1, ..Tariff::default() };
        let (mut reported, mut sink) = (StreamReport::default(), TextSink::new(tariff));
        let view = View {
            call: Call::Messages,
            hides_usage: false,
            model: None,
            plausible: ANY,
            answers: 1,
        };
        for data in events {
            assert_eq!(event(&view, data, &mut reported, &mut sink), Verdict::Pass, "{data}");
        }
        (reported, sink.total())
    }

    const START: &str = r#"{"type":"message_start","message":{"id":"msg_1","role":"assistant","model":"m","content":[],"usage":{"input_tokens":20,"cache_creation_input_tokens":300,"cache_read_input_tokens":1000,"output_tokens":1,"service_tier":"standard"}}}"#;
    const TEXT: &str =
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"abcd"}}"#;
    /// With what [`START`] states of its cache.
    fn cached(input: u64, output: u64) -> Usage {
        Usage::new(input, output)
            .with(TokenKind::CachedWrite, 300)
            .with(TokenKind::CachedRead, 1_000)
    }

    const END: &str = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":7}}"#;

    #[test]
    fn all_counts_are_summed() {
        let see = |text: &str| read(json::parse(text).unwrap(), ANY);
        let usage = |total, output| Some(Ok(Usage::new(total - output, output)));
        let cached = |usage: Usage, written, read| {
            usage.with(TokenKind::CachedWrite, written).with(TokenKind::CachedRead, read)
        };
        assert_eq!(see(r#"{"input_tokens":3,"output_tokens":4}"#), usage(7, 4));
        assert_eq!(
            see(
                r#"{"input_tokens":3,"cache_creation_input_tokens":10,"cache_read_input_tokens":100,"output_tokens":4,"cache_creation":{"ephemeral_5m_input_tokens":10},"server_tool_use":{"web_search_requests":1}}"#
            ),
            Some(Ok(cached(Usage::new(113, 4), 10, 100)))
        );
        // Everything was cached.
        assert_eq!(
            see(r#"{"input_tokens":0,"cache_read_input_tokens":100,"output_tokens":4}"#),
            Some(Ok(cached(Usage::new(100, 4), 0, 100)))
        );
        assert_eq!(
            see(r#"{"input_tokens":3,"cache_read_input_tokens":null,"output_tokens":0}"#),
            usage(3, 0)
        );
        for none in ["{}", "null", r#"{"service_tier":"standard"}"#] {
            assert_eq!(see(none), None, "{none}");
        }
        for (text, doubt) in [
            (r#"{"input_tokens":-1,"output_tokens":4}"#, Doubt::NoCount),
            (
                r#"{"input_tokens":3,"cache_read_input_tokens":"9","output_tokens":4}"#,
                Doubt::NoCount,
            ),
            (r#"{"input_tokens":0,"output_tokens":4}"#, Doubt::Nothing),
            (r#"{"output_tokens":4}"#, Doubt::Nothing),
            (r#"{"input_tokens":9999,"output_tokens":2}"#, Doubt::TooMuch),
        ] {
            assert_eq!(see(text), Some(Err(doubt)), "{text}");
        }
    }

    #[test]
    fn work_that_is_stated_by_steps_is_summed() {
        let see = |text: &str| read(json::parse(text).unwrap(), ANY).unwrap().unwrap();
        let step = |kind: &str, input: u64, output: u64| {
            format!(r#"{{"type":"{kind}","input_tokens":{input},"output_tokens":{output}}}"#)
        };
        let with = |steps: &[String]| {
            let steps = steps.join(",");
            see(&format!(r#"{{"iterations":[{steps}],"input_tokens":30,"output_tokens":5}}"#))
        };
        // In the sums already, and not.
        let once = with(&[step("message", 10, 2), step("message", 20, 3)]);
        assert_eq!(once, Usage::new(30, 5));
        let more = with(&[step("compaction", 100, 10), step("message", 30, 5)]);
        assert_eq!(more, Usage::new(130, 15));
        let understated = with(&[step("message", 30, 5), step("message", 40, 5)]);
        assert_eq!(understated, Usage::new(70, 10));
        assert_eq!(with(&[step("new_kind", 7, 1)]), Usage::new(37, 6));
    }

    #[test]
    fn a_stream_is_settled_by_its_last_statement() {
        let (reported, counted) = run(&[
            START,
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
            r#"{"type":"ping"}"#,
            TEXT,
            r#"{"type":"content_block_stop","index":0}"#,
        ]);
        assert_eq!((reported.prompt, reported.usage, counted), (Some(1_320), None, 4));
        let (reported, _) = run(&[START, TEXT, END]);
        assert_eq!(reported.usage, Some(cached(1_320, 7)));
        assert!(reported.is_final && !reported.is_done);
        assert!(run(&[START, TEXT, END, r#"{"type":"message_stop"}"#]).0.is_done);
        let (reported, _) = run(&[START, TEXT, END, TEXT]);
        assert!(reported.is_outdated && !reported.is_final);
    }

    #[test]
    fn counts_at_the_end_count_from_the_beginning() {
        let end =
            |usage: &str| format!(r#"{{"type":"message_delta","delta":{{}},"usage":{usage}}}"#);
        let more = end(r#"{"input_tokens":500,"cache_read_input_tokens":1000,"output_tokens":40}"#);
        let (reported, _) = run(&[START, END, &more]);
        assert_eq!(reported.usage, Some(cached(1_800, 40)));
        // Some servers know the length of the prompt only at the end, and state 0 until then.
        let start =
            r#"{"type":"message_start","message":{"usage":{"input_tokens":0,"output_tokens":0}}}"#;
        let (reported, _) = run(&[start, TEXT, &end(r#"{"input_tokens":9,"output_tokens":4}"#)]);
        assert_eq!(reported.usage, Some(Usage::new(9, 4)));
        let (reported, _) = run(&[start, TEXT, END]);
        assert_eq!((reported.usage, reported.doubt), (None, Some(Doubt::Nothing)));
        assert_eq!(reported.prompt, None);
    }

    #[test]
    fn everything_that_is_written_is_counted() {
        for (data, count) in [
            (
                r#"{"type":"content_block_start","content_block":{"type":"tool_use","id":"toolu_1","name":"weather","input":{}}}"#,
                7,
            ),
            (
                r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"abcde"}}"#,
                5,
            ),
            (
                r#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"abc"}}"#,
                3,
            ),
            (
                r#"{"type":"content_block_delta","delta":{"type":"signature_delta","signature":"abc"}}"#,
                3,
            ),
            (
                r#"{"type":"content_block_start","content_block":{"type":"redacted_thinking","data":"abcd"}}"#,
                4,
            ),
            (r#"{"type":"content_block_delta","delta":{"type":"new_delta","words":"abcd"}}"#, 4),
            (
                r#"{"type":"content_block_start","content_block":{"type":"web_search_tool_result","content":[{"text":"abcd"}]}}"#,
                0,
            ),
            (r#"{"type":"error","error":{"type":"overloaded_error","message":"abcd"}}"#, 0),
            (r#"{"type":"message_stop"}"#, 0),
        ] {
            assert_eq!(run(&[data]).1, count, "{data}");
        }
        for data in [
            "no JSON",
            r#"{"choices":[{"delta":{"content":"abcd"}}]}"#,
            r#"{"type":"new_event","words":"abcd"}"#,
        ] {
            assert!(run(&[data]).1 >= 4, "{data}");
        }
    }

    #[test]
    fn the_upstreams_name_is_replaced_where_a_model_is_named() {
        let view = View {
            call: Call::Messages,
            hides_usage: false,
            model: Some(r#""large""#),
            plausible: ANY,
            answers: 1,
        };
        let mut sink = TextSink::new(Tariff::default());
        let verdict = event(&view, START, &mut StreamReport::default(), &mut sink);
        let seen = START.replace(r#""model":"m""#, r#""model":"large""#);
        assert_eq!(verdict, Verdict::Replace(seen));
    }
}
