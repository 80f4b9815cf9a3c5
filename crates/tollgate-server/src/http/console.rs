//! The web console: files that were built into the binary.

use std::sync::LazyLock;

use axum::body::Body;
use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY,
    CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_NONE_MATCH, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{Method, Response, StatusCode};
use sha2::{Digest as _, Sha256};

/// A file as it is, and as it travels.
pub(super) struct File {
    /// Its path, from `/`.
    path: &'static str,
    plain: &'static [u8],
    gzip: Option<&'static [u8]>,
    brotli: Option<&'static [u8]>,
}

include!(concat!(env!("OUT_DIR"), "/console.rs"));

/// The first segments of the paths that the console has pages for. Everything else is not its own.
const PAGES: [&str; 12] = [
    "",
    "sign-in",
    "playground",
    "rules",
    "clients",
    "keys",
    "lists",
    "tiers",
    "audit",
    "nodes",
    "tokens",
    "overview",
];

/// A page of its own. What is under it belongs to the API: tickets of requests that wait.
const QUEUE_PAGE: &str = "queue";

/// The page that every path of the console is answered with.
const INDEX: &str = "/index.html";

/// What is under it is named by its content.
const ASSETS: &str = "/assets/";

const FOREVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");
const ASK_AGAIN: HeaderValue = HeaderValue::from_static("no-cache");

/// Nothing but what comes from here, and nothing written into the page.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
     frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
);

const MISSING: &str = "This Tollgate was built without its console. `make console` builds it; then build Tollgate \
again, or start it with `make run`.\nThe admin API works all the same: GET /openapi.json describes it.\n";

/// The answer to a path of the console, if it is one.
pub(super) fn answer(method: &Method, path: &str, headers: &HeaderMap) -> Option<Response<Body>> {
    if *method != Method::GET && *method != Method::HEAD {
        return None;
    }
    if let Some(file) = FILES.iter().find(|file| file.path == path) {
        return Some(send(file, headers));
    }
    let is_page = is_page(path);
    // A person who mistyped an address gets the console's own page for that.
    let is_mistyped = wants_page(headers) && !is_reserved(path);
    if !is_page && !is_mistyped {
        return None;
    }
    let Some(index) = FILES.iter().find(|file| file.path == INDEX) else {
        return is_page.then(missing);
    };
    let mut response = send(index, headers);
    if !is_page && response.status() == StatusCode::OK {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    Some(response)
}

/// Whether a browser opens a page.
fn wants_page(headers: &HeaderMap) -> bool {
    let given = headers.get_all(ACCEPT).iter().filter_map(|given| given.to_str().ok());
    given.flat_map(|given| given.split(',')).any(|one| one.trim().starts_with("text/html"))
}

/// What belongs to APIs and files is answered by them, also when it is not there.
fn is_reserved(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    ["admin", "api", "rate-limit", "queue", "v1", "assets"].contains(&first)
}

fn is_page(path: &str) -> bool {
    let rest = path.strip_prefix('/').unwrap_or(path);
    let first = rest.split('/').next().unwrap_or_default();
    rest == QUEUE_PAGE || PAGES.contains(&first) && (first.is_empty() == rest.is_empty())
}

fn missing() -> Response<Body> {
    let mut response = Response::new(Body::from(MISSING));
    *response.status_mut() = StatusCode::NOT_FOUND;
    guard(response.headers_mut());
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response.headers_mut().insert(CACHE_CONTROL, ASK_AGAIN);
    response
}

fn send(file: &File, asked: &HeaderMap) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    let (coding, bytes) = coded(file, asked);
    let headers = response.headers_mut();
    guard(headers);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind_of(file.path)));
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    if file.path.starts_with(ASSETS) {
        headers.insert(CACHE_CONTROL, FOREVER);
    } else {
        headers.insert(CACHE_CONTROL, ASK_AGAIN);
        let tag = tag(file);
        let is_known = asked
            .get_all(IF_NONE_MATCH)
            .iter()
            .filter_map(|given| given.to_str().ok())
            .flat_map(|given| given.split(','))
            .any(|given| given.trim().trim_start_matches("W/") == tag);
        if let Ok(tag) = HeaderValue::try_from(format!("W/{tag}")) {
            headers.insert(ETAG, tag);
        }
        if is_known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return response;
        }
    }
    if let Some(coding) = coding {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding));
    }
    *response.body_mut() = Body::from(Bytes::from_static(bytes));
    response
}

/// The form of a file that the browser takes and that is smallest.
fn coded(file: &File, asked: &HeaderMap) -> (Option<&'static str>, &'static [u8]) {
    let takes = |coding: &str| {
        let given = asked.get_all(ACCEPT_ENCODING).iter().filter_map(|given| given.to_str().ok());
        given.flat_map(|given| given.split(',')).any(|one| {
            let mut parts = one.split(';').map(str::trim);
            let is_named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(coding));
            is_named && !parts.any(|part| matches!(part, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
        })
    };
    match file {
        File { brotli: Some(bytes), .. } if takes("br") => (Some("br"), bytes),
        File { gzip: Some(bytes), .. } if takes("gzip") => (Some("gzip"), bytes),
        File { plain, .. } => (None, plain),
    }
}

/// The name of a content, for files that keep their name. Few files, each hashed once.
fn tag(file: &File) -> &'static str {
    static TAGS: LazyLock<Vec<(&'static str, String)>> = LazyLock::new(|| {
        let named = FILES.iter().filter(|file| !file.path.starts_with(ASSETS));
        named
            .map(|file| {
                let digest = Sha256::digest(file.plain);
                let short = digest.first_chunk().copied().map_or(0, u64::from_be_bytes);
                (file.path, format!("\"{short:016x}\""))
            })
            .collect()
    });
    TAGS.iter().find(|(path, _)| *path == file.path).map_or("\"\"", |(_, tag)| tag)
}

fn guard(headers: &mut HeaderMap) {
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    let name = HeaderName::from_static("cross-origin-opener-policy");
    headers.insert(name, HeaderValue::from_static("same-origin"));
}

fn kind_of(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("json") => "application/json",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_paths_are_pages() {
        for page in ["/", "/rules", "/rules/per-user/versions", "/audit", "/keys/new", "/queue"] {
            assert!(is_page(page), "{page}");
        }
        for other in [
            "/rate-limit/allow",
            "/admin/x",
            "/metrics",
            "/api/v1",
            "//",
            "/rulesx",
            "/x/rules",
            "/queue/tickets/1",
        ] {
            assert!(!is_page(other), "{other}");
        }
    }

    #[test]
    fn only_browsers_get_a_page_for_what_is_not_there() {
        let status = |path: &str, accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            answer(&Method::GET, path, &headers).map(|response| response.status())
        };
        let browser = "text/html,application/xhtml+xml,*/*;q=0.8";
        let expected = (!FILES.is_empty()).then_some(StatusCode::NOT_FOUND);
        assert_eq!(status("/rulez", browser), expected);
        assert_eq!(status("/rulez", "*/*"), None);
        for api in ["/admin/api/v1/x", "/rate-limit/x", "/assets/x.js"] {
            assert_eq!(status(api, browser), None, "{api}");
        }
    }

    #[test]
    fn the_smallest_form_that_is_taken() {
        let file = File { path: "/x.js", plain: b"plain", gzip: Some(b"gz"), brotli: Some(b"br") };
        let form = |accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(accept));
            coded(&file, &headers).0
        };
        assert_eq!(form("gzip, deflate, br"), Some("br"));
        assert_eq!(form("gzip;q=0.5, br;q=0"), Some("gzip"));
        assert_eq!(form("identity"), None);
        assert_eq!(coded(&file, &HeaderMap::new()), (None, b"plain".as_slice()));
    }
}
