//! T8: the gateway beside nginx with `limit_req`, in front of the same upstream.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use tollgate_bench::http::load_get;
use tollgate_bench::nginx::Nginx;
use tollgate_bench::process::Server;
use tollgate_bench::record::{compare, grouped, record};
use tollgate_bench::work::median;

const CONNECTIONS: usize = 64;

/// By address, as nginx limits, and as far from refusing anything.
const RULES: &str = "
default: false
rules:
- {rule_id: clients, scope: IP, identifier_type: ip, algorithm: token_bucket, limit: 1000000, burst: 1000000, window: 1s}
";

/// The product as a gateway with these rules, all below `dir`.
pub fn gateway(binary: &Path, dir: &Path, upstream: SocketAddr, rules: &str) -> Server {
    std::fs::create_dir_all(dir).unwrap();
    let file = dir.join("rules.yaml");
    std::fs::write(&file, rules).unwrap();
    let mut command = Command::new(binary);
    command.arg("gateway").args(["--upstream", &format!("http://{upstream}")]);
    command.args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--grpc", "null"]);
    command.arg("--rules").arg(file).arg("--data-dir").arg(dir.join("data"));
    Server::start(command)
}

#[derive(Default)]
struct Figures {
    per_second: Vec<f64>,
    p99: Vec<f64>,
    alone_p50: Vec<f64>,
}

pub fn run(quick: bool, rounds: usize, binary: &Path) {
    let (seconds, alone_seconds) = if quick { (2, 1) } else { (10, 5) };
    println!(
        "\nT8: the gateway and nginx, {CONNECTIONS} connections and 1, median of {rounds} rounds"
    );
    let dir = tempfile::tempdir().unwrap();
    let upstream = Nginx::upstream(&dir.path().join("upstream"));
    let nginx = Nginx::limiting_proxy(&dir.path().join("nginx"), upstream.addr);
    let tollgate = gateway(binary, &dir.path().join("tollgate"), upstream.addr, RULES);
    let servers = [
        ("the upstream alone", upstream.addr),
        ("nginx limit_req", nginx.addr),
        ("tollgate gateway", tollgate.at("gateway")),
    ];
    let mut figures: [Figures; 3] = Default::default();
    for (_, addr) in servers {
        load_get(addr, CONNECTIONS, 1, dir.path());
    }
    for _ in 0..rounds {
        for ((name, addr), figures) in servers.iter().zip(&mut figures) {
            let before = upstream.served();
            // Whatever is no success is an error there, and fails the run.
            let many = load_get(*addr, CONNECTIONS, seconds, dir.path());
            let alone = load_get(*addr, 1, alone_seconds, dir.path());
            // What was answered was answered by the upstream, and by nobody on the way.
            let arrived = (upstream.served() - before) as f64;
            assert!(arrived >= many.requests + alone.requests, "{name}: {arrived} arrived");
            println!(
                "  {name:20} {:>8}/s, p99 {:>5.0} µs; one connection p50 {:>4.0} µs",
                grouped(many.per_second),
                many.p99_micros,
                alone.p50_micros
            );
            figures.per_second.push(many.per_second);
            figures.p99.push(many.p99_micros);
            figures.alone_p50.push(alone.p50_micros);
        }
    }
    let [alone, nginx, ours] =
        figures.map(|figures| [figures.per_second, figures.p99, figures.alone_p50].map(median));
    let share = ours[0] / nginx[0];
    let figure =
        format!("{share:.2} ({}/s of {}/s), no errors", grouped(ours[0]), grouped(nginx[0]));
    let work = "gateway, of nginx with `limit_req`, 64 connections to the same upstream";
    record("T8", work, &figure, ">= 0.8", Some(share >= 0.8));
    let times = ours[2] / nginx[2];
    let mut figure = format!("{times:.2}x ({:.0} against {:.0} µs)", ours[2], nginx[2]);
    // Nobody on the way makes an answer come sooner: then it was the machine, and there is no verdict.
    let is_sound = ours[2].min(nginx[2]) > alone[2];
    if !is_sound {
        figure
            .push_str("; not judged: sooner than the upstream alone, so the machine was not quiet");
    }
    let work = "gateway, one-connection p50 against nginx";
    record("T8", work, &figure, "<= 1.2x", is_sound.then_some(times <= 1.2));
    let added = |of: [f64; 3]| of[1] - alone[1];
    let figure = format!(
        "{:.0} against {:.0} µs, of which added to the upstream's own {:.0}: {:+.0} against {:+.0}",
        ours[1],
        nginx[1],
        alone[1],
        added(ours),
        added(nginx)
    );
    compare("T8", "gateway, p99 with 64 connections against nginx", &figure);
    let figure = format!("{}/s, one-connection p50 {:.0} µs", grouped(alone[0]), alone[2]);
    compare("T8", "the upstream alone", &figure);
}
