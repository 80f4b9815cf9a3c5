//! Nothing overflows or panics at the ends of `u64`, and nothing is minted there.
//!
//! Test builds check overflow, so playing a history is itself the check.

#![allow(clippy::unwrap_used)]

mod support;

use proptest::prelude::*;
use proptest::sample::select;
use support::{any_length, config};
use tollgate_core::{
    Algorithm, Ask, Bucket, Calendar, CalendarUnit, Examination, LATEST, LONGEST, Limit,
    LimitError, LimitSpec, LogEntry, Receipt, SlidingLog, Slot, SlotId, Slots, Small, Span, State,
    Window,
};

const EDGES: &[u64] = &[
    0,
    1,
    2,
    LONGEST - 1,
    LONGEST,
    LONGEST + 1,
    2 * LONGEST,
    LATEST - 1,
    LATEST,
    LATEST + 1,
    u64::MAX - 1,
    u64::MAX,
];

fn extreme() -> impl Strategy<Value = u64> {
    prop_oneof![select(EDGES), any_length(64), any::<u64>()]
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn any_limit_of(algorithms: &'static [Algorithm]) -> impl Strategy<Value = Limit> {
    let burst = proptest::option::of(extreme());
    (select(algorithms), extreme(), extreme(), burst, extreme(), 0..8usize).prop_filter_map(
        "a limit",
        |(algorithm, quota, window, burst, slot_ttl, unit)| {
            let window = match CalendarUnit::ALL.get(unit) {
                Some(unit) if algorithm == Algorithm::FixedWindow => {
                    Window::Calendar(Calendar::new(*unit, "Europe/Berlin", None).unwrap())
                }
                // Shortened, so that most are not refused for their length.
                _ => Window::Every(window / 8),
            };
            let burst = burst.filter(|_| algorithm.is_bucket());
            let slot_ttl = slot_ttl / 8;
            Limit::new(LimitSpec { algorithm, quota, window, burst, slot_ttl }).ok()
        },
    )
}

fn any_limit() -> impl Strategy<Value = Limit> {
    any_limit_of(&Algorithm::ALL)
}

const BUCKETS: &[Algorithm] = &[Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra];

#[derive(Debug, Clone, Copy)]
struct Move {
    kind: u8,
    cost: u64,
    at: u64,
    delay: Option<u64>,
    slot: u64,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = (0..6u8, extreme(), extreme(), proptest::option::of(extreme()), any::<u64>());
    let one = one.prop_map(|(kind, cost, at, delay, slot)| Move { kind, cost, at, delay, slot });
    prop::collection::vec(one, 1..16)
}

fn play(limit: &Limit, state: &mut State, moves: &[Move]) -> Result<(), TestCaseError> {
    let mut receipts = Vec::new();
    for Move { kind, cost, at, delay, slot } in moves.iter().copied() {
        let ask =
            Ask { cost, max_delay: delay, slot: SlotId(u128::from(slot % 5)), ..Ask::cost(0) };
        let ask = if slot % 2 == 0 { ask.refundable() } else { ask };
        let before = state.clone();
        let examination = limit.examine(state, &ask, at);
        prop_assert_eq!(&before, &*state);
        match kind {
            0..=1 => receipts.push(limit.decide(state, &ask, at).receipt),
            2..=3 => receipts.push(limit.charge(state, &ask, at)),
            _ if receipts.is_empty() => {}
            _ => {
                let receipt: Receipt = receipts.swap_remove(slot as usize % receipts.len());
                limit.give_back(state, &receipt, at);
            }
        }
        let is_above = limit.algorithm() != Algorithm::Concurrency && cost > limit.capacity();
        prop_assert!(!(is_above && examination.admits()));
        let status = limit.status(state, at);
        prop_assert!(status.remaining <= limit.capacity());
        prop_assert!(status.reset_at >= at.min(LATEST));
        let (start, end) = limit.window_bounds(at);
        prop_assert!(start < end || limit.window_nanos() == 0);
        limit.fresh_at(state);
    }
    Ok(())
}

/// A state such as a store might hold, of any kind, with any numbers.
fn any_state() -> impl Strategy<Value = State> {
    let history = (any_limit(), moves());
    let played = history.prop_map(|(limit, moves)| {
        let mut state = limit.fresh();
        play(&limit, &mut state, &moves).unwrap();
        state
    });
    let entries = prop::collection::vec((extreme(), extreme()), 0..6).prop_map(|mut entries| {
        entries.sort_unstable();
        let entries = entries.into_iter().map(|(at, cost)| LogEntry { at, cost });
        State::Log(SlidingLog::from_entries(entries))
    });
    let slots = prop::collection::vec((extreme(), 0..5u128), 0..6).prop_map(|slots| {
        let slot = |(expires_at, id)| Slot { id: SlotId(id), expires_at };
        State::Slots(Slots::from_slots(slots.into_iter().map(slot)))
    });
    prop_oneof![4 => played, 1 => entries, 1 => slots]
}

proptest! {
    #![proptest_config(config())]

    /// A bucket's figures over the whole range of its arrival time, in wide integers.
    #[test]
    fn bucket_figures_are_exact_everywhere(
        limit in any_limit_of(BUCKETS),
        tat in extreme(),
        part in any::<u64>(),
        at in extreme(),
        raw_cost in extreme(),
    ) {
        if limit.quota() == 0 {
            return Ok(());
        }
        let common = gcd(limit.quota(), limit.window_nanos());
        let (quota, window) = (limit.quota() / common, limit.window_nanos() / common);
        let part = part % quota;
        let bucket = Bucket { tat: Span { nanos: tat, part } };
        let state = State::Small(Small::Bucket(bucket));
        let now = at.min(LATEST);
        let (quota, window) = (u128::from(quota), u128::from(window));
        let line = u128::from(tat) * quota + u128::from(part);
        let ahead = line.saturating_sub(u128::from(now) * quota);
        let used = u64::try_from(ahead.div_ceil(window)).unwrap_or(u64::MAX);
        let status = limit.status(&state, at);
        prop_assert_eq!(status.used, used);
        prop_assert_eq!(status.remaining, limit.capacity().saturating_sub(used));
        let reset_at = u128::from(now) + ahead.div_ceil(quota);
        prop_assert_eq!(status.reset_at, u64::try_from(reset_at).unwrap_or(u64::MAX));
        if tat > u64::MAX - 2 * LONGEST {
            return Ok(());
        }
        let cost = raw_cost % limit.capacity().saturating_add(1).max(1);
        let spare = u128::from(limit.capacity() - cost) * window;
        let over = ahead.saturating_sub(spare).div_ceil(quota) as u64;
        let wait = if limit.algorithm() == Algorithm::LeakyBucket { ahead.div_ceil(quota) } else { 0 };
        let expected = match over {
            0 => Examination::Admit { wait: wait as u64 },
            over => Examination::Refuse { retry_at: Some(now + over) },
        };
        prop_assert_eq!(limit.examine(&state, &Ask::cost(cost), at), expected);
        prop_assert_eq!(limit.decide(&mut state.clone(), &Ask::cost(cost), at).examination, expected);
    }

    /// Whatever the numbers, a refusal holds until exactly the promised instant.
    #[test]
    fn refusals_hold_everywhere(limit in any_limit(), moves in moves(), cost in extreme()) {
        let mut state = limit.fresh();
        play(&limit, &mut state, &moves)?;
        // Beyond this a debt of centuries saturates, and is only known to be long.
        if limit.algorithm().is_bucket() && limit.fresh_at(&state) > u64::MAX - 2 * LONGEST {
            return Ok(());
        }
        for Move { at, delay, .. } in moves {
            let at = at.min(LATEST);
            let cost = cost % limit.capacity().saturating_add(1).max(1);
            let ask = Ask { cost, max_delay: delay, slot: SlotId(99), ..Ask::cost(0) };
            let Examination::Refuse { retry_at } = limit.examine(&state, &ask, at) else { continue };
            let Some(retry_at) = retry_at.filter(|retry_at| *retry_at <= LATEST) else { continue };
            prop_assert!(retry_at > at);
            prop_assert!(!limit.examine(&state, &ask, retry_at - 1).admits());
            prop_assert!(!limit.examine(&state, &ask, at + (retry_at - at) / 2).admits());
            prop_assert!(limit.examine(&state, &ask, retry_at).admits());
        }
    }

    #[test]
    fn any_history_of_any_limit_is_sound(limit in any_limit(), moves in moves()) {
        play(&limit, &mut limit.fresh(), &moves)?;
    }

    /// A state left by another limit is read without panic, and by another algorithm as fresh.
    #[test]
    fn any_state_is_readable(limit in any_limit(), state in any_state(), moves in moves()) {
        let at = moves[0].at;
        let ask = Ask::cost(moves[0].cost);
        let kind = std::mem::discriminant(&limit.fresh());
        let same_kind = match (&state, limit.fresh()) {
            (State::Small(one), State::Small(other)) => {
                std::mem::discriminant(one) == std::mem::discriminant(&other)
            }
            (State::Open(_), _) => limit.algorithm().is_bucket(),
            _ => std::mem::discriminant(&state) == kind,
        };
        if !same_kind {
            prop_assert_eq!(limit.status(&state, at), limit.status(&limit.fresh(), at));
            prop_assert_eq!(
                limit.examine(&state, &ask, at),
                limit.examine(&limit.fresh(), &ask, at)
            );
            let (mut one, mut other) = (state.clone(), limit.fresh());
            prop_assert_eq!(limit.charge(&mut one, &ask, at), limit.charge(&mut other, &ask, at));
            prop_assert_eq!(one, other);
            let (mut one, mut other) = (state.clone(), limit.fresh());
            prop_assert_eq!(limit.decide(&mut one, &ask, at), limit.decide(&mut other, &ask, at));
            if limit.examine(&state, &ask, at).admits() {
                prop_assert_eq!(one, other);
            } else {
                prop_assert_eq!(&one, &state);
            }
            if let (State::Small(mut one), State::Small(mut other)) = (state.clone(), limit.fresh()) {
                let decided = limit.decide_small(&mut one, &ask, at);
                prop_assert_eq!(decided, limit.decide_small(&mut other, &ask, at));
            }
        }
        play(&limit, &mut state.clone(), &moves)?;
    }

    /// Debts beyond `u64` are kept: with everything but one charge given back at once, the counter
    /// still counts that charge.
    #[test]
    fn a_debt_beyond_reason_is_not_forgotten(
        limit in any_limit(),
        costs in prop::collection::vec(extreme(), 1..10),
        kept in any::<prop::sample::Index>(),
        order in any::<u64>(),
        at in extreme(),
    ) {
        let kept = kept.index(costs.len());
        let mut state = limit.fresh();
        let ask = |index: usize| {
            let ask = Ask { slot: SlotId(index as u128), ..Ask::cost(costs[index]) };
            if order % 2 == 0 { ask.refundable() } else { ask }
        };
        let mut receipts: Vec<_> = (0..costs.len())
            .map(|index| (index, limit.charge(&mut state, &ask(index), at)))
            .filter(|(index, _)| *index != kept)
            .collect();
        let turn = order as usize % receipts.len().max(1);
        receipts.rotate_left(turn);
        for (_, receipt) in &receipts {
            limit.give_back(&mut state, receipt, at);
        }
        let mut alone = limit.fresh();
        limit.charge(&mut alone, &ask(kept), at);
        let (with, without) = (limit.status(&state, at), limit.status(&alone, at));
        prop_assert!(with.used >= without.used, "{:?} {:?}", with, without);
        prop_assert!(with.remaining <= without.remaining);
    }

    /// What a limit admits is undone exactly, however large.
    #[test]
    fn what_is_admitted_is_undone(limit in any_limit(), moves in moves()) {
        let mut state = limit.fresh();
        let mut now = 0;
        for (index, Move { cost, at, .. }) in moves.iter().enumerate() {
            now = now.max(at / 2);
            let cost = cost % limit.capacity().saturating_add(1).max(1);
            let ask = Ask { slot: SlotId(index as u128), ..Ask::cost(cost.min(u64::MAX - 1)) };
            let ask = if index % 2 == 0 { ask.refundable() } else { ask };
            let before = limit.status(&state, now);
            let outcome = limit.decide(&mut state, &ask, now);
            if outcome.examination.admits() && outcome.status.used < u64::MAX {
                let mut undone = state.clone();
                limit.give_back(&mut undone, &outcome.receipt, now);
                prop_assert_eq!(limit.status(&undone, now), before);
            }
        }
    }

    #[test]
    fn calendar_bounds_hold_at_every_instant(unit in select(&CalendarUnit::ALL[..]), at in extreme()) {
        let calendar = Calendar::new(unit, "America/New_York", None).unwrap();
        let (start, end) = calendar.bounds(at);
        prop_assert!(start <= at.min(LATEST) && at.min(LATEST) < end);
        prop_assert_eq!(calendar.bounds(at), (start, end));
    }
}

#[test]
fn limits_that_cannot_be_are_refused() {
    use Algorithm::{Concurrency, FixedWindow, Gcra, LeakyBucket, SlidingWindowLog, TokenBucket};
    let calendar = || Window::Calendar(Calendar::new(CalendarUnit::Day, "UTC", None).unwrap());
    let cases = [
        (FixedWindow, 1, Window::Every(0), None, 1, Some(LimitError::ZeroWindow)),
        (FixedWindow, 1, Window::Every(LONGEST), None, 0, None),
        (FixedWindow, 1, Window::Every(LONGEST + 1), None, 0, Some(LimitError::WindowTooLong)),
        (
            FixedWindow,
            1,
            Window::Every(1),
            Some(1),
            0,
            Some(LimitError::BurstNotTaken(FixedWindow)),
        ),
        (FixedWindow, 1, calendar(), None, 0, None),
        (
            SlidingWindowLog,
            1,
            calendar(),
            None,
            0,
            Some(LimitError::CalendarNotTaken(SlidingWindowLog)),
        ),
        (TokenBucket, 1, Window::Every(1), Some(0), 0, Some(LimitError::ZeroBurst)),
        (TokenBucket, 1, Window::Every(1), Some(LONGEST), 0, None),
        (TokenBucket, 1, Window::Every(1), Some(LONGEST + 1), 0, Some(LimitError::BurstTooLong)),
        (LeakyBucket, u64::MAX, Window::Every(LONGEST), None, 0, None),
        (Gcra, 1, Window::Every(LONGEST), None, 0, None),
        (Gcra, 1, Window::Every(LONGEST), Some(2), 0, Some(LimitError::BurstTooLong)),
        (Concurrency, 1, Window::Every(0), None, 0, Some(LimitError::ZeroSlotTtl)),
        (Concurrency, 1, Window::Every(0), None, LONGEST, None),
        (Concurrency, 1, Window::Every(0), None, LONGEST + 1, Some(LimitError::WindowTooLong)),
    ];
    for (algorithm, quota, window, burst, slot_ttl, expected) in cases {
        let spec = LimitSpec { algorithm, quota, window, burst, slot_ttl };
        assert_eq!(Limit::new(spec.clone()).err(), expected, "{spec:?}");
    }
}
