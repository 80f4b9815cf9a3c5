//! T10, T11: how long a start takes, and what the process costs when it has nothing to do.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tollgate_bench::http::PATH;
use tollgate_bench::limiters::{BURST, charge, limit};
use tollgate_bench::process::{Server, resident_bytes, running_nanos};
use tollgate_bench::record::{compare, record};
use tollgate_bench::rules;
use tollgate_bench::work::{key, median, text};
use tollgate_core::Algorithm;
use tollgate_store::memory::MemoryOptions;
use tollgate_store::{MemoryStore, Mode};

use super::http::tollgate;

/// Room for more counters than there are, since keys do not spread evenly over shards.
const ROOM: u64 = 2;

/// What every counter is charged, so that none is fresh again before the start is timed.
const COST: u64 = 10_000;

fn wall_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// Fills a data directory with counters that are in use for years.
pub fn snapshot(dir: &Path, counters: u64) {
    let options =
        MemoryOptions { max_counters: (counters * ROOM) as usize, data_dir: Some(dir.to_owned()) };
    let store = MemoryStore::open(&options, wall_nanos());
    let limit = limit(Algorithm::TokenBucket, BURST);
    for number in 0..counters {
        let key = key(number);
        let key = [text(&key)];
        let mut charge = charge(&limit, &key);
        charge.ask.cost = COST;
        store.decide_single(&charge, Mode::Charge, wall_nanos());
        if number % 1_000_000 == 999_999 {
            store.flush(wall_nanos());
        }
    }
    store.flush(wall_nanos());
    assert_eq!(store.usage().counters, counters, "all counters are kept");
}

fn ask(addr: SocketAddr) {
    let body = rules::callers(1, 1)[0].body();
    let mut stream = TcpStream::connect(addr).unwrap();
    write!(
        stream,
        "POST {PATH} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// Milliseconds from exec to the first answer, and the server.
fn start(binary: &Path, dir: &Path, further: &[&str]) -> (f64, Server) {
    let command = tollgate(binary, dir, further);
    let start = Instant::now();
    let server = Server::start(command);
    ask(server.addr);
    (start.elapsed().as_secs_f64() * 1e3, server)
}

pub fn run(quick: bool, rounds: usize, binary: &Path) {
    let (counters, idle_seconds) = if quick { (1_000_000, 3) } else { (10_000_000, 10) };
    println!("\nT10, T11: start, size, idling");
    let megabytes = std::fs::metadata(binary).unwrap().len() as f64 / 1e6;
    record("T11", "binary", &format!("{megabytes:.1} MB"), "<= 40 MB", Some(megabytes <= 40.0));

    let empty = |_| start(binary, tempfile::tempdir().unwrap().path(), &[]).0;
    let millis = median((0..rounds).map(empty).collect());
    let work = "exec to first answer, empty data directory";
    record("T10", work, &format!("{millis:.0} ms"), "<= 100 ms", Some(millis <= 100.0));

    let dir = tempfile::tempdir().unwrap();
    let (_, server) = start(binary, dir.path(), &[]);
    std::thread::sleep(Duration::from_secs(2));
    let before = running_nanos(server.id());
    std::thread::sleep(Duration::from_secs(idle_seconds));
    let nanos = running_nanos(server.id()) - before;
    let percent = nanos as f64 / (idle_seconds as f64 * 1e9) * 100.0;
    let resident = resident_bytes(&server.id().to_string()) as f64 / 1e6;
    record("T11", "idle RSS", &format!("{resident:.1} MB"), "<= 30 MB", Some(resident <= 30.0));
    record("T11", "idle CPU", &format!("{percent:.2} %"), "< 0.5 %", Some(percent < 0.5));
    drop(server);

    let dir = tempfile::tempdir().unwrap();
    snapshot(&dir.path().join("data"), counters);
    let room = (counters * ROOM).to_string();
    let mut times = Vec::new();
    let mut resident = 0;
    for _ in 0..rounds {
        let (millis, server) = start(binary, dir.path(), &["--max-counters", &room]);
        times.push(millis);
        resident = resident_bytes(&server.id().to_string());
    }
    let millis = median(times);
    let millions = counters / 1_000_000;
    let work =
        format!("exec to first answer, snapshot of {millions}M counters (cached by the system)");
    let (goal, most) = if quick { ("<= 100 ms", 100.0) } else { ("<= 1 s", 1_000.0) };
    record("T10", &work, &format!("{millis:.0} ms"), goal, Some(millis <= most));
    let per_counter = resident as f64 / counters as f64;
    let work = format!("RSS after that start, per counter of {millions}M, the whole process");
    compare("T10", &work, &format!("{per_counter:.1} bytes"));
    // Less would mean that counters were not restored, and the time above says nothing.
    assert!(per_counter > 20.0, "the snapshot was not restored");
}
