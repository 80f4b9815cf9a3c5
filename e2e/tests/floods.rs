//! Refusals, queue entries, reservations and tenants' writes at once: with small bounds, what they take is small.
//! `make flood` does the same for a minute with the default bounds, and prints what it took.

use tollgate_e2e::alone;
use tollgate_e2e::flood::{Extent, Flooded, Report};
use tollgate_testkit::Redis;

/// Of each kind of call. Without the bounds they would take 40 MB of records, 26 MB of bodies, and 5 MB of versions and changes.
const CALLS: u64 = 400;

const BOUNDS: [(&str, &str); 8] = [
    ("TOLLGATE_AUDIT_MAX_BYTES", "1048576"),
    ("TOLLGATE_AUDIT_AGGREGATE_SECONDS", "1"),
    ("TOLLGATE_QUEUE_MAX_BYTES", "2097152"),
    ("TOLLGATE_QUEUE_MAX_BYTES_PER_TENANT", "2097152"),
    ("TOLLGATE_QUEUE_MAX_BYTES_PER_KEY", "1048576"),
    ("TOLLGATE_MAX_RESERVATIONS", "100"),
    ("TOLLGATE_HISTORY_MAX_VERSIONS_PER_RULE", "5"),
    ("TOLLGATE_HISTORY_MAX_CHANGES_PER_TENANT", "5"),
];

/// What the bounds above may come to on disk, with the log of the database and the journals of counters.
const MAX_DISK_GROWTH: u64 = 24 << 20;
const MAX_REDIS_GROWTH: u64 = 16 << 20;
const MAX_MEMORY_GROWTH: u64 = 256 << 20;

fn assert_bounded(report: &Report) {
    let [before, most, _] = report.usage;
    let of = |kind: &str| report.calls.iter().find(|(name, ..)| *name == kind).expect("a kind");
    assert_eq!(of("refusals").1, CALLS, "{report:?}");
    for kind in ["queue entries", "reservations"] {
        let (_, done, refused) = of(kind);
        assert!(*done > 0 && *refused > 0, "{kind} reach their bound: {report:?}");
    }
    assert!(of("tenants' writes").1 > 0, "{report:?}");
    assert!(most.disk - before.disk <= MAX_DISK_GROWTH, "{report:?}");
    assert!(most.redis - before.redis <= MAX_REDIS_GROWTH, "{report:?}");
    assert!(most.memory - before.memory <= MAX_MEMORY_GROWTH, "{report:?}");
}

#[test]
fn a_flood_stays_within_small_bounds_embedded() {
    let _alone = alone();
    assert_bounded(&Flooded::start(None, &BOUNDS).run(Extent::Calls(CALLS)));
}

#[test]
fn a_flood_stays_within_small_bounds_with_redis() {
    let _alone = alone();
    assert_bounded(&Flooded::start(Some(Redis::start()), &BOUNDS).run(Extent::Calls(CALLS)));
}
