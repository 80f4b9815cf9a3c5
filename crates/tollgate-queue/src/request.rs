//! What is kept of a request, and of the answer to it.
//!
//! Both are kept as a frame: a format number, the length of a head in JSON, the head, and the body as it
//! came. Values of headers are bytes; in the head each byte stands as the character of that number.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tollgate_tower::EdgeRequest;

use super::QueueError;

/// The first byte of a frame. Another one is from a newer version.
const FORMAT: u8 = 1;

/// The longest label of an entry.
const MAX_LABEL_BYTES: usize = 256;

/// A request that waits for its turn.
///
/// It is kept whole, credentials included, because the upstream needs them: anyone who can read the
/// queue's file or its Redis can read them. They are gone when the request was sent, or its dead letter dropped.
#[derive(Clone, Serialize, Deserialize)]
pub struct StoredRequest {
    /// The method.
    pub method: String,
    /// Path and query.
    pub uri: String,
    /// The host that was called.
    pub host: String,
    /// The route that it came in by, which leads to its upstream.
    pub route: String,
    /// Its headers, in order.
    #[serde(with = "pairs")]
    pub headers: Vec<(String, Vec<u8>)>,
    /// What its rules look at.
    pub asked: EdgeRequest,
    /// Its body.
    #[serde(skip)]
    pub body: Vec<u8>,
}

impl fmt::Debug for StoredRequest {
    /// Without query, values of headers, identity and body: all of them may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredRequest")
            .field("label", &self.label())
            .field("host", &self.host)
            .field("route", &self.route)
            .field("headers", &self.headers.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

impl StoredRequest {
    /// As it is kept.
    pub fn encode(&self) -> Result<Vec<u8>, QueueError> {
        frame(self, &self.body)
    }

    /// As it was before [`encode`](Self::encode).
    pub fn decode(bytes: &[u8]) -> Result<Self, QueueError> {
        let (request, body) = unframe::<Self>(bytes)?;
        Ok(Self { body: body.to_vec(), ..request })
    }

    /// What lists show of it: method and path. Queries may hold secrets.
    pub fn label(&self) -> String {
        let path = self.uri.split(['?', '#']).next().unwrap_or_default();
        let mut label = format!("{} {path}", self.method);
        if label.len() > MAX_LABEL_BYTES {
            let end = (0..=MAX_LABEL_BYTES).rev().find(|&end| label.is_char_boundary(end));
            label.truncate(end.unwrap_or_default());
        }
        label
    }
}

/// The answer to a request that was sent.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredResponse {
    /// The status.
    pub status: u16,
    /// Its headers, in order.
    #[serde(with = "pairs")]
    pub headers: Vec<(String, Vec<u8>)>,
    /// Whether the body was longer than what is kept of it.
    pub is_truncated: bool,
    /// Its body.
    #[serde(skip)]
    pub body: Vec<u8>,
}

impl fmt::Debug for StoredResponse {
    /// Without values of headers and body.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredResponse")
            .field("status", &self.status)
            .field("body_bytes", &self.body.len())
            .field("is_truncated", &self.is_truncated)
            .finish_non_exhaustive()
    }
}

impl StoredResponse {
    /// As it is kept.
    pub fn encode(&self) -> Result<Vec<u8>, QueueError> {
        frame(self, &self.body)
    }

    /// As it was before [`encode`](Self::encode).
    pub fn decode(bytes: &[u8]) -> Result<Self, QueueError> {
        let (response, body) = unframe::<Self>(bytes)?;
        Ok(Self { body: body.to_vec(), ..response })
    }

    /// With no more than so much of its body.
    #[must_use]
    pub fn bounded(mut self, most_bytes: usize) -> Self {
        if self.body.len() > most_bytes {
            self.body.truncate(most_bytes);
            self.is_truncated = true;
        }
        self
    }
}

fn frame(head: &impl Serialize, body: &[u8]) -> Result<Vec<u8>, QueueError> {
    let head = serde_json::to_vec(head).map_err(|error| QueueError::Corrupt(error.to_string()))?;
    let length = u32::try_from(head.len())
        .map_err(|_| QueueError::Corrupt("headers of more than 4 GiB".to_owned()))?;
    let mut bytes = Vec::with_capacity(5 + head.len() + body.len());
    bytes.push(FORMAT);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&head);
    bytes.extend_from_slice(body);
    Ok(bytes)
}

fn unframe<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8]), QueueError> {
    let short = || QueueError::Corrupt("it ends too early".to_owned());
    let (&format, rest) = bytes.split_first().ok_or_else(short)?;
    if format != FORMAT {
        return Err(QueueError::Corrupt(format!("format {format}, known is {FORMAT}")));
    }
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
    let length = u32::from_be_bytes(*length) as usize;
    let (head, body) = rest.split_at_checked(length).ok_or_else(short)?;
    let head =
        serde_json::from_slice(head).map_err(|error| QueueError::Corrupt(error.to_string()))?;
    Ok((head, body))
}

/// Names and bytes, in JSON: each byte is the character of its number.
mod pairs {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        headers: &[(String, Vec<u8>)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(headers.iter().map(|(name, value)| {
            let text: String = value.iter().map(|&byte| char::from(byte)).collect();
            (name, text)
        }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(String, Vec<u8>)>, D::Error> {
        let pairs = Vec::<(String, String)>::deserialize(deserializer)?;
        let decoded = |(name, text): (String, String)| {
            let bytes: Result<_, _> = text.chars().map(|c| u8::try_from(u32::from(c))).collect();
            bytes.map(|bytes| (name, bytes)).map_err(D::Error::custom)
        };
        pairs.into_iter().map(decoded).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tollgate_tower::Identity;

    use super::*;

    fn headers() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
        prop::collection::vec((".{0,12}", prop::collection::vec(any::<u8>(), 0..40)), 0..6)
    }

    fn request() -> impl Strategy<Value = StoredRequest> {
        let text = prop::option::of(".{0,20}");
        let asked = (text.clone(), text.clone(), text, prop::option::of(any::<u64>()));
        let body = prop::collection::vec(any::<u8>(), 0..300);
        ("[A-Z]{1,8}", ".{0,40}", ".{0,20}", headers(), asked, body).prop_map(
            |(method, uri, host, headers, (user_id, endpoint, api_key, cost), body)| {
                let extra = vec![(host.clone(), uri.clone())];
                let identity = Identity { user_id, api_key, extra, ..Identity::default() };
                let asked = EdgeRequest { identity, endpoint, cost, ..EdgeRequest::default() };
                let route = uri.clone();
                StoredRequest { method, uri, host, route, headers, asked, body }
            },
        )
    }

    proptest! {
        #[test]
        fn requests_come_back_as_they_were(request in request()) {
            let bytes = request.encode().unwrap();
            let again = StoredRequest::decode(&bytes).unwrap();
            prop_assert_eq!(&again.headers, &request.headers);
            prop_assert_eq!(&again.body, &request.body);
            prop_assert_eq!(
                serde_json::to_value(&again).unwrap(),
                serde_json::to_value(&request).unwrap()
            );
            prop_assert_eq!(again.encode().unwrap(), bytes);
            prop_assert!(request.label().len() <= MAX_LABEL_BYTES);
        }

        #[test]
        fn responses_come_back_as_they_were(
            status in any::<u16>(),
            headers in headers(),
            body in prop::collection::vec(any::<u8>(), 0..300),
            most in 0_usize..400,
        ) {
            let response = StoredResponse { status, headers, is_truncated: false, body };
            let length = response.body.len();
            let kept = response.bounded(most);
            prop_assert_eq!(kept.is_truncated, length > most);
            let again = StoredResponse::decode(&kept.encode().unwrap()).unwrap();
            prop_assert_eq!(again, kept);
        }

        #[test]
        fn no_bytes_are_too_odd_to_be_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = StoredRequest::decode(&bytes);
            let mut framed = vec![FORMAT, 0, 0, 0];
            framed.extend(bytes);
            let _ = StoredRequest::decode(&framed);
            let _ = StoredResponse::decode(&framed);
        }

        #[test]
        fn what_was_cut_is_refused(request in request(), cut in 1_usize..40) {
            let head = StoredRequest { body: Vec::new(), ..request }.encode().unwrap();
            let end = head.len().saturating_sub(cut);
            prop_assert!(StoredRequest::decode(&head[..end]).is_err());
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let request = StoredRequest {
            method: "POST".to_owned(),
            uri: "/a?key=hunter2".to_owned(),
            host: "example.org".to_owned(),
            route: "main".to_owned(),
            headers: vec![("authorization".to_owned(), b"Bearer hunter2".to_vec())],
            asked: EdgeRequest {
                identity: Identity { api_key: Some("hunter2".to_owned()), ..Identity::default() },
                ..EdgeRequest::default()
            },
            body: b"hunter2".to_vec(),
        };
        let shown = format!("{request:?}");
        assert!(shown.contains("POST /a") && !shown.contains("hunter2"), "{shown}");
    }
}
