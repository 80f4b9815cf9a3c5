//! Ids of tickets and claims.

use super::QueueError;

/// How long an id is: 128 bits in hex.
pub const ID_BYTES: usize = 32;

/// A new id that nobody can guess. A ticket's URL is a capability: any client that knows it may read the answer.
pub fn new_id() -> Result<String, QueueError> {
    let mut bytes = [0; ID_BYTES / 2];
    getrandom::fill(&mut bytes)
        .map_err(|error| QueueError::Unavailable(format!("no random bits: {error}")))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// Whether this can be an id. Others need not be looked for.
pub fn is_id(text: &str) -> bool {
    text.len() == ID_BYTES && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_ids_and_differ() {
        let (one, other) = (new_id().unwrap(), new_id().unwrap());
        assert!(is_id(&one) && is_id(&other) && one != other);
        for odd in ["", "x", &one[1..], &one.to_uppercase().replace(char::is_numeric, "A")] {
            assert!(!is_id(odd), "{odd}");
        }
    }
}
