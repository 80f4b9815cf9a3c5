//! What a fuzzer feeds: the readers of what clients and upstreams send, from outside.

use bytes::Bytes;

use super::ask::{Ask, Call};
use super::scan::Scan;
use super::sse::{Event, Events};
use super::text::{Tariff, TextSink};
use super::unread::event_scan;
use super::usage::{self, Plausible, StreamReport, View, output_of};

const CALLS: [Call; 6] = [
    Call::Chat,
    Call::Completions,
    Call::Embeddings,
    Call::Responses,
    Call::Messages,
    Call::CountTokens,
];

const ANY: Plausible = Plausible { least: 0, most: u64::MAX, prompt: u64::MAX };

fn call(kind: u8) -> Call {
    CALLS.get(usize::from(kind) % CALLS.len()).copied().unwrap_or(Call::Chat)
}

/// What was read of a client's body.
#[derive(Debug)]
pub struct ReadAsk {
    /// The model it names.
    pub model: String,
    /// The user it names.
    pub user: Option<String>,
    /// Whether a stream is wanted.
    pub is_stream: bool,
    /// Whether the stream's usage is asked for by the client.
    pub wants_usage: bool,
    /// The body as it would go on with another model's name, asking for usage.
    pub rewritten: Option<Vec<u8>>,
    /// The tokens of the prompt.
    pub prompt: u64,
}

/// Reads a client's body; none if it is refused.
pub fn ask(kind: u8, body: &[u8], name: &str) -> Option<ReadAsk> {
    let ask = Ask::read(call(kind), body, None).ok()?;
    let mut sink = TextSink::new(Tariff::default());
    ask.prompt(&mut sink);
    Some(ReadAsk {
        model: ask.model.to_string(),
        user: ask.user.as_ref().map(ToString::to_string),
        is_stream: ask.is_stream,
        wants_usage: ask.wants_usage,
        rewritten: ask.rewritten(Some(name), true, None),
        prompt: sink.total(),
    })
}

/// What was seen of an answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    /// What went on to the client.
    pub out: Vec<u8>,
    /// What was written, in tokens.
    pub written: u64,
    /// What it said it used: all, and the answer's part.
    pub usage: Option<(u64, u64)>,
    /// Whether it came to its proper end.
    pub is_done: bool,
}

/// Watches a stream that comes so many bytes at a time.
pub fn stream(kind: u8, bytes: &[u8], at_once: usize, hides: bool) -> Seen {
    let mut events = Events::new(hides, event_scan(call(kind)));
    let mut reported = StreamReport::default();
    let view =
        View { call: call(kind), hides_usage: hides, model: None, plausible: ANY, answers: 1 };
    let mut sink = TextSink::new(Tariff::default());
    let mut out = Vec::new();
    for piece in bytes.chunks(at_once.max(1)) {
        let piece = Bytes::copy_from_slice(piece);
        let mut judge = |event: Event<'_>| usage::event(&view, event, &mut reported, &mut sink);
        out.extend_from_slice(&events.pass(&piece, &mut judge));
    }
    let mut judge = |event: Event<'_>| usage::event(&view, event, &mut reported, &mut sink);
    out.extend_from_slice(&events.end(&mut judge));
    let usage = reported.usage.map(|usage| (usage.total(), output_of(&usage)));
    Seen { out, written: sink.total(), usage, is_done: reported.is_done }
}

/// Watches a plain answer that comes so many bytes at a time.
pub fn answer(bytes: &[u8], at_once: usize) -> (u64, Option<(u64, u64)>) {
    let mut scan = Scan::default();
    for piece in bytes.chunks(at_once.max(1)) {
        scan.take(piece);
    }
    let usage = scan.usage(ANY).and_then(Result::ok);
    (scan.written(), usage.map(|usage| (usage.total(), output_of(&usage))))
}
