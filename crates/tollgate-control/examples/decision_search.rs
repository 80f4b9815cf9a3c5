//! How long the first page of a search of decisions takes, by each filter: `make search`.
//!
//! Fills a log on SQLite and on PostgreSQL, then asks for the newest 100 records of a usual value, of one that only
//! the oldest records have, and of one that none has. Prints a Markdown table, and what a record takes on disk.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::disallowed_methods,
    reason = "a tool for people: a panic is how it fails, and figures are rounded anyway"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::{Connection as _, Row as _};
use tollgate_control::{DatabaseConfig, DecisionFilter, DecisionRecord, Repository};
use tollgate_testkit::Postgres;

const ROWS: i64 = 1_000_000;
const BATCH: i64 = 2_000;
const PAGE: u32 = 100;
const RUNS: usize = 20;
/// Records that only a search back to the beginning finds.
const RARE: i64 = 10;

fn record(number: i64) -> DecisionRecord {
    let value = |name: &str, count: i64| {
        if number < RARE { format!("{name}-rare") } else { format!("{name}-{}", number % count) }
    };
    DecisionRecord {
        event_id: format!("{number:032x}"),
        at: 1_700_000_000_000 + number,
        action: if number < RARE { "queued" } else { "rejected" }.to_owned(),
        reason: value("HIT", 5),
        client_id: value("key", 10_007),
        rule_id: Some(value("rule", 50)),
        scope: Some(value("scope", 7)),
        request_count: Some(100),
        limit_count: Some(100),
        retry_after_ms: Some(12_000),
        window_seconds: Some(60),
        endpoint: Some(value("/v1/chat/completions", 101)),
        method: Some("POST".to_owned()),
        ip_address: Some(value("192.0.2", 5_003)),
        user_id: Some(value("user", 10_007)),
        tenant_id: Some(value("tenant", 1_009)),
        api_key_id: Some(value("key", 10_007)),
        model_id: Some(value("model", 11)),
        request_id: Some(format!("request-{number}")),
        cost: 1,
        node: "node-a".to_owned(),
        revision: 7,
        ..DecisionRecord::default()
    }
}

/// The filters by name, each with the value of this record.
fn filters(of: &DecisionRecord) -> Vec<(&'static str, DecisionFilter)> {
    let any = DecisionFilter::default;
    let of = of.clone();
    let from = Some(of.at);
    vec![
        ("none", any()),
        ("from, until", DecisionFilter { from, until: from.map(|at| at + 60_000), ..any() }),
        ("user_id", DecisionFilter { user_id: of.user_id.clone(), ..any() }),
        ("tenant_id", DecisionFilter { tenant_id: of.tenant_id, ..any() }),
        ("api_key_id", DecisionFilter { api_key_id: of.api_key_id, ..any() }),
        ("ip", DecisionFilter { ip_address: of.ip_address, ..any() }),
        ("client_id", DecisionFilter { client_id: Some(of.client_id), ..any() }),
        ("rule_id", DecisionFilter { rule_id: of.rule_id.clone(), ..any() }),
        ("scope", DecisionFilter { scope: of.scope, ..any() }),
        ("model_id", DecisionFilter { model_id: of.model_id, ..any() }),
        ("endpoint", DecisionFilter { endpoint: of.endpoint, ..any() }),
        ("reason", DecisionFilter { reason: Some(of.reason), ..any() }),
        ("result", DecisionFilter { action: Some(of.action.clone()), ..any() }),
        ("request_id", DecisionFilter { request_id: of.request_id, ..any() }),
        (
            "user_id, rule_id, result, from",
            DecisionFilter {
                user_id: of.user_id,
                rule_id: of.rule_id,
                action: Some(of.action),
                from,
                ..any()
            },
        ),
    ]
}

/// The 95th percentile of the time of a first page, over usual, rare and absent values.
async fn measure(repository: &dyn Repository, rows: i64) -> Vec<(&'static str, Duration)> {
    let absent = DecisionRecord { at: 1_800_000_000_000, ..record(0) };
    let of_none = |text: Option<String>| text.map(|text| format!("{text}-absent"));
    let absent = DecisionRecord {
        user_id: of_none(absent.user_id.clone()),
        rule_id: of_none(absent.rule_id.clone()),
        tenant_id: of_none(absent.tenant_id.clone()),
        model_id: of_none(absent.model_id.clone()),
        ..absent
    };
    let samples = [record(rows / 2), record(0), absent];
    let names: Vec<&'static str> = filters(&samples[0]).iter().map(|(name, _)| *name).collect();
    let mut measured = Vec::new();
    for (index, name) in names.into_iter().enumerate() {
        let mut times = Vec::new();
        for sample in &samples {
            let filter = filters(sample).swap_remove(index).1;
            for _ in 0..RUNS {
                let started = Instant::now();
                repository.search_decisions(&filter, None, PAGE).await.unwrap();
                times.push(started.elapsed());
            }
        }
        times.sort_unstable();
        measured.push((name, times[times.len() * 95 / 100]));
    }
    measured
}

async fn fill(repository: &Arc<dyn Repository>, rows: i64) -> i64 {
    repository.migrate().await.unwrap();
    let mut estimated = 0;
    for start in (0..rows).step_by(BATCH as usize) {
        let records: Vec<_> = (start..(start + BATCH).min(rows)).map(record).collect();
        estimated += records.iter().map(DecisionRecord::estimated_bytes).sum::<i64>();
        repository.record(&records).await.unwrap();
    }
    estimated
}

async fn postgres_bytes(url: &str) -> i64 {
    let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
    let sql = "SELECT pg_total_relation_size('rate_limit_audit_log')";
    sqlx::query(sql).fetch_one(&mut connection).await.unwrap().get(0)
}

fn main() {
    let rows = std::env::args().nth(1).map_or(ROWS, |text| text.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("control.db");
        let sqlite = DatabaseConfig::Sqlite(file.clone()).open().unwrap();
        let estimated = fill(&sqlite, rows).await;
        let in_sqlite = measure(&*sqlite, rows).await;
        sqlite.close().await;
        let bytes = std::fs::metadata(&file).unwrap().len() as i64;
        let server = Postgres::start();
        let url = server.database();
        let postgres = DatabaseConfig::Postgres(url.clone()).open().unwrap();
        fill(&postgres, rows).await;
        let in_postgres = measure(&*postgres, rows).await;
        println!(
            "{rows} records; bytes of a record: estimated {}, SQLite {}, PostgreSQL {}\n",
            estimated / rows,
            bytes / rows,
            postgres_bytes(&url).await / rows
        );
        println!("| filter | SQLite | PostgreSQL |\n|---|---|---|");
        for ((name, sqlite), (_, postgres)) in in_sqlite.iter().zip(&in_postgres) {
            let ms = |time: &Duration| time.as_secs_f64() * 1e3;
            println!("| {name} | {:.1} ms | {:.1} ms |", ms(sqlite), ms(postgres));
        }
    });
}
