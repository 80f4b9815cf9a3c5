//! The fields of a protobuf message, read where they lie: nothing is copied.

use std::borrow::Cow;

/// Why bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Of a kind that no message here has.
    Other,
}

impl<'a> Value<'a> {
    pub(crate) fn number(self) -> Result<u64, Malformed> {
        match self {
            Self::Number(number) => Ok(number),
            _ => Err(Malformed("a field that must be a number is none")),
        }
    }

    pub(crate) fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed("a field that must be text or a message is neither")),
        }
    }

    /// Text that is there: an empty one counts as absent, as everywhere in protobuf.
    pub(crate) fn text(self) -> Result<Option<Cow<'a, str>>, Malformed> {
        let text = std::str::from_utf8(self.bytes()?)
            .map_err(|_| Malformed("a text field is not valid UTF-8"))?;
        Ok((!text.is_empty()).then_some(Cow::Borrowed(text)))
    }
}

/// The texts of a message. They are short and many, and to check each for itself costs more than to check
/// the message as a whole: as long as its numbers are small, as most are, it is text all over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Texts<'a>(Option<&'a str>);

impl<'a> Texts<'a> {
    pub(crate) fn of(message: &'a [u8]) -> Self {
        Self(std::str::from_utf8(message).ok())
    }

    /// The text of a value that ends so many bytes before the message does.
    #[inline]
    pub(crate) fn text(
        self,
        value: Value<'a>,
        left: usize,
    ) -> Result<Option<Cow<'a, str>>, Malformed> {
        let place = |whole: &'a str| {
            let Value::Bytes(bytes) = value else { return None };
            let end = whole.len().checked_sub(left)?;
            whole.get(end.checked_sub(bytes.len())?..end)
        };
        match self.0.and_then(place) {
            Some(text) => Ok((!text.is_empty()).then_some(Cow::Borrowed(text))),
            None => value.text(),
        }
    }
}

/// The fields of a message in the order they came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

/// The longest number: seven bits to a byte.
const MAX_VARINT_BYTES: u32 = 10;

const CUT_OFF: Malformed = Malformed("the message is cut off");

impl<'a> Fields<'a> {
    /// The next field and its value.
    #[expect(clippy::inline_always, reason = "what it returns is taken apart where it is called")]
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Result<Option<(u32, Value<'a>)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        // A whole key has 32 bits: others read no more of it.
        let number = u32::try_from(key).unwrap_or(0) >> 3;
        if number == 0 {
            return Err(Malformed("a field has no valid number"));
        }
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.skip(8)?,
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| CUT_OFF)?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.skip(4)?,
            _ => return Err(Malformed("a field is of a kind that is not used any more")),
        };
        Ok(Some((number, value)))
    }

    #[inline]
    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(CUT_OFF)?;
        self.0 = rest;
        Ok(taken)
    }

    fn skip(&mut self, length: usize) -> Result<Value<'a>, Malformed> {
        self.take(length).map(|_| Value::Other)
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, Malformed> {
        match self.0 {
            // Keys, lengths and most numbers have one byte.
            [byte @ 0..0x80, rest @ ..] => {
                self.0 = rest;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0_u64;
        for place in 0..MAX_VARINT_BYTES {
            let (byte, rest) = self.0.split_first().ok_or(CUT_OFF)?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << (place * 7);
            if byte & 0x80 == 0 {
                if place + 1 == MAX_VARINT_BYTES && *byte > 1 {
                    break;
                }
                return Ok(number);
            }
        }
        Err(Malformed("a number does not fit into 64 bits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_order_and_unknown_kinds_are_stepped_over() {
        let bytes =
            [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d, 1, 2, 3, 4, 0x21, 1, 2, 3, 4, 5, 6, 7, 8];
        let mut fields = Fields(&bytes);
        assert_eq!(fields.next(), Ok(Some((1, Value::Number(150)))));
        assert_eq!(fields.next(), Ok(Some((2, Value::Bytes(b"hi")))));
        assert_eq!(fields.next(), Ok(Some((3, Value::Other))));
        assert_eq!(fields.next(), Ok(Some((4, Value::Other))));
        assert_eq!(fields.next(), Ok(None));
    }

    #[test]
    fn what_is_cut_off_or_overflows_is_said() {
        let largest = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(Fields(&largest).next(), Ok(Some((1, Value::Number(u64::MAX)))));
        let mut larger = largest;
        larger[10] = 2;
        for bytes in [&larger[..], &[0x08], &[0x12, 5, b'a'], &[0x00, 0], &[0x0b], &[0x1d, 1]] {
            assert!(Fields(bytes).next().is_err(), "{bytes:?}");
        }
    }
}
