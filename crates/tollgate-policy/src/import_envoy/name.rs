//! The keys of a descriptor as one text that rules can be compared with.

/// The keys, joined by slashes; what could be taken for a slash, or for a wildcard at the end, is
/// percent-encoded, so that no two sequences of keys look the same.
pub fn descriptor_name<'k>(keys: impl IntoIterator<Item = &'k str>) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut name = String::with_capacity(64);
    for (index, key) in keys.into_iter().enumerate() {
        if index > 0 {
            name.push('/');
        }
        for byte in key.bytes() {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b':') {
                name.push(char::from(byte));
                continue;
            }
            name.push('%');
            for digit in [byte >> 4, byte & 15] {
                name.push(char::from(DIGITS.get(usize::from(digit)).copied().unwrap_or(b'0')));
            }
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_of_keys_do_not_collide() {
        assert_eq!(descriptor_name(["path", "user_id"]), "path/user_id");
        assert_eq!(descriptor_name(["a/b"]), "a%2Fb");
        assert_eq!(descriptor_name(["a", "b"]), "a/b");
        assert_eq!(descriptor_name(["a*", "é%"]), "a%2A/%C3%A9%25");
        assert_eq!(descriptor_name([":path"]), ":path");
        assert_eq!(descriptor_name([]), "");
    }
}
