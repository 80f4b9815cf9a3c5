//! The paths of the API: which call a path is, and which model it names.
//!
//! A path is a call only as a whole. An upstream may serve `/engines/X/chat/completions` as model `X` whatever the
//! body names, so a path that merely ends like a call must not be counted under the body's model.

use std::ops::Range;

use super::ask::{Call, MAX_NAME_BYTES};
use super::background::MAX_ID_BYTES;
use super::openai;
use super::protocol::{ApiPaths, Protocol};

/// A call, as its path states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallPath {
    pub(crate) call: Call,
    /// Where the path names the model, if it does: a range of the whole path.
    pub(crate) model: Option<Range<usize>>,
}

impl CallPath {
    /// The call that a path is, read from each of these places on ([`crate::routes::Route::bases`]).
    pub(crate) fn read(
        protocol: Protocol,
        path: &str,
        bases: impl IntoIterator<Item = usize>,
    ) -> Option<Self> {
        let path = path.trim_end_matches('/');
        bases.into_iter().find_map(|base| {
            let call = Self::whole(protocol.paths(), path.get(base..)?)?;
            let model = call.model.map(|range| base + range.start..base + range.end);
            Some(Self { model, ..call })
        })
    }

    fn whole(api: &ApiPaths, path: &str) -> Option<Self> {
        let (end, call) = *api.calls.iter().find(|(end, _)| path.ends_with(end))?;
        let before = path.get(..path.len() - end.len())?;
        if api.bases.contains(&before) {
            return Some(Self { call, model: None });
        }
        let prefix = api.model_prefixes.iter().find(|prefix| before.starts_with(**prefix))?;
        let name = before.get(prefix.len()..).filter(|name| is_model_name(name))?;
        // Of Azure: a call of the deployment before it.
        if name.ends_with("/extensions") {
            return None;
        }
        let model = prefix.len()..prefix.len() + name.len();
        Some(Self { call, model: Some(model) })
    }

    /// The path with another name of the model, where it states one.
    pub(crate) fn with_model(&self, path: &str, name: &str) -> Option<String> {
        let range = self.model.clone()?;
        let (before, after) = (path.get(..range.start)?, path.get(range.end..)?);
        Some(format!("{before}{}{after}", encoded(name)))
    }
}

/// What a path asks about models: for all of them, or for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListPath<'p> {
    All,
    One(&'p str),
}

impl<'p> ListPath<'p> {
    /// The list that a path is, read from each of these places on.
    pub(crate) fn read(
        protocol: Protocol,
        path: &'p str,
        bases: impl IntoIterator<Item = usize>,
    ) -> Option<Self> {
        let path = path.trim_end_matches('/');
        bases.into_iter().find_map(|base| Self::whole(protocol.paths().bases, path.get(base..)?))
    }

    fn whole(bases: &[&str], path: &'p str) -> Option<Self> {
        if path.strip_suffix("/models").is_some_and(|before| bases.contains(&before)) {
            return Some(Self::All);
        }
        let (before, name) = path.split_once("/models/")?;
        (bases.contains(&before) && is_model_name(name)).then_some(Self::One(name))
    }
}

/// A response that was made before, as a path names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResponsePath<'p> {
    pub(crate) id: &'p str,
    /// Whether it is to be cancelled.
    pub(crate) is_cancel: bool,
}

impl<'p> ResponsePath<'p> {
    /// The response that a path names, read from each of these places on.
    pub(crate) fn read(path: &'p str, bases: impl IntoIterator<Item = usize>) -> Option<Self> {
        let path = path.trim_end_matches('/');
        bases.into_iter().find_map(|base| Self::whole(path.get(base..)?))
    }

    fn whole(path: &'p str) -> Option<Self> {
        let (before, rest) = path.split_once("/responses/")?;
        let (id, is_cancel) = match rest.strip_suffix("/cancel") {
            Some(id) => (id, true),
            None => (rest, false),
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.=~".contains(&byte);
        let is_id = (1..=MAX_ID_BYTES).contains(&id.len())
            && id.bytes().all(is_plain)
            && !matches!(id, "." | "..");
        (openai::PATHS.bases.contains(&before) && is_id).then_some(Self { id, is_cancel })
    }
}

/// What may be asked of a response: how it is sent, and what is sent with it.
const RESPONSE_QUERIES: [&str; 7] = [
    openai::API_VERSION,
    "stream",
    "starting_after",
    "include",
    "include[]",
    "include%5B%5D",
    "include_obfuscation",
];

/// The longest query of a call about a response.
const MAX_QUERY_BYTES: usize = 1_024;

/// Checks the query of a call about a response.
pub(crate) fn check_response_query(query: Option<&str>) -> Result<(), String> {
    let Some(query) = query.filter(|query| !query.is_empty()) else { return Ok(()) };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_known = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        RESPONSE_QUERIES.contains(&name) && value.bytes().all(is_plain)
    };
    if query.len() <= MAX_QUERY_BYTES && query.split('&').all(is_known) {
        return Ok(());
    }
    let known = "stream, starting_after, include, include_obfuscation and api-version";
    Err(format!("only these query parameters are accepted on responses: {known}"))
}

/// A name that every server reads in one way.
fn is_model_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/@+".contains(&byte);
    name.len() <= MAX_NAME_BYTES
        && name.bytes().all(is_plain)
        && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

fn encoded(name: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:/@+".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str, base: &str) -> Option<(Call, Option<String>)> {
        let found = CallPath::read(Protocol::OpenAi, path, [0, base.len()])?;
        Some((found.call, found.model.map(|range| path[range].to_owned())))
    }

    #[test]
    fn a_path_is_a_call_only_as_a_whole() {
        for (path, base, expected) in [
            ("/v1/chat/completions", "", Some((Call::Chat, None))),
            ("/v1/chat/completions", "/v1", Some((Call::Chat, None))),
            ("/api/v1/completions/", "", Some((Call::Completions, None))),
            ("/embeddings", "", Some((Call::Embeddings, None))),
            ("/openai/v1/responses", "", Some((Call::Responses, None))),
            ("/team/a/v1/embeddings", "/team/a", Some((Call::Embeddings, None))),
            ("/team/a/v1/embeddings", "/team/a/v1", Some((Call::Embeddings, None))),
            ("/team/a/v1/embeddings", "", None),
            ("/engines/x/chat/completions", "", Some((Call::Chat, Some("x")))),
            ("/v1/engines/org/x/completions", "/v1", Some((Call::Completions, Some("org/x")))),
            ("/openai/deployments/x/embeddings", "", Some((Call::Embeddings, Some("x")))),
            ("/t/openai/deployments/x/embeddings", "/t", Some((Call::Embeddings, Some("x")))),
            ("/openai/deployments//embeddings", "", None),
            ("/openai/deployments/../chat/completions", "", None),
            ("/v1/responses/7", "", None),
            ("/v1/models", "", None),
            ("/x/v1/chat/completions", "", None),
        ] {
            let expected = expected.map(|(call, model)| (call, model.map(str::to_owned)));
            assert_eq!(read(path, base), expected, "{path} below {base:?}");
        }
        let looks_like_call = |path| Protocol::OpenAi.looks_like_call(path);
        for path in ["/v1/files", "/v1/vector_stores/v/file_batches", "/v1/moderations"] {
            assert!(!looks_like_call(path), "{path}");
        }
        for path in [
            "/x/Chat/Completions/",
            "/v1/batches",
            "/v1/Batches/batch_1/cancel",
            "/openai/batches",
            "/v1/threads/runs",
            "/v1/threads/t/runs/r/submit_tool_outputs",
            "/v1/evals/e/runs",
            "/v1/fine_tuning/jobs",
            "/v1/realtime/sessions",
            "/v1/videos",
            "/completion",
            "/api/generate",
            "/api/chat",
            "/v1beta/models/m:streamGenerateContent",
            "/v1/messages/batches",
        ] {
            assert!(looks_like_call(path), "{path}");
        }
    }

    #[test]
    fn a_path_gets_the_name_that_the_upstream_knows() {
        let path = "/t/engines/small/chat/completions";
        let call = CallPath::read(Protocol::OpenAi, path, [0, 2]).unwrap();
        let renamed = call.with_model(path, "org/großes").unwrap();
        assert_eq!(renamed, "/t/engines/org/gro%C3%9Fes/chat/completions");
        let plain = CallPath::read(Protocol::OpenAi, "/v1/embeddings", [0]).unwrap();
        assert_eq!(plain.with_model("/v1/embeddings", "x"), None);
    }

    #[test]
    fn lists_of_models() {
        for (path, base, expected) in [
            ("/v1/models", "", Some(ListPath::All)),
            ("/v1/models/", "/v1", Some(ListPath::All)),
            ("/v1/models/org/a", "", Some(ListPath::One("org/a"))),
            ("/team/models/a", "/team", Some(ListPath::One("a"))),
            ("/team/models/a", "", None),
            ("/x/v1/models", "", None),
            ("/v1/models/..%2ffiles", "", None),
            ("/v1/models/models", "", Some(ListPath::One("models"))),
            ("/v1/files", "", None),
        ] {
            let found = ListPath::read(Protocol::OpenAi, path, [0, base.len()]);
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn responses_by_id() {
        let own = |id, is_cancel| Some(ResponsePath { id, is_cancel });
        for (path, base, expected) in [
            ("/v1/responses/resp_1", "", own("resp_1", false)),
            ("/v1/responses/resp_1/", "/v1", own("resp_1", false)),
            ("/v1/responses/resp_1/cancel", "", own("resp_1", true)),
            ("/team/v1/responses/r=", "/team", own("r=", false)),
            ("/v1/responses", "", None),
            ("/v1/responses/", "", None),
            ("/v1/responses/a/b", "", None),
            ("/v1/responses/a/input_items", "", None),
            ("/x/responses/a", "", None),
            ("/v1/responses/%61", "", None),
        ] {
            assert_eq!(ResponsePath::read(path, [0, base.len()]), expected, "{path}");
        }
        for query in [None, Some(""), Some("stream=true&starting_after=4"), Some("include[]=a.b")] {
            assert!(check_response_query(query).is_ok(), "{query:?}");
        }
        for query in ["model=x", "stream=true&model=x", "stream=%26model=x", "stream=a;b"] {
            assert!(check_response_query(Some(query)).is_err(), "{query}");
        }
    }
}
