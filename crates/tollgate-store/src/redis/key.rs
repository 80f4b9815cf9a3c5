//! How counters are spelt as keys: `tg:{<partition>}:<rule>:<tag>:<part>:<part>…`.
//!
//! Every part is percent-encoded, so that no value can forge a separator, a hash tag or another's key.
//! A part that is a secret appears as a keyed hash only.

use smallvec::SmallVec;

use crate::Counter;
use crate::secret::{Hider, push_hex};

/// How many slots a cluster has.
pub(super) const SLOTS: u16 = 16_384;

/// Keys one after another in one buffer.
#[derive(Debug, Clone, Default)]
pub(super) struct Keys {
    bytes: Vec<u8>,
    ends: SmallVec<[u32; 8]>,
}

impl Keys {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)? as usize;
        let start = match index.checked_sub(1) {
            Some(before) => *self.ends.get(before)? as usize,
            None => 0,
        };
        self.bytes.get(start..end)
    }

    /// The first key from `start` on that equals the one at `index`.
    pub(super) fn first_like(&self, start: usize, index: usize) -> usize {
        let key = self.get(index);
        (start..index).find(|earlier| self.get(*earlier) == key).unwrap_or(index)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    pub(super) fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.end();
    }

    pub(super) fn append(&mut self, other: &Self) {
        let before = self.bytes.len() as u32;
        self.bytes.extend_from_slice(&other.bytes);
        self.ends.extend(other.ends.iter().map(|end| end + before));
    }

    /// The same keys, and after them the marks of the counters from `first` on, in the same order.
    pub(super) fn with_reset_marks(&self, first: usize) -> Self {
        let mut all = self.clone();
        for key in self.iter().skip(first) {
            all.push(&reset_mark(key));
        }
        all
    }

    fn end(&mut self) {
        self.ends.push(self.bytes.len() as u32);
    }
}

/// Spells keys.
pub(super) struct KeyEncoder {
    prefix: String,
    hider: Hider,
}

impl KeyEncoder {
    pub(super) fn new(prefix: &str, secret: &[u8]) -> Self {
        Self { prefix: prefix.to_owned(), hider: Hider::new(secret) }
    }

    /// Adds a counter's key.
    pub(super) fn push_counter(&self, counter: &Counter<'_>, keys: &mut Keys) {
        let bytes = &mut keys.bytes;
        let secrets = counter.home.secret_parts & !counter.home.concealed_parts;
        let part = |bytes: &mut Vec<u8>, index: usize, value: &str| {
            if index < 32 && secrets >> index & 1 == 1 {
                self.hider.push(bytes, value);
            } else {
                push_encoded(bytes, value);
            }
        };
        self.open(bytes);
        let start = bytes.len();
        let partition = counter.home.partition.map(usize::from);
        match partition.and_then(|index| Some((index, *counter.key.get(index)?))) {
            Some((index, value)) => part(bytes, index, value),
            None => push_encoded(bytes, counter.rule_id),
        }
        if bytes.len() == start {
            // An empty hash tag would be none. No value is spelt so.
            bytes.push(b'%');
        }
        bytes.extend_from_slice(b"}:");
        push_encoded(bytes, counter.rule_id);
        bytes.push(b':');
        push_encoded(bytes, counter.tag);
        for (index, value) in counter.key.iter().enumerate() {
            bytes.push(b':');
            part(bytes, index, value);
        }
        keys.end();
    }

    /// What stands for a secret in keys.
    pub(super) fn conceal(&self, secret: &str) -> String {
        let mut bytes = Vec::new();
        self.hider.push(&mut bytes, secret);
        bytes.into_iter().map(char::from).collect()
    }

    fn open(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.prefix.as_bytes());
        bytes.extend_from_slice(b":{");
    }

    /// A key of ours that is no counter's: `tg:{<partition>}:<name>`.
    pub(super) fn own(&self, partition: &str, name: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.open(&mut bytes);
        push_encoded(&mut bytes, partition);
        bytes.extend_from_slice(b"}:");
        bytes.extend_from_slice(name.as_bytes());
        bytes
    }
}

/// A key beside `key`, in its slot, that no counter has.
pub(super) fn beside(key: &[u8], name: &str) -> Vec<u8> {
    let mut bytes = key.to_vec();
    bytes.push(b'!');
    bytes.extend_from_slice(name.as_bytes());
    bytes
}

/// Where the reset of a counter is noted.
pub(super) fn reset_mark(key: &[u8]) -> Vec<u8> {
    beside(key, "reset")
}

/// Where the answer to a call is remembered, in the slot of one of its keys.
pub(super) fn once(key: &[u8], id: [u8; 8]) -> Vec<u8> {
    let end = key.iter().position(|byte| *byte == b'}').map_or(0, |place| place + 1);
    let mut bytes = key.get(..end).unwrap_or_default().to_vec();
    bytes.extend_from_slice(b":once:");
    for byte in id {
        push_hex(&mut bytes, byte);
    }
    bytes
}

/// Where a settlement is remembered, in the slot of one of its counters.
pub(super) fn settled(key: &[u8], id: u128, number: usize) -> Vec<u8> {
    let end = key.iter().position(|byte| *byte == b'}').map_or(0, |place| place + 1);
    let mut bytes = key.get(..end).unwrap_or_default().to_vec();
    bytes.extend_from_slice(format!(":settled:{id:032x}").as_bytes());
    if number > 0 {
        bytes.extend_from_slice(format!(":{number}").as_bytes());
    }
    bytes
}

fn push_encoded(bytes: &mut Vec<u8>, value: &str) {
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'~') {
            bytes.push(byte);
        } else {
            bytes.push(b'%');
            for digit in [byte >> 4, byte & 0x0F] {
                bytes.push(if digit < 10 { b'0' + digit } else { b'A' + digit - 10 });
            }
        }
    }
}

/// The slot of one of our keys: what is between the first braces decides.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    let tag = key
        .iter()
        .position(|byte| *byte == b'{')
        .and_then(|open| key.get(open + 1..))
        .and_then(|rest| rest.get(..rest.iter().position(|byte| *byte == b'}')?))
        .filter(|tag| !tag.is_empty())
        .unwrap_or(key);
    let crc = tag.iter().fold(0u16, |crc, byte| {
        let mut crc = crc ^ u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
        }
        crc
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Home;

    fn spelt(rule_id: &str, tag: &str, key: &[&str], home: Home) -> String {
        let mut keys = Keys::default();
        let counter = Counter { rule_id, tag, salt: 0, key, home };
        KeyEncoder::new("tg", b"secret").push_counter(&counter, &mut keys);
        String::from_utf8(keys.get(0).unwrap().to_vec()).unwrap()
    }

    #[test]
    fn every_part_is_encoded() {
        let home = Home { partition: Some(1), ..Home::default() };
        let key = spelt("a:b", "gcra+1s", &["u{}%", "t\0\n"], home);
        assert_eq!(key, "tg:{t%00%0A}:a%3Ab:gcra%2B1s:u%7B%7D%25:t%00%0A");
        assert_eq!(spelt("r", "t", &[], home), "tg:{r}:r:t");
        assert_eq!(spelt("r", "t", &["x", ""], home), "tg:{%}:r:t:x:");
    }

    #[test]
    fn secrets_are_hashed_and_nothing_else_is() {
        let home = Home { partition: Some(0), secret_parts: 1, ..Home::default() };
        let key = spelt("r", "t", &["sk-live", "plain"], home);
        assert!(!key.contains("sk-live") && key.ends_with(":plain"), "{key}");
        assert!(key.contains(&crate::api_key_id(b"secret", "sk-live")), "{key}");
        assert_eq!(key.len(), "tg:{}:r:t::plain".len() + 2 * 24);
        assert_ne!(key, spelt("r", "t", &["sk-live2", "plain"], home));
    }

    #[test]
    fn a_secret_that_is_concealed_already_is_spelt_the_same() {
        let home = Home { partition: Some(0), secret_parts: 1, ..Home::default() };
        let hidden = KeyEncoder::new("tg", b"secret").conceal("sk-live");
        let concealed = Home { concealed_parts: 1, ..home };
        assert_eq!(spelt("r", "t", &["sk-live"], home), spelt("r", "t", &[&hidden], concealed));
    }

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(slot_of(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b"tg:{user1000}:x"), slot_of(b"{user1000}.following"));
        assert_eq!(slot_of(b"foo{}{bar}"), slot_of(b"foo{}{bar}"));
        let once = once(b"tg:{a}:r:t:k", [1, 2, 3, 4, 5, 6, 7, 255]);
        assert_eq!(once, b"tg:{a}:once:01020304050607ff");
        assert_eq!(slot_of(&once), slot_of(b"tg:{a}:r:t:k"));
    }
}
