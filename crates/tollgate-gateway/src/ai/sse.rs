//! A stream of server-sent events, looked at while it passes.
//!
//! Bytes come in pieces of any length: an event may be in several, and several in one. Lines end with LF, CR or both.
//! An event that is let pass goes on as the bytes it was; only what is to be hidden is taken out. No piece waits for
//! another, except for an event of which a part is still to come while something may have to be hidden. After the event
//! that ends an answer nothing passes but `[DONE]`: what comes then would be counted by nobody.

use std::borrow::Cow;
use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::scan::Scan;

/// The longest event that is kept until it is whole. A longer one is scanned while it passes.
pub(crate) const MAX_EVENT_BYTES: usize = 1 << 20;

/// An event, as far as it is seen.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Event<'e> {
    /// Its data.
    Whole(&'e str),
    /// It was too long to be kept.
    Scanned(&'e Scan),
}

/// What becomes of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It goes on as it is.
    Pass,
    /// The client does not see it.
    Hide,
    /// It goes on with this as its data.
    Replace(String),
}

/// The data of the event after which some APIs send no other.
pub(crate) const DONE: &str = "[DONE]";

/// What becomes of an event, and whether it is the last of the answer.
pub(crate) type Judged = (Verdict, bool);

/// Reads events out of the bytes that pass.
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are a place in a stream, not a state machine"
)]
#[derive(Debug)]
pub(crate) struct Events {
    /// The part of an event that has come so far.
    begun: BytesMut,
    /// Whether the line at that place is empty so far.
    is_line_empty: bool,
    /// Whether the last byte was a CR, after which an LF belongs to it.
    after_return: bool,
    /// The event is too long to be kept: it is scanned with this while it passes.
    scanned: Option<Box<Scan>>,
    /// Makes the scan of a long event.
    new_scan: fn() -> Scan,
    /// Whether events may be changed, so that one must be whole before it passes.
    may_change: bool,
    /// The answer has come to its end.
    is_over: bool,
    /// The last piece ended with an event's CR: what becomes of the LF that may follow is what became of the event.
    feed_passes: Option<bool>,
}

impl Events {
    pub(crate) fn new(may_change: bool, new_scan: fn() -> Scan) -> Self {
        Self {
            begun: BytesMut::new(),
            is_line_empty: true,
            after_return: false,
            scanned: None,
            new_scan,
            may_change,
            is_over: false,
            feed_passes: None,
        }
    }

    /// Takes what has come, shows every whole event to `judge`, and gives what goes on.
    pub(crate) fn pass(
        &mut self,
        piece: &Bytes,
        judge: &mut impl FnMut(Event<'_>) -> Judged,
    ) -> Bytes {
        let mut out = Outgoing { piece, clean: 0, made: None };
        let mut at = self.feed(piece, &mut out);
        while at < piece.len() {
            let rest = piece.slice(at..);
            let Some(length) = self.event_end(&rest) else {
                self.keep(at, &rest, &mut out);
                break;
            };
            let end = at + length;
            let (was_over, may_change) = (self.is_over, self.may_change);
            let passes = if let Some(mut scan) = self.scanned.take() {
                scan.take(&rest.slice(..length));
                self.judge_scanned(&scan, judge);
                if !was_over {
                    out.own(at..end);
                }
                !was_over
            } else if self.begun.is_empty() {
                let event = rest.slice(..length);
                let verdict = self.judge(&event, judge);
                if verdict == Verdict::Pass {
                    out.own(at..end);
                }
                out.changed(&event, verdict)
            } else {
                self.begun.extend_from_slice(&rest.slice(..length));
                let event = self.begun.split();
                let verdict = self.judge(&event, judge);
                if verdict == Verdict::Pass {
                    out.add(&event);
                }
                out.changed(&event, verdict)
            };
            at = end;
            if self.is_over && !was_over {
                if !may_change {
                    // What came before in this piece passes as it is, and what came in others has passed.
                    out = Outgoing { piece, clean: end, made: None };
                }
                self.may_change = true;
            }
            self.feed_passes = (piece.ends_with(b"\r") && at == piece.len()).then_some(passes);
        }
        if self.may_change { out.done() } else { piece.clone() }
    }

    /// Where the first event of a piece begins: after an LF that belongs to the event before.
    fn feed(&mut self, piece: &Bytes, out: &mut Outgoing<'_>) -> usize {
        let Some(passes) = self.feed_passes.filter(|_| !piece.is_empty()) else { return 0 };
        self.feed_passes = None;
        if !piece.starts_with(b"\n") {
            return 0;
        }
        self.after_return = false;
        if passes {
            out.own(0..1);
        }
        1
    }

    /// The stream has ended: the last event is read, also without the empty line that ends it. Gives what goes on of it.
    pub(crate) fn end(&mut self, judge: &mut impl FnMut(Event<'_>) -> Judged) -> Bytes {
        if let Some(scan) = self.scanned.take() {
            self.judge_scanned(&scan, judge);
            return Bytes::new();
        }
        let event = self.begun.split().freeze();
        match self.judge(&event, judge) {
            Verdict::Pass if self.may_change => event,
            Verdict::Pass | Verdict::Hide => Bytes::new(),
            Verdict::Replace(data) => replaced(&event, &data).into(),
        }
    }

    /// What the client has got of an event whose end has not come.
    pub(crate) fn partial(&mut self) -> Option<Box<Scan>> {
        let begun = self.begun.split();
        if self.scanned.is_none() && !self.may_change && !begun.is_empty() {
            let mut scan = (self.new_scan)();
            scan.take(&begun);
            return Some(Box::new(scan));
        }
        self.scanned.take()
    }

    /// Where the event ends that goes on in these bytes: after an empty line.
    fn event_end(&mut self, bytes: &[u8]) -> Option<usize> {
        for (place, byte) in bytes.iter().enumerate() {
            let after_return = std::mem::replace(&mut self.after_return, *byte == b'\r');
            match byte {
                // The second half of a line's end.
                b'\n' if after_return => {}
                b'\n' | b'\r' => {
                    if std::mem::replace(&mut self.is_line_empty, true) {
                        // An LF that follows at once is the rest of this end, if it has come.
                        let has_rest = *byte == b'\r' && bytes.get(place + 1) == Some(&b'\n');
                        if has_rest {
                            self.after_return = false;
                        }
                        return Some(place + 1 + usize::from(has_rest));
                    }
                }
                _ => self.is_line_empty = false,
            }
        }
        None
    }

    /// Keeps the beginning of an event for when the rest of it has come.
    fn keep(&mut self, at: usize, rest: &Bytes, out: &mut Outgoing<'_>) {
        if self.scanned.is_none() && self.begun.len() + rest.len() <= MAX_EVENT_BYTES {
            self.begun.extend_from_slice(rest);
            return;
        }
        let scan = self.scanned.get_or_insert_with(|| Box::new((self.new_scan)()));
        let begun = self.begun.split();
        scan.take(&begun);
        scan.take(rest);
        if !self.is_over {
            out.add(&begun);
            out.own(at..at + rest.len());
        }
    }

    fn judge(&mut self, event: &[u8], judge: &mut impl FnMut(Event<'_>) -> Judged) -> Verdict {
        let data = data(event);
        if self.is_over {
            return if data.is_some_and(|it| it == DONE) { Verdict::Pass } else { Verdict::Hide };
        }
        let Some(data) = data else { return Verdict::Pass };
        let (verdict, is_last) = judge(Event::Whole(&data));
        self.is_over |= is_last;
        if self.may_change { verdict } else { Verdict::Pass }
    }

    fn judge_scanned(&mut self, scan: &Scan, judge: &mut impl FnMut(Event<'_>) -> Judged) {
        if !self.is_over {
            let (_, is_last) = judge(Event::Scanned(scan));
            self.is_over |= is_last;
        }
    }
}

/// What goes on of a piece. As long as nothing but its end is missing, it is a part of the piece itself.
struct Outgoing<'p> {
    piece: &'p Bytes,
    clean: usize,
    made: Option<BytesMut>,
}

impl Outgoing<'_> {
    /// This part of the piece.
    fn own(&mut self, part: Range<usize>) {
        if self.made.is_none() && part.start == self.clean {
            self.clean = part.end;
        } else {
            let part = self.piece.slice(part);
            self.add(&part);
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let (piece, clean) = (self.piece, self.clean);
        let made = self.made.get_or_insert_with(|| BytesMut::from(&*piece.slice(..clean)));
        made.extend_from_slice(bytes);
    }

    /// What is not the event as it was. True if nothing is.
    fn changed(&mut self, event: &[u8], verdict: Verdict) -> bool {
        match verdict {
            Verdict::Pass => return true,
            Verdict::Hide => {}
            Verdict::Replace(data) => self.add(&replaced(event, &data)),
        }
        false
    }

    fn done(self) -> Bytes {
        self.made.map_or_else(|| self.piece.slice(..self.clean), BytesMut::freeze)
    }
}

/// An event's lines, without their ends.
fn lines(event: &[u8]) -> impl Iterator<Item = &[u8]> {
    // Between the two bytes of a CRLF there is an empty line that says nothing.
    event.split(|byte| matches!(byte, b'\n' | b'\r')).filter(|line| !line.is_empty())
}

/// What a line says as data.
fn of_data(line: &[u8]) -> Option<&[u8]> {
    // The mark with which a text may begin.
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    let value = line.strip_prefix(b"data")?;
    let value = if value.is_empty() { value } else { value.strip_prefix(b":")? };
    Some(value.strip_prefix(b" ").unwrap_or(value))
}

/// An event's data: its lines, one below the other. None if it has none. What is no text in it is replaced.
fn data(event: &[u8]) -> Option<Cow<'_, str>> {
    let mut all = lines(event).filter_map(of_data).map(String::from_utf8_lossy);
    let first = all.next()?;
    let Some(second) = all.next() else { return Some(first) };
    let mut joined = first.into_owned();
    for line in std::iter::once(second).chain(all) {
        joined.push('\n');
        joined.push_str(&line);
    }
    Some(Cow::Owned(joined))
}

/// The event with other data, and the rest of it as it was.
fn replaced(event: &[u8], data: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(event.len());
    // The very last LF may still be on its way: it must not make a difference.
    let ended = event.strip_suffix(b"\n").filter(|rest| rest.ends_with(b"\r")).unwrap_or(event);
    let is_crlf = ended.windows(2).any(|pair| pair == b"\r\n");
    let end: &[u8] = if is_crlf { b"\r\n" } else { b"\n" };
    for line in lines(event).filter(|line| of_data(line).is_none()) {
        out.extend_from_slice(line);
        out.extend_from_slice(end);
    }
    for line in data.split('\n') {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line.as_bytes());
        out.extend_from_slice(end);
    }
    out.extend_from_slice(end);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Passes a stream in pieces; gives what went on, and what was seen.
    fn run(stream: &[u8], cuts: &[usize], may_change: bool, hide: bool) -> (Vec<u8>, Vec<String>) {
        let (mut events, mut seen, mut out) =
            (Events::new(may_change, Scan::default), Vec::new(), Vec::new());
        let mut judge = |event: Event<'_>| {
            let Event::Whole(data) = event else { panic!("none of them is long") };
            seen.push(data.to_owned());
            let verdict = match data {
                "hide" if hide => Verdict::Hide,
                "change" if hide => Verdict::Replace("changed".to_owned()),
                _ => Verdict::Pass,
            };
            (verdict, data == DONE)
        };
        let mut from = 0;
        for cut in cuts.iter().copied().chain([stream.len()]) {
            let cut = cut.clamp(from, stream.len());
            out.extend_from_slice(
                &events.pass(&Bytes::copy_from_slice(&stream[from..cut]), &mut judge),
            );
            from = cut;
        }
        out.extend_from_slice(&events.end(&mut judge));
        (out, seen)
    }

    fn stream() -> impl Strategy<Value = Vec<u8>> {
        let event = prop_oneof![
            Just("data: hide"),
            Just("data:change"),
            Just(": a comment"),
            Just("event: message@data: {\"a\": 1}@id: 7"),
            Just("data: one@data: two"),
            Just("data"),
            Just("retry: 5"),
        ];
        let end = prop_oneof![Just("\n"), Just("\r\n"), Just("\r")];
        (prop::collection::vec(event, 0..8), end, any::<bool>()).prop_map(
            |(events, end, is_cut)| {
                let mut text: String =
                    events.iter().map(|event| format!("{event}@@").replace('@', end)).collect();
                if is_cut {
                    text.push_str("data: hid");
                }
                text.into_bytes()
            },
        )
    }

    proptest! {
        #[test]
        fn borders_of_pieces_change_nothing(
            stream in stream(),
            mut cuts in prop::collection::vec(0_usize..200, 0..12),
            hide in any::<bool>(),
        ) {
            cuts.sort_unstable();
            let (whole, seen) = run(&stream, &[], true, hide);
            let (pieces, seen_in_pieces) = run(&stream, &cuts, true, hide);
            prop_assert_eq!(&seen, &seen_in_pieces);
            prop_assert_eq!(&pieces, &whole);
            if !hide {
                prop_assert_eq!(&pieces, &stream);
            }
            let (watched, seen_watching) = run(&stream, &cuts, false, hide);
            prop_assert_eq!(watched, stream);
            prop_assert_eq!(seen_watching, seen);
        }
    }

    #[test]
    fn an_event_goes_on_when_it_is_whole() {
        let mut events = Events::new(true, Scan::default);
        let mut pass = |piece: &'static str| {
            let out =
                events.pass(&Bytes::from_static(piece.as_bytes()), &mut |_| (Verdict::Pass, false));
            String::from_utf8_lossy(&out).into_owned()
        };
        assert_eq!(pass("data: a\n\n"), "data: a\n\n");
        assert_eq!(pass("data: b\r\n\r"), "data: b\r\n\r");
        assert_eq!(pass("\ndata: c\n\nda"), "\ndata: c\n\n");
        assert_eq!(pass("ta: d\n"), "");
        assert_eq!(pass("\n"), "data: d\n\n");
    }

    #[test]
    fn what_is_hidden_is_gone_and_what_is_replaced_keeps_its_lines() {
        let stream =
            b"event: x\r\ndata: change\r\nid: 1\r\n\r\ndata: hide\r\n\r\ndata: [DONE]\r\n\r\n";
        let (out, seen) = run(stream, &[], true, true);
        assert_eq!(seen, ["change", "hide", "[DONE]"]);
        let expected = "event: x\r\nid: 1\r\ndata: changed\r\n\r\ndata: [DONE]\r\n\r\n";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }

    #[test]
    fn a_long_event_is_scanned_in_bounded_memory() {
        let mut events = Events::new(true, Scan::default);
        let any = super::super::usage::Plausible { least: 0, most: u64::MAX, prompt: u64::MAX };
        let mut used = Vec::new();
        let mut judge = |event: Event<'_>| -> Judged {
            let Event::Scanned(scan) = event else { panic!("too long to be kept") };
            used.push(scan.usage(any).map(|it| it.map(|it| it.total())));
            (Verdict::Hide, false)
        };
        let line = format!(r#"data: {{"x":"{}","usage":{{"#, "x".repeat(MAX_EVENT_BYTES));
        let line = Bytes::from(line);
        let mut out = events.pass(&line.slice(..9), &mut judge).to_vec();
        assert!(out.is_empty());
        let end = Bytes::from_static(b"\"total_tokens\":7}}\n\n");
        for piece in [line.slice(9..), end.clone()] {
            out.extend_from_slice(&events.pass(&piece, &mut judge));
            assert!(events.begun.len() <= MAX_EVENT_BYTES);
        }
        assert_eq!(out.len(), line.len() + end.len());
        assert_eq!(used, [Some(Ok(7))]);
        let mut seen = 0;
        events.pass(&Bytes::from_static(b"data: y\n\n"), &mut |_| {
            seen += 1;
            (Verdict::Hide, false)
        });
        assert_eq!(seen, 1, "the next is looked at again");
    }

    /// What follows the end of an answer reaches nobody, wherever the pieces are cut, but for the word that ends streams.
    #[test]
    fn nothing_passes_after_the_end() {
        let kept = "data: a\n\ndata: [DONE]\n\n";
        let late = format!("data: b\n\n: c\n\ndata: {}\n\ndata: d", "x".repeat(MAX_EVENT_BYTES));
        let stream = format!("{kept}{late}");
        for may_change in [false, true] {
            for cut in 0..kept.len() + 20 {
                let (out, seen) =
                    run(stream.as_bytes(), &[cut, kept.len() + 30], may_change, false);
                assert_eq!(String::from_utf8_lossy(&out), kept, "{may_change} {cut}");
                assert_eq!(seen, ["a", DONE]);
            }
        }
        let twice = format!("{kept}data: b\n\ndata: [DONE]\n\n");
        let (out, _) = run(twice.as_bytes(), &[], false, false);
        assert_eq!(String::from_utf8_lossy(&out), format!("{kept}data: [DONE]\n\n"));
    }
}
