//! A model server that has no model: it streams real events over real HTTP, says what it used, and keeps the books that
//! a limiter in front of it is compared with.
//!
//! A token is four characters long, so that a limiter that counts characters counts the same. A request chooses the
//! behaviour that it meets with `stand_in` ([`Behaviour`]), which clients send in `metadata`, where it costs nothing, or
//! as a further field of their body.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::http::request::Parts;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::Arrived;

mod background;
mod messages;

use background::Background;

/// One token, as text.
pub const TOKEN: &str = "tok ";

fn stand_in(body: &Value) -> &Value {
    body["metadata"].get("stand_in").unwrap_or(&body["stand_in"])
}

/// What a request is to meet.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is one thing that servers do")]
pub struct Behaviour {
    /// How many tokens an answer has, unless the client allows fewer.
    pub tokens: u64,
    /// How long each takes.
    pub delay: Duration,
    /// Fail with this status.
    pub status: Option<u16>,
    /// Break off after so many tokens.
    pub cut_after: Option<u64>,
    /// Fail with an event after so many tokens, in messages.
    pub error_after: Option<u64>,
    /// Stand still after so many tokens, for as long as anybody waits.
    pub hang_after: Option<u64>,
    /// Write as much as that whatever the client allows.
    pub ignores_bound: bool,
    /// Say nothing of what was used.
    pub is_silent: bool,
    /// Send each token only when [`Model::go_on`] says so.
    pub is_gated: bool,
    /// Say what was used with the last words, and not after them.
    pub usage_with_last: bool,
    /// End lines with CRLF.
    pub has_crlf: bool,
    /// Headers of the answer, whatever it is.
    pub headers: Vec<(String, String)>,
    /// Say that this was used, whatever was.
    pub usage: Option<Value>,
    /// Compress the answer, asked or not: gzip or deflate.
    pub encoding: Option<String>,
}

impl Behaviour {
    fn of(body: &Value) -> Self {
        let said = stand_in(body);
        let flag = |name: &str| said[name].as_bool().unwrap_or(false);
        Self {
            tokens: said["tokens"].as_u64().unwrap_or(5),
            delay: Duration::from_millis(said["delay_ms"].as_u64().unwrap_or(0)),
            status: said["status"].as_u64().and_then(|status| u16::try_from(status).ok()),
            cut_after: said["cut_after"].as_u64(),
            error_after: said["error_after"].as_u64(),
            hang_after: said["hang_after"].as_u64(),
            ignores_bound: flag("ignores_bound"),
            is_silent: flag("silent"),
            is_gated: flag("gated"),
            usage_with_last: flag("usage_with_last"),
            has_crlf: flag("crlf"),
            headers: said["headers"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, value)| (name.clone(), value.as_str().unwrap_or("").to_owned()))
                .collect(),
            usage: said.get("usage").cloned(),
            encoding: said["encoding"].as_str().map(str::to_owned),
        }
    }
}

/// What was truly served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Requests that came.
    pub requests: u64,
    /// Requests that were answered with tokens.
    pub served: u64,
    /// Tokens of their prompts, and of their answers as far as they were made.
    pub tokens: u64,
    /// Answers that came to their end.
    pub finished: u64,
    /// The most requests at the same time.
    pub most_active: u64,
    /// Finished answers by the caller's mark (`stand_in.mark`).
    pub marks: BTreeMap<String, u64>,
}

#[derive(Default)]
struct State {
    arrived: Mutex<Vec<Arrived>>,
    ledger: Mutex<Ledger>,
    active: AtomicU64,
    /// How many tokens every gated answer may have.
    allowed: watch::Sender<u64>,
    /// Whether answers are held back.
    holds: watch::Sender<bool>,
    /// Whether what arrives is not kept.
    forgets: std::sync::atomic::AtomicBool,
    background: Background,
}

impl State {
    fn note(&self, change: impl FnOnce(&mut Ledger)) {
        change(&mut self.ledger.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// A request under way.
struct Active(Arc<State>);

impl Active {
    fn new(state: &Arc<State>) -> Self {
        let active = state.active.fetch_add(1, Ordering::SeqCst) + 1;
        state.note(|ledger| ledger.most_active = ledger.most_active.max(active));
        Self(Arc::clone(state))
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A running model server; stopped when dropped.
pub struct Model {
    addr: SocketAddr,
    state: Arc<State>,
    runtime: Option<tokio::runtime::Runtime>,
}

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

impl Model {
    /// On a free port.
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("a listener");
        let addr = listener.local_addr().expect("an address");
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    let answer = service_fn(move |request| answer(Arc::clone(&shared), request));
                    let builder = auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), answer).await;
                });
            }
        });
        Self { addr, state, runtime: Some(runtime) }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// What arrived so far.
    pub fn arrived(&self) -> Vec<Arrived> {
        self.state.arrived.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What was served so far.
    pub fn ledger(&self) -> Ledger {
        self.state.ledger.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Requests under way.
    pub fn active(&self) -> u64 {
        self.state.active.load(Ordering::SeqCst)
    }

    /// Holds back all answers, whatever they are, or lets them go.
    pub fn hold(&self, holds: bool) {
        self.state.holds.send_replace(holds);
    }

    /// From now on keeps nothing but its books: for long runs.
    pub fn forget_arrivals(&self) {
        self.state.forgets.store(true, Ordering::Relaxed);
    }

    /// Ends all responses that are made in the background.
    pub fn finish_background(&self) {
        self.state.background.finish();
    }

    /// Lets every gated answer have so many tokens more.
    pub fn go_on(&self, tokens: u64) {
        self.state.allowed.send_modify(|allowed| *allowed += tokens);
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            crate::end(runtime);
        }
    }
}

fn full(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

fn json_answer(status: u16, body: &Value) -> Response<Body> {
    let mut response = Response::new(full(body.to_string()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let kind = "application/json".parse().expect("a header");
    response.headers_mut().insert("content-type", kind);
    response
}

/// How many tokens a text is.
fn tokens_of(characters: usize) -> u64 {
    (characters as u64).div_ceil(4)
}

/// How many tokens the prompt of a request has: a quarter of its characters, and four for each message.
fn prompt_tokens(body: &Value) -> u64 {
    if let Some(messages) = body["messages"].as_array() {
        let characters =
            |message: &Value| message["content"].as_str().unwrap_or("").chars().count();
        let system = body["system"].as_str().unwrap_or("").chars().count();
        let text = messages.iter().map(characters).sum::<usize>() + system;
        return tokens_of(text) + 4 * (messages.len() as u64 + 1);
    }
    let overhead =
        if body["prompt"].is_null() && body["max_output_tokens"].is_u64() { 4 } else { 0 };
    let input = if body["prompt"].is_null() { &body["input"] } else { &body["prompt"] };
    let text = match input {
        Value::Array(texts) => {
            texts.iter().map(|text| text.as_str().unwrap_or("").chars().count()).sum()
        }
        text => text.as_str().unwrap_or("").chars().count(),
    };
    tokens_of(text) + overhead
}

async fn answer(
    state: Arc<State>,
    request: Request<Incoming>,
) -> Result<Response<Body>, hyper::Error> {
    let (head, body) = request.into_parts();
    let bytes = body.collect().await?.to_bytes();
    let text =
        |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    if !state.forgets.load(Ordering::Relaxed) {
        let headers = head.headers.iter();
        state.arrived.lock().unwrap_or_else(PoisonError::into_inner).push(Arrived {
            method: head.method.to_string(),
            path: head.uri.to_string(),
            headers: headers.map(|(name, value)| (name.to_string(), text(value))).collect(),
            version: format!("{:?}", head.version),
            body: bytes.to_vec(),
        });
    }
    state.note(|ledger| ledger.requests += 1);
    if head.uri.path().ends_with("/models") {
        return Ok(json_answer(
            200,
            &json!({"object": "list", "data": [{"id": "own", "object": "model"}]}),
        ));
    }
    if let Some(answer) = state.background.answer(&head) {
        return Ok(answer);
    }
    let Ok(body) = serde_json::from_slice::<Value>(&bytes) else {
        return Ok(json_answer(400, &json!({"error": {"message": "no JSON", "type": "bad"}})));
    };
    let active = Active::new(&state);
    let mut holds = state.holds.subscribe();
    let _ = holds.wait_for(|holds| !holds).await;
    let mut behaviour = Behaviour::of(&body);
    let headers = std::mem::take(&mut behaviour.headers);
    let encoding = behaviour.encoding.take();
    let mut response = made(&head, body, behaviour, active).await;
    if let Some(encoding) = encoding {
        response = compressed(response, &encoding).await;
    }
    for (name, value) in headers {
        let name: hyper::header::HeaderName = name.parse().expect("a name");
        response.headers_mut().append(name, value.parse().expect("a header"));
    }
    Ok(response)
}

/// The whole answer, compressed. Events are flushed one by one, as servers do that compress streams.
async fn compressed(response: Response<Body>, encoding: &str) -> Response<Body> {
    use std::io::Write as _;
    let (mut head, body) = response.into_parts();
    let plain = body.collect().await.expect("a whole answer").to_bytes();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    for event in plain.split_inclusive(|byte| *byte == b'\n') {
        gzip.write_all(event).and_then(|()| gzip.flush()).expect("memory");
        zlib.write_all(event).and_then(|()| zlib.flush()).expect("memory");
    }
    let bytes = match encoding {
        "gzip" => gzip.finish(),
        _ => zlib.finish(),
    };
    head.headers.insert("content-encoding", encoding.parse().expect("a header"));
    Response::from_parts(head, full(bytes.expect("memory")))
}

async fn made(head: &Parts, body: Value, behaviour: Behaviour, active: Active) -> Response<Body> {
    if let Some(status) = behaviour.status {
        tokio::time::sleep(behaviour.delay).await;
        let message = if head.uri.path().ends_with("/messages") {
            messages::error("api_error")
        } else {
            json!({"error": {"message": "as requested", "type": "server_error", "code": null}})
        };
        return json_answer(status, &message);
    }
    let prompt = prompt_tokens(&body);
    if head.uri.path().ends_with("/count_tokens") {
        return json_answer(200, &json!({"input_tokens": prompt}));
    }
    if body["background"] == true {
        let usage = json!({"input_tokens": prompt, "output_tokens": behaviour.tokens,
            "total_tokens": prompt + behaviour.tokens});
        return active.0.background.start(&body["model"], usage);
    }
    let made = Made::new(head.uri.path(), body, prompt, behaviour, active);
    if made.is_stream { made.stream() } else { made.plain().await }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Chat,
    Completions,
    Embeddings,
    Responses,
    Messages,
}

/// An answer being made.
struct Made {
    kind: Kind,
    body: Value,
    prompt: u64,
    tokens: u64,
    behaviour: Behaviour,
    is_stream: bool,
    wants_usage: bool,
    active: Active,
}

impl Made {
    fn new(path: &str, body: Value, prompt: u64, behaviour: Behaviour, active: Active) -> Self {
        let kind = match path {
            path if path.ends_with("/chat/completions") => Kind::Chat,
            path if path.ends_with("/completions") => Kind::Completions,
            path if path.ends_with("/embeddings") => Kind::Embeddings,
            path if path.ends_with("/messages") => Kind::Messages,
            _ => Kind::Responses,
        };
        let bound = ["max_completion_tokens", "max_tokens", "max_output_tokens"];
        let most = bound.iter().find_map(|name| body[*name].as_u64());
        let most = most.filter(|_| !behaviour.ignores_bound).unwrap_or(u64::MAX);
        let is_stream = body["stream"].as_bool().unwrap_or(false);
        let wants_usage = body["stream_options"]["include_usage"].as_bool().unwrap_or(false);
        let tokens = if kind == Kind::Embeddings { 0 } else { behaviour.tokens.min(most) };
        Self { kind, body, prompt, tokens, behaviour, is_stream, wants_usage, active }
    }

    fn usage(&self, tokens: u64) -> Value {
        if let Some(usage) = &self.behaviour.usage {
            return usage.clone();
        }
        let total = self.prompt + tokens;
        match self.kind {
            Kind::Responses => {
                json!({"input_tokens": self.prompt, "output_tokens": tokens, "total_tokens": total})
            }
            Kind::Messages => self.message_usage(tokens),
            Kind::Embeddings => json!({"prompt_tokens": self.prompt, "total_tokens": total}),
            _ => {
                json!({"prompt_tokens": self.prompt, "completion_tokens": tokens, "total_tokens": total})
            }
        }
    }

    /// One more token is made, after so many.
    async fn token(&self, after: u64) {
        if self.behaviour.is_gated {
            let mut allowed = self.active.0.allowed.subscribe();
            let _ = allowed.wait_for(|allowed| *allowed > after).await;
        }
        if !self.behaviour.delay.is_zero() {
            tokio::time::sleep(self.behaviour.delay).await;
        }
        self.active.0.note(|ledger| ledger.tokens += 1);
    }

    fn begun(&self) {
        self.active.0.note(|ledger| {
            ledger.served += 1;
            ledger.tokens += self.prompt;
        });
    }

    fn finished(&self) {
        let mark = stand_in(&self.body)["mark"].as_str().unwrap_or("").to_owned();
        self.active.0.note(|ledger| {
            ledger.finished += 1;
            *ledger.marks.entry(mark).or_default() += 1;
        });
    }

    async fn plain(self) -> Response<Body> {
        self.begun();
        for after in 0..self.tokens {
            self.token(after).await;
        }
        self.finished();
        let text = TOKEN.repeat(self.tokens as usize);
        let model = &self.body["model"];
        let mut answer = match self.kind {
            Kind::Chat => {
                let message = json!({"role": "assistant", "content": text});
                json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model,
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": null}]})
            }
            Kind::Completions => {
                json!({"id": "cmpl-1", "object": "text_completion", "created": 1, "model": model,
                "choices": [{"index": 0, "text": text, "finish_reason": "stop", "logprobs": null}]})
            }
            Kind::Messages => self.message(&text),
            Kind::Embeddings => json!({"object": "list", "model": model,
                "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]}),
            Kind::Responses => {
                let content = json!([{"type": "output_text", "text": text, "annotations": []}]);
                let output = json!([{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}]);
                json!({"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": model,
                    "output": output, "parallel_tool_calls": true, "tool_choice": "auto", "tools": []})
            }
        };
        if !self.behaviour.is_silent {
            answer["usage"] = self.usage(self.tokens);
        }
        json_answer(200, &answer)
    }

    fn stream(self) -> Response<Body> {
        self.begun();
        let stream = futures_util::stream::unfold((self, 0_u64), |(made, step)| async move {
            let event = made.step(step).await?;
            Some((event.map(|text| Frame::data(Bytes::from(text))), (made, step + 1)))
        });
        let mut response = Response::new(StreamBody::new(stream).boxed_unsync());
        let kind = "text/event-stream; charset=utf-8".parse().expect("a header");
        response.headers_mut().insert("content-type", kind);
        response
    }

    /// The next part of a stream; None at its end.
    async fn step(&self, step: u64) -> Option<Result<String, std::io::Error>> {
        if self.behaviour.cut_after == Some(step) {
            // Time for what came before to be read.
            tokio::time::sleep(Duration::from_millis(2)).await;
            return Some(Err(std::io::Error::other("cut as requested")));
        }
        if self.behaviour.hang_after == Some(step) {
            std::future::pending::<()>().await;
        }
        if self.behaviour.error_after.is_some_and(|after| step > after) {
            return None;
        }
        if self.behaviour.error_after == Some(step) {
            return Some(Ok(Self::message_fails()));
        }
        let text = match step.cmp(&self.tokens) {
            std::cmp::Ordering::Less => {
                self.token(step).await;
                self.token_events(step, step + 1 == self.tokens)
            }
            std::cmp::Ordering::Equal => {
                self.finished();
                self.last_events()
            }
            std::cmp::Ordering::Greater => return None,
        };
        Some(Ok(if self.behaviour.has_crlf { text.replace('\n', "\r\n") } else { text }))
    }

    fn token_events(&self, step: u64, is_last: bool) -> String {
        if self.kind == Kind::Messages {
            return self.message_token(step);
        }
        if self.kind == Kind::Responses {
            let delta = json!({"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0,
                "content_index": 0, "sequence_number": 1, "delta": TOKEN, "logprobs": []});
            return format!("event: response.output_text.delta\ndata: {delta}\n\n");
        }
        let finish = if is_last { json!("stop") } else { Value::Null };
        let mut chunk = if self.kind == Kind::Chat {
            json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": self.body["model"],
                "choices": [{"index": 0, "delta": {"role": "assistant", "content": TOKEN}, "finish_reason": finish}]})
        } else {
            json!({"id": "cmpl-1", "object": "text_completion", "created": 1, "model": self.body["model"],
                "choices": [{"index": 0, "text": TOKEN, "finish_reason": finish}]})
        };
        if is_last && self.behaviour.usage_with_last {
            chunk["usage"] = self.usage(self.tokens);
        } else if self.wants_usage && !self.behaviour.is_silent {
            chunk["usage"] = Value::Null;
        }
        format!("data: {chunk}\n\n")
    }

    fn last_events(&self) -> String {
        if self.kind == Kind::Messages {
            return self.message_ends();
        }
        if self.kind == Kind::Responses {
            let usage =
                if self.behaviour.is_silent { Value::Null } else { self.usage(self.tokens) };
            let response = json!({"id": "resp_1", "object": "response", "created_at": 1, "status": "completed",
                "model": self.body["model"], "output": [], "parallel_tool_calls": true, "tool_choice": "auto",
                "tools": [], "usage": usage});
            let done =
                json!({"type": "response.completed", "sequence_number": 2, "response": response});
            return format!("event: response.completed\ndata: {done}\n\n");
        }
        let mut text = String::new();
        if self.wants_usage && !self.behaviour.is_silent && !self.behaviour.usage_with_last {
            let chunk = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1,
                "model": self.body["model"], "choices": [], "usage": self.usage(self.tokens)});
            text = format!("data: {chunk}\n\n");
        }
        text + "data: [DONE]\n\n"
    }
}
