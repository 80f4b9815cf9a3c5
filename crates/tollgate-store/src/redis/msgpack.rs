//! The little of msgpack that calls and answers are made of: flat arrays of whole numbers and strings.

/// A msgpack array under construction: its elements, without its head.
#[derive(Debug, Clone, Default)]
pub(super) struct Elements {
    bytes: Vec<u8>,
    count: usize,
}

impl Elements {
    pub(super) fn number(&mut self, value: u64) {
        self.count += 1;
        match value {
            0..=0x7F => self.bytes.push(value as u8),
            0x80..=0xFFFF_FFFF => {
                self.bytes.push(0xCE);
                self.bytes.extend_from_slice(&(value as u32).to_be_bytes());
            }
            _ => {
                self.bytes.push(0xCF);
                self.bytes.extend_from_slice(&value.to_be_bytes());
            }
        }
    }

    /// Less than every number.
    pub(super) fn never(&mut self) {
        self.count += 1;
        self.bytes.push(0xFF);
    }

    pub(super) fn text(&mut self, value: &[u8]) {
        self.count += 1;
        self.bytes.push(0xDB);
        self.bytes.extend_from_slice(&(value.len() as u32).to_be_bytes());
        self.bytes.extend_from_slice(value);
    }

    pub(super) fn append(&mut self, other: &Self) {
        self.bytes.extend_from_slice(&other.bytes);
        self.count += other.count;
    }

    /// The array of `self` and then `rest`.
    pub(super) fn array(&self, rest: &Self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(5 + self.bytes.len() + rest.bytes.len());
        bytes.push(0xDD);
        bytes.extend_from_slice(&((self.count + rest.count) as u32).to_be_bytes());
        bytes.extend_from_slice(&self.bytes);
        bytes.extend_from_slice(&rest.bytes);
        bytes
    }
}

/// One element of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Element {
    Number(u64),
    Text(Vec<u8>),
}

impl Element {
    pub(super) const fn number(&self) -> Option<u64> {
        match self {
            Self::Number(value) => Some(*value),
            Self::Text(_) => None,
        }
    }
}

/// The elements of an array; `None` where it is not one, or holds anything but whole numbers from 0 on
/// and strings.
pub(super) fn read(bytes: &[u8]) -> Option<Vec<Element>> {
    let mut reader = Reader { rest: bytes };
    let count = match reader.byte()? {
        head @ 0x90..=0x9F => usize::from(head & 0x0F),
        0xDC => reader.unsigned(2)? as usize,
        0xDD => reader.unsigned(4)? as usize,
        _ => return None,
    };
    // An answer cannot hold more elements than bytes.
    let mut elements = Vec::with_capacity(count.min(bytes.len()));
    for _ in 0..count {
        elements.push(reader.element()?);
    }
    reader.rest.is_empty().then_some(elements)
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    fn unsigned(&mut self, length: usize) -> Option<u64> {
        Some(self.take(length)?.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }

    fn element(&mut self) -> Option<Element> {
        let head = self.byte()?;
        let number = match head {
            0..=0x7F => u64::from(head),
            0xCC => self.unsigned(1)?,
            0xCD => self.unsigned(2)?,
            0xCE => self.unsigned(4)?,
            0xCF => self.unsigned(8)?,
            // Signed ones, which must not be negative.
            0xD0 => self.unsigned(1).filter(|value| *value < 1 << 7)?,
            0xD1 => self.unsigned(2).filter(|value| *value < 1 << 15)?,
            0xD2 => self.unsigned(4).filter(|value| *value < 1 << 31)?,
            0xD3 => self.unsigned(8).filter(|value| *value < 1 << 63)?,
            0xA0..=0xBF => return self.text(usize::from(head & 0x1F)),
            0xD9 | 0xC4 => return self.unsigned(1).and_then(|length| self.text(length as usize)),
            0xDA | 0xC5 => return self.unsigned(2).and_then(|length| self.text(length as usize)),
            0xDB | 0xC6 => return self.unsigned(4).and_then(|length| self.text(length as usize)),
            _ => return None,
        };
        Some(Element::Number(number))
    }

    fn text(&mut self, length: usize) -> Option<Element> {
        Some(Element::Text(self.take(length)?.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let (mut head, mut rest) = (Elements::default(), Elements::default());
        let numbers = [0, 1, 127, 128, 255, 256, 65_535, 65_536, u64::from(u32::MAX), 1 << 52];
        for number in numbers {
            head.number(number);
        }
        rest.text(b"");
        rest.text(&[b'x'; 300]);
        let mut expected: Vec<Element> = numbers.map(Element::Number).to_vec();
        expected.extend([Element::Text(Vec::new()), Element::Text(vec![b'x'; 300])]);
        assert_eq!(read(&head.array(&rest)), Some(expected));
    }

    #[test]
    fn what_is_cut_or_strange_is_refused() {
        let mut elements = Elements::default();
        elements.number(1 << 40);
        elements.text(b"abc");
        let whole = Elements::default().array(&elements);
        for length in 0..whole.len() {
            assert_eq!(read(whole.get(..length).unwrap()), None);
        }
        for strange in
            [&[0x91, 0xC0][..], &[0x91, 0xFF], &[0x80], &[0x90, 0x00], &[0x91, 0xD0, 0x80]]
        {
            assert_eq!(read(strange), None, "{strange:?}");
        }
    }
}
