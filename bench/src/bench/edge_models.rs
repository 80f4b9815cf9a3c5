//! How much later the first token comes through the gateway than from the model server itself, in the same run.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use tollgate_bench::process::Server;
use tollgate_bench::record::{compare, record};
use tollgate_bench::work::median;

/// Streams at the same time, where it is not one.
const CONNECTIONS: usize = 16;

/// Tokens of each answer.
const TOKENS: usize = 20;

/// Tokens, requests and slots, far from refusing anything.
const RULES: &str = "
default: false
rules:
- {rule_id: tokens, identifier_type: ip, unit: tokens, limit: 1000000000, window: 1m, algorithm: sliding_window_counter}
- {rule_id: requests, identifier_type: ip, limit: 100000000, window: 1m, algorithm: sliding_window_counter}
- {rule_id: slots, identifier_type: ip, unit: concurrency, algorithm: concurrency, limit: 100000, slot_ttl: 60s}
";

const BODY: &str = r#"{"model":"m","stream":true,"max_tokens":64,"messages":[{"role":"user","content":"How long does it take until the first word?"}]}"#;

/// A model server that answers at once: what is measured is the way there and back.
fn serve(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let _ = stream.set_nodelay(true);
            let _ = answer(stream);
        });
    }
}

fn answer(stream: TcpStream) -> std::io::Result<()> {
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    let event = chunk(
        r#"data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"word"}}],"usage":null}"#,
    );
    let last = chunk(
        r#"data: {"id":"c","choices":[],"usage":{"prompt_tokens":19,"completion_tokens":20,"total_tokens":39}}"#,
    );
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let first = format!("{head}{event}");
    let rest = format!("{}{last}{}0\r\n\r\n", event.repeat(TOKENS - 1), chunk("data: [DONE]"));
    loop {
        let length = read_head(&mut reader)?.unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        writer.write_all(first.as_bytes())?;
        writer.write_all(rest.as_bytes())?;
    }
}

fn chunk(event: &str) -> String {
    format!("{:x}\r\n{event}\n\n\r\n", event.len() + 2)
}

/// Reads a head; gives the length of the body that it announces. An error at the end of a connection.
fn read_head(reader: &mut impl BufRead) -> std::io::Result<Option<usize>> {
    let mut length = None;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            return Ok(length);
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok();
        }
    }
}

/// One connection that asks for one stream after the other; gives the microseconds to each first token.
fn ask(addr: SocketAddr, times: usize) -> Vec<f64> {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    let mut micros = Vec::with_capacity(times);
    for _ in 0..times {
        let start = Instant::now();
        writer.write_all(request.as_bytes()).unwrap();
        read_head(&mut reader).unwrap();
        let mut is_first = true;
        loop {
            let mut size = String::new();
            reader.read_line(&mut size).unwrap();
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            let mut piece = vec![0; size + 2];
            reader.read_exact(&mut piece).unwrap();
            if std::mem::take(&mut is_first) {
                micros.push(start.elapsed().as_secs_f64() * 1e6);
                assert!(piece.starts_with(b"data: "), "a token, and no error");
            }
            if size == 0 {
                break;
            }
        }
    }
    micros
}

fn many(addr: SocketAddr, connections: usize, times: usize) -> [f64; 2] {
    let mut all: Vec<f64> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..connections).map(|_| scope.spawn(|| ask(addr, times))).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    all.sort_by(f64::total_cmp);
    [50, 99].map(|percent| all[(all.len() * percent / 100).min(all.len() - 1)])
}

/// The product as a gateway to models, all below `dir`.
fn gateway(binary: &Path, dir: &Path, upstream: SocketAddr) -> Server {
    std::fs::create_dir_all(dir).unwrap();
    let (rules, config) = (dir.join("rules.yaml"), dir.join("tollgate.yaml"));
    std::fs::write(&rules, RULES).unwrap();
    let text = format!(
        "gateway:\n  pools: {{gpu: {{targets: [{{url: 'http://{upstream}'}}]}}}}\n  routes: [{{name: ai, kind: openai, pool: gpu}}]\n"
    );
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new(binary);
    command.arg("gateway").arg("--config").arg(config);
    command.args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--grpc", "null"]);
    command.arg("--rules").arg(rules).arg("--data-dir").arg(dir.join("data"));
    Server::start(command)
}

pub fn run(quick: bool, rounds: usize, binary: &Path) {
    let times = if quick { 200 } else { 2_000 };
    println!("\nTime to the first token through the gateway, median of {rounds} rounds");
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = listener.local_addr().unwrap();
    std::thread::spawn(move || serve(&listener));
    let tollgate = gateway(binary, dir.path(), upstream);
    let through = tollgate.at("gateway");
    many(through, CONNECTIONS, times / 10);
    for connections in [1, CONNECTIONS] {
        // p50 and p99, of the model itself and through the gateway.
        let mut figures: [Vec<f64>; 4] = Default::default();
        for _ in 0..rounds {
            for (place, addr) in [(0, upstream), (2, through)] {
                let [p50, p99] = many(addr, connections, times / connections.min(4));
                figures[place].push(p50);
                figures[place + 1].push(p99);
            }
        }
        let [own_p50, own_p99, p50, p99] = figures.map(median);
        let added = p99 - own_p99;
        let work = format!(
            "gateway to models, added to the p99 of the first token, {connections} at once"
        );
        let figure = format!("{added:.0} µs ({p99:.0} against {own_p99:.0})");
        record("AI", &work, &figure, "< 1,000 µs", Some(added < 1_000.0));
        let work = format!("gateway to models, p50 of the first token, {connections} at once");
        compare("AI", &work, &format!("{p50:.0} µs, {own_p50:.0} from the model itself"));
    }
}
