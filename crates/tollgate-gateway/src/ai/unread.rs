//! Events that are too long or too deep to be read whole, or no JSON: what a scan finds in them.

use super::call::Call;
use super::scan::Scan;
use super::text::TextSink;
use super::usage::{StreamReport, View};

/// A scan for an event of this call that cannot be read whole.
pub(crate) fn event_scan(call: Call) -> fn() -> Scan {
    match call {
        Call::Responses => || Scan::of_event(Call::Responses.protocol(), true),
        Call::Messages | Call::CountTokens => || Scan::of_event(Call::Messages.protocol(), false),
        _ => || Scan::of_event(Call::Chat.protocol(), false),
    }
}

/// An event that is too long or too deep to be read whole, or no JSON.
pub(super) fn scanned(
    view: &View<'_>,
    scan: &Scan,
    reported: &mut StreamReport,
    sink: &mut TextSink,
) {
    let before = sink.total();
    scan.count_into(sink);
    // Usage of a message is stated in parts, of which a scan sees one.
    let is_message = view.call.protocol().event().is_some();
    let stated = if is_message { None } else { scan.usage(view.plausible) };
    if reported.take_of(view.answers, None, stated) {
        let is_response = view.call == Call::Responses;
        (reported.is_final, reported.is_outdated) = (sink.total() == before, false);
        reported.is_done |= is_response;
    } else {
        reported.is_unread = true;
        (reported.is_final, reported.is_outdated) = (false, reported.usage.is_some());
    }
}
