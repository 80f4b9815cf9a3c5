//! Signing in from a browser. The token travels in a cookie that no script can read; what is changed with it
//! needs a header that no other site can send.

use axum::body::Body;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CACHE_CONTROL, COOKIE, HOST, ORIGIN, SET_COOKIE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::sync::Arc;
use tollgate_control::{Actor, Identity, is_session_token};

use super::respond::{AdminError, Answer};
use super::{Admin, Door, bearer, read, view};
use crate::http::read as http_read;

/// Where the console signs in and out.
pub(crate) const PATH: &str = "/admin/api/v1/session";

/// The header that shows that a page of ours asks: a form or a link of another site cannot set it.
const CONSOLE: &str = "x-tollgate-console";

/// The largest body: a token.
const MAX_BODY: usize = 4 << 10;

impl Admin {
    /// Who asks, by header or else by cookie. With a cookie, changes must come from a page of ours.
    pub(super) async fn identify_any(
        self: &Arc<Self>,
        head: &Parts,
        peer: Option<IpAddr>,
    ) -> Result<Identity, AdminError> {
        if head.headers.contains_key(AUTHORIZATION) {
            return self.identify_token(bearer(&head.headers), peer).await;
        }
        let token = cookie(head);
        let is_cookie = token.is_some();
        let identity = self.identify_token(token, peer).await?;
        let changes = head.method != Method::GET && head.method != Method::HEAD;
        if is_cookie && changes {
            own_page(head)?;
        }
        Ok(identity)
    }

    /// Signs in, returns who is signed in, signs out.
    pub(super) async fn session<B>(
        self: &Arc<Self>,
        head: &Parts,
        body: B,
        door: Door,
    ) -> Result<Response<Body>, AdminError>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match head.method {
            Method::GET | Method::HEAD => self.who(head, door).await,
            Method::POST => {
                own_page(head)?;
                let patience = self.config.limits.body_timeout;
                let bytes = http_read::body(body, MAX_BODY, patience).await?;
                let token = match credential_of(&bytes)? {
                    Credential::Token(token) => token,
                    Credential::Code(code) => self.redeem(&code).await?,
                };
                let identity = self.identify_token(Some(token.clone()), door.peer).await?;
                let mut response = Answer::ok(view::identity(&identity)).respond();
                set(response.headers_mut(), head, Session::Begins(&token), door.is_tls);
                Ok(response)
            }
            Method::DELETE => {
                own_page(head)?;
                let mut response = self.sign_out(head, door).await?;
                set(response.headers_mut(), head, Session::Ends, door.is_tls);
                Ok(response)
            }
            _ => Err(AdminError::MethodNotAllowed("GET, POST, DELETE".to_owned())),
        }
    }

    /// Signs out. The session of a person is over everywhere; a token stays, since others may use it.
    async fn sign_out(
        self: &Arc<Self>,
        head: &Parts,
        door: Door,
    ) -> Result<Response<Body>, AdminError> {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let Some(token) = cookie(head).filter(|token| is_session_token(token)) else {
            return Ok(response);
        };
        let identity = match self.identify_sent(Some(token), door.peer, true).await {
            Ok(identity) => identity,
            // It is over already.
            Err(AdminError::Unauthorized | AdminError::Damped { .. }) => return Ok(response),
            Err(error) => return Err(error),
        };
        let admin = Arc::clone(self);
        let address = door.peer.map(|peer| peer.to_string());
        let end = async move {
            let Identity { name, token_id, tenant, .. } = identity;
            let actor = Actor { name, token_id, request_id: None, address, tenant };
            Ok(admin.control.end_session(&actor, &actor.token_id).await?)
        };
        self.on_control_thread(end).await?;
        let url = self.oidc.as_ref().and_then(super::oidc::Oidc::end_session_url);
        Ok(url.map_or(response, |url| Answer::ok(json!({ "end_session_url": url })).respond()))
    }

    /// Who is signed in. A cookie whose token has ended is taken away, so that the browser does not send it again.
    async fn who(self: &Arc<Self>, head: &Parts, door: Door) -> Result<Response<Body>, AdminError> {
        let is_named = head.headers.contains_key(AUTHORIZATION);
        let kept = cookie(head).filter(|_| !is_named);
        let is_kept = kept.is_some();
        let token = kept.or_else(|| bearer(&head.headers));
        match self.identify_sent(token, door.peer, is_kept).await {
            Ok(identity) => Ok(Answer::ok(view::identity(&identity)).respond()),
            Err(AdminError::Unauthorized) if is_kept => {
                let mut response = AdminError::Unauthorized.respond();
                set(response.headers_mut(), head, Session::Ends, door.is_tls);
                Ok(response)
            }
            Err(error) => Err(error),
        }
    }
}

/// What signs in.
enum Credential {
    Token(String),
    /// Of a link that works once.
    Code(String),
}

fn credential_of(bytes: &Bytes) -> Result<Credential, AdminError> {
    let body = read::body(bytes)?;
    let only =
        body.as_object().filter(|fields| fields.len() == 1).and_then(|all| all.iter().next());
    let text = |value: &Value| {
        let text = value.as_str().map(str::trim).filter(|text| !text.is_empty());
        text.map(str::to_owned)
    };
    let credential = match only {
        Some((name, value)) if name == "token" => text(value).map(Credential::Token),
        Some((name, value)) if name == "code" => text(value).map(Credential::Code),
        _ => None,
    };
    let message = "must be the one field: an admin token, or the code of a sign-in link as code";
    credential.ok_or_else(|| AdminError::invalid("token", message))
}

/// The name of the cookie with the token.
fn name(head: &Parts) -> String {
    name_of("tollgate_session", head)
}

/// A cookie's name. Browsers keep one set of cookies for all ports of a host, and two Tollgates may share one.
pub(super) fn name_of(kind: &str, head: &Parts) -> String {
    match authority(head).rsplit_once(':').map(|(_, port)| port) {
        Some(port) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("{kind}_{port}")
        }
        _ => kind.to_owned(),
    }
}

/// The host that the browser has asked: HTTP/2 has it in the address, HTTP/1.1 in a header.
fn authority(head: &Parts) -> &str {
    let host = || head.headers.get(HOST).and_then(|host| host.to_str().ok());
    head.uri.authority().map(http::uri::Authority::as_str).or_else(host).unwrap_or_default()
}

fn cookie(head: &Parts) -> Option<String> {
    cookie_named(head, &name(head))
}

/// The value of a cookie.
pub(super) fn cookie_named(head: &Parts, name: &str) -> Option<String> {
    let value = head
        .headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(given, _)| *given == name)
        .map(|(_, value)| value)?;
    let token = percent_decode_str(value).decode_utf8().ok()?.into_owned();
    Some(token).filter(|token| !token.is_empty())
}

/// What becomes of the cookie.
#[derive(Clone, Copy)]
pub(super) enum Session<'t> {
    /// It holds this token.
    Begins(&'t str),
    Ends,
}

/// Sets the cookie. It lasts as long as the browser runs; the token decides whether it means anything.
pub(super) fn set(headers: &mut HeaderMap, head: &Parts, session: Session<'_>, is_tls: bool) {
    let secure = if is_tls { "; Secure" } else { "" };
    let (value, ends) = match session {
        Session::Begins(token) => (utf8_percent_encode(token, NON_ALPHANUMERIC).to_string(), ""),
        Session::Ends => (String::new(), "; Max-Age=0"),
    };
    let cookie =
        format!("{}={value}; Path=/admin; HttpOnly; SameSite=Strict{secure}{ends}", name(head));
    if let Ok(mut cookie) = HeaderValue::try_from(cookie) {
        cookie.set_sensitive(true);
        headers.insert(SET_COOKIE, cookie);
    }
}

/// Whether a page that this server has sent asks for a change.
fn own_page(head: &Parts) -> Result<(), AdminError> {
    let refuse = |message: &str| Err(AdminError::Forbidden(message.to_owned()));
    if head.headers.get(CONSOLE).is_none_or(|value| value != "1") {
        return refuse(
            "a change by cookie needs the header X-Tollgate-Console: 1; others send a bearer token",
        );
    }
    let Some(origin) = head.headers.get(ORIGIN) else { return Ok(()) };
    // A proxy that terminates TLS in front of this server changes the scheme, not the host.
    let host =
        origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
    if host.is_some_and(|host| host.eq_ignore_ascii_case(authority(head))) {
        return Ok(());
    }
    refuse("the page that asks is another site's: its Origin is not this host")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn head(headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().uri("/admin/api/v1/session");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn each_port_has_a_cookie_of_its_own() {
        assert_eq!(name(&head(&[("host", "127.0.0.1:8080")])), "tollgate_session_8080");
        assert_eq!(name(&head(&[("host", "[::1]:80")])), "tollgate_session_80");
        for plain in ["tollgate.example", "[::1]", ""] {
            assert_eq!(name(&head(&[("host", plain)])), "tollgate_session", "{plain}");
        }
        let both = "tollgate_session=a; tollgate_session_1=b%2Fc";
        assert_eq!(cookie(&head(&[("host", "h:1"), ("cookie", both)])).unwrap(), "b/c");
        assert_eq!(cookie(&head(&[("host", "h"), ("cookie", both)])).unwrap(), "a");
        assert_eq!(cookie(&head(&[("host", "h:2"), ("cookie", both)])), None);
    }

    #[test]
    fn a_cookie_is_secure_where_the_connection_is() {
        let head = head(&[("host", "gate.example")]);
        let cookie = |session: Session<'_>, is_tls: bool| {
            let mut headers = HeaderMap::new();
            set(&mut headers, &head, session, is_tls);
            headers.get(SET_COOKIE).unwrap().to_str().unwrap().to_owned()
        };
        let plain = "tollgate_session=t; Path=/admin; HttpOnly; SameSite=Strict";
        assert_eq!(cookie(Session::Begins("t"), false), plain);
        assert_eq!(cookie(Session::Begins("t"), true), format!("{plain}; Secure"));
        assert!(cookie(Session::Ends, true).ends_with("; Secure; Max-Age=0"));
    }

    #[test]
    fn changes_come_from_a_page_of_ours() {
        let console = ("x-tollgate-console", "1");
        let host = ("host", "gate.example:8080");
        assert!(own_page(&head(&[host, console])).is_ok());
        for fits in ["http://gate.example:8080", "https://GATE.example:8080"] {
            assert!(own_page(&head(&[host, console, ("origin", fits)])).is_ok(), "{fits}");
        }
        for other in ["http://gate.example", "http://evil.example:8080", "null", ""] {
            assert!(own_page(&head(&[host, console, ("origin", other)])).is_err(), "{other}");
        }
        assert!(own_page(&head(&[host])).is_err());
    }
}
