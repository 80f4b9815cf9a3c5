//! The Anthropic API: Messages, and the counting of their tokens.

pub(super) mod ask;
pub(super) mod prompt;
pub(super) mod usage;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::ask::Call;
use super::protocol::ApiPaths;

pub(super) const PATHS: ApiPaths = ApiPaths {
    // Anthropic and most servers; gateways and servers that have this API next to another.
    bases: &["", "/v1", "/anthropic", "/anthropic/v1", "/api/v1"],
    model_prefixes: &[],
    calls: &[("/messages/count_tokens", Call::CountTokens), ("/messages", Call::Messages)],
    // A path such as `/v1/threads/ID/messages` of another API makes no model work.
    working: &["/v1/messages", "/anthropic/messages", "/messages/batches", "/v1/complete"],
    deferred: &[],
    described: "messages, messages/count_tokens and models",
};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The longest query of a call.
const MAX_QUERY_BYTES: usize = 1_024;

/// What a list of models may be asked for: a part of it.
const LIST_QUERIES: [&str; 3] = ["limit", "after_id", "before_id"];

/// Accepts `beta=true`, by which clients reach what is not released yet, and on lists the part that is wanted.
pub(super) fn check_query(query: &str, is_list: bool) -> Result<Option<&str>, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    let is_known = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        pair == "beta=true"
            || is_list && LIST_QUERIES.contains(&name) && value.bytes().all(is_plain)
    };
    if query.len() <= MAX_QUERY_BYTES && query.split('&').all(is_known) {
        return Ok(Some(query));
    }
    let shown: String = query.chars().take(100).collect();
    Err(format!("the query {shown:?} is not accepted on model calls: only \"beta=true\" is"))
}

/// Puts a pool's key in the place of what the client shows, in either of the two headers that this API reads.
pub(super) fn put_key(headers: &mut HeaderMap, bearer: &HeaderValue) {
    headers.remove(AUTHORIZATION);
    let key = bearer.as_bytes().strip_prefix(b"Bearer ").unwrap_or(bearer.as_bytes());
    if let Ok(mut key) = HeaderValue::from_bytes(key) {
        key.set_sensitive(true);
        headers.insert(API_KEY, key);
    } else {
        headers.remove(API_KEY);
    }
}

/// When a model was released is not known here.
const UNKNOWN_RELEASE: &str = "1970-01-01T00:00:00Z";

pub(super) fn model(name: &str) -> Value {
    json!({"type": "model", "id": name, "display_name": name, "created_at": UNKNOWN_RELEASE,
        "lifecycle": "active"})
}

/// The list is always whole.
pub(super) fn list(models: &[Value]) -> Value {
    let id = |model: Option<&Value>| model.and_then(|it| it.get("id")).cloned();
    let (first, last) = (id(models.first()), id(models.last()));
    json!({"data": models, "has_more": false, "first_id": first, "last_id": last})
}

pub(super) fn stop_event(message: &str) -> String {
    let error = json!({"type": "error", "error": {"type": "rate_limit_error", "message": message}});
    format!("event: error\ndata: {error}\n\n")
}

#[cfg(test)]
mod tests {
    use super::super::Protocol;
    use super::super::paths::{CallPath, ListPath};
    use super::*;

    #[test]
    fn a_path_is_a_call_only_as_a_whole() {
        let read = |path: &str| {
            CallPath::read(Protocol::Anthropic, path, [0]).map(|found| (found.call, found.model))
        };
        for path in ["/v1/messages", "/v1/messages/", "/anthropic/v1/messages", "/messages"] {
            assert_eq!(read(path), Some((Call::Messages, None)), "{path}");
        }
        assert_eq!(read("/v1/messages/count_tokens"), Some((Call::CountTokens, None)));
        for path in [
            "/v1/messages/batches",
            "/v1/messages/batches/msgbatch_1/results",
            "/v1/complete",
            "/v1/chat/completions",
            "/x/v1/messages",
            "/v1/Messages",
            "/v1/messages/count_tokens/x",
            "/engines/x/messages",
        ] {
            assert_eq!(read(path), None, "{path}");
        }
        let list = |path| ListPath::read(Protocol::Anthropic, path, [0]);
        assert_eq!(list("/v1/models"), Some(ListPath::All));
        assert_eq!(list("/v1/models/claude"), Some(ListPath::One("claude")));
    }

    #[test]
    fn what_makes_a_model_work_under_another_api_is_no_other_call() {
        for protocol in [Protocol::OpenAi, Protocol::Anthropic] {
            for path in [
                "/v1/chat/completions",
                "/v1/messages",
                "/x/anthropic/V1/Messages/",
                "/v1/complete",
                "/v1/messages/batches",
                "/v1/messages/batches/msgbatch_1/results",
                "/x/v1/responses",
            ] {
                assert!(protocol.looks_like_call(path), "{protocol:?}: {path}");
            }
            for path in ["/v1/files", "/v1/skills"] {
                assert!(!protocol.looks_like_call(path), "{protocol:?}: {path}");
            }
        }
        assert!(!Protocol::OpenAi.looks_like_call("/v1/threads/t/messages"));
        assert!(Protocol::Anthropic.looks_like_call("/x/messages"));
    }

    #[test]
    fn a_query_names_no_model() {
        for (query, is_list) in
            [("beta=true", false), ("beta=true", true), ("limit=20&after_id=claude-1", true)]
        {
            assert_eq!(check_query(query, is_list), Ok(Some(query)));
        }
        for query in [
            "model=large",
            "beta=true&model=large",
            "beta=1",
            "beta=true;model=large",
            "b%65ta=true",
            "limit=20",
            "&beta=true",
        ] {
            assert!(check_query(query, false).is_err(), "{query}");
        }
        assert!(check_query("limit=20&model=large", true).is_err());
        assert!(check_query("limit=%26model=large", true).is_err());
    }

    #[test]
    fn a_pools_key_replaces_both_of_the_clients() {
        let mut headers = HeaderMap::new();
        headers.append(AUTHORIZATION, HeaderValue::from_static("Bearer client"));
        headers.append(API_KEY, HeaderValue::from_static("client"));
        headers.append(API_KEY, HeaderValue::from_static("another"));
        put_key(&mut headers, &HeaderValue::from_static("Bearer sk-pool"));
        assert_eq!(headers.len(), 1);
        assert_eq!(headers[API_KEY], "sk-pool");
    }
}
