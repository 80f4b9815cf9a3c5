//! Traces, as a receiver of OTLP gets them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::json;
use tokio::runtime::Runtime;
use tollgate_e2e::eventually;
use tollgate_e2e::server::ServerBuilder;
use tollgate_e2e::upstream::Upstream;
use tollgate_testkit::Redis;
use tonic::{Request, Response, Status};

/// A receiver, and what it got.
struct Receiver {
    addr: SocketAddr,
    spans: Arc<Mutex<Vec<(String, Span)>>>,
    _runtime: Runtime,
}

struct Service(Arc<Mutex<Vec<(String, Span)>>>);

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for resource in request.into_inner().resource_spans {
            let attributes = resource.resource.map(|resource| resource.attributes);
            let service = attributes
                .unwrap_or_default()
                .into_iter()
                .find(|one| one.key == "service.name")
                .map(|one| format!("{:?}", one.value))
                .unwrap_or_default();
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            self.0.lock().unwrap().extend(spans.map(|span| (service.clone(), span)));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Receiver {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let spans = Arc::new(Mutex::new(Vec::new()));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let addr = listener.local_addr().unwrap();
        let service = TraceServiceServer::new(Service(Arc::clone(&spans)));
        let connections = futures_util::stream::unfold(listener, |listener| async {
            let connection = listener.accept().await.map(|(stream, _)| stream);
            Some((connection, listener))
        });
        let serve = tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(connections);
        runtime.spawn(serve);
        Self { addr, spans, _runtime: runtime }
    }

    fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    fn of_trace(&self, trace: &[u8]) -> Vec<Span> {
        let spans = self.spans.lock().unwrap();
        spans.iter().map(|(_, span)| span).filter(|span| span.trace_id == trace).cloned().collect()
    }
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn one_trace_leads_from_the_client_through_the_gateway_and_its_store_to_the_upstream() {
    let receiver = Receiver::start();
    let redis = Redis::start();
    let upstream = Upstream::start();
    let server = ServerBuilder::default()
        .gateway()
        .rules(
            "{default: false, rules: [{rule_id: ip, identifier_type: ip, limit: 5, window: 1h}]}",
        )
        .args(&["--upstream".to_owned(), upstream.url(), "--redis".to_owned(), redis.url()])
        .env("TOLLGATE_TRACES_OTLP", &receiver.url())
        .env("TOLLGATE_TRACES_SERVICE_NAME", "tollgate-under-test")
        .start();
    let mut client = tollgate_e2e::Client::connect(server.gateway_addr()).unwrap();
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let answer = client.request("GET", "/items", &[("traceparent", &parent)], b"");
    assert_eq!(answer.status, 200);
    // What the upstream got: the same trace, and the span of the call to it.
    let arrived = upstream.arrived();
    let traceparent = arrived[0].header("traceparent").unwrap().to_owned();
    let (trace, span) = (&traceparent[3..35], traceparent[36..52].to_owned());
    assert_eq!(trace, TRACE);
    assert_ne!(span, PARENT);
    let wanted = ["resolve", "store", "upstream"];
    eventually("the spans arrive", || {
        let spans = receiver.of_trace(&bytes(TRACE));
        wanted.iter().all(|name| spans.iter().any(|span| span.name == *name))
            && spans.iter().any(|span| span.parent_span_id == bytes(PARENT))
    });
    let spans = receiver.of_trace(&bytes(TRACE));
    let root = spans.iter().find(|span| span.parent_span_id == bytes(PARENT)).unwrap();
    for name in wanted {
        let span = spans.iter().find(|span| span.name == name).unwrap();
        assert_eq!(span.parent_span_id, root.span_id, "{name}: {spans:#?}");
    }
    let call = spans.iter().find(|span| span.name == "upstream").unwrap();
    assert_eq!(call.span_id, bytes(&span));
    assert!(receiver.spans.lock().unwrap()[0].0.contains("tollgate-under-test"));
}

#[test]
fn decision_calls_are_traced_and_where_nobody_asks_nothing_is_sent() {
    let receiver = Receiver::start();
    let server = ServerBuilder::default()
        .env("TOLLGATE_TRACES_OTLP", &receiver.url())
        .env("TOLLGATE_TRACES_ONE_IN", "1000000000")
        .start();
    let body = json!({"userId": "ann", "modelId": "gpt4"});
    let mut client = server.client();
    for _ in 0..50 {
        client.allow(&body);
    }
    // One that is traced already goes on, whatever the share.
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let bytes_of = serde_json::to_vec(&body).unwrap();
    client.request("POST", "/rate-limit/allow", &[("traceparent", &parent)], &bytes_of);
    eventually("the trace arrives", || receiver.of_trace(&bytes(TRACE)).len() >= 3);
    let names: Vec<String> =
        receiver.of_trace(&bytes(TRACE)).into_iter().map(|span| span.name).collect();
    assert!(names.contains(&"/rate-limit/allow".to_owned()), "{names:?}");
    let all = receiver.spans.lock().unwrap().len();
    assert_eq!(all, names.len(), "only what was asked for");
}
