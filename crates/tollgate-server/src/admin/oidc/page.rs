//! The page that a person sees whose sign-in failed.

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};
use sha2::{Digest as _, Sha256};
use tollgate_control::ControlError;

use super::super::respond::AdminError;

/// Why nobody was signed in.
#[derive(Debug)]
pub(super) enum Failure {
    /// The answer fits no sign-in of this browser, or one that was used or has ended.
    Stale,
    /// The person or the provider said no. The provider's code for it.
    Refused(String),
    /// The provider does not answer, or not as it should.
    Unavailable,
    /// What the provider says of the person cannot be verified.
    Unverified,
    /// No group of this person has a role.
    NoRole { name: String },
    /// Too many sign-ins at once, or too many people.
    Busy,
    /// The database does not answer.
    Admin(AdminError),
}

impl From<AdminError> for Failure {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::Busy | AdminError::Control(ControlError::Conflict(_)) => Self::Busy,
            other => Self::Admin(other),
        }
    }
}

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{margin:0;min-height:100vh;display:grid;place-items:center;background:#f6f7f9;color:#151a21;\
font:16px/1.5 system-ui,sans-serif}\
main{box-sizing:border-box;width:min(30rem,calc(100vw - 2rem));margin:1rem;padding:2rem;background:#fff;\
border:1px solid #e2e6eb;border-radius:10px;overflow-wrap:anywhere}\
h1{margin:0 0 .75rem;font-size:1.35rem;line-height:1.3}\
p{margin:0 0 1.25rem}\
a{display:inline-block;padding:.55rem 1rem;border-radius:8px;background:#0f766e;color:#fff;text-decoration:none}\
a:focus-visible{outline:3px solid #2dd4bf;outline-offset:2px}\
@media(prefers-color-scheme:dark){body{background:#0e1116;color:#e8ebf0}main{background:#161a21;border-color:#272e38}\
a{background:#2dd4bf;color:#06201d}}";

impl Failure {
    fn parts(self) -> (StatusCode, &'static str, String) {
        match self {
            Self::Stale => (
                StatusCode::BAD_REQUEST,
                "This sign-in cannot be completed",
                "It was begun in another browser or at another address, more than ten minutes ago, or it was \
                 completed already. Begin again."
                    .to_owned(),
            ),
            Self::Refused(code) => (
                StatusCode::FORBIDDEN,
                "The provider did not sign you in",
                format!("It answered: {code}. Begin again, or sign in with a token."),
            ),
            Self::Unavailable => (
                StatusCode::BAD_GATEWAY,
                "Single sign-on is not available",
                "The provider does not answer as it should; the log of this server has the cause. You can sign in with \
                 a token."
                    .to_owned(),
            ),
            Self::Unverified => (
                StatusCode::BAD_GATEWAY,
                "The provider's answer cannot be verified",
                "Nobody was signed in. The log of this server has the cause.".to_owned(),
            ),
            Self::NoRole { name } => (
                StatusCode::FORBIDDEN,
                "You have no role here",
                format!(
                    "The provider knows you as {name}, and none of your groups has a role in this Tollgate. Ask its \
                     operators for one; they are listed under oidc.roles in its configuration."
                ),
            ),
            Self::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Too many people sign in at the same time",
                "Try again in a moment, or sign in with a token.".to_owned(),
            ),
            Self::Admin(error) => (
                error.respond().status(),
                "Nobody can be signed in now",
                "The database of this server is not available. Decisions continue. Try again in a moment.".to_owned(),
            ),
        }
    }

    /// The page. It holds nothing that can run, and is not stored.
    pub(super) fn respond(self) -> Response<Body> {
        let (status, title, text) = self.parts();
        let text = escape(&text);
        let page = format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title} · Tollgate</title>\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><style>{STYLE}</style></head>\
             <body><main><h1>{title}</h1><p>{text}</p><a href=\"/\">To the sign-in page</a></main></body></html>"
        );
        let style = STANDARD.encode(Sha256::digest(STYLE.as_bytes()));
        let policy = format!(
            "default-src 'none'; style-src 'sha256-{style}'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
        );
        let mut response = Response::new(Body::from(page));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        if let Ok(policy) = HeaderValue::try_from(policy) {
            headers.insert(CONTENT_SECURITY_POLICY, policy);
        }
        response
    }
}

/// Text of others, as text.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_of_people_are_text() {
        let name = "<script>\"&'</script>".to_owned();
        let response = Failure::NoRole { name }.respond();
        assert_eq!(response.status(), StatusCode::FORBIDDEN);
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(!body.contains("<script"), "{body}");
        assert!(body.contains("&lt;script&gt;&quot;&amp;&#39;&lt;/script&gt;"), "{body}");
    }
}
