//! Which slot of a cluster a key is in.

/// How many slots a cluster has.
pub const SLOTS: u16 = 16_384;

/// The slot of a key: of the part between the first `{` and the next `}`, if there is one.
pub fn slot_of(key: &str) -> u16 {
    let tag =
        key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or("", |(tag, _)| tag);
    let hashed = if tag.is_empty() { key } else { tag };
    crc16(hashed.as_bytes()) % SLOTS
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::slot_of;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot_of("123456789"), 0x31C3);
        assert_eq!(slot_of("foo"), 12_182);
        assert_eq!(slot_of("a{foo}b"), 12_182);
        assert_eq!(slot_of("{}foo"), slot_of("{}foo"));
        assert_ne!(slot_of("{}foo"), slot_of("foo"));
    }
}
