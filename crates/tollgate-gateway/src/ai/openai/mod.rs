//! The OpenAI API: what others do not share. How its bodies and answers are read is in `ask`, `prompt` and `usage`.

use serde_json::{Value, json};

use super::ask::Call;
use super::protocol::ApiPaths;

pub(super) const PATHS: ApiPaths = ApiPaths {
    // OpenAI and most servers, Azure and Groq, gateways of several providers.
    bases: &["", "/v1", "/openai", "/openai/v1", "/api/v1"],
    // The engines of early OpenAI clients, the deployments of Azure.
    model_prefixes: &["/engines/", "/v1/engines/", "/openai/deployments/"],
    calls: &[
        ("/chat/completions", Call::Chat),
        ("/completions", Call::Completions),
        ("/embeddings", Call::Embeddings),
        ("/responses", Call::Responses),
    ],
    // Also those of servers that have an API of their own next to it: llama.cpp, Ollama, TGI, vLLM, Cohere, Gemini.
    working: &[
        "/completions",
        "/embeddings",
        "/responses",
        "/completion",
        "/infill",
        "/embedding",
        "/chat",
        "/generate",
        "/generate_stream",
        "/embed",
        "/invocations",
        "/pooling",
        "/score",
        "/rerank",
        "/classify",
        ":generatecontent",
        ":streamgeneratecontent",
    ],
    deferred: &["batches", "runs", "fine_tuning", "fine-tunes", "videos", "realtime"],
    described: "chat/completions, completions, embeddings, responses and models",
};

/// The only query parameter that model calls may have: Azure's clients always send it.
pub(super) const API_VERSION: &str = "api-version";

/// The longest value of it.
const MAX_VERSION_BYTES: usize = 64;

/// Accepts nothing but one version.
pub(super) fn check_query(query: &str) -> Result<Option<&str>, String> {
    let shown = |name: &str| -> String { name.chars().take(100).collect() };
    let (name, value) = query.split_once('=').unwrap_or((query, ""));
    if name != API_VERSION {
        let name = shown(name);
        return Err(format!("the query parameter {name:?} is not accepted on model calls"));
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if value.is_empty() || value.len() > MAX_VERSION_BYTES || !value.bytes().all(is_plain) {
        return Err(format!("{API_VERSION:?} must be given once, as a version"));
    }
    Ok(Some(query))
}

pub(super) fn model(name: &str) -> Value {
    json!({"id": name, "object": "model", "created": 0, "owned_by": "tollgate"})
}

pub(super) fn list(models: &[Value]) -> Value {
    json!({"object": "list", "data": models})
}

pub(super) fn stop_event(message: &str) -> String {
    let error = json!({"error": {"message": message, "type": "tokens",
        "param": "max_tokens", "code": "reservation_exceeded"}});
    format!("data: {error}\n\n")
}

#[cfg(test)]
mod tests {
    use super::super::Protocol;

    #[test]
    fn only_the_version_may_be_asked_for() {
        let check = |query: Option<&'static str>| Protocol::OpenAi.check_query(query, false);
        for query in [None, Some(""), Some("api-version=2024-10-21")] {
            assert!(check(query).is_ok(), "{query:?}");
        }
        assert_eq!(check(Some("")), Ok(None));
        for query in [
            "model=large",
            "api-version=1&model=large",
            "api-version",
            "api-version=",
            "%61pi-version=1",
            "api-version=1;model=large",
            "&api-version=1",
        ] {
            assert!(check(Some(query)).is_err(), "{query}");
        }
    }
}
