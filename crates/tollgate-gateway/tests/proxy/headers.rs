//! What goes on and what does not.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use parking_lot::Mutex;
use tollgate_tower::{EdgeRequest, Pass, Ruling};

use crate::ground::{Decider, Front, Upstream, options, text};

#[tokio::test]
async fn upstreams_see_clean_headers_and_where_a_request_came_from() {
    let upstream = Upstream::echo().await;
    let front = Front::start(options(&[&upstream.url()])).await;
    let answer = front
        .raw(
            "GET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n\
             Keep-Alive: 5\r\nProxy-Authorization: x\r\nTE: trailers, deflate\r\nX-End: kept\r\n\
             X-Tollgate-Ticket: forged\r\nX-Forwarded-For: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\n\
             X-Real-IP: 1.2.3.4\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n",
        )
        .await;
    let lines: Vec<&str> = answer.lines().collect();
    for kept in [
        "host: api.example.com",
        "x-end: kept",
        "te: trailers",
        "connection: te",
        "x-forwarded-for: 127.0.0.1",
        "x-forwarded-proto: http",
        "x-forwarded-host: api.example.com",
        "forwarded: for=127.0.0.1;host=api.example.com;proto=http",
    ] {
        assert!(lines.contains(&kept), "{kept:?} in {answer}");
    }
    for gone in ["x-hop", "keep-alive", "proxy-", "x-tollgate", "1.2.3.4", "upgrade", "http2-"] {
        assert!(!answer.contains(gone), "{gone:?} in {answer}");
    }
}

/// Servers read both in their own ways: rules see the plain path, the upstream gets what was sent.
#[tokio::test]
async fn path_parameters_and_encoded_slashes_are_forwarded_but_not_matched() {
    let upstream = Upstream::echo().await;
    let decider = Decider::new(|asked| {
        let endpoint = asked.endpoint.clone().unwrap_or_default();
        let headers = HeaderMap::from_iter([(
            HeaderName::from_static("x-endpoint"),
            HeaderValue::try_from(endpoint).unwrap(),
        )]);
        Ruling::Pass(Pass { headers: headers.into(), ..Pass::default() })
    });
    let front = Front::with(options(&[&upstream.url()]), decider).await;
    for (path, endpoint) in [
        ("/login;x=1", "/login"),
        ("/a/..;y/login;x=1?q=1", "/login"),
        ("/api%2Flogin", "/api/login"),
        ("/%2Flogin", "/login"),
    ] {
        let answer = front.get(path).await;
        assert_eq!(answer.headers["x-endpoint"], endpoint, "{path}");
        assert!(answer.body.starts_with(&format!("GET {path} ")), "{}", answer.body);
    }
}

/// The decision needs the path as the upstream gets it, where that can be read in two ways.
#[tokio::test]
async fn a_path_with_an_encoded_slash_is_asked_about_in_both_readings() {
    let upstream = Upstream::echo().await;
    let seen: Arc<Mutex<Vec<EdgeRequest>>> = Arc::default();
    let seen_there = Arc::clone(&seen);
    let decider = Decider::new(move |asked| {
        seen_there.lock().push(asked.clone());
        Ruling::Pass(Pass::default())
    });
    let front = Front::with(options(&[&upstream.url()]), decider).await;
    for (path, endpoint, sent) in [
        ("/files/a", "/files/a", None),
        ("/files/a%2fb;x?q=%2F", "/files/a/b", Some("/files/a%2Fb;x")),
        ("/x/../a%2F..%2Flogin", "/login", Some("/a%2F..%2Flogin")),
        // Servers that read a backslash as a slash see another path: the sent one is asked about, too.
        ("/files/a%5Cb", "/files/a%5Cb", Some("/files/a%5Cb")),
    ] {
        front.get(path).await;
        let asked = seen.lock().remove(0);
        let found = (asked.endpoint.as_deref(), asked.sent_path.as_deref());
        assert_eq!(found, (Some(endpoint), sent), "{path}");
    }
}

#[tokio::test]
async fn clients_see_clean_headers() {
    let upstream = Upstream::start(|_| async {
        Response::builder()
            .header("connection", "x-hop")
            .header("x-hop", "1")
            .header("keep-alive", "timeout=5")
            .header("proxy-authenticate", "basic")
            .header("x-end", "kept")
            .header("set-cookie", "a=1")
            .header("set-cookie", "b=2")
            .body(text("x"))
            .unwrap()
    })
    .await;
    let front = Front::start(options(&[&upstream.url()])).await;
    let answer = front.get("/").await;
    assert_eq!(answer.headers["x-end"], "kept");
    assert_eq!(answer.headers.get_all("set-cookie").iter().count(), 2);
    for gone in ["connection", "x-hop", "keep-alive", "proxy-authenticate"] {
        assert!(!answer.headers.contains_key(gone), "{gone}");
    }
}

#[tokio::test]
async fn an_upstream_may_see_its_own_host_and_who_passed_it_on() {
    let upstream = Upstream::echo().await;
    let mut options = options(&[&format!("{}/base", upstream.url())]);
    options.preserve_host = false;
    options.via = Some("tollgate".to_owned());
    let front = Front::start(options).await;
    let request = Request::get(front.url("/x?y")).header("host", "other").body(text("")).unwrap();
    let answer = front.send(request).await;
    assert!(answer.body.starts_with("GET /base/x?y "), "{}", answer.body);
    assert!(answer.body.contains(&format!("\nhost: {}\n", upstream.address)), "{}", answer.body);
    assert!(answer.body.contains("\nx-forwarded-host: other\n"), "{}", answer.body);
    assert!(answer.body.contains("\nvia: 1.1 tollgate\n"), "{}", answer.body);
}

#[tokio::test]
async fn answers_without_a_body_keep_their_length() {
    let upstream = Upstream::start(|request| async move {
        let not_modified = request.uri().path() == "/304";
        let response = Response::builder().header("etag", "x");
        if not_modified {
            return response.status(304).body(text("")).unwrap();
        }
        response.header("content-length", "1234").body(text("")).unwrap()
    })
    .await;
    let front = Front::start(options(&[&upstream.url()])).await;
    for _ in 0..3 {
        let head = Request::head(front.url("/")).body(text("")).unwrap();
        let answer = front.send(head).await;
        assert_eq!(answer.headers["content-length"], "1234");
        assert_eq!(front.get("/304").await.status, 304);
    }
}

#[tokio::test]
async fn a_request_that_has_been_here_before_goes_no_further() {
    let upstream = Upstream::echo().await;
    let mut options = options(&[&upstream.url()]);
    options.via = Some("tollgate-one".to_owned());
    let front = Front::start(options).await;
    for via in ["1.1 tollgate-one", "1.0 other, 1.1 tollgate-one", "2.0 tollgate-one, 1.1 other"] {
        let request = Request::get(front.url("/")).header("via", via).body(text("")).unwrap();
        let answer = front.send(request).await;
        assert_eq!(answer.status, 508, "{via}");
        assert!(answer.body.contains("LOOP_DETECTED"), "{}", answer.body);
    }
    assert_eq!(upstream.served(), 0);
    let other = Request::get(front.url("/")).header("via", "1.1 tollgate-two").body(text(""));
    let answer = front.send(other.unwrap()).await;
    assert_eq!(answer.status, 200);
    assert!(answer.body.contains("\nvia: 1.1 tollgate-two, 1.1 tollgate-one\n"), "{}", answer.body);
}

#[tokio::test]
async fn a_header_spelled_with_underscores_is_the_same_header() {
    let upstream = Upstream::echo().await;
    let front = Front::start(options(&[&upstream.url()])).await;
    let answer = front
        .raw(
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX_Forwarded_For: 1.2.3.4\r\n\
             X_Forwarded-Proto: forged\r\nX_Real_IP: 1.2.3.4\r\nTrue_Client_IP: 1.2.3.4\r\n\
             X_Tollgate_Ticket: forged\r\nX-Tollgate_Ticket: forged\r\nX_Own: kept\r\n\r\n",
        )
        .await;
    assert!(answer.contains("\nx_own: kept\n"), "{answer}");
    for gone in ["1.2.3.4", "forged", "x_forwarded", "ticket"] {
        assert!(!answer.contains(gone), "{gone:?} in {answer}");
    }
}

/// An address may serve several models, each under its own host: the client must not choose among them.
#[tokio::test]
async fn the_host_that_a_client_called_does_not_choose_a_model() {
    let upstream = Upstream::echo().await;
    for preserves_host in [false, true] {
        let mut options = options(&[&upstream.url()]);
        options.ai.preserves_host = preserves_host;
        options.routes[0].protocol = Some(tollgate_gateway::ai::Protocol::OpenAi);
        let front = Front::start(options).await;
        let request = Request::post(front.url("/v1/chat/completions"))
            .header("host", "large.models.svc")
            .header("x-portkey-azure-deployment-id", "large")
            .body(text(r#"{"model":"small","messages":[]}"#))
            .unwrap();
        let answer = front.send(request).await;
        let host = if preserves_host { "large.models.svc" } else { &upstream.address.to_string() };
        assert!(answer.body.contains(&format!("\nhost: {host}\n")), "{}", answer.body);
        assert!(!answer.body.contains("x-portkey"), "{}", answer.body);
    }
}
