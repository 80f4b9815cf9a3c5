//! T5: decisions of three scopes over gRPC, beside HTTP in the same run.

use std::path::{Path, PathBuf};
use std::time::Instant;

use prost::Message;
use tollgate_bench::grpc::{CONNECTIONS, Messages, STREAM, ask, framed, load_stream, load_unary};
use tollgate_bench::http::{load, prepare_load};
use tollgate_bench::process::{Server, running_nanos};
use tollgate_bench::record::{compare, grouped, record};
use tollgate_bench::rules::{self, Caller};
use tollgate_bench::work::median;
use tollgate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tollgate_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollgate_proto::v1::decided::Result as Item;
use tollgate_proto::v1::{
    AllowBatchRequest, AllowBatchResponse, AllowRequest, AllowResponse, AllowStreamRequest,
    AllowStreamResponse, Decided,
};

const ALLOW: &str = "/tollgate.v1.RateLimiterService/Allow";
const ALLOW_BATCH: &str = "/tollgate.v1.RateLimiterService/AllowBatch";
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Connections of the HTTP load, as in the HTTP benchmark.
const HTTP_CONNECTIONS: usize = 64;

/// Streams on each connection for small unary calls: what peers were measured with.
const UNARY_STREAMS: usize = 16;

const USERS: usize = 100_000;

/// How many callers ask in turn.
const CALLERS: usize = 1_000;

/// How many limits every request meets.
const SCOPES: usize = 3;

/// throttlecrab-server's gRPC and limitador-server's RLS, in calls a second: measured on a like machine, in another
/// run.
const THROTTLECRAB: f64 = 54_000.0;
const LIMITADOR: f64 = 38_000.0;

/// What is asked, and how.
enum Load {
    Http,
    Unary { path: &'static str, file: PathBuf, streams: usize, answer_bytes: usize },
    Stream { messages: Messages, in_flight: usize },
}

/// A row: what it is, how many checks a call holds, and what it has to reach.
struct Row {
    work: String,
    checks: usize,
    /// In checks a second, and what that is.
    goal: Option<(f64, String)>,
    load: Load,
    server: Server,
    per_second: Vec<f64>,
}

fn assert_decision(decision: &AllowResponse) {
    assert!(decision.allowed && decision.scopes.len() == SCOPES, "{decision:?}");
}

fn assert_decisions(decisions: &[Decided], count: usize) {
    assert_eq!(decisions.len(), count);
    for decided in decisions {
        match &decided.result {
            Some(Item::Decision(decision)) => assert_decision(decision),
            other => panic!("{other:?}"),
        }
    }
}

/// Starts servers, each asked in one way only, so that their counters tell of nothing else.
struct Stage<'a> {
    binary: &'a Path,
    dir: &'a Path,
    messages: Vec<AllowRequest>,
    rows: Vec<Row>,
}

impl Stage<'_> {
    fn server(&self) -> Server {
        let dir = self.dir.join(self.rows.len().to_string());
        std::fs::create_dir_all(&dir).unwrap();
        Server::start(super::http::tollgate(self.binary, &dir, &[]))
    }

    fn push(&mut self, work: String, checks: usize, load: Load, server: Server) -> &mut Row {
        self.rows.push(Row { work, checks, goal: None, load, server, per_second: Vec::new() });
        self.rows.last_mut().unwrap()
    }

    /// A unary call. `check` looks at the answer to it.
    fn unary<A: Message + Default>(
        &mut self,
        work: String,
        (path, streams): (&'static str, usize),
        checks: usize,
        message: &impl Message,
        check: impl Fn(&A),
    ) -> &mut Row {
        let server = self.server();
        let message = framed(message);
        let file = self.dir.join(format!("message-{}", self.rows.len()));
        std::fs::write(&file, &message).unwrap();
        // Twice: only the second answer is about counters that exist, and as long as all that follow.
        let (answer, _) = ask::<A>(server.at("grpc"), path, &message);
        check(&answer);
        let (_, answer_bytes) = ask::<A>(server.at("grpc"), path, &message);
        self.push(work, checks, Load::Unary { path, file, streams, answer_bytes }, server)
    }

    fn batch(&mut self, size: usize, streams: usize) -> &mut Row {
        let message = AllowBatchRequest { requests: self.messages[..size].to_vec() };
        let work = format!(
            "gRPC `AllowBatch` of {}, {CONNECTIONS} x {streams} streams",
            grouped(size as f64)
        );
        self.unary::<AllowBatchResponse>(work, (ALLOW_BATCH, streams), size, &message, |answer| {
            assert_decisions(&answer.decisions, size);
        })
    }

    fn stream(&mut self, size: usize, in_flight: usize) -> &mut Row {
        let server = self.server();
        let chunks = self.messages.chunks(size).enumerate();
        let messages = Messages::new(chunks.map(|(place, requests)| AllowStreamRequest {
            id: place as u64 + 1,
            requests: requests.to_vec(),
        }));
        let (answer, _) = ask::<AllowStreamResponse>(server.at("grpc"), STREAM, messages.first());
        assert_decisions(&answer.decisions, size);
        let work = format!(
            "gRPC `AllowStream`, {size} a message, {CONNECTIONS} streams with {in_flight} messages under way"
        );
        self.push(work, size, Load::Stream { messages, in_flight }, server)
    }
}

fn goal(row: &mut Row, figure: f64, said: &str) {
    row.goal = Some((figure, said.to_owned()));
}

pub fn run(quick: bool, rounds: usize, binary: &Path) {
    let seconds = if quick { 2 } else { 10 };
    println!(
        "\nT5: gRPC, {SCOPES} scopes a request, beside HTTP; median of {rounds} rounds of {seconds} s"
    );
    let dir = tempfile::tempdir().unwrap();
    let callers = rules::callers(USERS, CALLERS);
    prepare_load(dir.path(), callers.iter().map(Caller::body));
    let messages = callers.iter().map(Caller::message).collect();
    let mut stage = Stage { binary, dir: dir.path(), messages, rows: Vec::new() };
    let server = stage.server();
    let work = format!("HTTP `POST /rate-limit/allow`, {HTTP_CONNECTIONS} connections");
    stage.push(work, 1, Load::Http, server);

    let first = stage.messages[0].clone();
    let shape = format!("{CONNECTIONS} connections x {UNARY_STREAMS} streams");
    let how = (ALLOW, UNARY_STREAMS);
    let row = stage.unary(format!("gRPC `Allow`, {shape}"), how, 1, &first, assert_decision);
    goal(
        row,
        1.5 * THROTTLECRAB,
        "1.5x throttlecrab's gRPC, 54,000/s in another run on a like machine",
    );

    let descriptors = vec![callers[0].descriptor()];
    let asked = RateLimitRequest { domain: "bench".into(), descriptors, hits_addend: 1 };
    let how = (SHOULD_RATE_LIMIT, UNARY_STREAMS);
    let check = |answer: &RateLimitResponse| {
        assert_eq!(answer.overall_code(), Code::Ok);
        assert!(answer.statuses.iter().all(|status| status.current_limit.is_some()), "{answer:?}");
    };
    let row = stage.unary(format!("Envoy `ShouldRateLimit`, {shape}"), how, 1, &asked, check);
    goal(row, 2.0 * LIMITADOR, "2x limitador's RLS, 38,000/s in another run on a like machine");
    let row_address = row.server.at("grpc");

    // Envoy's response names one limit only; a decision of our own shows that all were charged.
    let (decision, _) = ask::<AllowResponse>(row_address, ALLOW, &framed(&first));
    assert_decision(&decision);
    assert!(decision.scopes.iter().all(|scope| scope.current == 3), "{decision:?}");

    stage.batch(10, UNARY_STREAMS);
    goal(stage.batch(100, 4), 1e6, "checks");
    stage.batch(1_000, 2);
    stage.stream(1, 256);
    stage.stream(10, 64);
    goal(stage.stream(100, 8), 0.7e6, "checks");
    measure(&mut stage.rows, rounds, seconds, dir.path());
}

fn measure_once(row: &Row, seconds: u64, dir: &Path) -> f64 {
    let addr = row.server.at("grpc");
    match &row.load {
        Load::Http => load(row.server.addr, HTTP_CONNECTIONS, seconds, dir).per_second,
        Load::Unary { path, file, streams, answer_bytes } => {
            load_unary(addr, path, file, *streams, seconds, *answer_bytes)
        }
        Load::Stream { messages, in_flight } => load_stream(addr, messages, *in_flight, seconds),
    }
}

fn measure(rows: &mut [Row], rounds: usize, seconds: u64, dir: &Path) {
    for row in &*rows {
        measure_once(row, 1, dir);
    }
    for _ in 0..rounds {
        for row in &mut *rows {
            let (start, before) = (Instant::now(), running_nanos(row.server.id()));
            let per_second = measure_once(row, seconds, dir);
            // Where the server has not used its share of the cores, the load was the limit.
            let ran = running_nanos(row.server.id()) - before;
            let cores = ran as f64 / start.elapsed().as_nanos() as f64;
            let checks = grouped(per_second * row.checks as f64);
            println!(
                "  {:80} {:>9}/s, {checks:>9} checks/s; the server ran on {cores:.2} cores",
                row.work,
                grouped(per_second)
            );
            row.per_second.push(per_second);
        }
    }
    let http = median(std::mem::take(&mut rows[0].per_second));
    compare("T5", &rows[0].work, &format!("{}/s", grouped(http)));
    for Row { work, checks, goal, per_second, .. } in &mut rows[1..] {
        let calls = median(std::mem::take(per_second));
        let per_second = calls * *checks as f64;
        let ratio = per_second / http;
        let figure = match checks {
            1 => format!("{}/s: {ratio:.2}x HTTP", grouped(calls)),
            _ => format!(
                "{} checks/s: {ratio:.1}x HTTP ({} messages/s)",
                grouped(per_second),
                grouped(calls)
            ),
        };
        match goal {
            Some((least, said)) if said == "checks" => {
                let goal = format!(">= {} checks/s", grouped(*least));
                record("T5", work, &figure, &goal, Some(per_second >= *least));
            }
            Some((least, said)) => {
                let goal = format!(">= {}/s ({said})", grouped(*least));
                record("T5", work, &figure, &goal, Some(per_second >= *least));
            }
            None => compare("T5", work, &figure),
        }
    }
}
