//! Pages of other sites cannot make decisions here. A browser sends a POST without asking first, and a name that an
//! attacker controls can point to this host (DNS rebinding); both show in headers that a page cannot set. Programs
//! send no `Origin`, and nothing is asked of them but, of a GET from loopback, a `Host` that is no stranger's.

use std::net::{IpAddr, Ipv6Addr};

use http::header::{HOST, HeaderMap, ORIGIN};
use http::request::Parts;

use super::respond::ApiError;

const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// Checks a call that changes counters. Fails where a page sends it that is neither this host's own nor listed in
/// `cors_origins`.
pub(super) fn check(
    head: &Parts,
    peer: Option<IpAddr>,
    accepted: &[String],
) -> Result<(), ApiError> {
    let mut origins = head.headers.get_all(ORIGIN).iter();
    let Some(origin) = origins.next() else { return Ok(()) };
    if origins.next().is_some() {
        return Err(ApiError::ForeignOrigin);
    }
    let is_listed = |listed: &String| listed == "*" || listed.as_bytes() == origin.as_bytes();
    if accepted.iter().any(is_listed) {
        return Ok(());
    }
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let host = authority(head).ok_or(ApiError::ForeignOrigin)?;
    let is_own = origin.is_some_and(|(_, origin)| origin.eq_ignore_ascii_case(host));
    // On loopback any name could be one that was pointed here for the purpose.
    let is_loopback = peer.is_none_or(|peer| peer.to_canonical().is_loopback());
    if is_own && (!is_loopback || is_local_name(host)) {
        return Ok(());
    }
    Err(ApiError::ForeignOrigin)
}

/// Checks a call of a reverse proxy, which may pass its client's `Origin` on. A page of another site can send neither
/// of the headers that name attributes, because none of them is allowed without a preflight.
pub(super) fn check_auth(
    head: &Parts,
    peer: Option<IpAddr>,
    accepted: &[String],
) -> Result<(), ApiError> {
    if names_attributes(&head.headers) {
        return Ok(());
    }
    check(head, peer, accepted)?;
    let site = head.headers.get(SEC_FETCH_SITE).map(http::HeaderValue::as_bytes);
    match site {
        None | Some(b"none" | b"same-origin") => Ok(()),
        Some(_) => Err(ApiError::ForeignOrigin),
    }
}

/// Checks the name under which a call without a token reached this host from loopback. A page that was reached under a
/// name which then points here (DNS rebinding) sends a GET without an `Origin` and any headers it likes, but cannot
/// choose the `Host`. Such a name has a dot, because it must be in the public DNS.
pub(super) fn check_host(
    head: &Parts,
    peer: Option<IpAddr>,
    allowed: &[String],
) -> Result<(), ApiError> {
    if peer.is_some_and(|peer| !peer.to_canonical().is_loopback()) {
        return Ok(());
    }
    let host = authority(head).ok_or(ApiError::ForeignHost)?;
    let name = name_of(host).ok_or(ApiError::ForeignHost)?;
    let is_allowed = |listed: &String| listed.eq_ignore_ascii_case(name);
    if is_local_name(host) || !name.contains('.') || allowed.iter().any(is_allowed) {
        return Ok(());
    }
    Err(ApiError::ForeignHost)
}

/// The name in a host, without its port and without a dot at its end, or the address in brackets. None where the host is
/// empty or is not written as a host: nobody knows what else would be taken for its name.
fn name_of(host: &str) -> Option<&str> {
    let (name, rest) = if let Some(inside) = host.strip_prefix('[') {
        let (address, rest) = inside.split_once(']')?;
        address.parse::<Ipv6Addr>().ok()?;
        (address, rest)
    } else {
        let (name, rest) = host.split_at(host.find(':').unwrap_or(host.len()));
        let is_named =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let name = name.trim_end_matches('.');
        if name.is_empty() || !name.bytes().all(is_named) {
            return None;
        }
        (name, rest)
    };
    let port = rest.strip_prefix(':').unwrap_or("");
    let is_port = rest.is_empty() || rest.starts_with(':');
    (is_port && port.bytes().all(|byte| byte.is_ascii_digit())).then_some(name)
}

fn names_attributes(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| {
        let name = name.as_str();
        ["x-tollgate-", "x-original-", "x-forwarded-"].iter().any(|prefix| name.starts_with(prefix))
    })
}

/// The one host that is asked: HTTP/2 has it in the target, HTTP/1.1 in a header.
fn authority(head: &Parts) -> Option<&str> {
    if let Some(authority) = head.uri.authority() {
        return Some(authority.as_str());
    }
    let mut hosts = head.headers.get_all(HOST).iter();
    let host = hosts.next()?.to_str().ok()?;
    hosts.next().is_none().then_some(host)
}

/// Whether nobody but this machine decides what the name means: `localhost`, below it, or an address.
fn is_local_name(host: &str) -> bool {
    let Some(name) = name_of(host) else { return false };
    name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn head(lines: &[(&str, &str)]) -> Parts {
        let mut request = Request::post("/rate-limit/allow");
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let loopback: Option<IpAddr> = Some("127.0.0.1".parse().unwrap());
        let remote: Option<IpAddr> = Some("192.0.2.1".parse().unwrap());
        let none: &[String] = &[];
        let listed = ["https://app.example".to_owned()];
        for (host, origin, peer, accepted, is_allowed) in [
            ("127.0.0.1:8080", None, loopback, none, true),
            ("rebound.example", None, loopback, none, true),
            ("127.0.0.1:8080", Some("http://127.0.0.1:8080"), loopback, none, true),
            ("[::1]:8080", Some("http://[::1]:8080"), loopback, none, true),
            ("localhost:8080", Some("http://LOCALHOST:8080"), loopback, none, true),
            ("a.localhost:8080", Some("http://a.localhost:8080"), loopback, none, true),
            ("127.0.0.1:8080", Some("http://localhost:8080"), loopback, none, false),
            ("127.0.0.1:8080", Some("http://127.0.0.1:3000"), loopback, none, false),
            ("127.0.0.1:8080", Some("https://evil.example"), loopback, none, false),
            ("127.0.0.1:8080", Some("null"), loopback, none, false),
            ("127.0.0.1:8080", Some(""), loopback, none, false),
            ("127.0.0.1:8080", Some("https://app.example"), loopback, &listed, true),
            ("rebound.example:8080", Some("http://rebound.example:8080"), loopback, none, false),
            ("localhost.evil", Some("http://localhost.evil"), loopback, none, false),
            ("[evil].example", Some("http://[evil].example"), loopback, none, false),
            ("", Some("http://"), loopback, none, false),
            ("gate.example", Some("https://gate.example"), remote, none, true),
            ("gate.example", Some("https://evil.example"), remote, none, false),
        ] {
            let mut lines = vec![("host", host)];
            lines.extend(origin.map(|origin| ("origin", origin)));
            let found = check(&head(&lines), peer, accepted).is_ok();
            assert_eq!(found, is_allowed, "{host} {origin:?} {peer:?}");
        }
        let twice = head(&[("host", "h"), ("origin", "http://h"), ("origin", "http://e")]);
        assert!(check(&twice, remote, none).is_err());
        let two_hosts = head(&[("host", "h"), ("host", "e"), ("origin", "http://h")]);
        assert!(check(&two_hosts, remote, none).is_err());
    }

    #[test]
    fn a_name_that_points_here_is_no_name_of_ours() {
        let loopback: Option<IpAddr> = Some("127.0.0.1".parse().unwrap());
        let remote: Option<IpAddr> = Some("192.0.2.1".parse().unwrap());
        let listed = ["shop.example".to_owned()];
        for (host, peer, is_allowed) in [
            ("127.0.0.1:8080", loopback, true),
            ("[::1]:8080", loopback, true),
            ("localhost:8080", loopback, true),
            ("tollgate", loopback, true),
            ("tollgate:8080", loopback, true),
            ("shop.example", loopback, true),
            ("SHOP.example.:443", loopback, true),
            ("rebound.example", loopback, false),
            ("rebound.example.:8080", loopback, false),
            ("127.0.0.1.rebound.example", loopback, false),
            ("[rebound].example", loopback, false),
            ("[::1].rebound.example", loopback, false),
            ("[::1]rebound.example:80", loopback, false),
            ("[rebound]:.example", loopback, false),
            ("[::1", loopback, false),
            ("a:b@rebound.example", loopback, false),
            ("a:8080.rebound.example", loopback, false),
            ("a/rebound.example", loopback, false),
            ("", loopback, false),
            (":8080", loopback, false),
            (".", loopback, false),
            ("rebound.example", None, false),
            ("rebound.example", remote, true),
        ] {
            let found = check_host(&head(&[("host", host)]), peer, &listed).is_ok();
            assert_eq!(found, is_allowed, "{host} {peer:?}");
        }
        assert!(check_host(&head(&[]), loopback, &listed).is_err());
        let two = head(&[("host", "localhost"), ("host", "rebound.example")]);
        assert!(check_host(&two, loopback, &listed).is_err());
    }

    #[test]
    fn proxies_may_pass_their_clients_origin_on() {
        let peer = Some("127.0.0.1".parse().unwrap());
        let host = ("host", "127.0.0.1:8080");
        for (lines, is_allowed) in [
            (vec![host], true),
            (vec![host, ("sec-fetch-site", "cross-site")], false),
            (vec![host, ("sec-fetch-site", "same-site")], false),
            (vec![host, ("sec-fetch-site", "none")], true),
            (vec![host, ("origin", "https://evil.example")], false),
            (vec![host, ("origin", "https://app.example"), ("x-original-uri", "/")], true),
            (vec![host, ("sec-fetch-site", "cross-site"), ("x-tollgate-ip", "::1")], true),
        ] {
            assert_eq!(check_auth(&head(&lines), peer, &[]).is_ok(), is_allowed, "{lines:?}");
        }
    }
}
