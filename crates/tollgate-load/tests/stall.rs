//! A server that stalls: the timetable goes on, and latency from the schedule shows what a generator that
//! waits for its answers would leave out.

#![allow(clippy::expect_used, reason = "a test fails by a panic")]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use tollgate_load::{Halt, Length, Plan, Report, run};

/// How long the server stalls, once.
const STALL: Duration = Duration::from_millis(600);
/// How many requests it answers before that.
const BEFORE: usize = 20;
const RATE: u64 = 200;
const REQUESTS: u64 = 200;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n{\"allowed\":true}";

/// Serves one connection, and says its address.
fn server(stall: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut buffer = [0; 4096];
        let mut count = 0;
        // A request comes in one piece: the generator sends it so, and waits for the answer.
        while let Ok(1..) = stream.read(&mut buffer) {
            count += 1;
            if count == BEFORE {
                thread::sleep(stall);
            }
            if stream.write_all(ANSWER).is_err() {
                break;
            }
        }
    });
    format!("http://{address}")
}

fn load(plan: &Plan) -> Report {
    run(plan, &Halt::default(), |_| {}).expect("a report")
}

fn plan(url: String) -> Plan {
    Plan { connections: 1, length: Length::Requests(REQUESTS), ..Plan::new(url) }
}

#[test]
fn latency_from_the_schedule_shows_a_stall_that_service_times_hide() {
    let stall_micros = STALL.as_secs_f64() * 1e6;
    let open = load(&Plan { rate_per_second: Some(RATE), ..plan(server(STALL)) });
    assert_eq!((open.requests, open.allowed, open.errors), (REQUESTS, REQUESTS, 0));
    // One request met the stall; those that were due meanwhile waited for its end: 120 of 200.
    assert!(open.service_micros.max >= stall_micros);
    assert!(open.latency_micros.max >= stall_micros);
    assert!(open.latency_micros.p90 >= stall_micros / 2.0, "{:?}", open.latency_micros);
    let mean_gap = open.latency_micros.mean - open.service_micros.mean;
    assert!(mean_gap >= stall_micros / 10.0, "{open:?}");
    let schedule = open.schedule.expect("a rate has a schedule");
    assert_eq!((schedule.scheduled, schedule.unsent), (REQUESTS, 0));
    assert!(schedule.waited_share >= 0.5, "{schedule:?}");
}

#[test]
fn without_a_rate_both_latencies_are_the_same() {
    let closed = load(&plan(server(Duration::ZERO)));
    assert_eq!((closed.requests, closed.allowed), (REQUESTS, REQUESTS));
    assert_eq!(closed.latency_micros, closed.service_micros);
    assert!(closed.schedule.is_none());
    assert_eq!(closed.distribution.iter().map(|bin| bin.count).sum::<u64>(), REQUESTS);
    assert_eq!(closed.series.iter().map(|row| row.requests).sum::<u64>(), REQUESTS);
}

#[test]
fn requests_that_were_never_sent_are_reported() {
    let mut plan = Plan { rate_per_second: Some(RATE), ..plan(server(STALL * 3)) };
    plan.length = Length::Duration(STALL);
    let report = load(&plan);
    let schedule = report.schedule.as_ref().expect("a schedule");
    assert_eq!(schedule.scheduled, 120);
    assert_eq!(schedule.unsent, 120 - report.requests);
    assert!(schedule.unsent > 0);
    assert!(report.generator.notes.concat().contains("never sent"), "{:?}", report.generator);
}

#[test]
fn an_answer_that_does_not_come_is_a_timeout() {
    let mut plan = plan(server(Duration::from_secs(3_600)));
    plan.length = Length::Requests(BEFORE as u64);
    plan.timeout = Duration::from_millis(200);
    let report = load(&plan);
    assert_eq!(report.errors_by_kind.get("timeout"), Some(&1));
    assert_eq!((report.requests, report.allowed), (BEFORE as u64, BEFORE as u64 - 1));
}

#[test]
fn a_halt_ends_a_run_that_still_reports() {
    let halt = Halt::default();
    let mut plan = Plan { rate_per_second: Some(RATE), ..plan(server(Duration::ZERO)) };
    plan.length = Length::Duration(Duration::from_secs(3_600));
    let ending = halt.clone();
    let report = run(&plan, &halt, move |progress| {
        if progress.requests > 0 {
            ending.now();
        }
    });
    let report = report.expect("a report");
    assert!(report.was_halted && report.requests > 0);
    assert_eq!(report.allowed, report.requests);
}
