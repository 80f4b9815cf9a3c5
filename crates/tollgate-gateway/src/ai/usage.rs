//! What an answer used: as its upstream says, or counted.

use std::borrow::Cow;
use std::ops::Range;

use tollgate_policy::prices::{TokenKind, Usage};

use super::anthropic;
use super::ask::Call;
use super::background::MAX_ID_BYTES;
use super::json::{self, Member, Value};
use super::sse::{DONE, Event, Judged, Verdict};
use super::text::TextSink;
use super::unread::{event_scan, scanned};
use super::words;
use answers::StatedByAnswer;

mod answers;

/// Why what an upstream states as its usage is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// A count is negative, has a fraction, or is no number.
    NoCount,
    /// The total is less than its parts.
    BelowParts,
    /// More than any request of this model can use.
    TooMuch,
    /// Nothing, for a prompt that is not empty.
    Nothing,
}

impl Doubt {
    /// For the log.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::NoCount => "a count is not a whole number from 0 on",
            Self::BelowParts => "the total is less than the sum of its parts",
            Self::TooMuch => "it is more than max_usage_tokens",
            Self::Nothing => "it is 0 for a prompt that is not empty",
        }
    }
}

/// What usage can be: an upstream that states something else is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plausible {
    pub(crate) least: u64,
    pub(crate) most: u64,
    /// The longest prompt that is taken for one where a total alone is stated; the rest of that is output.
    pub(crate) prompt: u64,
}

/// Tokens of an answer, read or written by a model.
pub(crate) fn input_of(usage: &Usage) -> u64 {
    usage.whole(TokenKind::Input)
}

pub(crate) fn output_of(usage: &Usage) -> u64 {
    usage.whole(TokenKind::Output)
}

/// The parts of its input and of its output that a `usage` object states.
const INPUT_PARTS: &[(&str, TokenKind)] = &[
    ("cached_tokens", TokenKind::CachedRead),
    ("cache_write_tokens", TokenKind::CachedWrite),
    ("audio_tokens", TokenKind::AudioInput),
];
const OUTPUT_PARTS: &[(&str, TokenKind)] =
    &[("reasoning_tokens", TokenKind::Reasoning), ("audio_tokens", TokenKind::AudioOutput)];

/// A count, where one is stated.
pub(super) fn count(value: Value<'_>) -> Result<Option<u64>, Doubt> {
    match value.whole() {
        Some(count) => Ok(Some(count)),
        None if value.is_null() => Ok(None),
        None => Err(Doubt::NoCount),
    }
}

/// Out of a `usage` object, in either of its two spellings. None where it states nothing.
pub(crate) fn read(value: Value<'_>, plausible: Plausible) -> Option<Result<Usage, Doubt>> {
    stated(value, plausible).transpose()
}

fn stated(value: Value<'_>, plausible: Plausible) -> Result<Option<Usage>, Doubt> {
    let [mut input, mut output, mut total] = [None; 3];
    let mut parts = Usage::default();
    for member in value.members().filter(|_| value.is_object()) {
        match member.name.as_ref() {
            "prompt_tokens" | "input_tokens" | "tokens_evaluated" => {
                input = count(member.value)?.or(input);
            }
            "completion_tokens" | "output_tokens" | "tokens_predicted" => {
                output = count(member.value)?.or(output);
            }
            "total_tokens" => total = count(member.value)?.or(total),
            "prompt_tokens_details" | "input_tokens_details" => {
                parts = with_parts(parts, INPUT_PARTS, member.value)?;
            }
            "completion_tokens_details" | "output_tokens_details" => {
                parts = with_parts(parts, OUTPUT_PARTS, member.value)?;
            }
            _ => {}
        }
    }
    let sum = match (input, output) {
        (None, None) => None,
        (input, output) => Some(input.unwrap_or(0).saturating_add(output.unwrap_or(0))),
    };
    let Some(all) = total.or(sum) else { return Ok(None) };
    if all < sum.unwrap_or(0) {
        return Err(Doubt::BelowParts);
    }
    // What the total has beyond both parts was written: some report their thinking in the total alone.
    let input = match (input, output) {
        (Some(input), _) => input,
        (None, Some(output)) => all.saturating_sub(output),
        (None, None) => all.min(plausible.prompt),
    };
    let usage = parts.with(TokenKind::Input, input);
    let usage = usage.with(TokenKind::Output, all.saturating_sub(input));
    if usage.total() > plausible.most {
        return Err(Doubt::TooMuch);
    }
    if all < plausible.least {
        return Err(Doubt::Nothing);
    }
    Ok(Some(usage))
}

/// The same, with the parts of input or output that such an object states.
fn with_parts(
    mut usage: Usage,
    parts: &[(&str, TokenKind)],
    details: Value<'_>,
) -> Result<Usage, Doubt> {
    for member in details.members().filter(|_| details.is_object()) {
        if let Some((_, kind)) = parts.iter().find(|(name, _)| *name == member.name)
            && let Some(tokens) = count(member.value)?
        {
            usage = usage.with(*kind, tokens);
        }
    }
    Ok(usage)
}

/// What the events of a stream say.
#[expect(clippy::struct_excessive_bools, reason = "each is a statement by itself")]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StreamReport {
    /// What was used, once it has been said.
    pub(crate) usage: Option<Usage>,
    /// Whether that was the last word about it: some upstreams say it with every piece.
    pub(crate) is_final: bool,
    /// Whether more was written since.
    pub(crate) is_outdated: bool,
    /// Whether the event at hand stated it.
    is_new: bool,
    /// What was counted when it was stated.
    covered: u64,
    /// Whether the stream has come to its proper end.
    pub(crate) is_done: bool,
    /// Why what was stated last is not believed.
    pub(crate) doubt: Option<Doubt>,
    /// The id of a response.
    pub(crate) id: Option<String>,
    /// Whether a response failed.
    pub(crate) has_failed: bool,
    /// Whether a part of the answer could not be read: what it used may be more than what was counted.
    pub(crate) is_unread: bool,
    /// What the whole items of a response were counted as.
    items: u64,
    /// The length of the prompt, where that is stated before the answer.
    pub(crate) prompt: Option<u64>,
    /// The counts of a message so far.
    pub(super) counts: anthropic::usage::Counts,
    /// What was stated of each of several answers.
    pub(super) by_answer: StatedByAnswer,
    /// How many answers have stated that they are whole.
    stopped: u64,
}

impl StreamReport {
    /// Takes what was stated, where something was. True then.
    pub(crate) fn take(&mut self, stated: Option<Result<Usage, Doubt>>) -> bool {
        match stated {
            None => return false,
            // Each is stated from the beginning: a smaller one does not take back a larger.
            Some(Ok(usage)) => {
                let larger = self.usage.filter(|it| it.total() > usage.total());
                self.is_new = larger.is_none();
                (self.usage, self.doubt) = (larger.or(Some(usage)), None);
            }
            // What was stated before it is no better: this was to replace it.
            Some(Err(doubt)) => (self.usage, self.doubt) = (None, Some(doubt)),
        }
        true
    }

    /// Takes what was stated of the answer with this index, or of none in particular, in a stream of several.
    pub(crate) fn take_of(
        &mut self,
        answers: u64,
        index: Option<u64>,
        stated: Option<Result<Usage, Doubt>>,
    ) -> bool {
        if let Some(stated) = stated.filter(|_| answers > 1) {
            self.by_answer.note(index, stated);
        }
        self.take(stated)
    }

    /// What was written after the usage was stated, where so much was counted in all.
    pub(crate) fn written_since(&self, counted: u64) -> u64 {
        if self.usage.is_some() { counted.saturating_sub(self.covered) } else { 0 }
    }
}

/// How events are read, and what of them the client sees.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'v> {
    pub(crate) call: Call,
    /// Whether usage is stated because we asked for it, and the client did not.
    pub(crate) hides_usage: bool,
    /// The name that clients know the model by, as JSON, where the upstream's own is hidden.
    pub(crate) model: Option<&'v str>,
    pub(crate) plausible: Plausible,
    /// How many answers the stream brings.
    pub(crate) answers: u64,
}

/// Looks at one event of a stream: what it says was used, what it brings, and what of it the client is to see.
pub(crate) fn event(
    view: &View<'_>,
    event: Event<'_>,
    reported: &mut StreamReport,
    sink: &mut TextSink,
) -> Judged {
    let verdict = match event {
        Event::Whole(data) => whole_event(view, data, reported, sink),
        Event::Scanned(scan) => {
            scanned(view, scan, reported, sink);
            Verdict::Pass
        }
    };
    if std::mem::take(&mut reported.is_new) {
        reported.covered = sink.total();
    }
    reported.is_outdated |= reported.written_since(sink.total()) > 0;
    (verdict, reported.is_done)
}

fn whole_event(
    view: &View<'_>,
    data: &str,
    reported: &mut StreamReport,
    sink: &mut TextSink,
) -> Verdict {
    if let Some(own) = view.call.protocol().event() {
        return own(view, data, reported, sink);
    }
    if data == DONE {
        reported.is_done = true;
        return Verdict::Pass;
    }
    let Ok(whole) = json::parse(data) else {
        let mut scan = event_scan(view.call)();
        scan.take(data.as_bytes());
        scanned(view, &scan, reported, sink);
        return Verdict::Pass;
    };
    let (mut edits, before) = (Edits::default(), sink.total());
    if view.call == Call::Responses {
        response_event(view, whole, reported, sink, &mut edits);
        return edits.verdict(data);
    }
    let (mut usage, mut native, mut has_choices, mut index) = (None, None, false, None);
    for member in whole.members() {
        match member.name.as_ref() {
            "usage" => usage = Some(member),
            "model" => edits.rename(&member, view.model),
            "choices" => {
                for choice in member.value.elements() {
                    has_choices = true;
                    index = choice.get("index").and_then(Value::whole).or(index);
                    words::choice(choice, sink);
                }
            }
            // The own form of llama.cpp, which states with every piece what was used.
            "content" => words::part("content", member.value, sink),
            "tokens_predicted" => native = Some(whole),
            "index" => index = member.value.whole().or(index),
            _ => {}
        }
    }
    if native.is_some() && usage.is_none() {
        let has_stopped = whole.get("stop").is_some_and(|it| it.text == "true");
        has_choices = !has_stopped;
        reported.stopped += u64::from(has_stopped);
        reported.is_done |= reported.stopped >= view.answers;
    }
    let stated = usage.as_ref().map(|it| it.value).or(native);
    let stated = stated.and_then(|it| read(it, view.plausible));
    let is_stated = reported.take_of(view.answers, index, stated);
    if is_stated {
        (reported.is_final, reported.is_outdated) = (!has_choices, false);
    } else if reported.usage.is_some() && sink.total() > before {
        (reported.is_final, reported.is_outdated) = (false, true);
    }
    let Some(usage) = usage else { return edits.verdict(data) };
    if view.hides_usage {
        if is_stated && !has_choices {
            return Verdict::Hide;
        }
        edits.remove(data, &usage);
    }
    edits.verdict(data)
}

/// An event of the responses API.
fn response_event(
    view: &View<'_>,
    whole: Value<'_>,
    reported: &mut StreamReport,
    sink: &mut TextSink,
    edits: &mut Edits,
) {
    let Some(kind) = whole.get("type").and_then(Value::string) else { return };
    if kind.ends_with(".delta") {
        let name = if kind.ends_with("audio.delta") { "data" } else { "delta" };
        whole.get("delta").into_iter().for_each(|it| words::part(name, it, sink));
        return;
    }
    whole.get("partial_image_b64").into_iter().for_each(|it| words::part("data", it, sink));
    if let Some(item) = whole.get("item").filter(|_| kind == "response.output_item.done") {
        // Some servers bring it in parts before, and some do not.
        let mut own = sink.for_answer();
        words::part("item", item, &mut own);
        reported.items = reported.items.saturating_add(own.total());
        sink.tokens(reported.items.saturating_sub(sink.total()));
    }
    let is_end =
        matches!(kind.as_ref(), "response.completed" | "response.incomplete" | "response.failed");
    reported.is_done |= is_end;
    reported.has_failed |= kind == "response.failed";
    let Some(response) = whole.get("response") else { return };
    for member in response.members() {
        match member.name.as_ref() {
            "model" => edits.rename(&member, view.model),
            "id" if reported.id.is_none() => {
                let id = member.value.string().filter(|id| id.len() <= MAX_ID_BYTES);
                reported.id = id.map(Cow::into_owned);
            }
            "usage" if is_end => {
                reported.take(read(member.value, view.plausible));
            }
            _ => {}
        }
    }
}

/// What is changed in an event, from its beginning to its end.
#[derive(Debug, Default)]
pub(super) struct Edits(Vec<(Range<usize>, String)>);

impl Edits {
    /// Puts the name that clients know in the place of a model's.
    pub(super) fn rename(&mut self, member: &Member<'_>, name: Option<&str>) {
        if let Some(name) =
            name.filter(|name| member.value.is_string() && member.value.text != *name)
        {
            self.0.push((member.value.span(), name.to_owned()));
        }
    }

    /// Takes a member out, and the comma that separated it from another.
    fn remove(&mut self, text: &str, member: &Member<'_>) {
        let (start, end) = (member.at, member.end());
        let (before, after) = (text.get(..start).unwrap_or(""), text.get(end..).unwrap_or(""));
        let rest = after.trim_start();
        let span = if let Some(rest) = rest.strip_prefix(',') {
            start..text.len() - rest.trim_start().len()
        } else {
            let before = before.trim_end();
            let before = before.strip_suffix(',').unwrap_or(before);
            before.len()..text.len() - rest.len()
        };
        self.0.push((span, String::new()));
    }

    pub(super) fn verdict(mut self, data: &str) -> Verdict {
        if self.0.is_empty() {
            return Verdict::Pass;
        }
        self.0.sort_by_key(|(span, _)| span.start);
        let mut out = String::with_capacity(data.len());
        let mut from = 0;
        for (span, text) in self.0 {
            // An edit inside of another is part of it.
            let Some(kept) = data.get(from..span.start) else { continue };
            out.push_str(kept);
            out.push_str(&text);
            from = span.end;
        }
        out.push_str(data.get(from..).unwrap_or(""));
        Verdict::Replace(out)
    }
}

#[cfg(test)]
mod tests;
