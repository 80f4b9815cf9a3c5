//! Reading bodies within bounds, and saying what is wrong with them.

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::{LengthLimitError, Limited};
use serde::Deserialize;
use serde_json::Value;
use tollgate_engine::{Actual, MAX_ATTRIBUTES, MAX_VALUE_BYTES, Request};
use tollgate_policy::{Known, RequestPath};

use super::amounts_body::USAGE_FIELDS;
use super::respond::ApiError;
use super::wire::AllowBody;
use crate::buffered::{BUFFERED, Held, UNCOUNTED_BYTES, holding};
use crate::callers::CallerId;

/// Reads a body of at most `most` bytes that arrives within `patience`. One that does not arrive at once counts among
/// what is buffered ([`BUFFERED`]).
pub(crate) async fn body<B>(body: B, most: usize, patience: Duration) -> Result<Bytes, ApiError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut collect = pin!(collect(body, most));
    // Nearly every body is there already; then no timer is needed.
    let first = poll_fn(|context| {
        Poll::Ready(match collect.as_mut().poll(context) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        })
    });
    match first.await {
        Some(done) => done,
        None => tokio::time::timeout(patience, collect).await.map_err(|_| ApiError::Slow)?,
    }
}

async fn collect<B>(body: B, most: usize) -> Result<Bytes, ApiError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut body = pin!(Limited::new(body, most));
    // Most bodies are one frame, which is not copied.
    let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
    let (mut held, mut counted): (Option<Held>, usize) = (None, 0);
    loop {
        let frame = poll_fn(|context| {
            let polled = body.as_mut().poll_frame(context);
            // What is kept while the client takes its time is counted.
            let bytes = first.len() + rest.len();
            let more = if bytes > UNCOUNTED_BYTES { bytes - counted } else { 0 };
            if polled.is_pending() && more > 0 {
                let has_room = if let Some(held) = &mut held {
                    held.grow(more)
                } else {
                    held = BUFFERED.hold(None, more);
                    held.is_some()
                };
                if !has_room {
                    return Poll::Ready(Err(ApiError::Busy));
                }
                counted = bytes;
            }
            polled.map(Ok)
        });
        let data = match frame.await? {
            None => break,
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            Some(Err(error)) if error.is::<LengthLimitError>() => {
                return Err(ApiError::TooLarge { most });
            }
            Some(Err(error)) => {
                let message = format!("the body broke off: {error}");
                return Err(ApiError::Invalid { message, field: None });
            }
        };
        if first.is_empty() {
            first = data;
        } else {
            rest.extend_from_slice(&data);
        }
    }
    let whole = if rest.is_empty() {
        first
    } else {
        let mut whole = BytesMut::with_capacity(first.len() + rest.len());
        whole.extend_from_slice(&first);
        whole.extend_from_slice(&rest);
        whole.freeze()
    };
    Ok(match held {
        Some(held) => holding(whole, held),
        None => whole,
    })
}

/// Reads a JSON body. If it does not fit, says which field.
pub(crate) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ApiError> {
    // serde would also take a list of the fields' values in order.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        let message = "the body must be a JSON object".to_owned();
        return Err(ApiError::Invalid { message, field: Some("body".to_owned()) });
    }
    // Checked as a whole, texts need not be checked one by one.
    let read = match std::str::from_utf8(bytes) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(bytes),
    };
    read.map_err(|error| diagnose(bytes, &error))
}

/// The fields of texts that are no attributes.
const TEXT_FIELDS: [&str; 2] = ["requestId", "reservationId"];

const NUMBER_FIELDS: [&str; 6] =
    ["cost", "tokens", "inputTokens", "outputTokens", "cachedTokens", "ttlMs"];

/// The fields of maps with names of their own.
const MAP_FIELDS: [&str; 3] = ["attributes", "money", "usage"];

/// What is wrong with a body that did not parse, found by a second, slower look.
fn diagnose(bytes: &[u8], error: &serde_json::Error) -> ApiError {
    let plain = || ApiError::Invalid {
        message: format!("the body is not valid JSON: {error}"),
        field: Some("body".to_owned()),
    };
    if std::str::from_utf8(bytes).is_err() {
        let message = "the body is not valid UTF-8".to_owned();
        return ApiError::Invalid { message, field: Some("body".to_owned()) };
    }
    let Ok(Value::Object(fields)) = serde_json::from_slice::<Value>(bytes) else {
        return plain();
    };
    if let Some(Value::Array(requests)) = fields.get("requests") {
        for (index, request) in requests.iter().enumerate() {
            if let Value::Object(fields) = request
                && let Some((field, message)) = first_fault(fields)
            {
                return ApiError::invalid(&format!("requests[{index}].{field}"), message);
            }
        }
    }
    match first_fault(&fields) {
        Some((field, message)) => ApiError::invalid(&field, message),
        None => missing_or_unknown(error),
    }
}

fn first_fault(fields: &serde_json::Map<String, Value>) -> Option<(String, String)> {
    for (name, value) in fields {
        let message = match (name.as_str(), value) {
            (_, Value::Null) => None,
            (text, value) if TEXT_FIELDS.contains(&text) || Known::from_field(text).is_some() => {
                (!value.is_string()).then(|| "must be a string".to_owned())
            }
            (number, value) if NUMBER_FIELDS.contains(&number) => number_fault(value),
            ("money", Value::Object(pairs)) => {
                let texts = ["currency", "amount"].map(|name| pairs.get(name));
                let is_whole = texts.iter().all(|text| text.is_some_and(Value::is_string));
                (!is_whole || pairs.len() > texts.len()).then(|| MONEY_SHAPE.to_owned())
            }
            ("money", _) => Some(MONEY_SHAPE.to_owned()),
            ("usage", Value::Object(pairs)) => pairs.iter().find_map(|(name, value)| {
                let message = if USAGE_FIELDS.contains(&name.as_str()) {
                    number_fault(value).filter(|_| !value.is_null())?
                } else {
                    format!("there is no such figure; there are {}", USAGE_FIELDS.join(", "))
                };
                Some(format!("{name}: {message}"))
            }),
            ("usage", _) => Some("must be a map of token kinds to numbers".to_owned()),
            ("more", value) => (!value.is_boolean()).then(|| "must be true or false".to_owned()),
            ("attributes", Value::Object(pairs)) => {
                let wrong = pairs.iter().find(|(_, value)| !value.is_string());
                wrong.map(|(name, _)| format!("the value of {name:?} must be a string"))
            }
            ("attributes", _) => Some("must be a map of names to strings".to_owned()),
            _ => None,
        };
        if let Some(message) = message {
            return Some((name.clone(), message));
        }
    }
    None
}

const MONEY_SHAPE: &str = "must be {\"currency\": \"USD\", \"amount\": \"0.0123\"}, both strings";

fn number_fault(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) if number.is_u64() => None,
        Value::Number(number) if number.is_i64() => Some("must not be negative".to_owned()),
        _ => Some("must be a whole number, 0 or more".to_owned()),
    }
}

/// serde names a missing or unknown field in backquotes.
fn missing_or_unknown(error: &serde_json::Error) -> ApiError {
    let text = error.to_string();
    let field = text.split('`').nth(1).unwrap_or_default().to_owned();
    if !text.starts_with("unknown field") {
        let message = text.split(" at line").next().unwrap_or_default().to_owned();
        return ApiError::Invalid { message, field: Some(field).filter(|field| !field.is_empty()) };
    }
    let wanted = field.replace(['_', '-'], "").to_lowercase();
    let others = TEXT_FIELDS.into_iter().chain(NUMBER_FIELDS).chain(MAP_FIELDS);
    let meant = Known::ALL
        .into_iter()
        .map(Known::field)
        .chain(others)
        .find(|name| name.to_lowercase() == wanted);
    let hint = match meant {
        Some(name) if name == field => "this call does not take it".to_owned(),
        Some(name) => format!("did you mean {name}?"),
        None => "further attributes go into attributes: {name: value}".to_owned(),
    };
    ApiError::invalid(&field, format!("there is no such field; {hint}"))
}

/// What a body's borrowed and normalised values live in while a request is decided.
pub(crate) struct Prepared<'a> {
    path: Option<RequestPath<'a>>,
    ip: Option<Cow<'a, str>>,
    used: Actual,
}

impl<'a> Prepared<'a> {
    /// Checks every bound and normalises path and address.
    pub(crate) fn new(body: &'a AllowBody<'_>) -> Result<Self, ApiError> {
        let known = Known::ALL.into_iter().filter(|known| *known != Known::Endpoint);
        let texts = known.map(|known| (known.field(), body.get(known)));
        for (field, value) in texts.chain([("requestId", body.request_id.as_deref())]) {
            if value.is_some_and(|value| value.len() > MAX_VALUE_BYTES) {
                return Err(too_long(field));
            }
        }
        if body.attributes.0.len() > MAX_ATTRIBUTES {
            let message = format!("at most {MAX_ATTRIBUTES} attributes are taken");
            return Err(ApiError::invalid("attributes", message));
        }
        for (place, (name, value)) in body.attributes.0.iter().enumerate() {
            if body.attributes.0.iter().take(place).any(|(before, _)| before == name) {
                return Err(ApiError::invalid("attributes", format!("{name:?} is given twice")));
            }
            if name.len() > MAX_VALUE_BYTES || value.len() > MAX_VALUE_BYTES {
                return Err(too_long("attributes"));
            }
            if Known::from_name(name).is_some() {
                let message = format!("{name:?} has a field of its own; give it there");
                return Err(ApiError::invalid("attributes", message));
            }
        }
        Ok(Self {
            used: body.amounts.check()?,
            path: body.get(Known::Endpoint).map(path).transpose()?,
            ip: body.get(Known::Ip).map(address).transpose()?,
        })
    }

    /// The same of a call that is no reservation.
    pub(crate) fn without_ttl(body: &'a AllowBody<'_>) -> Result<Self, ApiError> {
        if body.ttl_ms.is_some() {
            return Err(ApiError::invalid("ttlMs", "only /rate-limit/reserve takes it"));
        }
        if body.more.is_some() {
            return Err(ApiError::invalid("more", "only /rate-limit/reserve takes it"));
        }
        Self::new(body)
    }

    /// The request that the engine decides.
    pub(crate) fn request(
        &'a self,
        body: &'a AllowBody<'_>,
        caller: impl Into<CallerId<'a>>,
    ) -> Request<'a> {
        let caller = caller.into();
        let mut request = Request {
            amounts: self.used.amounts,
            usage: self.used.usage,
            request_id: body.request_id.as_deref().filter(|id| !id.is_empty()),
            caller: caller.name,
            caller_address: caller.peer,
            ..Request::default()
        };
        for known in Known::ALL {
            let value = match known {
                Known::Endpoint => continue,
                Known::Ip => self.ip.as_deref(),
                _ => body.get(known),
            };
            if let Some(value) = value {
                request.attributes.set(known, value);
            }
        }
        if let Some(path) = &self.path {
            request.attributes.set_path(path);
        }
        for (name, value) in &body.attributes.0 {
            request.attributes.push_extra(name, value);
        }
        request
    }
}

fn too_long(field: &str) -> ApiError {
    ApiError::invalid(field, format!("must not be longer than {MAX_VALUE_BYTES} bytes"))
}

fn path(endpoint: &str) -> Result<RequestPath<'_>, ApiError> {
    RequestPath::parse(endpoint).map_err(|error| ApiError::invalid("endpoint", error.to_string()))
}

/// An address in its one canonical form, so that no client gets a second counter by writing it
/// differently.
fn address(ip: &str) -> Result<Cow<'_, str>, ApiError> {
    let parsed: IpAddr =
        ip.parse().map_err(|_| ApiError::invalid("ip", "must be an IPv4 or IPv6 address"))?;
    let canonical = parsed.to_canonical();
    if canonical.is_ipv4() && parsed.is_ipv4() {
        // An IPv4 address has only one spelling that parses.
        return Ok(Cow::Borrowed(ip));
    }
    Ok(Cow::Owned(canonical.to_string()))
}
