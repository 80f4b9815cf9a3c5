//! gRPC over HTTP/2: several calls, or open streams, on each connection.

mod read;
mod write;

use std::cell::RefCell;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Method, Request, Uri};
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, spawn_local};

use crate::endpoint::{Endpoint, Traffic};
use crate::lane::Lane;
use crate::outcome::{Answer, Fault};
use crate::plan::{Plan, PlanError, Target};

pub(crate) use write::framed;

/// What the server may send ahead on a stream, and on a connection.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// A flag and a length come before each message.
const PREFIX_BYTES: usize = 5;
/// The largest answer.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// gRPC's code for errors without one.
const UNKNOWN: u32 = 2;

/// The head of every call.
#[derive(Debug, Clone)]
pub(crate) struct CallHead {
    uri: Uri,
    headers: HeaderMap,
}

impl CallHead {
    pub(crate) fn new(
        plan: &Plan,
        endpoint: &Endpoint,
        headers: HeaderMap,
    ) -> Result<Self, PlanError> {
        let Endpoint { authority, base, .. } = endpoint;
        let uri = format!("{}://{authority}{base}{}", endpoint.scheme(), plan.target.path());
        let uri = uri.parse().map_err(|_| PlanError::Url("cannot be read"))?;
        Ok(Self { uri, headers })
    }

    fn request(&self) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.version_mut() = http::Version::HTTP_2;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }
}

/// A connection that lanes share, and that is made again when it ends.
pub(crate) struct Channel {
    endpoint: Rc<Endpoint>,
    traffic: Rc<Traffic>,
    sender: RefCell<Option<SendRequest<Bytes>>>,
    driver: RefCell<Option<JoinHandle<()>>>,
    /// Only one lane makes it again.
    connecting: Mutex<()>,
}

impl Channel {
    pub(crate) fn new(endpoint: Rc<Endpoint>, traffic: Rc<Traffic>) -> Self {
        let sender = RefCell::new(None);
        Self { endpoint, traffic, sender, driver: RefCell::new(None), connecting: Mutex::new(()) }
    }

    fn current(&self) -> Option<SendRequest<Bytes>> {
        let is_over = self.driver.borrow().as_ref().is_none_or(JoinHandle::is_finished);
        if is_over { None } else { self.sender.borrow().clone() }
    }

    async fn connect(&self) -> Result<(), Fault> {
        if self.current().is_some() {
            return Ok(());
        }
        let _guard = self.connecting.lock().await;
        if self.current().is_some() {
            return Ok(());
        }
        let stream = self.endpoint.connect(&self.traffic).await.map_err(|_| Fault::Connect)?;
        let mut builder = h2::client::Builder::new();
        builder
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .enable_push(false);
        let failure = self.endpoint.failure().clone();
        let (sender, connection) = builder.handshake(stream).await.map_err(|error| {
            failure.note(&error);
            Fault::Connect
        })?;
        let driver = spawn_local(async move {
            // That it ends is seen by the calls that were on it.
            if let Err(error) = connection.await {
                failure.note(&error);
            }
        });
        *self.sender.borrow_mut() = Some(sender);
        *self.driver.borrow_mut() = Some(driver);
        Ok(())
    }

    async fn call(
        &self,
        head: &CallHead,
        message: Bytes,
        is_last: bool,
    ) -> Result<(SendStream<Bytes>, h2::client::ResponseFuture), Fault> {
        let sender = self.current().ok_or(Fault::Connect)?;
        let ready = sender.ready().await;
        let sent = ready.and_then(|mut sender| sender.send_request(head.request(), false));
        let (response, mut stream) = sent.map_err(|_| {
            // It takes no more calls, although those under way may still be answered.
            self.sender.borrow_mut().take();
            Fault::Closed
        })?;
        stream.send_data(message, is_last).map_err(|_| Fault::Closed)?;
        Ok((stream, response))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Some(driver) = self.driver.borrow_mut().take() {
            driver.abort();
        }
    }
}

/// One call after the other.
pub(crate) struct UnaryLane {
    channel: Rc<Channel>,
    head: Rc<CallHead>,
    target: Target,
    incoming: BytesMut,
}

impl UnaryLane {
    pub(crate) fn new(channel: Rc<Channel>, head: Rc<CallHead>, target: Target) -> Self {
        Self { channel, head, target, incoming: BytesMut::new() }
    }
}

impl Lane for UnaryLane {
    async fn connect(&mut self) -> Result<(), Fault> {
        self.channel.connect().await
    }

    async fn exchange(&mut self, request: &[u8]) -> Result<Answer, Fault> {
        let message = Bytes::copy_from_slice(request);
        let (_stream, response) = self.channel.call(&self.head, message, true).await?;
        let mut body = begin(response).await?;
        self.incoming.clear();
        while receive(&mut body, &mut self.incoming).await? {}
        let trailers = body.trailers().await.map_err(|_| Fault::Closed)?;
        status(trailers.as_ref().ok_or(Fault::Protocol)?)?;
        let message = self.incoming.get(PREFIX_BYTES..).ok_or(Fault::Protocol)?;
        read::answer(self.target, message)
    }

    fn disconnect(&mut self) {}
}

/// One stream that stays open, with one question under way.
pub(crate) struct StreamLane {
    channel: Rc<Channel>,
    head: Rc<CallHead>,
    open: Option<Open>,
    incoming: BytesMut,
}

struct Open {
    outgoing: SendStream<Bytes>,
    body: RecvStream,
}

impl StreamLane {
    pub(crate) fn new(channel: Rc<Channel>, head: Rc<CallHead>) -> Self {
        Self { channel, head, open: None, incoming: BytesMut::new() }
    }

    /// The next message of the stream.
    async fn answer(body: &mut RecvStream, incoming: &mut BytesMut) -> Result<Answer, Fault> {
        loop {
            if let Some(prefix) = incoming.get(1..PREFIX_BYTES) {
                let length = prefix.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte));
                if incoming.len() >= PREFIX_BYTES + length {
                    let message = incoming.split_to(PREFIX_BYTES + length);
                    let message = message.get(PREFIX_BYTES..).unwrap_or_default();
                    return read::answer(Target::GrpcStream, message);
                }
            }
            if !receive(body, incoming).await? {
                // It ended, and its end may say why.
                let trailers = body.trailers().await.map_err(|_| Fault::Closed)?;
                status(&trailers.unwrap_or_default())?;
                return Err(Fault::Closed);
            }
        }
    }
}

impl Lane for StreamLane {
    async fn connect(&mut self) -> Result<(), Fault> {
        self.channel.connect().await
    }

    async fn exchange(&mut self, request: &[u8]) -> Result<Answer, Fault> {
        let message = Bytes::copy_from_slice(request);
        let mut open = if let Some(mut open) = self.open.take() {
            open.outgoing.send_data(message, false).map_err(|_| Fault::Closed)?;
            open
        } else {
            self.incoming.clear();
            let (outgoing, response) = self.channel.call(&self.head, message, false).await?;
            Open { outgoing, body: begin(response).await? }
        };
        let answer = Self::answer(&mut open.body, &mut self.incoming).await?;
        // After a fault the stream is not used on.
        self.open = Some(open);
        Ok(answer)
    }

    fn disconnect(&mut self) {
        self.open = None;
    }
}

/// The head of an answer. A call that fails at once has its status there.
async fn begin(response: h2::client::ResponseFuture) -> Result<RecvStream, Fault> {
    let response = response.await.map_err(|_| Fault::Closed)?;
    if response.status() != http::StatusCode::OK {
        return Err(Fault::Status(response.status().as_u16()));
    }
    if response.headers().contains_key("grpc-status") {
        status(response.headers())?;
    }
    Ok(response.into_body())
}

/// Takes what came. False at the end.
async fn receive(body: &mut RecvStream, incoming: &mut BytesMut) -> Result<bool, Fault> {
    let Some(data) = body.data().await else { return Ok(false) };
    let data = data.map_err(|_| Fault::Closed)?;
    let released = body.flow_control().release_capacity(data.len());
    released.map_err(|_| Fault::Closed)?;
    incoming.extend_from_slice(&data);
    if incoming.len() > MAX_ANSWER_BYTES { Err(Fault::Protocol) } else { Ok(true) }
}

fn status(headers: &HeaderMap) -> Result<(), Fault> {
    let code = headers.get("grpc-status").and_then(|code| code.to_str().ok()?.parse().ok());
    match code.unwrap_or(UNKNOWN) {
        0 => Ok(()),
        code => Err(Fault::Grpc(code)),
    }
}
