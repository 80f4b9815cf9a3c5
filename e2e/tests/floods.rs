//! Refusals, queue entries, reservations and tenants' writes at once: with small bounds, what they take is small.
//! `make flood` does the same for a minute with the default bounds, and prints what it took.

use serde_json::Value;
use tollgate_e2e::flood::{Extent, Flooded};
use tollgate_e2e::{Admin, alone};
use tollgate_testkit::Redis;

/// Of each kind of call. Without the bounds they would take 40 MB of records, 26 MB of bodies, and 5 MB of versions and changes.
const CALLS: u64 = 400;

const MAX_AUDIT_BYTES: usize = 1_048_576;
const MAX_VERSIONS: usize = 5;

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

/// What a record of the log of decisions takes at least, as the bound counts it.
const MIN_RECORD_BYTES: usize = 640;

fn assert_bounded(flooded: &Flooded) {
    let report = flooded.run(Extent::Calls(CALLS));
    let [before, most, _] = report.usage;
    let of = |kind: &str| report.calls.iter().find(|(name, ..)| *name == kind).expect("a kind");
    assert_eq!(of("refusals").1, CALLS, "every request of every batch is refused: {report:?}");
    for kind in ["queue entries", "reservations", "tenants' writes"] {
        let (_, done, refused) = of(kind);
        assert!(*done > 0 && *refused > 0, "{kind} reach their bound: {report:?}");
    }
    assert!(most.disk - before.disk <= MAX_DISK_GROWTH, "{report:?}");
    assert!(most.redis - before.redis <= MAX_REDIS_GROWTH, "{report:?}");
    assert!(most.memory - before.memory <= MAX_MEMORY_GROWTH, "{report:?}");
    assert_records_bounded(&mut flooded.server().admin());
}

/// What refusals and tenants' writes leave in the database.
fn assert_records_bounded(admin: &mut Admin) {
    let items = |page: &Value| page["items"].as_array().map_or(0, Vec::len);
    let versions = admin.get("rules/tenant0.own/versions");
    assert!((1..=MAX_VERSIONS).contains(&items(&versions)), "{versions}");
    assert!(versions["removed"].is_object(), "with a checkpoint: {versions}");
    let changes = admin.get("audit?tenant_id=tenant0&limit=1000");
    // The token of its admin is a change of the installation's own.
    assert!((1..=MAX_VERSIONS + 1).contains(&items(&changes)), "{changes}");
    let (mut records, mut cursor) = (0, String::new());
    loop {
        let page = admin.get(&format!("audit?kind=decisions&limit=1000{cursor}"));
        records += items(&page);
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    let max = MAX_AUDIT_BYTES / MIN_RECORD_BYTES;
    assert!((1..=max).contains(&records), "{records} of {} refusals", CALLS * 200);
}

#[test]
fn a_flood_stays_within_small_bounds_embedded() {
    let _alone = alone();
    assert_bounded(&Flooded::start(None, &BOUNDS));
}

#[test]
fn a_flood_stays_within_small_bounds_with_redis() {
    let _alone = alone();
    assert_bounded(&Flooded::start(Some(Redis::start()), &BOUNDS));
}
