//! Decisions as protobuf, written straight into the answer.
//!
//! This is what is written for every request, so it is written by hand; its shape is that of the
//! generated messages, and a test holds the two together byte by byte.

use tollgate_core::{Nanos, SECOND};
use tollgate_engine::{Decision, Scope, Verdict};
use tollgate_policy::prices::format_nanos;
use tollgate_tower::headers::warning_text;

use crate::http::respond::ApiError;
use crate::http::wire::millis_up;

/// A message that is being written.
pub(crate) struct Message<'a>(pub(crate) &'a mut Vec<u8>);

/// How many bytes the length of a message will take, as a guess: a wrong one costs a move.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Size {
    /// Below 128 bytes.
    Small,
    /// Below 16 KiB.
    Medium,
}

impl Message<'_> {
    #[inline]
    fn varint(&mut self, number: u64) {
        if number < 0x80 {
            self.0.push(number as u8);
        } else {
            self.long_varint(number);
        }
    }

    /// Seven bits to a byte. All but the largest numbers are spread over a word and written at once.
    fn long_varint(&mut self, mut number: u64) {
        if number >= 1 << 56 {
            while number >= 0x80 {
                self.0.push(number as u8 | 0x80);
                number >>= 7;
            }
            self.0.push(number as u8);
            return;
        }
        let halves = number & 0x0FFF_FFFF | (number & 0x00FF_FFFF_F000_0000) << 4;
        let quarters = halves & 0x0000_3FFF_0000_3FFF | (halves & 0x0FFF_C000_0FFF_C000) << 2;
        let bytes = quarters & 0x007F_007F_007F_007F | (quarters & 0x3F80_3F80_3F80_3F80) << 1;
        let last = (bytes | 1).ilog2() / 8;
        // Every byte but the last says that another follows.
        let more = 0x8080_8080_8080_8080 & ((1 << (8 * last)) - 1);
        let end = self.0.len() + last as usize + 1;
        self.0.extend_from_slice(&(bytes | more).to_le_bytes());
        self.0.truncate(end);
    }

    #[inline]
    fn key(&mut self, field: u32, kind: u32) {
        self.varint(u64::from(field << 3 | kind));
    }

    /// Text; an empty one is left out.
    #[inline]
    pub(crate) fn text(&mut self, field: u32, text: &str) -> &mut Self {
        if !text.is_empty() {
            self.item(field, text);
        }
        self
    }

    /// One of several texts, which is there also if it is empty.
    fn item(&mut self, field: u32, text: &str) {
        self.given_as(field, 2, text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    /// A number; 0 is left out.
    #[inline]
    pub(crate) fn number(&mut self, field: u32, number: u64) -> &mut Self {
        if number != 0 {
            self.given(field, number);
        }
        self
    }

    /// A number that says something even if it is 0.
    #[inline]
    fn given(&mut self, field: u32, number: u64) {
        self.given_as(field, 0, number);
    }

    /// A key and a number, or the length of what follows.
    #[inline]
    fn given_as(&mut self, field: u32, kind: u32, number: u64) {
        let key = field << 3 | kind;
        if key < 0x80 && number < 0x80 {
            self.0.extend_from_slice(&[key as u8, number as u8]);
        } else {
            self.varint(u64::from(key));
            self.varint(number);
        }
    }

    fn optional(&mut self, field: u32, number: Option<u64>) -> &mut Self {
        if let Some(number) = number {
            self.given(field, number);
        }
        self
    }

    /// A message within the message.
    #[inline]
    pub(crate) fn message(
        &mut self,
        field: u32,
        size: Size,
        write: impl FnOnce(&mut Message<'_>),
    ) -> &mut Self {
        self.key(field, 2);
        let place = self.0.len();
        self.0.extend_from_slice(match size {
            Size::Small => &[0],
            Size::Medium => &[0, 0],
        });
        let guessed = self.0.len() - place;
        write(&mut Message(self.0));
        let length = self.0.len() - place - guessed;
        self.close(place, guessed, length);
        self
    }

    /// Puts the length where it was left open.
    #[inline]
    fn close(&mut self, place: usize, guessed: usize, length: usize) {
        match (guessed, length, self.0.get_mut(place..)) {
            (1, 0..0x80, Some([open, ..])) => *open = length as u8,
            (2, 0x80..0x4000, Some([low, high, ..])) => {
                (*low, *high) = (length as u8 | 0x80, (length >> 7) as u8);
            }
            _ => self.close_any(place, guessed, length),
        }
    }

    /// The same for a length that was not guessed, or is larger.
    fn close_any(&mut self, place: usize, guessed: usize, length: usize) {
        let mut bytes = [0_u8; 10];
        let (mut rest, mut width) = (length, 0);
        for slot in &mut bytes {
            *slot = (rest & 0x7f) as u8;
            rest >>= 7;
            width += 1;
            if rest == 0 {
                break;
            }
            *slot |= 0x80;
        }
        let written = bytes.get(..width).unwrap_or_default();
        if width == guessed {
            if let Some(open) = self.0.get_mut(place..place + guessed) {
                open.copy_from_slice(written);
            }
        } else {
            self.0.splice(place..place + guessed, written.iter().copied());
        }
    }

    /// An instant as `google.protobuf.Timestamp`.
    pub(crate) fn instant(&mut self, field: u32, at: Nanos) -> &mut Self {
        self.message(field, Size::Small, |message| {
            message.number(1, at / SECOND).number(2, at % SECOND);
        })
    }
}

/// Writes the fields of an `AllowResponse`.
pub(crate) fn write_decision(message: &mut Message<'_>, decision: &Decision<'_>) {
    let allowed = decision.is_allowed();
    let deciding = decision.deciding();
    message.number(1, u64::from(allowed));
    if let Some(scope) = deciding {
        let status = &scope.outcome.status;
        message.optional(2, Some(status.remaining)).instant(3, status.reset_at);
        if !allowed {
            message.text(4, &scope.rule.scope);
        }
    }
    for scope in decision.scopes() {
        message.message(5, Size::Small, |message| write_scope(message, scope));
    }
    message.text(6, decision.reason_code());
    message.text(7, deciding.map_or("", |scope| &scope.rule.id));
    message.optional(8, decision.effective_limit());
    message.optional(9, decision.retry_after().map(millis_up));
    message.number(10, millis_up(decision.wait));
    for warning in decision.warnings() {
        message.item(11, &warning_text(&warning));
    }
    if let Some(reason) = decision.degraded_reason() {
        message.number(12, 1).text(13, &reason);
    }
    for scope in decision.would_deny() {
        message.message(14, Size::Small, |message| {
            let rule = scope.rule;
            message.text(1, &rule.scope).text(2, &rule.id).text(3, &rule.reason);
        });
    }
    match decision.verdict {
        Verdict::Denied => message.text(15, "reject"),
        Verdict::Queued => message.text(15, "queue"),
        Verdict::Allowed | Verdict::Throttled => message,
    };
    if !allowed {
        message.text(16, &decision.explain());
    }
    if let Some(id) = decision.reservation_id() {
        message.text(17, &format!("{id:032x}"));
    }
    message.number(18, decision.rules_version);
}

fn write_scope(message: &mut Message<'_>, scope: &Scope<'_>) {
    let status = &scope.outcome.status;
    message.text(1, &scope.rule.scope).text(2, &scope.rule.id).number(3, scope.quota);
    message.number(4, status.used).number(5, status.remaining).instant(6, status.reset_at);
    message.number(7, scope.limit.window_seconds);
    if scope.capacity != scope.quota {
        message.optional(8, Some(scope.capacity));
    }
    if let Some(currency) = scope.rule.currency {
        message.message(9, Size::Small, |message| {
            message.text(1, currency.code()).text(2, &format_nanos(scope.quota));
            message.text(3, &format_nanos(status.used)).text(4, &format_nanos(status.remaining));
        });
    }
}

/// Writes a `Decided` as this field: the decision, or why there is none.
pub(crate) fn write_decided(
    message: &mut Message<'_>,
    field: u32,
    decided: Result<&Decision<'_>, ApiError>,
) {
    message.message(field, Size::Medium, |message| match decided {
        Ok(decision) => {
            message.message(1, Size::Medium, |message| write_decision(message, decision));
        }
        Err(error) => {
            let detail = error.body().1.error;
            message.message(2, Size::Small, |message| {
                let field = detail.field.as_deref().map(snake_case).unwrap_or_default();
                message.text(1, detail.code).text(2, &detail.message).text(3, &field);
            });
        }
    });
}

/// A field by its name in protobuf: HTTP calls them `userId`, gRPC `user_id`.
pub(crate) fn snake_case(field: &str) -> String {
    let mut name = String::with_capacity(field.len() + 4);
    for letter in field.chars() {
        if letter.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}
