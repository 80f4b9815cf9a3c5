//! T4, T5b: `POST /rate-limit/allow` beside bare servers, driven by wrk.

use std::path::Path;
use std::process::Command;

use tollgate_bench::http::{Bare, load, prepare_load};
use tollgate_bench::process::Server;
use tollgate_bench::record::{compare, grouped, record};
use tollgate_bench::rules;
use tollgate_bench::work::median;

const CONNECTIONS: usize = 64;

/// How many bodies are sent in turn.
const BODIES: usize = 1_000;

/// The product with three rules and a data directory, all below `dir`.
pub fn tollgate(binary: &Path, dir: &Path, further: &[&str]) -> Command {
    let rules = dir.join("rules.yaml");
    std::fs::write(&rules, rules::file(3)).unwrap();
    let mut command = Command::new(binary);
    command
        .arg("serve")
        .args(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--rules"])
        .arg(rules);
    command.arg("--data-dir").arg(dir.join("data")).args(further);
    command
}

fn bare(kind: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["bare", kind]);
    command
}

#[derive(Default)]
struct Figures {
    per_second: Vec<f64>,
    p99: Vec<f64>,
    alone_p50: Vec<f64>,
}

pub fn run(quick: bool, rounds: usize, binary: &Path) {
    use clap::ValueEnum;
    let (seconds, rounds) = if quick { (2, 1) } else { (10, rounds) };
    let alone_seconds = if quick { 1 } else { 5 };
    println!("\nT4, T5b: HTTP, {CONNECTIONS} connections and 1, median of {rounds} rounds");
    let dir = tempfile::tempdir().unwrap();
    prepare_load(dir.path(), rules::callers(100_000, BODIES).iter().map(rules::Caller::body));
    let mut servers = vec![("tollgate".to_owned(), tollgate(binary, dir.path(), &[]))];
    for kind in Bare::value_variants() {
        let name = kind.to_possible_value().unwrap().get_name().to_owned();
        servers.push((format!("bare {name}"), bare(&name)));
    }
    let servers: Vec<(String, Server)> =
        servers.into_iter().map(|(name, command)| (name, Server::start(command))).collect();
    let mut figures: Vec<Figures> = servers.iter().map(|_| Figures::default()).collect();
    for (_, server) in &servers {
        load(server.addr, CONNECTIONS, 1, dir.path());
    }
    for _ in 0..rounds {
        for ((name, server), figures) in servers.iter().zip(&mut figures) {
            let many = load(server.addr, CONNECTIONS, seconds, dir.path());
            let alone = load(server.addr, 1, alone_seconds, dir.path());
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
    let medians: Vec<[f64; 3]> = figures
        .into_iter()
        .map(|figures| [figures.per_second, figures.p99, figures.alone_p50].map(median))
        .collect();
    let [ours, stealing, per_core, hyper] = medians[..] else { unreachable!() };
    // The better of the two axum servers is the one to be compared with.
    let best = if stealing[0] > per_core[0] { stealing } else { per_core };
    let share = ours[0] / best[0];
    let figure = format!("{share:.2} ({}/s of {}/s)", grouped(ours[0]), grouped(best[0]));
    let work = "`POST /rate-limit/allow`, 3 scopes, of bare axum (the better of two)";
    record("T4", work, &figure, ">= 0.85", Some(share >= 0.85));
    let more = ours[2] - best[2];
    let figure = format!("{more:+.0} µs ({:.0} against {:.0})", ours[2], best[2]);
    record("T4", "one-connection p50 over bare axum", &figure, "<= +10 µs", Some(more <= 10.0));
    let figure = format!("{:.2} ({}/s)", ours[0] / hyper[0], grouped(hyper[0]));
    compare("T4", "of bare hyper, a runtime per core", &figure);
    let figure = format!("{:.0} µs against {:.0} µs", ours[1], best[1]);
    compare("T4", "p99 from outside, 64 connections, against bare axum", &figure);
    let figure = format!(
        "{:.2}x ({}/s against {}/s), p50 alone {:.0} against {:.0} µs",
        per_core[0] / stealing[0],
        grouped(per_core[0]),
        grouped(stealing[0]),
        per_core[2],
        stealing[2]
    );
    compare("T5b", "axum with a runtime per core against work stealing", &figure);
}
