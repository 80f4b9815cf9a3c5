//! Whose turn it is at a pool that serves only so many at once.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tollgate_tower::{Identity, Rejection};

use super::options::Weights;
use crate::fair::{Busy, Gate, LineOptions, Place, Share, Wants};
use crate::options::{PlacesOptions, ShareOptions};

/// The most places that can be counted.
const MAX_PLACES: usize = 1_000_000;

/// The `Retry-After` of a request that found no place.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The gate of a pool.
pub(crate) fn gate(options: &PlacesOptions) -> Result<Arc<Gate>, String> {
    if !(1..=MAX_PLACES).contains(&options.capacity) || options.max_waiting > MAX_PLACES {
        return Err(format!(
            "max_concurrency must be from 1 to {MAX_PLACES}, max_waiting at most that"
        ));
    }
    let all: u64 = options.shares.iter().map(|share| u64::from(share.percent)).sum();
    if all > 100 || options.shares.iter().any(|share| share.percent == 0) {
        return Err("shares must be at least 1 percent each and at most 100 together".to_owned());
    }
    let share = |it: &ShareOptions| Share { percent: it.percent, may_borrow: it.may_borrow };
    Ok(Gate::new(LineOptions {
        capacity: options.capacity,
        max_waiting: options.max_waiting,
        shares: options.shares.iter().map(share).collect(),
        strict_from_percent: options.strict_from_percent,
    }))
}

/// Waits for a place at a pool.
pub(crate) async fn enter(
    gate: &Arc<Gate>,
    options: &PlacesOptions,
    weights: &Weights,
    identity: &Identity,
    patience: Duration,
) -> Result<Place, Busy> {
    let (tenant, weight) = weights.of(identity);
    let client_type = identity.client_type.as_deref();
    let of_kind = |share: &ShareOptions| Some(share.client_type.as_str()) == client_type;
    let share = options.shares.iter().position(of_kind).unwrap_or(usize::MAX);
    let wants = Wants { share, tenant: &tenant, weight, cost: 1 };
    if let Some(place) = gate.try_enter(&wants) {
        return Ok(place);
    }
    if patience.is_zero() {
        return Err(Busy::Full);
    }
    Box::pin(gate.enter(&wants, patience)).await
}

/// A request that found no place.
pub(crate) fn busy(why: Busy, model: &str) -> Rejection {
    let why = match why {
        Busy::Full => "as many requests wait for it as may",
        Busy::TooLong => "no place became free in time",
        Busy::PushedOut => {
            "your other requests wait for it already, and others had none in the line"
        }
    };
    let shown: String = model.chars().take(100).collect();
    let message = format!("The model `{shown}` is busy: {why}; try again in a moment.");
    Rejection::new(StatusCode::TOO_MANY_REQUESTS, "MODEL_BUSY", message).retry_after(RETRY_AFTER)
}
