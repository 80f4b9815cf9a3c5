//! A request made once: for each sending only the key's digits are written into it.
//!
//! Keys of one run are equally wide, so that lengths inside of the message never change.

use crate::fields::Attribute;
use crate::keys::Keys;
use crate::random::Random;

/// An address is four numbers of three digits, so that all are equally wide.
const OCTET_LEAST: u32 = 100;
/// How many of them have three digits.
const OCTETS: u32 = 156;
/// What an address looks like before a key is written into it.
const ADDRESS: &[u8] = b"100.100.100.100";

/// A message under construction.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message {
    bytes: Vec<u8>,
    holes: Vec<Hole>,
    /// How many parts have keys of their own.
    parts: u32,
}

/// A place where a key goes.
#[derive(Debug, Clone, Copy)]
struct Hole {
    offset: usize,
    width: usize,
    is_address: bool,
    /// Holes of one part get the same key.
    part: u32,
}

impl Message {
    pub(crate) fn push(&mut self, bytes: impl AsRef<[u8]>) {
        self.bytes.extend_from_slice(bytes.as_ref());
    }

    /// Digits of the key, as many as the largest of `keys` has.
    pub(crate) fn push_key(&mut self, keys: u32) {
        let width = keys.saturating_sub(1).checked_ilog10().unwrap_or(0) as usize + 1;
        let (offset, part) = (self.bytes.len(), self.parts);
        self.holes.push(Hole { offset, width, is_address: false, part });
        self.bytes.resize(offset + width, b'0');
    }

    /// An address made of the key.
    pub(crate) fn push_address(&mut self) {
        let (offset, part) = (self.bytes.len(), self.parts);
        self.holes.push(Hole { offset, width: ADDRESS.len(), is_address: true, part });
        self.push(ADDRESS);
    }

    /// The value of an attribute.
    pub(crate) fn push_attribute(&mut self, attribute: Attribute, keys: u32) {
        if attribute == Attribute::Ip {
            self.push_address();
        } else {
            self.push(attribute.prefix());
            self.push_key(keys);
        }
    }

    /// Another message, inside of the same part.
    pub(crate) fn append(&mut self, other: &Self) {
        let (shift, part) = (self.bytes.len(), self.parts);
        self.push(&other.bytes);
        let moved =
            other.holes.iter().map(|hole| Hole { offset: hole.offset + shift, part, ..*hole });
        self.holes.extend(moved);
    }

    /// Another message whose parts stay what they are.
    pub(crate) fn append_parts(&mut self, other: &Self) {
        let (shift, first) = (self.bytes.len(), self.parts);
        self.push(&other.bytes);
        let moved = other.holes.iter().map(|hole| Hole {
            offset: hole.offset + shift,
            part: hole.part + first,
            ..*hole
        });
        self.holes.extend(moved);
        self.parts += other.parts;
    }

    /// What follows gets another key.
    pub(crate) const fn end_part(&mut self) {
        self.parts += 1;
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Writes new keys.
    pub(crate) fn fill(&mut self, keys: &Keys, random: &mut Random) {
        let mut drawn: Option<(u32, u32)> = None;
        for hole in &self.holes {
            let key = match drawn {
                Some((part, key)) if part == hole.part => key,
                _ => keys.draw(random),
            };
            drawn = Some((hole.part, key));
            let Some(place) = self.bytes.get_mut(hole.offset..hole.offset + hole.width) else {
                continue;
            };
            if hole.is_address { write_address(place, key) } else { write_digits(place, key) }
        }
    }
}

fn write_digits(place: &mut [u8], mut number: u32) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Addresses of all keys differ: a key is written in base 156, a number for each digit. The largest
/// key there may be needs a first number of 104.
fn write_address(place: &mut [u8], mut key: u32) {
    for octet in place.rchunks_mut(4) {
        let digits = octet.len().saturating_sub(3);
        write_digits(octet.get_mut(digits..).unwrap_or_default(), OCTET_LEAST + key % OCTETS);
        key /= OCTETS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Distribution, MAX_KEYS};

    fn filled(message: &mut Message, keys: u32) -> String {
        message.fill(&Keys::new(keys, Distribution::Uniform), &mut Random::new(1, 1));
        String::from_utf8(message.bytes().to_vec()).expect("text")
    }

    #[test]
    fn parts_have_keys_of_their_own_and_attributes_of_one_part_the_same() {
        let mut part = Message::default();
        part.push_attribute(Attribute::UserId, 1000);
        part.push("/");
        part.push_attribute(Attribute::TenantId, 1000);
        let mut message = Message::default();
        for _ in 0..2 {
            message.append(&part);
            message.end_part();
            message.push(" ");
        }
        let text = filled(&mut message, 1000);
        let keys: Vec<&str> = text.trim_end().split(['/', ' ']).collect();
        let digits = |word: &str| word.rsplit('-').next().expect("digits").to_owned();
        assert_eq!(digits(keys[0]), digits(keys[1]));
        assert_eq!(digits(keys[2]), digits(keys[3]));
        assert_ne!(digits(keys[0]), digits(keys[2]));
        assert_eq!(digits(keys[0]).len(), 3);
    }

    #[test]
    fn addresses_are_addresses_and_differ() {
        let mut seen = std::collections::HashSet::new();
        for key in (0..2000).chain(MAX_KEYS - 2000..MAX_KEYS) {
            let mut place = ADDRESS.to_vec();
            write_address(&mut place, key);
            let text = String::from_utf8(place).expect("text");
            let address: std::net::Ipv4Addr = text.parse().expect("an address");
            assert!(seen.insert(address));
        }
    }

    #[test]
    fn one_key_has_one_digit() {
        let mut message = Message::default();
        message.push_key(1);
        assert_eq!(filled(&mut message, 1), "0");
        let mut message = Message::default();
        message.push_key(11);
        assert_eq!(message.len(), 2);
    }
}
