//! Plain HTTP calls to one server: any path, any method.

use std::error::Error;
use std::fmt;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::error::ClientError;
use crate::options::{ClientOptions, base, connector};

/// Sends HTTP/1.1 requests to one server, with the token and the TLS of its options. A call has no
/// deadline of its own but for the connection.
pub struct HttpCaller {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    base: String,
    authorization: Option<HeaderValue>,
}

impl fmt::Debug for HttpCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpCaller").field("base", &self.base).finish_non_exhaustive()
    }
}

impl HttpCaller {
    /// For the server at this address, with or without a path in front of the calls'.
    pub fn new(url: &str, options: &ClientOptions) -> Result<Self, ClientError> {
        let uri = base(url)?;
        let connector = connector(&uri, options, false)?;
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let base = uri.to_string().trim_end_matches('/').to_owned();
        Ok(Self { client, base, authorization: options.authorization()? })
    }

    /// Sends a request whose URI is a path and a query, and reads an answer of at most
    /// `max_answer_bytes`.
    pub async fn call(
        &self,
        request: Request<Bytes>,
        max_answer_bytes: usize,
    ) -> Result<Response<Bytes>, ClientError> {
        let (mut head, body) = request.into_parts();
        let uri: Uri = format!("{}{}", self.base, head.uri)
            .parse()
            .map_err(|error| ClientError::Setup(format!("the path: {error}")))?;
        head.uri = uri;
        if let Some(value) = &self.authorization {
            head.headers.insert(AUTHORIZATION, value.clone());
        }
        let request = Request::from_parts(head, Full::new(body));
        let unreachable =
            |error: &(dyn Error + 'static)| ClientError::Unreachable(error_chain(error));
        let response = self.client.request(request).await.map_err(|error| unreachable(&error))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, max_answer_bytes).collect().await;
        let body = body.map_err(|error| unreachable(&*error))?.to_bytes();
        Ok(Response::from_parts(head, body))
    }
}

/// An error with everything that caused it, from the outside in: the outermost of HTTP clients says
/// only that a connection failed, and TLS is the innermost.
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Some repeat what they were caused by.
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}
