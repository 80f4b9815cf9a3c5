//! What audit and clients' tiers add to a decision: in instructions, which do not depend on what else
//! the machine does.

use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use tollgate_bench::process::end_with_this;
use tollgate_bench::record::{compare, grouped, record};
use tollgate_bench::rules;
use tollgate_engine::Engine;
use tollgate_policy::{CLIENT_BUCKETS, ClientTiers, ListKind, RuleSet, client_bucket};
use tollgate_server::audit::AuditTrail;
use tollgate_server::telemetry::decisions::{
    DecisionLog, DecisionLogOptions, LabelBounds, TopBounds, Witness, WitnessBounds,
};
use tollgate_store::MemoryStore;

use super::decide::{decide_all, engine, engine_of};

/// Clients that have a tier.
const CLIENTS: usize = 1_000_000;
/// Room for every decision of a run: noting costs more than dropping.
const TRAIL_BYTES: usize = 256 << 20;
/// One in so many allowed decisions is noted.
const SAMPLED: u64 = 1_000;

/// The engine with an audit trail.
pub fn audited(engine: Engine<MemoryStore>) -> Engine<MemoryStore> {
    engine.with_observer(Arc::new(AuditTrail::new(SAMPLED, TRAIL_BYTES, b"secret")))
}

/// The engine with everything that watches it in production: metrics, top keys, the audit trail, and a
/// log of one in a thousand decisions.
pub fn observed(engine: Engine<MemoryStore>) -> Engine<MemoryStore> {
    let trail = Arc::new(AuditTrail::new(SAMPLED, TRAIL_BYTES, b"secret"));
    witnessed(engine, Some(trail))
}

/// The same without the audit trail.
pub fn watched(engine: Engine<MemoryStore>) -> Engine<MemoryStore> {
    witnessed(engine, None)
}

fn witnessed(engine: Engine<MemoryStore>, trail: Option<Arc<AuditTrail>>) -> Engine<MemoryStore> {
    let labels = LabelBounds { scopes: 200, models: 50, tenants: 100, label_sets: 2_000 };
    let bounds = WitnessBounds { labels, top: TopBounds { keys: 1_000, rules: 100 } };
    let options = DecisionLogOptions {
        sample_allowed: SAMPLED,
        sample_refused: SAMPLED,
        max_per_second: 1_000,
        is_text: false,
    };
    let log = DecisionLog::start(options, b"secret", Box::new(std::io::sink())).unwrap();
    let witness = Witness::new(bounds, 7, b"secret", engine.clock().now());
    let witness = witness.with_trail(trail).with_log(log.map(Arc::new));
    // As it is under load: a few thousand decisions a second are looked at closely.
    witness.tune(1_000_000);
    engine.with_observer(Arc::new(witness))
}

/// An engine that lets every user pass once a minute.
pub fn refusing() -> Engine<MemoryStore> {
    let file = rules::file(1_000).replace("    burst: 20000000\n", "    burst: 1\n");
    engine_of(RuleSet::from_yaml(&file, "bench").unwrap())
}

/// An engine that knows tiers of clients of every kind, none of whom asks: all kinds are looked up.
pub fn with_tiers() -> Engine<MemoryStore> {
    let kinds = [ListKind::ApiKey, ListKind::UserId, ListKind::TenantId];
    let clients: Vec<_> =
        (0..CLIENTS).map(|n| (kinds[n % kinds.len()], format!("client-{n:013}"))).collect();
    let mut buckets = vec![Vec::new(); usize::from(CLIENT_BUCKETS)];
    for (kind, name) in &clients {
        buckets[usize::from(client_bucket(*kind, name))].push((*kind, name.as_str(), "pro"));
    }
    let mut tiers = ClientTiers::default();
    for (bucket, clients) in (0..).zip(&buckets) {
        tiers = tiers.with_bucket(bucket, clients.iter().copied());
    }
    let mut set = RuleSet::from_yaml(&rules::file(1_000), "bench").unwrap();
    set.set_client_tiers(Arc::new(tiers));
    engine_of(set)
}

pub fn run(quick: bool) {
    let times = if quick { 5_000 } else { 20_000 };
    println!("\nWhat audit and clients' tiers add to a decision of 3 scopes from 1,000 rules");
    let decision = instructions("decide1000", times);
    let refusal = instructions("refused", times);
    for (work, plain, what, goal) in [
        ("an allowed decision with audit", decision, "audited", 5.0),
        ("a refusal with audit", refusal, "refused-audited", 5.0),
        ("an allowed decision with metrics, top keys and a sampled log", decision, "watched", 5.0),
        ("a refusal with metrics, top keys and a sampled log", refusal, "refused-watched", 5.0),
        (
            "an allowed decision with metrics, top keys, audit and a sampled log",
            decision,
            "observed",
            5.0,
        ),
        (
            "a refusal with metrics, top keys, audit and a sampled log",
            refusal,
            "refused-observed",
            5.0,
        ),
        ("a decision with the tiers of a million clients", decision, "tiers", 10.0),
    ] {
        let (Some(plain), Some(more)) = (plain, instructions(what, times)) else {
            record("audit", work, "not measured: valgrind is missing", "", None);
            continue;
        };
        let percent = (more / plain - 1.0) * 100.0;
        let (plain, more) = (grouped(plain), grouped(more));
        let figure = format!("{percent:+.1} % ({plain} → {more} instructions)");
        record("audit", work, &figure, &format!("<= +{goal:.0} %"), Some(percent <= goal));
    }
    throughput(quick);
}

/// Decisions a second of one thread, watched and not, in turns.
fn throughput(quick: bool) {
    let callers = rules::callers(10_000, 20_000);
    let engines = [engine(1_000), watched(engine(1_000))];
    let mut rates = [Vec::new(), Vec::new()];
    for engine in &engines {
        decide_all(engine, &callers);
    }
    for _ in 0..if quick { 5 } else { 31 } {
        for (engine, rates) in engines.iter().zip(&mut rates) {
            let begun = Instant::now();
            black_box(decide_all(engine, &callers));
            rates.push(callers.len() as f64 / begun.elapsed().as_secs_f64());
        }
    }
    let [plain, watched] = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    let figure = format!(
        "{:.2} ({} of {} decisions a second)",
        watched / plain,
        grouped(watched),
        grouped(plain)
    );
    let work = "throughput of one thread, watched (metrics, top keys, sampled log) against not";
    compare("audit", work, &figure);
}

/// Instructions of one piece of work of the profile; `None` without valgrind.
fn instructions(what: &str, times: usize) -> Option<f64> {
    let mut valgrind = Command::new("valgrind");
    end_with_this(&mut valgrind);
    valgrind.args(["--tool=callgrind", "--toggle-collect=*measured*"]);
    valgrind.args(["--callgrind-out-file=/dev/null"]).arg(std::env::current_exe().unwrap());
    let output = valgrind.args(["profile", what, "--times", &times.to_string()]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{what}: {text}");
    let collected = text.split("Collected :").nth(1).expect("callgrind prints a count");
    let count: f64 = collected.split_whitespace().next().unwrap().parse().unwrap();
    Some(count / times as f64)
}
