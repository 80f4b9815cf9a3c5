//! The report's JSON and page, of figures that are always the same.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::{Ended, Latency, Report, Row};
use crate::fields::Field;
use crate::outcome::Fault;
use crate::plan::{Distribution, Length, Plan};
use crate::recorder::{Seen, times};

fn plan() -> Plan {
    Plan {
        rate_per_second: Some(50),
        length: Length::Duration(Duration::from_secs(2)),
        threads: 2,
        distribution: Distribution::Zipf { exponent: 1.1 },
        fields: vec![Field::new("modelId", "<gpt4>").expect("a field")],
        headers: vec![("X-Key".to_owned(), "secret-header".to_owned())],
        token: Some("secret-token".to_owned()),
        ..Plan::new("http://127.0.0.1:8080")
    }
}

/// 98 answers of 1 to 98 ms, one time-out, one 503.
fn seen() -> Seen {
    let mut latency = times().expect("a histogram");
    for millis in 1..=98 {
        latency.record(millis * 1_000_000).expect("within bounds");
    }
    let mut lag = times().expect("a histogram");
    lag.record(40_000).expect("within bounds");
    Seen {
        requests: 100,
        allowed: 90,
        refused: 8,
        faults: BTreeMap::from([(Fault::Timeout, 1), (Fault::Status(503), 1)]),
        waited: 3,
        sent_bytes: 16_000,
        received_bytes: 40_000,
        corrected: Some(latency.clone()),
        service: Some(latency),
        lag: Some(lag),
    }
}

fn report() -> Report {
    let latency_micros = Latency { p50: 100.0, p90: 200.0, p99: 300.0, ..Latency::default() };
    let row = Row { latency_micros, ..Row::new(0, &Seen { requests: 60, ..Seen::default() }) };
    let rows = vec![row.clone(), Row { second: 1, requests: 40, ..row }];
    let ended = Ended {
        elapsed: Duration::from_secs(2),
        scheduled: Some(101),
        cpu_busiest: Duration::from_millis(500),
        ..Ended::default()
    };
    Report::new(&plan(), &seen(), rows, &ended)
}

#[test]
fn json_has_all_figures_under_their_names() {
    let mut made = serde_json::to_value(report()).expect("JSON");
    let bins = made["distribution"].take();
    let bins = bins.as_array().expect("bins");
    assert_eq!(bins.iter().map(|bin| bin["count"].as_u64().unwrap_or(0)).sum::<u64>(), 98);
    let latency = json!({"mean": 49499.51, "p50": 49020.93, "p90": 89063.42, "p95": 94044.16,
        "p99": 98041.86, "p999": 98041.86, "max": 98041.86});
    let row_latency = json!({"mean": 0.0, "p50": 100.0, "p90": 200.0, "p95": 0.0, "p99": 300.0, "p999": 0.0, "max": 0.0});
    let lag = json!({"mean": 40.03, "p50": 40.06, "p90": 40.06, "p95": 40.06, "p99": 40.06,
        "p999": 40.06, "max": 40.06});
    let row = |second, requests| {
        json!({"second": second, "seconds": 1.0, "requests": requests, "allowed": 0, "refused": 0,
               "errors": 0, "latency_micros": row_latency})
    };
    let expected = json!({
        "parameters": {
            "url": "http://127.0.0.1:8080", "target": "http", "mode": "open", "rate": "50",
            "duration": "2s", "connections": "64", "threads": "2", "timeout": "5s",
            "keys": "10000", "distribution": "zipf 1.1", "seed": "1", "vary": "userId",
            "field": "modelId=<gpt4>", "header": "X-Key: …"
        },
        "seconds": 2.0, "was_halted": false,
        "requests": 100, "requests_per_second": 50.0,
        "decisions": 98, "decisions_per_second": 49.0,
        "allowed": 90, "refused": 8,
        "errors": 2, "errors_by_kind": {"timeout": 1, "http_503": 1},
        "unfinished": 0, "sent_bytes": 16000, "received_bytes": 40000,
        "latency_micros": latency, "service_micros": latency,
        "schedule": {"scheduled": 101, "unsent": 1, "waited_share": 0.03, "lag_micros": lag},
        "generator": {
            "threads": 2, "busiest_thread_share": 0.25, "is_bottleneck": false,
            "notes": [
                "3.0 % of the requests were due while no connection was free: the server did not \
                 keep up with the rate, or there were too few connections.",
                "1 requests that were due were never sent. The latencies are those of the others, \
                 and too good."
            ]
        },
        "series": [row(0, 60), row(1, 40)],
        "distribution": null
    });
    assert_eq!(made, expected, "{made:#}");
}

#[test]
fn a_page_needs_nothing_else_and_reveals_no_secret() {
    let page = report().html("today");
    for wanted in ["Throughput", "Latency", "Distribution", "Outcomes", "Parameters", "today"] {
        assert!(page.contains(wanted), "{wanted}");
    }
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("modelId=&lt;gpt4&gt;"));
    for unwanted in
        ["secret", "<script", "<link", "src=", "href=", "url(", "@import", "NaN", "<gpt4>"]
    {
        assert!(!page.contains(unwanted), "{unwanted}");
    }
    let empty = Report::new(&plan(), &Seen::default(), Vec::new(), &Ended::default());
    assert!(empty.is_failure());
    assert!(!empty.html("today").contains("NaN") && !empty.html("today").contains("inf"));
}
