//! What a fuzzer feeds: records of what was charged, as another node wrote them.

use tollgate_store::Store;

use crate::{Engine, Receipts, encode};

/// Reads a record; none if it is refused.
pub fn read(bytes: &[u8], instance: u64) -> Option<Receipts> {
    encode::decode(bytes, instance)
}

impl<S: Store> Engine<S> {
    /// Writes a record.
    pub fn written(&self, receipts: &Receipts, instance: u64) -> Vec<u8> {
        encode::encode(receipts, instance, &self.store)
    }
}
