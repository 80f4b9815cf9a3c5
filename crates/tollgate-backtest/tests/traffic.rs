//! Files as they come: several, compressed, out of order, broken, hostile.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod support;

use std::io::Write as _;

use proptest::prelude::*;
use tollgate_backtest::{BacktestError, Format, MAX_LINE_BYTES, Mapping};

use support::{file, line, options, run};

const FIVE_A_SECOND: &str = "\
default: false
rules: [{rule_id: five, identifier_type: user_id, limit: 5, window: 1s, algorithm: fixed_window}]
";

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn files_are_merged_by_time_whatever_their_order_and_compression() {
    let part = |from: u64| (0..10).map(|step| line(from + step * 20, "ann")).collect::<String>();
    let early = file(gzip(&part(0)));
    let late = file(ruzstd::encoding::compress_to_vec(
        part(10).as_bytes(),
        ruzstd::encoding::CompressionLevel::Fastest,
    ));
    let mut times = Vec::new();
    let options = options(FIVE_A_SECOND, &[&late, &early]);
    let report = tollgate_backtest::run_observed(&options, &mut |_| {}, &mut |decision| {
        times.push(decision.now);
    })
    .unwrap();
    assert!(times.is_sorted());
    assert_eq!((report.requests, report.after.refused), (20, 15));
    assert_eq!((report.input.files, report.input.late, report.input.reordered), (2, 0, 0));
}

#[test]
fn lines_out_of_order_are_sorted_within_the_window() {
    // A slow request is logged after the ones that came later.
    let text =
        [line(0, "ann"), line(3_000, "ann"), line(1_000, "ann"), line(2_000, "ann")].concat();
    let traffic = file(text);
    let report = run(&options(FIVE_A_SECOND, &[&traffic])).unwrap();
    assert_eq!((report.input.reordered, report.input.late, report.after.refused), (2, 0, 0));
}

#[test]
fn a_clock_that_goes_back_makes_no_quota() {
    // The same second five times over, an hour after it: only the first five pass.
    let mut text = (0..5).map(|step| line(step, "ann")).collect::<String>();
    text += &line(3_600_000, "bob");
    for _ in 0..5 {
        text += &(0..5).map(|step| line(step, "ann")).collect::<String>();
        text += &line(3_600_500, "ann");
    }
    let traffic = file(text);
    let mut allowed = 0;
    let options = options(FIVE_A_SECOND, &[&traffic]);
    let report = tollgate_backtest::run_observed(&options, &mut |_| {}, &mut |decision| {
        allowed += u64::from(decision.is_allowed());
    })
    .unwrap();
    // Those of the fourth millisecond, which was reached last, are in time.
    assert_eq!(report.input.late, 20);
    // Five in the first second, five of ann and one of bob in the last one.
    assert_eq!((report.requests, allowed), (36, 11));
}

#[test]
fn broken_lines_are_counted_and_shown() {
    let mut text = line(0, "ann");
    text += "{\"time\": broken\n";
    text += &"x".repeat(MAX_LINE_BYTES + 1);
    text.push('\n');
    text += "\u{1b}[2J {\n";
    text += "{\"time\":1000000000,\"endpoint\":\"/a/%00\"}\n";
    text += &line(1, "ann");
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(b"\xff\xfe\n{\"time\":1000000000002,\"user_id\":\"ann");
    let traffic = file(bytes);
    let report = run(&options(FIVE_A_SECOND, &[&traffic])).unwrap();
    assert_eq!((report.requests, report.input.lines, report.input.malformed), (2, 8, 6));
    assert_eq!(report.input.malformed_lines.len(), 5);
    let shown = report.text();
    assert!(
        shown.contains("it is no JSON object") && shown.contains("the line is too long"),
        "{shown}"
    );
    assert!(!shown.contains('\u{1b}'), "{shown}");
}

#[test]
fn a_cut_archive_gives_what_it_has() {
    let text = (0..10_000).map(|step| line(step, &format!("u{}", step % 97))).collect::<String>();
    let whole = gzip(&text);
    let traffic = file(whole.get(..whole.len() / 2).unwrap());
    let report = run(&options(FIVE_A_SECOND, &[&traffic])).unwrap();
    assert!(report.requests > 1_000, "{}", report.requests);
    assert!(report.text().contains("ends early"), "{}", report.text());
}

#[test]
fn errors_say_what_to_do() {
    let error = |content: &str, format: Format| {
        let traffic = file(content);
        let mut options = options(FIVE_A_SECOND, &[&traffic]);
        options.format = format;
        run(&options).unwrap_err()
    };
    assert!(matches!(error("hello\nworld\n", Format::Auto), BacktestError::UnknownFormat { .. }));
    let message = error("hello\n", Format::Auto).to_string();
    assert!(message.contains("--format") && message.contains("hello"), "{message}");
    let message = error("a,b\n1,2\n", Format::Csv).to_string();
    assert!(message.contains("--map COLUMN=time") && message.contains("a, b"), "{message}");
    let message = error("", Format::Auto).to_string();
    assert!(message.contains("are empty"), "{message}");
    let message = error("{\"a\":1}\n", Format::Auto).to_string();
    assert!(message.contains("--map") && message.contains("no time"), "{message}");
    let mut missing = options(FIVE_A_SECOND, &[]);
    missing.files.push("/nonexistent/access.log".into());
    assert!(matches!(run(&missing).unwrap_err(), BacktestError::Unreadable { .. }));
}

#[test]
fn slots_are_released_when_the_log_says_so() {
    let rules = "\
default: false
rules: [{rule_id: slots, unit: concurrency, limit: 1, slot_ttl: 60s, applies_to: {endpoints: [/a]}}]
";
    let request = |millis: u64, seconds: &str| {
        let time = 1_000_000_000_000 + millis;
        format!("{{\"time\":{time},\"endpoint\":\"/a\",\"request_time\":\"{seconds}\"}}\n")
    };
    let text = [request(0, "0.5"), request(400, "0.1"), request(600, "0.1")].concat();
    let traffic = file(text);
    let report = run(&options(rules, &[&traffic])).unwrap();
    assert_eq!((report.requests, report.after.refused), (3, 1));
}

#[test]
fn mapped_fields_are_attributes() {
    let rules = "\
default: false
rules: [{rule_id: org, identifier_type: tenant_id, limit: 1, window: 1h}]
";
    let traffic = file(
        "when,org\n2026-01-01T00:00:00Z,acme\n2026-01-01T00:00:01Z,acme\n2026-01-01T00:00:02Z,other\n",
    );
    let mut options = options(rules, &[&traffic]);
    options.mapping =
        Mapping::new(&["when=time".to_owned(), "org=tenant_id".to_owned()], &[]).unwrap();
    let report = run(&options).unwrap();
    assert_eq!(report.after.refused, 1);
    let tenant = report.by_tenant.first().unwrap();
    assert_eq!((tenant.name.as_str(), tenant.requests, tenant.after_refused), ("acme", 2, 1));
}

/// Lines that look like a format, broken in some place.
fn hostile_line() -> impl Strategy<Value = Vec<u8>> {
    let good = prop_oneof![
        Just(r#"203.0.113.9 - - [10/Oct/2026:13:55:36 +0000] "GET /a HTTP/1.1" 200 5 "-" "x""#),
        Just(
            r#"{"time":"2026-10-10T13:55:36Z","ip":"::1","request":{"uri":"/a"},"attributes":{"a":"b"}}"#
        ),
        Just(
            r#"https 2026-10-10T13:55:36Z lb 192.0.2.1:1 - 0 0 0 200 200 0 0 "GET https://a:443/ HTTP/1.1" "x" - -"#
        ),
        Just("time,ip,path\n1790000000,1.2.3.4,/a"),
    ];
    let noise = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..8),
        Just(b"\"".to_vec()),
        Just(b"\\".to_vec()),
        Just("\u{202e}<script>%2F%2F\u{0}".as_bytes().to_vec()),
        Just(b"99999999999999999999".to_vec()),
    ];
    let broken = (good, any::<prop::sample::Index>(), noise).prop_map(|(good, place, noise)| {
        let mut bytes = good.as_bytes().to_vec();
        let place = place.index(bytes.len());
        bytes.splice(place..(place + noise.len() / 2).min(bytes.len()), noise);
        bytes
    });
    prop_oneof![broken, prop::collection::vec(any::<u8>(), 0..60)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn hostile_logs_end_with_a_report_or_an_error(
        lines in prop::collection::vec(hostile_line(), 0..12),
        format in 0..Format::ALL.len(),
        is_compressed in any::<bool>(),
    ) {
        let mut bytes = lines.join(&b'\n');
        if is_compressed {
            bytes.splice(0..0, [0x28, 0xb5, 0x2f, 0xfd]);
        }
        let traffic = file(bytes);
        let mut options = options(FIVE_A_SECOND, &[&traffic]);
        options.format = Format::ALL.get(format).unwrap().1;
        if let Ok(report) = run(&options) {
            prop_assert!(report.requests <= lines.len() as u64 * 10);
            let (text, html) = (report.text(), report.html("now"));
            prop_assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()));
            prop_assert!(!html.contains("<script"));
        }
    }
}
