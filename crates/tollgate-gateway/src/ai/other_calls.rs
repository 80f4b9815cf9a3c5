//! Calls that are not counted here: which of them go to an upstream.
//!
//! An upstream may serve any path, and new versions serve new ones. So what may be forwarded is listed, and everything else
//! is closed: calls that read something and make no model work, and the paths that the operator names.

use http::Method;

use super::options::{AiOptions, Others};
use super::protocol::Protocol;

/// Paths that state something about a server: whether it works, its version, its models. They are read below each base.
const READ_ONLY: [&str; 14] = [
    "/health",
    "/healthz",
    "/health/liveliness",
    "/health/liveness",
    "/health/readiness",
    "/livez",
    "/readyz",
    "/ready",
    "/ping",
    "/version",
    // Ollama: the models that are installed, and those that are loaded.
    "/api/version",
    "/api/tags",
    "/api/ps",
    "/models",
];

/// What such paths may stand below.
const BASES: [&str; 4] = ["", "/v1", "/openai", "/openai/v1"];

/// The most paths that can be named, and the longest.
pub(super) const MAX_FORWARD_PATHS: usize = 1_000;
const MAX_PATH_BYTES: usize = 1_024;

/// Checks the paths that an operator names: whole ones, or everything below one (`/v1/files/*`).
pub(super) fn check(options: &AiOptions) -> Result<(), String> {
    let paths = &options.forward_paths;
    if paths.is_empty() {
        return Ok(());
    }
    if options.others != Others::Forward {
        return Err("forward_paths need other_calls: forward".to_owned());
    }
    if paths.len() > MAX_FORWARD_PATHS {
        return Err(format!("there must not be more than {MAX_FORWARD_PATHS} forward_paths"));
    }
    for path in paths {
        let stem = path.strip_suffix("/*").unwrap_or(path);
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/@+".contains(&byte);
        let is_whole = path.starts_with('/')
            && path.len() <= MAX_PATH_BYTES
            && stem.bytes().all(is_plain)
            && stem.split('/').skip(1).all(|part| !matches!(part, "" | "." | ".."));
        if !is_whole {
            return Err(format!(
                "forward_paths: {path:?} must be a path such as /v1/files, or /v1/files/* for everything below it"
            ));
        }
    }
    Ok(())
}

/// Whether a call that is not counted here goes to the upstream, by its whole path.
pub(super) fn is_forwarded(
    options: &AiOptions,
    protocol: Protocol,
    method: Option<&str>,
    path: &str,
) -> bool {
    if options.others != Others::Forward {
        return false;
    }
    let path = path.trim_end_matches('/');
    let is_read = method == Some(Method::GET.as_str()) || method == Some(Method::HEAD.as_str());
    let is_known = |base: &str| path.strip_prefix(base).is_some_and(|it| READ_ONLY.contains(&it));
    if is_read && BASES.into_iter().any(is_known) {
        return true;
    }
    // Everything below a path stands for files and the like, and not for what makes a model work.
    let is_below = |named: &String| {
        let stem = named.strip_suffix("/*");
        stem.is_some_and(|it| path.strip_prefix(it).is_some_and(|rest| rest.starts_with('/')))
    };
    is_named(options, path)
        || options.forward_paths.iter().any(is_below) && !protocol.looks_like_call(path)
}

/// Whether an operator names this path as a whole.
pub(super) fn is_named(options: &AiOptions, path: &str) -> bool {
    let path = path.trim_end_matches('/');
    let mut whole = options.forward_paths.iter().filter(|it| !it.ends_with("/*"));
    options.others == Others::Forward && whole.any(|named| named == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(paths: &[&str]) -> AiOptions {
        AiOptions {
            others: Others::Forward,
            forward_paths: paths.iter().map(|path| (*path).to_owned()).collect(),
            ..AiOptions::default()
        }
    }

    #[test]
    fn a_path_is_closed_unless_it_is_listed_or_named() {
        let plain = options(&[]);
        let is_forwarded = |options: &AiOptions, method, path| {
            is_forwarded(options, Protocol::OpenAi, Some(method), path)
        };
        for path in ["/health", "/v1/health", "/version", "/api/tags", "/ping/"] {
            assert!(is_forwarded(&plain, "GET", path), "{path}");
            assert!(!is_forwarded(&plain, "POST", path), "{path}");
            assert!(!is_forwarded(&AiOptions::default(), "GET", path), "{path}");
        }
        for path in [
            "/v1/responses/compact",
            "/v1/conversations",
            "/v1/conversations/c/items",
            "/v1/ocr",
            "/v1/moderations",
            "/v1/images/generations",
            "/v1/audio/speech",
            "/v1/files",
            "/v1/messages/batches",
            "/v1/a_path_of_tomorrow",
            "/sleep",
            "/wake_up",
            "/api/pull",
            "/api/generate",
            "/slots/0",
            "/lora-adapters",
            "/x/health",
            "/healthy",
        ] {
            for method in ["GET", "POST", "PUT", "DELETE"] {
                assert!(!is_forwarded(&plain, method, path), "{method} {path}");
            }
        }
        let named = options(&["/v1/files", "/v1/files/*", "/v1/batches", "/x/*"]);
        for path in ["/v1/files", "/v1/files/", "/v1/files/f/content", "/v1/batches", "/x/y"] {
            assert!(is_forwarded(&named, "POST", path), "{path}");
        }
        for path in ["/v1/filesystem", "/v1/batches/b", "/x/chat/completions", "/x/batches", "/x"] {
            assert!(!is_forwarded(&named, "POST", path), "{path}");
        }
        assert!(is_named(&named, "/v1/files/") && !is_named(&named, "/v1/files/f"));
    }

    #[test]
    fn only_paths_can_be_named() {
        assert_eq!(check(&options(&["/v1/files", "/v1/files/*", "/*"])), Ok(()));
        for path in ["v1/files", "", "/v1/*/x", "/v1//x", "/v1/../x", "/v1/x?y", "/v1/%66"] {
            assert!(check(&options(&[path])).is_err(), "{path}");
        }
        let refusing = AiOptions { others: Others::Refuse, ..options(&["/v1/files"]) };
        assert!(check(&refusing).unwrap_err().contains("other_calls"));
    }
}
