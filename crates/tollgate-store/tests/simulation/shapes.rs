//! Plans drawn from a seed.

use tollgate_core::{Algorithm, MICRO, Nanos, SECOND};

use crate::draw::Draw;
use crate::plan::{ClientCall, CounterPlan, Fault, FaultKind, Plan, Profile, Shape, What};
use crate::time::{MILLISECOND, START};

/// By then all nodes have heard of each other.
const ACQUAINTED: Nanos = START + 2_500 * MILLISECOND;

/// The first node to find the store again waits so long for the others (docs/failure.md).
const HAND_OVER: Nanos = 10 * SECOND;

/// Windows are longer than a run, so that all of it counts in one.
const WINDOWS: [Nanos; 2] = [3_600 * SECOND, 86_400 * SECOND];

const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::FixedWindow,
    Algorithm::SlidingWindowLog,
    Algorithm::SlidingWindowCounter,
    Algorithm::TokenBucket,
];

impl Plan {
    /// The plan that a seed stands for.
    pub fn draw(seed: u64) -> Self {
        let mut draw = Draw::new(seed, 0);
        let mut plan = match draw.below(100) {
            0..40 => outage(seed, Shape::Outage, &mut draw),
            40..50 => outage(seed, Shape::LateReturn, &mut draw),
            50..85 => partitions(seed, &mut draw),
            _ => far_store(seed, &mut draw),
        };
        refill_fast(&mut plan, &mut Draw::new(seed, 1));
        freeze(&mut plan, &mut Draw::new(seed, 2));
        plan
    }
}

/// Lets the store stand still in a third of the outages, instead of the network: all nodes reach it again at the
/// same instant, and it finds what they sent meanwhile.
fn freeze(plan: &mut Plan, draw: &mut Draw) {
    if plan.shape != Shape::Outage || !draw.chance(330_000) {
        return;
    }
    let ends: Vec<Nanos> = (plan.faults.iter())
        .map(|fault| {
            let together = plan.faults.iter().filter(|other| other.from == fault.from);
            together.map(|other| other.until).min().unwrap_or(fault.until)
        })
        .collect();
    for (fault, until) in plan.faults.iter_mut().zip(ends) {
        (fault.kind, fault.until) = (FaultKind::Frozen, until);
    }
}

/// Lets half of the buckets refill several times during a run, under a load that keeps them full: before
/// each outage, during it, and after it.
fn refill_fast(plan: &mut Plan, draw: &mut Draw) {
    if plan.shape == Shape::FarStore {
        return;
    }
    let nodes = plan.nodes as u64;
    for (place, counter) in plan.counters.iter_mut().enumerate() {
        if !counter.algorithm.is_bucket() || draw.chance(500_000) {
            continue;
        }
        counter.algorithm =
            draw.one_of(&[Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra]);
        (counter.window, counter.overshoot) = (draw.between(4, 20) * SECOND, 0);
        // What is used is known to all nodes when they lose the store.
        let looks = plan.calls.iter().filter(|call| matches!(call.what, What::Look));
        let mut looks: Vec<Nanos> = looks.map(|call| call.at).collect();
        looks.dedup();
        let answered = 2 * plan.profile.timeout + 10 * plan.profile.farthest;
        let mut times: Vec<(Nanos, Nanos, u64)> = looks
            .into_iter()
            .map(|at| (at - answered - SECOND, at - answered, draw.below(150)))
            .collect();
        for fault in &plan.faults {
            let until = fault.until + 3 * SECOND;
            let percent = (until - fault.from) * draw.between(50, 200) / counter.window;
            times.push((fault.from, until, percent / nodes));
        }
        for (from, until, percent) in times {
            for _ in 0..counter.quota * percent / 100 {
                let (at, node) = (draw.between(from, until), draw.below(nodes) as usize);
                let (counters, what) = (1 << place, What::Allow);
                plan.calls.push(ClientCall { at, node, counters, cost: 1, what });
            }
        }
    }
}

fn counters(draw: &mut Draw) -> Vec<CounterPlan> {
    let counter = |draw: &mut Draw| CounterPlan {
        algorithm: draw.one_of(&ALGORITHMS),
        quota: draw.between(10, 200),
        window: draw.one_of(&WINDOWS),
        overshoot: if draw.chance(300_000) { draw.between(10_000, 200_000) as u32 } else { 0 },
    };
    let count = draw.between(1, 2);
    (0..count).map(|_| counter(draw)).collect()
}

/// Round trips of up to 150 ms, with a timeout that fits.
fn profile(draw: &mut Draw) -> Profile {
    let is_near = draw.chance(600_000);
    let (farthest, timeout) = if is_near {
        (draw.between(200, 5_000) * MICRO, 20 * MILLISECOND)
    } else {
        (draw.between(5, 75) * MILLISECOND, 400 * MILLISECOND)
    };
    let duplicates = if draw.chance(500_000) { 50_000 } else { 0 };
    Profile { nearest: farthest / draw.between(1, 4), farthest, losses: 0, duplicates, timeout }
}

/// Calls of all nodes, spread over a time.
fn load(
    draw: &mut Draw,
    (from, until): (Nanos, Nanos),
    nodes: usize,
    counters: usize,
    amount: u64,
) -> Vec<ClientCall> {
    let mut calls = Vec::new();
    let mut left = amount;
    while left > 0 {
        let cost = if draw.chance(800_000) { 1 } else { draw.between(1, 5) }.min(left);
        left -= cost;
        let what = if draw.chance(100_000) {
            let after = draw.between(20, 4_000) * MILLISECOND;
            What::Reserve { true_cost: draw.below(2 * cost + 1), after }
        } else {
            What::Allow
        };
        let all = (1_u32 << counters) - 1;
        let one = 1 << draw.below(counters as u64);
        let charged = if draw.chance(500_000) { all } else { one };
        let (at, node) = (draw.between(from, until), draw.below(nodes as u64) as usize);
        calls.push(ClientCall { at, node, counters: charged, cost, what });
    }
    calls
}

/// The store is lost by all nodes at once and found again by one after another, perhaps several times.
fn outage(seed: u64, shape: Shape, draw: &mut Draw) -> Plan {
    let (nodes, profile, counters) = (draw.between(2, 5) as usize, profile(draw), counters(draw));
    let quota = counters.iter().map(|counter| counter.quota).max().unwrap_or(1);
    // Longer than any call takes, so that nothing is on its way and all leases are back.
    let quiet = 2 * profile.timeout + 10 * profile.farthest + 500 * MILLISECOND;
    let (mut calls, mut faults, mut now) = (Vec::new(), Vec::new(), ACQUAINTED);
    let rounds = if shape == Shape::Outage { draw.between(1, 3) } else { 1 };
    for _ in 0..rounds {
        let amount = quota * draw.below(60) / 100 / rounds;
        calls.extend(load(draw, (now, now + SECOND), nodes, counters.len(), amount));
        // Settlements of that time are still to come: four seconds at most.
        now += SECOND + 4 * SECOND + quiet;
        // Now all nodes learn what is used.
        for node in 0..nodes {
            let all = (1 << counters.len()) - 1;
            calls.push(ClientCall { at: now, node, counters: all, cost: 1, what: What::Look });
        }
        let lost = now + quiet;
        // Long enough for every node to notice, if only by its announcements: of the first that fails
        // it cannot know whether others are cut off too.
        let noticed = 2 * SECOND + 2 * (2 * profile.timeout + 100 * MILLISECOND);
        let back = lost + noticed + draw.between(0, 5_000) * MILLISECOND;
        let kind = draw.one_of(&[FaultKind::Silent, FaultKind::Reset]);
        let mut last = back;
        for node in 0..nodes {
            let late = match shape {
                Shape::LateReturn if node == 0 => 0,
                Shape::LateReturn => draw.between(11, 14) * SECOND,
                _ => draw.between(0, 6_000) * MILLISECOND,
            };
            let until = back + late;
            last = last.max(until);
            faults.push(Fault { nodes: 1 << node, from: lost, until, kind });
        }
        let amount = quota * draw.between(150, 300) / 100;
        calls.extend(load(draw, (lost, last + 3 * SECOND), nodes, counters.len(), amount));
        // Until the hand-over has ended, and all settlements have come.
        now = last + 8 * SECOND;
    }
    if shape == Shape::LateReturn {
        now += HAND_OVER;
    }
    Plan { seed, shape, nodes, profile, counters, faults, calls, calm_at: now }
}

/// All that can go wrong on a network, at random.
fn partitions(seed: u64, draw: &mut Draw) -> Plan {
    let (nodes, mut profile, counters) =
        (draw.between(2, 5) as usize, profile(draw), counters(draw));
    profile.losses = draw.one_of(&[0, 0, 2_000, 20_000]);
    if draw.chance(300_000) {
        // A store that is so slow that answers come after the timeout.
        profile.farthest = profile.timeout * draw.between(30, 90) / 100;
    }
    let quota = counters.iter().map(|counter| counter.quota).max().unwrap_or(1);
    let lasts = draw.between(5, 20) * SECOND;
    let end = ACQUAINTED + lasts;
    let fault = |draw: &mut Draw| {
        let from = draw.between(ACQUAINTED, end);
        let until = (from + draw.between(20, 6_000) * MILLISECOND).min(end + SECOND);
        let kind = draw.one_of(&[
            FaultKind::Silent,
            FaultKind::Reset,
            FaultKind::LosesCalls,
            FaultKind::LosesAnswers,
        ]);
        let nodes = draw.between(1, (1 << nodes) - 1) as u32;
        Fault { nodes, from, until, kind }
    };
    let faults = (0..draw.below(7)).map(|_| fault(draw)).collect();
    let amount = quota * draw.between(100, 400) / 100;
    let calls = load(draw, (ACQUAINTED, end), nodes, counters.len(), amount);
    // Settlements may come four seconds after the last charge.
    let calm_at = end + 5 * SECOND;
    Plan { seed, shape: Shape::Partitions, nodes, profile, counters, faults, calls, calm_at }
}

/// Steady callers, a store that is 20 to 150 ms away, and a pool that is twenty times what is needed.
fn far_store(seed: u64, draw: &mut Draw) -> Plan {
    let nodes = draw.between(1, 3) as usize;
    let round_trip = draw.between(20, 150) * MILLISECOND;
    let farthest = round_trip / 2;
    let nearest = farthest * draw.between(90, 100) / 100;
    let (losses, duplicates, timeout) = (0, 0, 500 * MILLISECOND);
    let profile = Profile { nearest, farthest, losses, duplicates, timeout };
    let per_second = draw.between(20, 200);
    let lasts = 8 * SECOND;
    let needed = per_second * nodes as u64 * round_trip / SECOND + 1;
    let overshoot = draw.between(20_000, 200_000);
    let total = per_second * nodes as u64 * lasts / SECOND;
    let quota = (20 * needed * 1_000_000 / overshoot).max(4 * total);
    let (algorithm, window) = (draw.one_of(&ALGORITHMS), 86_400 * SECOND);
    let counters = vec![CounterPlan { algorithm, quota, window, overshoot: overshoot as u32 }];
    let mut calls = Vec::new();
    for node in 0..nodes {
        let every = SECOND / per_second;
        let mut at = ACQUAINTED + draw.below(every);
        while at < ACQUAINTED + lasts {
            calls.push(ClientCall { at, node, counters: 1, cost: 1, what: What::Allow });
            at += draw.between(every * 9 / 10, every * 11 / 10);
        }
    }
    let (faults, calm_at) = (Vec::new(), ACQUAINTED + lasts + SECOND);
    Plan { seed, shape: Shape::FarStore, nodes, profile, counters, faults, calls, calm_at }
}

/// Three nodes, a limit of 100 of which 39 are used; all lose the store, and find it again two seconds
/// after each other, while clients go on asking for more than there is.
pub fn staggered_recovery() -> Plan {
    let (nodes, hour) = (3, 3_600 * SECOND);
    let (nearest, farthest, timeout) = (200 * MICRO, MILLISECOND, 20 * MILLISECOND);
    let profile = Profile { nearest, farthest, losses: 0, duplicates: 0, timeout };
    let algorithm = Algorithm::FixedWindow;
    let counters = vec![CounterPlan { algorithm, quota: 100, window: hour, overshoot: 0 }];
    let call = |number: u64, at: Nanos, what: What| {
        let node = (number % nodes as u64) as usize;
        ClientCall { at, node, counters: 1, cost: 1, what }
    };
    let used = (0..39).map(|number| call(number, ACQUAINTED + number * MILLISECOND, What::Allow));
    let looks = (0..nodes as u64).map(|number| call(number, ACQUAINTED + SECOND, What::Look));
    let lost = ACQUAINTED + 2 * SECOND;
    let back = lost + 3 * SECOND;
    let asked = (0..600).map(|number| call(number, lost + number * 20 * MILLISECOND, What::Allow));
    let fault = |node: u64| Fault {
        nodes: 1 << node,
        from: lost,
        until: back + node * 2 * SECOND,
        kind: FaultKind::Reset,
    };
    Plan {
        seed: 0,
        shape: Shape::Outage,
        nodes,
        profile,
        counters,
        faults: (0..nodes as u64).map(fault).collect(),
        calls: used.chain(looks).chain(asked).collect(),
        calm_at: back + 20 * SECOND,
    }
}
