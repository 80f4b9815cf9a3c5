//! An admission as nodes tell it to each other, so that a repeated request id is answered by any of
//! them as it was by the first.

use tollgate_core::{Examination, Nanos, Outcome, Receipt, SlotId, Status};

use crate::decision::Decision;
use crate::reservations::Reservation;

/// Changes when the bytes do; a node that meets another format does not read it.
const FORMAT: u8 = 1;

/// The same with a reservation after the slot, which older nodes cannot answer for.
const FORMAT_RESERVED: u8 = 2;

/// The bytes of one outcome: whether it waits or refuses, until when, and three figures.
const OUTCOME_BYTES: usize = 1 + 4 * 8;

/// What was decided about every limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) at: Nanos,
    /// Which limits it is about, in order.
    pub(crate) shape: u64,
    pub(crate) slot: Option<SlotId>,
    pub(crate) reservation: Option<Reservation>,
    pub(crate) outcomes: Vec<Outcome>,
}

impl Answer {
    pub(crate) fn of(decision: &Decision<'_>) -> Self {
        let outcomes = decision.scopes.iter().map(|scope| scope.outcome).collect();
        let shape = shape(decision.scopes.iter().map(|scope| scope.limit.salt));
        let Decision { now: at, slot, reservation, .. } = *decision;
        Self { at, shape, slot, reservation, outcomes }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(32 + self.outcomes.len() * OUTCOME_BYTES);
        bytes.push(if self.reservation.is_some() { FORMAT_RESERVED } else { FORMAT });
        bytes.extend_from_slice(&self.at.to_le_bytes());
        bytes.extend_from_slice(&self.shape.to_le_bytes());
        bytes.push(u8::from(self.slot.is_some()));
        bytes.extend_from_slice(&self.slot.unwrap_or_default().0.to_le_bytes());
        if let Some(Reservation { id, expires_at }) = self.reservation {
            bytes.extend_from_slice(&id.to_le_bytes());
            bytes.extend_from_slice(&expires_at.to_le_bytes());
        }
        for outcome in &self.outcomes {
            let (kind, instant) = match outcome.examination {
                Examination::Admit { wait } => (0, wait),
                Examination::Refuse { retry_at: Some(at) } => (1, at),
                Examination::Refuse { retry_at: None } => (2, 0),
            };
            let Status { used, remaining, reset_at } = outcome.status;
            bytes.push(kind);
            for figure in [instant, used, remaining, reset_at] {
                bytes.extend_from_slice(&figure.to_le_bytes());
            }
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&format, bytes) = bytes.split_first()?;
        let (at, bytes) = bytes.split_first_chunk()?;
        let (shape, bytes) = bytes.split_first_chunk()?;
        let (&has_slot, bytes) = bytes.split_first()?;
        let (slot, bytes) = bytes.split_first_chunk()?;
        let (reservation, bytes) = match format {
            FORMAT => (None, bytes),
            FORMAT_RESERVED => {
                let (id, bytes) = bytes.split_first_chunk()?;
                let (expires_at, bytes) = bytes.split_first_chunk()?;
                let id = u128::from_le_bytes(*id);
                (Some(Reservation { id, expires_at: Nanos::from_le_bytes(*expires_at) }), bytes)
            }
            _ => return None,
        };
        if !bytes.len().is_multiple_of(OUTCOME_BYTES) {
            return None;
        }
        let outcomes = bytes.chunks_exact(OUTCOME_BYTES).map(outcome).collect::<Option<_>>()?;
        let slot = (has_slot == 1).then(|| SlotId(u128::from_le_bytes(*slot)));
        let (at, shape) = (Nanos::from_le_bytes(*at), u64::from_le_bytes(*shape));
        Some(Self { at, shape, slot, reservation, outcomes })
    }
}

/// A hash of which limits were decided, and in which order: other rules have another shape.
pub(crate) fn shape(salts: impl Iterator<Item = u128>) -> u64 {
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    for salt in salts {
        hash.update(&salt.to_le_bytes());
    }
    hash.digest()
}

fn outcome(bytes: &[u8]) -> Option<Outcome> {
    let (&kind, rest) = bytes.split_first()?;
    let mut figures = rest.chunks_exact(8).map(|eight| {
        let eight = <[u8; 8]>::try_from(eight).unwrap_or_default();
        u64::from_le_bytes(eight)
    });
    let instant = figures.next()?;
    let examination = match kind {
        0 => Examination::Admit { wait: instant },
        1 => Examination::Refuse { retry_at: Some(instant) },
        2 => Examination::Refuse { retry_at: None },
        _ => return None,
    };
    let status =
        Status { used: figures.next()?, remaining: figures.next()?, reset_at: figures.next()? };
    Some(Outcome { examination, status, receipt: Receipt::Nothing })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let status = Status { used: 3, remaining: 4, reset_at: u64::MAX };
        let outcome = |examination| Outcome { examination, status, receipt: Receipt::Nothing };
        let mut answer = Answer {
            at: 7,
            shape: 9,
            slot: Some(SlotId(u128::MAX - 1)),
            reservation: None,
            outcomes: vec![
                outcome(Examination::Admit { wait: 9 }),
                outcome(Examination::Refuse { retry_at: Some(11) }),
                outcome(Examination::Refuse { retry_at: None }),
            ],
        };
        for reservation in [None, Some(Reservation { id: u128::MAX - 2, expires_at: 12 })] {
            answer.reservation = reservation;
            let bytes = answer.encode();
            assert_eq!(Answer::decode(&bytes), Some(answer.clone()));
            for length in 0..bytes.len() {
                // Whole outcomes fewer is a shorter answer; anything else is none.
                let cut = Answer::decode(bytes.get(..length).unwrap());
                assert!(cut.is_none_or(|cut| cut.outcomes.len() < answer.outcomes.len()));
            }
        }
        assert_eq!(Answer::decode(&[3; 64]), None);
    }
}
