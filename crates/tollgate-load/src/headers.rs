//! The headers that a plan asks for, checked once for both protocols.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::plan::{Plan, PlanError};

/// Those that say where a message ends, or where it goes, are ours.
const OWN: [&str; 6] =
    ["content-length", "transfer-encoding", "connection", "host", "te", "content-type"];

/// The plan's headers and its token.
pub(crate) fn checked(plan: &Plan) -> Result<HeaderMap, PlanError> {
    let mut headers = HeaderMap::new();
    for (name, value) in &plan.headers {
        let wrong = |why| PlanError::Header(name.clone(), why);
        let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong("no name"))?;
        if OWN.contains(&parsed.as_str()) {
            return Err(wrong("the generator sets it"));
        }
        let value = HeaderValue::from_str(value).map_err(|_| wrong("no value"))?;
        headers.append(parsed, value);
    }
    if let Some(token) = &plan.token {
        let wrong =
            || PlanError::Header("authorization".to_owned(), "the token has odd characters");
        let value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| wrong())?;
        headers.append(http::header::AUTHORIZATION, value);
    }
    Ok(headers)
}

/// With what gRPC needs beside them.
pub(crate) fn for_grpc(mut headers: HeaderMap) -> HeaderMap {
    headers.insert("content-type", HeaderValue::from_static("application/grpc"));
    headers.insert("te", HeaderValue::from_static("trailers"));
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_cannot_break_a_request_apart() {
        for (name, value) in
            [("a b", "x"), ("x", "a\r\nb: c"), ("Content-Length", "3"), ("", "x"), ("Host", "h")]
        {
            let headers = vec![(name.to_owned(), value.to_owned())];
            assert!(checked(&Plan { headers, ..Plan::new("http://h") }).is_err(), "{name}");
        }
        let token = Some("a\nb".to_owned());
        assert!(checked(&Plan { token, ..Plan::new("http://h") }).is_err());
    }
}
