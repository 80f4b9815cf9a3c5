//! Reading what the scripts answer.

use redis::{FromRedisValue, Value};

use crate::request::StoredResponse;
use crate::store::{BYTE_BOUNDS, Change, QueueError, Ticket, TicketState};

/// What `tell.lua` returns: state, lane, label, enqueued, attempts, due, finished, error, position, response.
pub(super) type TicketFields =
    (String, String, String, u64, u32, String, String, String, String, Vec<u8>);

/// A line of a list: when it came to its shelf, its id, and what is known of it.
pub(super) type Row = (u64, String, TicketFields);

/// A claim: id, lane, attempts, request.
pub(super) type Taken = (String, String, u32, Vec<u8>);

fn odd(error: &impl ToString) -> QueueError {
    QueueError::Unavailable(format!("an odd answer: {}", error.to_string()))
}

/// The first element, and the others.
fn headed<H: FromRedisValue, T: FromRedisValue>(
    answer: Vec<Value>,
) -> Result<(H, Vec<T>), QueueError> {
    let mut values = answer.into_iter();
    let head = values.next().unwrap_or(Value::Nil);
    let head = H::from_redis_value(head).map_err(|error| odd(&error))?;
    let rest = values.map(T::from_redis_value).collect::<Result<_, _>>();
    Ok((head, rest.map_err(|error| odd(&error))?))
}

pub(super) fn claims(answer: Vec<Value>) -> Result<(i64, Vec<Taken>), QueueError> {
    headed(answer)
}

pub(super) fn rows(answer: Vec<Value>) -> Result<(bool, Vec<Row>), QueueError> {
    headed(answer)
}

/// The word for what became of a push, a retry or a drop.
pub(super) fn change(word: &str, count: u64) -> Result<Change, QueueError> {
    match word {
        "accepted" | "made" => Ok(Change::Made),
        "not_there" => Ok(Change::NotThere),
        "not_now" => Ok(Change::NotNow),
        "full" => Err(QueueError::Full(count)),
        "lane_full" => Err(QueueError::LaneFull(count)),
        "bytes_1" => Err(QueueError::FullOfBytes { of: BYTE_BOUNDS[0], bytes: count }),
        "bytes_2" => Err(QueueError::FullOfBytes { of: BYTE_BOUNDS[1], bytes: count }),
        "bytes_3" => Err(QueueError::FullOfBytes { of: BYTE_BOUNDS[2], bytes: count }),
        other => Err(odd(&other)),
    }
}

pub(super) fn ticket(id: String, fields: TicketFields) -> Result<Ticket, QueueError> {
    let (state, lane, label, enqueued_at, attempts, due, finished, error, position, response) =
        fields;
    let state = match state.as_str() {
        "queued" => TicketState::Queued,
        "sending" => TicketState::Sending,
        "done" => TicketState::Done,
        "dead" => TicketState::Failed,
        other => return Err(odd(&other)),
    };
    let is_given = !response.is_empty();
    Ok(Ticket {
        id,
        state,
        lane,
        label,
        position: position.parse().ok(),
        enqueued_at,
        attempts,
        next_attempt_at: due.parse().ok(),
        finished_at: finished.parse().ok(),
        response: is_given.then(|| StoredResponse::decode(&response)).transpose()?,
        error: Some(error).filter(|error| !error.is_empty()),
    })
}
