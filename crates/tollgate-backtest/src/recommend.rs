//! The limit that meets an aim, found by asking one limit again under other quotas.

use std::collections::BTreeMap;

use serde::Serialize;
use tollgate_core::{Algorithm, Ask, Limit, LimitSpec};
use tollgate_policy::{MAX_LOG_QUOTA, MAX_QUOTA};

use crate::guard::Aim;
use crate::trace::{Event, LimitTrace};

/// A recommended limit is at most this part above the lowest that meets the aim.
const PRECISION: u64 = 400;

/// Shares of the recommended limit that the curve shows, in per cent.
const CURVE_PERCENT: [u64; 8] = [10, 25, 50, 75, 90, 110, 150, 200];

/// One limit and what it would refuse.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CurvePoint {
    /// The limit.
    pub limit: u64,
    /// The share of the requests that meet it which it would refuse.
    pub refused_share: f64,
    /// The largest share of one client's requests that it would refuse.
    pub client_refused_share: f64,
}

/// The limit that meets the aim, for one limit of a rule, asked alone: as if no other rule refused anything.
#[derive(Debug, Clone, Serialize)]
pub struct Recommendation {
    /// The rule.
    pub rule_id: String,
    /// Algorithm and window.
    pub limit: String,
    /// What it counts.
    pub unit: &'static str,
    /// The requests that it was computed from.
    pub requests: u64,
    /// The limit as it is in the rules.
    pub current: u64,
    /// What the current limit would refuse.
    pub current_refused_share: f64,
    /// The lowest limit that meets the aim; none if no limit does.
    pub recommended: Option<u64>,
    /// What the recommended limit would refuse.
    pub recommended_refused_share: Option<f64>,
    /// One in so many counters was looked at.
    pub sampling: u64,
    /// What to know about it.
    pub note: Option<String>,
    /// Limits and what they would refuse, ascending.
    pub curve: Vec<CurvePoint>,
}

/// Finds the recommended limit. Sorts the events.
pub(crate) fn recommend(trace: &mut LimitTrace, aim: Aim) -> Recommendation {
    // Events of one counter, one after the other; those of one counter stay in the order of time.
    if trace
        .events
        .iter()
        .any(|event| Some(event.key) != trace.events.first().map(|first| first.key))
    {
        trace.events.sort_by_key(|event| event.key);
    }
    let clients = Clients::of(&trace.events);
    let mut search = Search { trace, aim, clients, known: BTreeMap::new() };
    let current = search.trace.limit.quota();
    let found = search.lowest(current);
    let around = found.unwrap_or(current);
    for percent in CURVE_PERCENT {
        search.refused(
            u64::try_from(u128::from(around) * u128::from(percent) / 100).unwrap_or(u64::MAX),
        );
    }
    let current_refused_share = search.refused(current).map_or(1.0, |point| point.refused_share);
    let recommended_share = found.and_then(|limit| search.refused(limit));
    let note = note(search.trace, found);
    Recommendation {
        rule_id: search.trace.rule_id.clone(),
        limit: search.trace.tag.clone(),
        unit: search.trace.unit,
        requests: search.trace.events.len() as u64,
        current,
        current_refused_share,
        recommended: found,
        recommended_refused_share: recommended_share.map(|point| point.refused_share),
        sampling: search.trace.sampling(),
        note,
        curve: search.known.values().copied().collect(),
    }
}

fn note(trace: &LimitTrace, found: Option<u64>) -> Option<String> {
    if found.is_none() {
        let burst = trace.limit.capacity();
        return Some(if trace.limit.algorithm().is_bucket() && !trace.is_burst_implied {
            format!("no limit meets the aim with a burst of {burst}: raise the burst too")
        } else {
            "no limit that a rule may have meets the aim".to_owned()
        });
    }
    if trace.is_cut {
        return Some(
            "computed from the beginning of the traffic: it has too many requests".to_owned(),
        );
    }
    let sampling = trace.sampling();
    (sampling > 1).then(|| format!("computed from one in {sampling} counters"))
}

/// How many requests each client has.
struct Clients {
    requests: Vec<u32>,
    refused: Vec<u32>,
}

impl Clients {
    fn of(events: &[Event]) -> Self {
        let known = || events.iter().map(|event| event.client).filter(|client| *client != u32::MAX);
        let length = known().max().map_or(0, |highest| highest as usize + 1);
        let mut requests = vec![0_u32; length];
        for client in known() {
            if let Some(count) = requests.get_mut(client as usize) {
                *count = count.saturating_add(1);
            }
        }
        Self { refused: vec![0; length], requests }
    }

    fn highest_share(&self) -> f64 {
        let shares = self.refused.iter().zip(&self.requests).filter(|(refused, _)| **refused > 0);
        shares.map(|(refused, all)| f64::from(*refused) / f64::from(*all)).fold(0.0, f64::max)
    }
}

struct Search<'t> {
    trace: &'t LimitTrace,
    aim: Aim,
    clients: Clients,
    known: BTreeMap<u64, CurvePoint>,
}

impl Search<'_> {
    /// What a limit would refuse; `None` if there can be no such limit.
    fn refused(&mut self, quota: u64) -> Option<CurvePoint> {
        if let Some(known) = self.known.get(&quota) {
            return Some(*known);
        }
        let limit = self.limit(quota)?;
        self.clients.refused.fill(0);
        let mut refused = 0_u64;
        for counter in self.trace.events.chunk_by(|one, next| one.key == next.key) {
            let mut state = limit.fresh();
            for event in counter {
                let mut ask = Ask::cost(u64::from(event.cost));
                ask.max_delay = self.trace.max_delay;
                if limit.examine(&state, &ask, event.at).admits() {
                    limit.charge(&mut state, &ask, event.at);
                    continue;
                }
                refused += 1;
                if let Some(count) = self.clients.refused.get_mut(event.client as usize) {
                    *count += 1;
                }
            }
        }
        let refused_share = refused as f64 / self.trace.events.len().max(1) as f64;
        let client_refused_share = self.clients.highest_share();
        let point = CurvePoint { limit: quota, refused_share, client_refused_share };
        self.known.insert(quota, point);
        Some(point)
    }

    fn limit(&self, quota: u64) -> Option<Limit> {
        let limit = &self.trace.limit;
        let is_log = limit.algorithm() == Algorithm::SlidingWindowLog;
        if quota > if is_log { MAX_LOG_QUOTA } else { MAX_QUOTA } {
            return None;
        }
        let burst = if self.trace.is_burst_implied { quota.max(1) } else { limit.capacity() };
        let spec = LimitSpec {
            algorithm: limit.algorithm(),
            quota,
            window: limit.window().clone(),
            burst: limit.algorithm().is_bucket().then_some(burst),
            slot_ttl: limit.slot_ttl(),
        };
        Limit::new(spec).ok()
    }

    fn meets(&mut self, quota: u64) -> Option<bool> {
        let point = self.refused(quota)?;
        Some(
            point.refused_share <= self.aim.refused_share
                && point.client_refused_share <= self.aim.client_refused_share,
        )
    }

    /// The lowest limit that meets the aim, to within the precision.
    fn lowest(&mut self, current: u64) -> Option<u64> {
        let mut high = current.max(1);
        while !self.meets(high)? {
            high = high.checked_mul(2)?;
        }
        let mut low = high / 2;
        while low > 0 && self.meets(low)? {
            (high, low) = (low, low / 2);
        }
        while high - low > (high / PRECISION).max(1) {
            let middle = low + (high - low) / 2;
            if self.meets(middle)? { high = middle } else { low = middle }
        }
        Some(high)
    }
}
