//! HTTP/1.1: one request under way on each connection.

mod response;

use std::fmt::Write as _;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf};

use crate::endpoint::{Endpoint, Stream, Traffic};
use crate::json;
use crate::lane::Lane;
use crate::message::Message;
use crate::outcome::{Answer, Fault};
use crate::plan::{Plan, PlanError};
use response::Response;

const ALLOWED: &[u8] = b"\"allowed\":";
/// How a part of a batch begins that was not decided.
const PART_FAULT: &[u8] = b"{\"error\":";

/// A whole request: head and body.
pub(crate) fn request(plan: &Plan, endpoint: &Endpoint) -> Result<Message, PlanError> {
    let body = json::body(plan)?;
    let mut head = format!(
        "POST {}{} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
        endpoint.base,
        plan.target.path(),
        endpoint.authority,
        body.len()
    );
    let token = plan.token.as_ref().map(|token| ("Authorization", format!("Bearer {token}")));
    let headers = plan.headers.iter().map(|(name, value)| (name.as_str(), value.clone()));
    for (name, value) in headers.chain(token) {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    head += "\r\n";
    let mut request = Message::default();
    request.push(head);
    request.append_parts(&body);
    Ok(request)
}

/// One connection.
pub(crate) struct HttpLane {
    endpoint: Rc<Endpoint>,
    traffic: Rc<Traffic>,
    stream: Option<Stream>,
    response: Response,
    has_batches: bool,
}

impl HttpLane {
    pub(crate) fn new(endpoint: Rc<Endpoint>, traffic: Rc<Traffic>, has_batches: bool) -> Self {
        Self { endpoint, traffic, stream: None, response: Response::default(), has_batches }
    }
}

impl Lane for HttpLane {
    async fn connect(&mut self) -> Result<(), Fault> {
        if let Some(stream) = &mut self.stream
            && is_idle(stream).await
        {
            return Ok(());
        }
        let stream = self.endpoint.connect(&self.traffic).await;
        self.stream = Some(stream.map_err(|_| Fault::Connect)?);
        Ok(())
    }

    async fn exchange(&mut self, request: &[u8]) -> Result<Answer, Fault> {
        let stream = self.stream.as_mut().ok_or(Fault::Connect)?;
        // A server that asks for a client certificate refuses after the handshake.
        let broken = |error: std::io::Error| {
            self.endpoint.failure().note(&error);
            Fault::Closed
        };
        stream.write_all(request).await.map_err(broken)?;
        stream.flush().await.map_err(broken)?;
        self.response.clear();
        loop {
            let room = self.response.room()?;
            let count = stream.read(room).await.map_err(broken)?;
            if self.response.advance(count)? {
                break;
            }
        }
        let whole = self.response.whole().ok_or(Fault::Protocol)?;
        if whole.is_last {
            self.stream = None;
        }
        match whole.status {
            200 if self.has_batches => Ok(count(whole.body)),
            200 => first(whole.body),
            status => Err(Fault::Status(status)),
        }
    }

    fn disconnect(&mut self) {
        self.stream = None;
    }
}

/// Whether nothing has come since the last answer: neither an end nor anything nobody asked for. The
/// runtime knows without asking the kernel.
async fn is_idle(stream: &mut Stream) -> bool {
    let mut byte = [0; 1];
    poll_fn(|context| {
        let mut buffer = ReadBuf::new(&mut byte);
        Poll::Ready(Pin::new(&mut *stream).poll_read(context, &mut buffer).is_pending())
    })
    .await
}

/// The decision of an answer that has one.
fn first(body: &[u8]) -> Result<Answer, Fault> {
    let found = memchr::memmem::find(body, ALLOWED).ok_or(Fault::Protocol)?;
    match body.get(found + ALLOWED.len()..).map(<[u8]>::trim_ascii_start) {
        Some([b't', ..]) => Ok(Answer::single(true)),
        Some([b'f', ..]) => Ok(Answer::single(false)),
        _ => Err(Fault::Protocol),
    }
}

/// All decisions of a batch. Inside of a text a quote is escaped, so it cannot look like a name.
fn count(body: &[u8]) -> Answer {
    let mut answer = Answer::default();
    for found in memchr::memmem::find_iter(body, ALLOWED) {
        match body.get(found + ALLOWED.len()..).map(<[u8]>::trim_ascii_start) {
            Some([b't', ..]) => answer.allowed += 1,
            _ => answer.refused += 1,
        }
    }
    answer.failed = memchr::memmem::find_iter(body, PART_FAULT).count() as u32;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Target;

    #[test]
    fn decisions_are_found_in_bodies() {
        assert_eq!(first(br#"{"allowed":true,"x":1}"#), Ok(Answer::single(true)));
        assert_eq!(first(br#"{"x": 1, "allowed": false}"#), Ok(Answer::single(false)));
        assert_eq!(first(br#"{"why":"\"allowed\":true"}"#), Err(Fault::Protocol));
        let batch = br#"{"decisions":[{"allowed":true},{"allowed":false,"explanation":"a \"allowed\":true"},{"error":{"code":"X"}}]}"#;
        assert_eq!(count(batch), Answer { allowed: 1, refused: 1, failed: 1 });
    }

    #[test]
    fn a_request_is_whole() {
        let mut plan = Plan { target: Target::Check, keys: 1, ..Plan::new("http://[::1]:80/x/") };
        plan.token = Some("t".to_owned());
        plan.headers = vec![("X-A".to_owned(), "b".to_owned())];
        let endpoint = Endpoint::new(&plan).expect("an endpoint");
        let request = request(&plan, &endpoint).expect("a request");
        assert_eq!(
            String::from_utf8_lossy(request.bytes()),
            "POST /x/rate-limit/check HTTP/1.1\r\nHost: [::1]:80\r\n\
             Content-Type: application/json\r\nContent-Length: 39\r\nX-A: b\r\n\
             Authorization: Bearer t\r\n\r\n{\"userId\":\"user-0\",\"modelId\":\"model-1\"}"
        );
    }

    #[test]
    fn urls_are_http_or_https_and_name_a_host() {
        for url in ["127.0.0.1:80", "ftp://127.0.0.1", "http://", "http://u:p@127.0.0.1", "/x"] {
            assert!(Endpoint::new(&Plan::new(url)).is_err(), "{url}");
        }
    }
}
