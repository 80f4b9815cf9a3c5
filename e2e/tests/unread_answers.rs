//! HTTP/2 clients that open streams and do not read the answers, by flow control. What finds no room is not charged.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Connection, ResponseFuture, SendRequest};
use http::{Request, StatusCode};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::rt::TokioExecutor;
use prost::Message as _;
use serde_json::json;
use tokio::net::TcpStream;
use tollgate_e2e::{Server, ServerBuilder, eventually};
use tollgate_proto::v1::rate_limiter_service_client::RateLimiterServiceClient;
use tollgate_proto::v1::{AllowBatchRequest, AllowRequest, AllowStreamRequest};
use tonic::Code;

const BATCH: &str = "/tollgate.v1.RateLimiterService/AllowBatch";
const STREAM: &str = "/tollgate.v1.RateLimiterService/AllowStream";

/// Requests of a batch. The answer takes megabytes, since every decision names all rules.
const REQUESTS: usize = 1_000;

/// Room for one such answer, and not for two.
const MAX_BYTES: usize = 6 << 20;

/// How long a client that drips waits until it reads again.
const ROUND: Duration = Duration::from_millis(20);

/// Longer than any wait that the product states.
const PATIENCE: Duration = Duration::from_secs(60);

/// The least that can be configured, and so many rules that it is room for few answers to one request.
const MIN_BYTES: usize = 1 << 20;
const MANY_RULES: usize = 250;

fn server(idle_timeout_ms: u32) -> Server {
    server_with(32, MAX_BYTES, idle_timeout_ms)
}

fn server_with(rules: usize, max_bytes: usize, idle_timeout_ms: u32) -> Server {
    let rule = |number| {
        format!(
            "  - {{rule_id: of-all-{number}, identifier_type: global, limit: 1000000, window: 365d, algorithm: fixed_window}}"
        )
    };
    let rules: Vec<String> = (0..rules).map(rule).collect();
    ServerBuilder::default()
        .rules(&format!("default: false\nrules:\n{}", rules.join("\n")))
        .env("TOLLGATE_LIMITS_MAX_BUFFERED_BYTES", &max_bytes.to_string())
        .env("TOLLGATE_LIMITS_IDLE_TIMEOUT_MS", &idle_timeout_ms.to_string())
        .start()
}

fn batch() -> AllowBatchRequest {
    let ann = AllowRequest { user_id: "ann".to_owned(), ..AllowRequest::default() };
    AllowBatchRequest { requests: vec![ann; REQUESTS] }
}

fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).expect("a message of few bytes");
    [&[0], &length.to_be_bytes()[..], message].concat().into()
}

/// How much the rules have counted.
fn counted(server: &Server) -> u64 {
    let answer = server.client().post("/rate-limit/peek", &json!({"userId": "ann"}));
    answer.json()["scopes"][0]["current"].as_u64().expect("a figure")
}

type Reader = (SendRequest<Bytes>, Connection<TcpStream, Bytes>);

/// A client whose streams may receive no byte until it says so.
async fn reader(addr: SocketAddr) -> Reader {
    let stream = TcpStream::connect(addr).await.expect("a connection");
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(0);
    builder.handshake(stream).await.expect("a greeting")
}

fn ask(
    sender: &mut SendRequest<Bytes>,
    addr: SocketAddr,
    (path, kind): (&str, &str),
    body: Bytes,
) -> Result<ResponseFuture, h2::Error> {
    let request = Request::post(format!("http://{addr}{path}"))
        .header("content-type", kind)
        .body(())
        .expect("a request");
    let (answer, mut stream) = sender.send_request(request, false)?;
    stream.send_data(body, true)?;
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grpc_batch_without_room_for_its_answer_is_refused_and_not_charged() {
    let server = server(60_000);
    let addr = server.grpc_addr();
    let http = HyperClient::builder(TokioExecutor::new()).http2_only(true).build_http();
    let origin = format!("http://{addr}").parse().expect("a URL");
    let mut client =
        RateLimiterServiceClient::with_origin(http, origin).max_decoding_message_size(usize::MAX);
    client.allow_batch(batch()).await.expect("there is room");

    let (sender, connection) = reader(addr).await;
    let driver = tokio::spawn(connection);
    let mut sender = sender.ready().await.expect("a connection");
    let kind = "application/grpc";
    let answer =
        ask(&mut sender, addr, (BATCH, kind), framed(&batch().encode_to_vec())).expect("a stream");
    let answer = answer.await.expect("an answer");
    assert_eq!(answer.headers().get("grpc-status"), None, "it is charged and answered");

    let before = counted(&server);
    assert_eq!(before, 2 * REQUESTS as u64);
    let refused = client.allow_batch(batch()).await.expect_err("there is no room for another");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("limits.max_buffered_bytes"), "{refused}");
    let question = AllowStreamRequest { id: 1, requests: batch().requests };
    let asked = futures_util::stream::iter([question]);
    let mut answers = client.allow_stream(asked).await.expect("a stream").into_inner();
    let refused = answers.message().await.expect_err("there is no room either");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert_eq!(counted(&server), before, "refused requests are not charged");
    let small = AllowBatchRequest { requests: batch().requests[..1].to_vec() };
    client.allow_batch(small).await.expect("small answers pass");

    drop((answer, sender));
    driver.abort();
    let mut is_answered = false;
    for _ in 0..1_000 {
        is_answered = client.allow_batch(batch()).await.is_ok();
        if is_answered {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(is_answered, "there is room again");
}

/// Calls of a client that reads no answer, some of which find no room.
const UNREAD_CALLS: usize = 30;

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_room_for_its_answer_is_refused_and_not_charged() {
    let server = server_with(MANY_RULES, MIN_BYTES, 60_000);
    let addr = server.addr();
    let body = json!({"userId": "ann"}).to_string();
    for path in ["/rate-limit/allow", "/rate-limit/reserve"] {
        let before = counted(&server);
        let (sender, connection) = reader(addr).await;
        let driver = tokio::spawn(connection);
        let mut answers = Vec::new();
        for _ in 0..UNREAD_CALLS {
            let mut sender = sender.clone().ready().await.expect("a connection");
            let body = Bytes::from(body.clone());
            let answer =
                ask(&mut sender, addr, (path, "application/json"), body).expect("a stream");
            answers.push(answer.await.expect("an answer"));
        }
        let count = |status| answers.iter().filter(|answer| answer.status() == status).count();
        let (answered, refused) = (count(StatusCode::OK), count(StatusCode::SERVICE_UNAVAILABLE));
        assert_eq!(answered + refused, UNREAD_CALLS, "{path}");
        assert!(answered > 0 && refused > 0, "{path}: {answered} answered, {refused} refused");
        drop((answers, sender));
        driver.abort();
        eventually("there is room again", || {
            let answer = server.client().post("/rate-limit/peek", &json!({"userId": "ann"}));
            answer.status == 200
        });
        assert_eq!(
            counted(&server) - before,
            answered as u64,
            "{path}: refused ones are not charged"
        );
    }
}

/// Streams of a client that drips, fewer than a connection may have.
const MAX_STREAMS: u32 = 100;

/// Reads a byte of its answers now and then, with further requests in between, until the connection ends.
async fn drip(
    (sender, mut connection): Reader,
    addr: SocketAddr,
    call: (&str, &str),
    body: Bytes,
) -> Result<(), h2::Error> {
    let mut answers = Vec::new();
    for round in 0.. {
        if round % 5 == 0 && round / 5 < MAX_STREAMS {
            let body = if round == 0 { body.clone() } else { framed(b"") };
            tokio::select! {
                ended = &mut connection => return ended,
                ready = sender.clone().ready() => answers.push(ask(&mut ready?, addr, call, body)?),
            }
        }
        // Refused while the last one is not confirmed, which is as good here.
        let _ = connection.set_initial_window_size(round / 100);
        if let Ok(ended) = tokio::time::timeout(ROUND, &mut connection).await {
            return ended;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_readers_that_drip_are_cut() {
    let server = server(600);
    let (http, grpc) = (server.addr(), server.grpc_addr());
    let plain = json!({"requests": vec![json!({"userId": "ann"}); REQUESTS]});
    let question = AllowStreamRequest { id: 1, requests: batch().requests };
    let path = "/rate-limit/allow/batch";
    let cases = [
        (http, (path, "application/json"), plain.to_string().into()),
        (grpc, (BATCH, "application/grpc"), framed(&batch().encode_to_vec())),
        (grpc, (STREAM, "application/grpc"), framed(&question.encode_to_vec())),
    ];
    for (addr, call, body) in cases {
        let reader = reader(addr).await;
        let ended = tokio::time::timeout(PATIENCE, drip(reader, addr, call, body)).await;
        // The client itself gives up a server that goes on sending it single bytes.
        let is_by_server =
            ended.as_ref().is_ok_and(|it| !it.as_ref().is_err_and(h2::Error::is_library));
        assert!(is_by_server, "{call:?}: the connection is ended: {ended:?}");
    }
    let answer = server.client().post(path, &plain);
    assert_eq!(answer.status, StatusCode::OK.as_u16(), "what they held is free again");
}
