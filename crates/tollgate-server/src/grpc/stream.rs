//! `AllowStream`: questions and answers on one stream, in order.
//!
//! What has arrived is taken together, decided together and answered together. The answer is made
//! when the client has room for it, so a client that does not read is not read from either.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame};
use tokio::sync::watch;
use tollgate_engine::Decision;
use tollgate_store::Store;
use tonic::Status;
use tonic::body::Body;

use super::frame::{HEAD_BYTES, MAX_MESSAGE_BYTES, close, length, open, status, trailers};
use super::read::question;
use super::service::{BYTES_PER_DECISION, GrpcService};
use super::write::{Message, write_decided};
use crate::buffered::AnswerRoom;
use crate::callers::CallerId;
use crate::http::respond::ApiError;
use crate::telemetry::latency::{Operation, Timed};

/// As soon as so many requests are together they are decided; a question more may come on top.
pub const MAX_REQUESTS_TOGETHER: usize = 1_000;

/// As soon as so many bytes wait to be decided no more are read.
pub const MAX_BYTES_TOGETHER: usize = 256 * 1024;

/// A stream that is being answered.
pub(crate) struct Conversation<S, B> {
    service: GrpcService<S>,
    caller: (String, Option<IpAddr>),
    /// How long it may be silent.
    idle: Duration,
    draining: watch::Receiver<bool>,
    body: Pin<Box<B>>,
    /// What has arrived of the next message.
    partial: BytesMut,
    questions: VecDeque<Bytes>,
    queued_bytes: usize,
    /// Nothing more is read; what is queued is still answered.
    end: Option<Status>,
    is_done: bool,
}

impl<S, B> Conversation<S, B>
where
    S: Store + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub(crate) fn new(
        service: GrpcService<S>,
        caller: (String, Option<IpAddr>),
        idle: Duration,
        draining: watch::Receiver<bool>,
        body: B,
    ) -> Self {
        Self {
            service,
            caller,
            idle,
            draining,
            body: Box::pin(body),
            partial: BytesMut::new(),
            questions: VecDeque::new(),
            queued_bytes: 0,
            end: None,
            is_done: false,
        }
    }

    /// The answers as they are made, then the status.
    pub(crate) fn into_body(self) -> Body {
        let frames = futures_util::stream::unfold(self, |mut own| async move {
            let frame = own.next().await?;
            Some((Ok::<_, Infallible>(frame), own))
        });
        Body::new(http_body_util::StreamBody::new(frames))
    }

    async fn next(&mut self) -> Option<Frame<Bytes>> {
        if self.is_done {
            return None;
        }
        self.gather().await;
        let answers = self.answer().await;
        match &self.end {
            _ if !answers.is_empty() => Some(Frame::data(answers)),
            Some(end) if self.questions.is_empty() => {
                self.is_done = true;
                Some(Frame::trailers(trailers(end)))
            }
            // Questions without a request have answers too, so this is not reached.
            _ => None,
        }
    }

    /// Waits for a question, then takes those that are there already.
    async fn gather(&mut self) {
        while self.end.is_none() && self.queued_bytes < MAX_BYTES_TOGETHER {
            let found = poll_fn(|context| Poll::Ready(self.look(context))).await;
            if !found && !self.questions.is_empty() {
                return;
            }
            if !found {
                self.wait().await;
            }
        }
    }

    async fn wait(&mut self) {
        let (mut draining, idle) = (self.draining.clone(), self.idle);
        let arrived =
            poll_fn(|context| if self.look(context) { Poll::Ready(()) } else { Poll::Pending });
        let drained = async {
            let _ = draining.wait_for(|draining| *draining).await;
        };
        let end = tokio::select! {
            biased;
            () = arrived => return,
            () = drained => "this node is going away; ask another one".to_owned(),
            () = tokio::time::sleep(idle) => {
                format!("nothing came for {} s; open a new stream", idle.as_secs())
            }
        };
        self.end = Some(Status::unavailable(end));
    }

    /// Takes what has arrived. False if nothing has.
    fn look(&mut self, context: &mut Context<'_>) -> bool {
        match self.body.as_mut().poll_frame(context) {
            Poll::Ready(frame) => self.take(frame),
            Poll::Pending => return false,
        }
        true
    }

    fn take(&mut self, frame: Option<Result<Frame<Bytes>, B::Error>>) {
        match frame {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    self.partial.extend_from_slice(&data);
                    self.end = self.split().err();
                }
            }
            Some(Err(error)) => {
                let error = error.into();
                self.end = Some(Status::cancelled(format!("the stream broke off: {error}")));
            }
            None if self.partial.is_empty() => self.end = Some(Status::ok("")),
            None => self.end = Some(Status::invalid_argument("the last message is cut off")),
        }
    }

    /// Takes whole messages out of what has arrived.
    fn split(&mut self) -> Result<(), Status> {
        while let Some(head) = self.partial.first_chunk::<HEAD_BYTES>() {
            let length = length(*head)?;
            if self.partial.len() < HEAD_BYTES + length {
                let missing = (HEAD_BYTES + length).min(MAX_MESSAGE_BYTES) - self.partial.len();
                self.partial.reserve(missing.min(MAX_BYTES_TOGETHER));
                break;
            }
            self.partial.advance(HEAD_BYTES);
            self.questions.push_back(self.partial.split_to(length).freeze());
            self.queued_bytes += HEAD_BYTES + length;
        }
        Ok(())
    }

    /// Decides what is queued, up to the bound, and frames the answers.
    async fn answer(&mut self) -> Bytes {
        let mut messages = Vec::new();
        let mut requests = 0;
        while requests < MAX_REQUESTS_TOGETHER
            && let Some(message) = self.questions.pop_front()
        {
            self.queued_bytes -= HEAD_BYTES + message.len();
            let mut found = Vec::new();
            match question(&message, &mut found) {
                Ok((_, count)) => requests += count,
                Err(error) => {
                    self.fail(error);
                    break;
                }
            }
            messages.push(message);
        }
        if messages.is_empty() {
            return Bytes::new();
        }
        // Before anything is charged: an answer that finds no room is not sent.
        let Some(room) = AnswerRoom::reserve(self.caller.1, requests) else {
            return self.fail(ApiError::Busy);
        };
        let (service, caller) = (self.service.clone(), self.caller.clone());
        let decided = async move {
            let caller = CallerId { name: &caller.0, peer: caller.1 };
            decide(&service, &messages, caller, requests).await
        };
        match self.service.lasting(decided).await {
            Ok(answers) => room.fill(answers),
            Err(error) => self.fail(error),
        }
    }

    /// Ends without an answer to what is queued.
    fn fail(&mut self, error: ApiError) -> Bytes {
        self.end = Some(status(error));
        self.questions.clear();
        Bytes::new()
    }
}

async fn decide<S: Store + 'static>(
    service: &GrpcService<S>,
    messages: &[Bytes],
    caller: CallerId<'_>,
    count: usize,
) -> Vec<u8> {
    let mut requests = Vec::with_capacity(count);
    let mut asked = Vec::with_capacity(messages.len());
    for message in messages {
        asked.extend(question(message, &mut requests));
    }
    let mut answers = Answers::new(&asked, count);
    let _timed = Timed::new(Operation::GrpcStream);
    service.decide_each(&requests, caller, |decided| answers.push(decided)).await;
    answers.finish()
}

/// Answers with the ids of their questions, each with as many decisions as there were requests.
struct Answers<'a> {
    out: Vec<u8>,
    asked: std::slice::Iter<'a, (u64, usize)>,
    /// Where the answer that is being written begins.
    start: Option<usize>,
    left: usize,
}

impl<'a> Answers<'a> {
    fn new(asked: &'a [(u64, usize)], count: usize) -> Self {
        let room = count * BYTES_PER_DECISION + asked.len() * (HEAD_BYTES + 10);
        Self { out: Vec::with_capacity(room), asked: asked.iter(), start: None, left: 0 }
    }

    /// Begins the next answer. False if there is none.
    fn turn(&mut self) -> bool {
        if let Some(start) = self.start.take() {
            close(&mut self.out, start);
        }
        let Some((id, count)) = self.asked.next() else { return false };
        self.start = Some(open(&mut self.out));
        Message(&mut self.out).number(1, *id);
        self.left = *count;
        true
    }

    fn push(&mut self, decided: Result<&Decision<'_>, ApiError>) {
        while self.left == 0 {
            if !self.turn() {
                return;
            }
        }
        self.left -= 1;
        write_decided(&mut Message(&mut self.out), 2, decided);
    }

    fn finish(mut self) -> Vec<u8> {
        while self.turn() {}
        self.out
    }
}
