//! The queue in HTTP: the answer to a request that was taken in, and what its ticket's URL returns.

use std::mem;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, HeaderName, HeaderValue, LOCATION, RETRY_AFTER};
use http::{Response, StatusCode};
use serde::Serialize;
use tollgate_tower::render::{JSON, problem};

use super::line::Receipt;
use super::request::StoredResponse;
use super::store::{Ticket, TicketState};

/// Where tickets are, below the gateway's base path.
pub const TICKETS_PATH: &str = "/queue/tickets/";

/// The ticket's name as a header, on the way to the upstream and back.
pub const TICKET_HEADER: HeaderName = HeaderName::from_static("x-tollgate-ticket");

/// A ticket's URL is a capability and its answer changes: no cache may store it.
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// When a client may look again whether a queued request was sent, in seconds, at the latest.
const LONGEST_LOOK_SECONDS: u64 = 60;

/// What a ticket's URL returns.
#[derive(Debug, Serialize)]
pub struct TicketView {
    /// The ticket.
    pub ticket: String,
    /// Where it stands.
    pub state: TicketState,
    /// How many are sent before it, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// Since when it waits; RFC 3339, as all instants.
    pub enqueued_at: String,
    /// How often it was tried.
    pub attempts: u32,
    /// When it is tried next, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<String>,
    /// When it was done, or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    /// The upstream's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<ResponseView>,
    /// Why the last attempt failed, or why the request did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A line of a list, for operators.
#[derive(Debug, Serialize)]
pub struct EntryView {
    /// What its client sees.
    #[serde(flatten)]
    pub ticket: TicketView,
    /// The lane that it waits in.
    pub lane: String,
    /// Method and path.
    pub request: String,
}

impl From<Ticket> for EntryView {
    fn from(mut ticket: Ticket) -> Self {
        let (lane, request) = (mem::take(&mut ticket.lane), mem::take(&mut ticket.label));
        Self { ticket: ticket.into(), lane, request }
    }
}

/// An upstream's answer.
#[derive(Debug, Serialize)]
pub struct ResponseView {
    /// The status.
    pub status: u16,
    /// Names and values; bytes of a value that are no text are replaced.
    pub headers: Vec<(String, String)>,
    /// The body, as `encoding` says.
    pub body: String,
    /// `text`, or `base64` for what is none.
    pub encoding: &'static str,
    /// Whether the body was longer than what was kept of it.
    pub truncated: bool,
}

impl From<Ticket> for TicketView {
    fn from(ticket: Ticket) -> Self {
        Self {
            ticket: ticket.id,
            state: ticket.state,
            position: ticket.position,
            enqueued_at: rfc3339(ticket.enqueued_at),
            attempts: ticket.attempts,
            next_attempt_at: ticket.next_attempt_at.map(rfc3339),
            finished_at: ticket.finished_at.map(rfc3339),
            response: ticket.response.map(ResponseView::from),
            error: ticket.error,
        }
    }
}

impl From<StoredResponse> for ResponseView {
    fn from(response: StoredResponse) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let headers = response.headers.into_iter().map(|(name, value)| (name, text(value)));
        let (body, encoding) = match String::from_utf8(response.body) {
            Ok(body) => (body, "text"),
            Err(error) => (base64(error.as_bytes()), "base64"),
        };
        Self {
            status: response.status,
            headers: headers.collect(),
            body,
            encoding,
            truncated: response.is_truncated,
        }
    }
}

/// 202: the request was taken in, and will be sent.
pub fn accepted(receipt: &Receipt, base_path: &str, retry_after_seconds: u64) -> Response<Bytes> {
    let location = format!("{}{TICKETS_PATH}{}", base_path.trim_end_matches('/'), receipt.ticket);
    let body = serde_json::json!({
        "ticket": receipt.ticket,
        "state": TicketState::Queued,
        "position": receipt.position,
        "url": location,
    });
    let mut response = json(StatusCode::ACCEPTED, &body);
    let headers = response.headers_mut();
    if let Ok(location) = HeaderValue::try_from(location) {
        headers.insert(LOCATION, location);
    }
    if let Ok(ticket) = HeaderValue::try_from(receipt.ticket.as_str()) {
        headers.insert(TICKET_HEADER, ticket);
    }
    headers.insert(RETRY_AFTER, look_again(retry_after_seconds));
    response
}

/// The answer of a ticket's URL.
pub fn ticket_response(ticket: Option<Ticket>) -> Response<Bytes> {
    let Some(ticket) = ticket else {
        return problem(StatusCode::NOT_FOUND, "NOT_FOUND", "there is no such ticket, or no more");
    };
    let is_under_way = matches!(ticket.state, TicketState::Queued | TicketState::Sending);
    let mut response = json(StatusCode::OK, &TicketView::from(ticket));
    if is_under_way {
        response.headers_mut().insert(RETRY_AFTER, look_again(1));
    }
    response
}

fn look_again(seconds: u64) -> HeaderValue {
    HeaderValue::from(seconds.clamp(1, LONGEST_LOOK_SECONDS))
}

fn json(status: StatusCode, body: &impl Serialize) -> Response<Bytes> {
    // Nothing that is answered here can fail to serialise: maps have string keys, no writer.
    let mut response = Response::new(Bytes::from(serde_json::to_vec(body).unwrap_or_default()));
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, JSON);
    response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    response
}

/// Bytes in the standard alphabet, padded.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let value = (group >> (18 - 6 * digit) & 63) as usize;
            let is_filler = digit > chunk.len();
            let letter = ALPHABET.get(value).filter(|_| !is_filler);
            text.push(letter.map_or('=', |&letter| char::from(letter)));
        }
    }
    text
}

/// An instant in RFC 3339, to the millisecond.
fn rfc3339(millis: u64) -> String {
    let (days, in_day) = (millis / 86_400_000, millis % 86_400_000);
    // Days are counted in eras of 400 years that begin in March, so that leap days come last.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hours, minutes) = (in_day / 3_600_000, in_day / 60_000 % 60);
    let (seconds, rest) = (in_day / 1_000 % 60, in_day % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{rest:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_written_as_calendars_have_them() {
        let cases = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z"),
            (1_709_164_800_000, "2024-02-29T00:00:00.000Z"),
            (1_735_689_599_001, "2024-12-31T23:59:59.001Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ];
        for (millis, text) in cases {
            assert_eq!(rfc3339(millis), text);
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_written_in_base64() {
        let cases: [(&[u8], &str); 5] = [
            (b"", ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"\xff\xfe\xfd", "//79"),
        ];
        for (bytes, text) in cases {
            assert_eq!(base64(bytes), text);
        }
        let response = |body: &[u8]| {
            let headers = vec![("x-a".to_owned(), b"b".to_vec())];
            let body = body.to_vec();
            ResponseView::from(StoredResponse { status: 200, headers, is_truncated: false, body })
        };
        assert_eq!((response(b"hi").encoding, &*response(b"hi").body), ("text", "hi"));
        assert_eq!((response(b"\xff").encoding, &*response(b"\xff").body), ("base64", "/w=="));
    }

    #[test]
    fn what_is_taken_in_says_where_to_look() {
        let receipt = Receipt { ticket: "ab".repeat(16), position: 3 };
        let response = accepted(&receipt, "/edge/", 500);
        assert_eq!(response.status(), StatusCode::ACCEPTED);
        let header = |name: HeaderName| response.headers()[name].to_str().unwrap().to_owned();
        let url = format!("/edge/queue/tickets/{}", receipt.ticket);
        assert_eq!(header(LOCATION), url);
        assert_eq!(header(RETRY_AFTER), "60");
        assert_eq!(header(CACHE_CONTROL), "no-store");
        let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(body["url"], url);
        assert_eq!(body["state"], "queued");
        assert_eq!(body["position"], 3);
        assert_eq!(ticket_response(None).status(), StatusCode::NOT_FOUND);
    }

    #[test]
    fn a_ticket_reports_what_is_known_and_no_more() {
        let ticket = Ticket {
            id: "ab".repeat(16),
            state: TicketState::Sending,
            lane: "rule:key".to_owned(),
            label: "POST /a".to_owned(),
            position: Some(0),
            enqueued_at: 0,
            attempts: 1,
            next_attempt_at: None,
            finished_at: None,
            response: None,
            error: None,
        };
        let shared = serde_json::json!({
            "ticket": ticket.id, "state": "sending", "position": 0, "attempts": 1,
            "enqueued_at": "1970-01-01T00:00:00.000Z",
        });
        let response = ticket_response(Some(ticket.clone()));
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(body, shared);
        let mut line = serde_json::to_value(EntryView::from(ticket)).unwrap();
        let fields = line.as_object_mut().unwrap();
        assert_eq!(fields.remove("lane").unwrap(), "rule:key");
        assert_eq!(fields.remove("request").unwrap(), "POST /a");
        assert_eq!(line, shared);
    }
}
