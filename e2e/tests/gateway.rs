//! The gateway between real clients and a real service.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tollgate_e2e::{Client, Server, ServerBuilder, Upstream, eventually};
use tollgate_testkit::FaultProxy;

const RULES: &str = "
default: false
deny_list: ['ip:203.0.113.9']
rules:
  - {rule_id: per-ip, identifier_type: ip, limit: 3, window: 365d, algorithm: fixed_window, applies_to: {endpoints: [/limited]}}
  - {rule_id: per-user, identifier_type: user_id, limit: 2, window: 365d, algorithm: fixed_window}
  - {rule_id: per-key, identifier_type: api_key, limit: 1, window: 365d, algorithm: fixed_window}
";

fn gateway(upstream: &Upstream, rules: &str) -> ServerBuilder {
    ServerBuilder::default().gateway().rules(rules).arg("--upstream").arg(&upstream.url())
}

fn connect(server: &Server) -> Client {
    Client::connect(server.gateway_addr()).expect("a connection")
}

/// The resident memory of a process, in bytes.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    let kib: u64 =
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number");
    kib * 1024
}

fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process").count()
}

/// Connections that nobody uses are kept for as long as the configuration says.
#[test]
fn idle_connections_to_services_are_closed_in_time() {
    let upstream = Upstream::start();
    let between = FaultProxy::start(upstream.addr());
    for (timeout_ms, closes) in [(3_600_000, false), (100, true)] {
        let server = ServerBuilder::default()
            .gateway()
            .rules("default: false\nrules: []")
            .arg("--upstream")
            .arg(&between.url("http"))
            .env("TOLLGATE_GATEWAY_POOL_IDLE_TIMEOUT_MS", &timeout_ms.to_string())
            .start();
        let accepted = between.accepted();
        let mut client = connect(&server);
        assert_eq!(client.get("/").status, 200);
        if closes {
            eventually("it is closed", || between.connections() == 0);
            assert_eq!(client.get("/").status, 200);
            assert_eq!(between.accepted(), accepted + 2, "another one");
        } else {
            assert_eq!(client.get("/").status, 200);
            assert_eq!((between.accepted(), between.connections()), (accepted + 1, 1), "the same");
            drop(server);
            eventually("it ends with its gateway", || between.connections() == 0);
        }
    }
}

#[test]
fn what_passes_carries_the_limit_and_what_is_refused_never_arrives() {
    let upstream = Upstream::start();
    let server = gateway(&upstream, RULES).start();
    let mut client = connect(&server);
    for remaining in ["2", "1", "0"] {
        let answer = client.get("/limited?x=1");
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.text(), "hello from /limited\n");
        assert_eq!(answer.header("x-ratelimit-remaining"), Some(remaining));
    }
    for path in ["/limited", "//limited", "/a/../limited", "/%6Cimited"] {
        let refused = client.get(path);
        assert_eq!(refused.status, 429, "{path}");
        assert!(refused.header("retry-after").is_some());
        assert_eq!(refused.json()["error"]["rule_id"], "per-ip");
    }
    let arrived = upstream.arrived();
    assert_eq!(arrived.len(), 3);
    assert_eq!(arrived[0].path, "/limited?x=1");
    assert_eq!(arrived[0].header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(arrived[0].header("x-forwarded-proto"), Some("http"));
    assert!(arrived[0].header("forwarded").is_some_and(|value| value.contains("for=127.0.0.1")));
    // The admin API and decisions are not on the gateway's port.
    assert_eq!(client.get("/rate-limit/allow").status, 200, "the service's own path");
    assert_eq!(upstream.arrived().len(), 4);
}

/// Services read `%2F` as a separator or as a character of a name: rules hold for both.
#[test]
fn encoded_slashes_are_no_way_around_a_rule() {
    let rules = "
default: false
rules:
  - {rule_id: login, limit: 1, window: 365d, algorithm: fixed_window, applies_to: {endpoints: [/login]}}
  - {rule_id: file, limit: 1, window: 365d, algorithm: fixed_window, applies_to: {endpoints: ['/files/{name}']}}
  - {rule_id: sign-in, limit: 1, window: 365d, algorithm: fixed_window, applies_to: {endpoints: ['/sign-in/{name}']}}
  - {rule_id: open, limit: 100, window: 365d, algorithm: fixed_window, overrides: [login], applies_to: {endpoints: ['/open/{name}']}}
";
    let upstream = Upstream::start();
    let server = gateway(&upstream, rules).start();
    let mut client = connect(&server);
    assert_eq!(client.get("/login").status, 200);
    assert_eq!(client.get("/files/a%2Fb").status, 200);
    assert_eq!(client.get("/sign-in/ann").status, 200);
    for (path, rule) in [
        ("/%2Flogin", "login"),
        ("/a%2F..%2Flogin", "login"),
        ("/a;%2F..%2Flogin", "login"),
        ("/login;%2Fx", "login"),
        ("/open/..%2F..%2Flogin", "login"),
        ("/files/c", "file"),
        ("/files/c%2Fd", "file"),
        ("/files/c%2f..%2f..%2fd", "file"),
        ("/%2Fsign-in/a%2Fb", "sign-in"),
    ] {
        let refused = client.get(path);
        assert_eq!(refused.status, 429, "{path}");
        assert_eq!(refused.json()["error"]["rule_id"], rule, "{path}");
    }
    assert_eq!(client.get("/a%2Fb%2Fc%2Fd%2Fe%2Ff%2Fg").status, 400, "too many readings");
    assert_eq!(upstream.arrived().len(), 3);
    assert_eq!(upstream.arrived()[1].path, "/files/a%2Fb", "it is sent as it came");
}

#[test]
fn identities_are_verified_and_claims_of_clients_are_not_believed() {
    let dir = tempfile::tempdir().expect("a directory");
    let keys = dir.path().join("keys");
    // The SHA-256 of `secret-key`.
    let digest = "85dbe15d75ef9308c7ae0f33c7a324cc6f4bf519a2ed2f3027bd33c140a4f9aa";
    std::fs::write(&keys, format!("sha256:{digest} user_id=ann tenant_id=acme\n")).expect("a file");
    let upstream = Upstream::start();
    let config = format!("identity: {{api_keys_file: '{}'}}", keys.display());
    let server = gateway(&upstream, RULES).config(&config).start();
    let mut client = connect(&server);
    let key = [("x-api-key", "secret-key")];
    assert_eq!(client.request("GET", "/a", &key, b"").status, 200);
    let refused = client.request("GET", "/a", &key, b"");
    assert_eq!((refused.status, &refused.json()["error"]["rule_id"]), (429, &"per-key".into()));
    let unknown = client.request("GET", "/a", &[("x-api-key", "guess")], b"");
    assert_eq!(unknown.status, 401, "{}", unknown.text());
    // A forwarded address from somebody who is no proxy of ours changes nothing.
    for n in 0..3 {
        let forged = format!("198.51.100.{n}");
        let answer = client.request("GET", "/limited", &[("x-forwarded-for", &forged)], b"");
        assert_eq!(answer.status, 200);
    }
    let forged = [("x-forwarded-for", "198.51.100.77")];
    assert_eq!(client.request("GET", "/limited", &forged, b"").status, 429);
    let last = upstream.arrived().pop().expect("a request");
    assert_eq!(last.header("x-forwarded-for"), Some("127.0.0.1"), "a stranger's chain is replaced");
    let named = [("x-tollgate-user-id", "bob")];
    assert_eq!(client.request("GET", "/b", &named, b"").status, 200);
    let last = upstream.arrived().pop().expect("a request");
    assert_eq!(last.header("x-tollgate-user-id"), None, "names of ours are not passed on");
}

#[test]
fn behind_a_trusted_proxy_the_client_is_who_it_says() {
    let upstream = Upstream::start();
    let config = "identity: {trusted_proxies: [127.0.0.1]}";
    let server = gateway(&upstream, RULES).config(config).start();
    let mut client = connect(&server);
    for n in 0..5 {
        let chain = format!("6.6.6.6, 198.51.100.{n}");
        let answer = client.request("GET", "/limited", &[("x-forwarded-for", &chain)], b"");
        assert_eq!(answer.status, 200, "each has its own counter");
    }
    let denied = client.request("GET", "/x", &[("x-forwarded-for", "203.0.113.9")], b"");
    assert_eq!((denied.status, &denied.json()["error"]["code"]), (403, &"DENY_LISTED".into()));
    // Only the last word is a trusted proxy's.
    let spoofed = client.request("GET", "/x", &[("x-forwarded-for", "1.1.1.1, 203.0.113.9")], b"");
    assert_eq!(spoofed.status, 403);
}

/// A gigabyte there and back, in flat memory.
#[test]
fn a_gigabyte_is_streamed_both_ways() {
    const TOTAL: u64 = 1 << 30;
    let _alone = tollgate_e2e::alone();
    let upstream = Upstream::start();
    let server = gateway(&upstream, "default: false\nrules: []").start();
    let stream = TcpStream::connect(server.gateway_addr()).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a deadline");
    let base = memory(server.pid());
    let mut writer = stream.try_clone().expect("a second handle");
    let sender = std::thread::spawn(move || {
        let head = format!("POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: {TOTAL}\r\n\r\n");
        writer.write_all(head.as_bytes()).expect("the head is sent");
        let chunk: Vec<u8> = (0..1_u32 << 18).map(|n| (n % 251) as u8).collect();
        for _ in 0..TOTAL / chunk.len() as u64 {
            writer.write_all(&chunk).expect("the body is sent");
        }
    });
    let mut reader = stream;
    let (mut buffer, mut seen, mut worst) = (vec![0; 1 << 20], 0_u64, base);
    let mut head = Vec::new();
    while seen < TOTAL {
        let length = reader.read(&mut buffer).expect("the body comes back");
        assert!(length > 0, "it broke off after {seen} bytes");
        let mut bytes = &buffer[..length];
        if !head.ends_with(b"\r\n\r\n") {
            for byte in bytes {
                head.push(*byte);
                if head.ends_with(b"\r\n\r\n") {
                    break;
                }
            }
            bytes = &bytes[head.len().min(bytes.len())..];
        }
        seen += bytes.len() as u64;
        if seen % (64 << 20) < bytes.len() as u64 {
            worst = worst.max(memory(server.pid()));
        }
    }
    sender.join().expect("all was sent");
    assert!(String::from_utf8_lossy(&head).starts_with("HTTP/1.1 200"));
    println!("memory: {base} bytes before, {worst} at most");
    assert!(worst < base + (48 << 20), "{base} → {worst}");
}

#[test]
fn events_pass_unbuffered() {
    let upstream = Upstream::start();
    let server = gateway(&upstream, "default: false\nrules: []").start();
    let mut stream = TcpStream::connect(server.gateway_addr()).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a deadline");
    stream.write_all(b"GET /events HTTP/1.1\r\nhost: x\r\n\r\n").expect("sent");
    let mut seen = Vec::new();
    let mut until = |wanted: &str| {
        while !String::from_utf8_lossy(&seen).contains(wanted) {
            let mut buffer = [0; 4096];
            let length = stream.read(&mut buffer).expect("more of it");
            assert!(length > 0, "it ended before {wanted:?}");
            seen.extend_from_slice(&buffer[..length]);
        }
        !String::from_utf8_lossy(&seen).contains("last")
    };
    // The last event is not sent before the first has been seen.
    assert!(until("data: first"));
    upstream.go_on();
    until("data: last");
}

#[test]
fn a_websocket_is_passed_through_and_counted_once() {
    let upstream = Upstream::start();
    let rules = "default: false
rules: [{rule_id: sockets, identifier_type: ip, limit: 1, window: 365d, algorithm: fixed_window, applies_to: {endpoints: [/ws]}}]";
    let server = gateway(&upstream, rules).start();
    let open = || {
        let stream = TcpStream::connect(server.gateway_addr()).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a deadline");
        let url = format!("ws://{}/ws", server.gateway_addr());
        tungstenite::client(url, stream).map_err(|error| error.to_string())
    };
    let (mut socket, response) = open().expect("a handshake");
    assert_eq!(response.status(), 101);
    assert!(response.headers().contains_key("x-ratelimit-limit"));
    for text in ["hello", "again", "and again"] {
        socket.send(tungstenite::Message::text(text)).expect("sent");
        let echoed = socket.read().expect("an echo");
        assert_eq!(echoed.to_text().expect("text"), text);
    }
    let refused = open().expect_err("the second is refused");
    assert!(refused.contains("429"), "{refused}");
}

#[test]
fn a_websocket_takes_a_place_among_the_connections() {
    let upstream = Upstream::start();
    let config = "limits: {max_connections: 2}";
    let server = gateway(&upstream, "default: false\nrules: []").config(config).start();
    let stream = TcpStream::connect(server.gateway_addr()).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a deadline");
    let url = format!("ws://{}/ws", server.gateway_addr());
    let (mut socket, _) = tungstenite::client(url, stream).expect("a handshake");
    socket.send(tungstenite::Message::text("hello")).expect("sent");
    assert_eq!(socket.read().expect("an echo").to_text().expect("text"), "hello");
    let mut second = connect(&server);
    assert_eq!(second.get("/x").status, 200);
    let third = connect(&server).read_response().expect("an answer");
    assert_eq!(third.status, 503, "the third is one too many: {}", third.text());
    assert!(third.text().contains("TOO_MANY_CONNECTIONS"), "{}", third.text());
    drop(socket);
    eventually("its place is free", || {
        let answer = connect(&server).try_request("GET", "/x", &[], b"");
        answer.is_ok_and(|answer| answer.status == 200)
    });
}

/// One address cannot take the places of all others.
#[test]
fn an_address_has_so_many_connections_and_others_have_theirs() {
    let upstream = Upstream::start();
    let limits = "limits: {max_connections: 100, max_connections_per_address: 3}";
    let rules = "default: false\nrules: []";
    let server = gateway(&upstream, rules).config(limits).start();
    let gateway_port = server.gateway_addr().port();
    // Each has been answered, so it has its place, whichever thread has accepted it.
    let mut held: Vec<Client> = (0..3).map(|_| connect(&server)).collect();
    assert!(held.iter_mut().all(|client| client.get("/x").status == 200));
    let answer = connect(&server).read_response().expect("an answer");
    assert_eq!(answer.status, 503, "the fourth is one too many: {}", answer.text());
    // Another address of this machine.
    let other = std::net::SocketAddr::from(([127, 0, 0, 2], 0));
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let socket = socket.expect("a socket");
    socket.bind(&other.into()).expect("another address");
    let gateway_addr = std::net::SocketAddr::from(([127, 0, 0, 1], gateway_port));
    socket.connect(&gateway_addr.into()).expect("a connection");
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a deadline");
    let request = "GET /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(held);
    eventually("the places are free", || {
        let answer = connect(&server).try_request("GET", "/x", &[], b"");
        answer.is_ok_and(|answer| answer.status == 200)
    });
    // A trusted proxy speaks for many.
    let trusted = format!("{limits}\nidentity: {{trusted_proxies: [127.0.0.1/32]}}");
    let server = gateway(&upstream, rules).config(&trusted).start();
    let mut clients: Vec<_> = (0..10).map(|_| connect(&server)).collect();
    assert!(clients.iter_mut().all(|client| client.get("/x").status == 200));
}

#[test]
fn ten_thousand_idle_connections_are_held_and_given_up() {
    const IDLE: usize = 10_000;
    let _alone = tollgate_e2e::alone();
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
    let upstream = Upstream::start();
    let config = "limits: {max_connections: 10100, max_connections_per_address: 10100, \
                  idle_timeout_ms: 3600000, header_timeout_ms: 3600000}";
    let server = gateway(&upstream, "default: false\nrules: []").config(config).start();
    let (files, base) = (open_files(server.pid()), memory(server.pid()));
    let mut idle = Vec::with_capacity(IDLE);
    for _ in 0..IDLE {
        idle.push(TcpStream::connect(server.gateway_addr()).expect("a connection"));
    }
    assert_eq!(connect(&server).get("/x").status, 200, "and it serves");
    eventually("all are accepted", || open_files(server.pid()) >= files + IDLE);
    let held = memory(server.pid());
    println!("{} bytes for each idle connection", (held.saturating_sub(base)) / IDLE as u64);
    drop(idle);
    eventually("all are given up", || open_files(server.pid()) <= files + 50);
    assert_eq!(connect(&server).get("/x").status, 200);
}

#[test]
fn a_pool_fails_over_and_takes_back_what_recovers() {
    let (one, two) = (Upstream::start(), Upstream::start());
    let config = format!(
        "gateway:
  pools:
    app:
      targets: [{{url: '{}'}}, {{url: '{}'}}]
      health: {{path: /up, interval_ms: 100, timeout_ms: 1000}}
  routes: [{{name: all, pool: app}}]",
        one.url(),
        two.url()
    );
    let server = ServerBuilder::default()
        .gateway()
        .rules("default: false\nrules: []")
        .config(&config)
        .start();
    let mut client = connect(&server);
    let worked = |upstream: &Upstream| {
        upstream.arrived().iter().filter(|request| request.path == "/work").count()
    };
    for _ in 0..10 {
        assert_eq!(client.get("/work").status, 200);
    }
    assert_eq!((worked(&one), worked(&two)), (5, 5), "in turn");
    let addr = two.addr();
    drop(two);
    for _ in 0..20 {
        assert_eq!(client.get("/work").status, 200, "nobody notices");
    }
    assert_eq!(worked(&one), 25);
    let two = Upstream::on(addr);
    eventually("it is used again", || {
        assert_eq!(client.get("/work").status, 200);
        worked(&two) > 0
    });
}

#[test]
fn bad_upstreams_have_a_stated_answer() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let addr: SocketAddr = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut head = [0; 1024];
            let length = stream.read(&mut head).unwrap_or(0);
            let head = String::from_utf8_lossy(&head[..length]).into_owned();
            if head.contains("/garbage") {
                let _ = stream.write_all(b"\x00\x01 this is not HTTP\r\n\r\n");
            } else if head.contains("/cut") {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf");
            } else if head.contains("/close") {
                // Nothing at all.
            } else {
                kept.push(stream);
            }
        }
    });
    let config = "gateway: {response_timeout_ms: 300, connect_timeout_ms: 300}";
    let server = ServerBuilder::default()
        .gateway()
        .rules("default: false\nrules: []")
        .config(config)
        .arg("--upstream")
        .arg(&format!("http://{addr}"))
        .start();
    for (path, status, code) in [
        ("/garbage", 502, "BAD_UPSTREAM"),
        ("/close", 502, "BAD_UPSTREAM"),
        ("/never", 504, "UPSTREAM_TIMEOUT"),
    ] {
        let answer = connect(&server).get(path);
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        assert_eq!(answer.json()["error"]["code"], code, "{path}");
        assert!(!answer.text().contains(&addr.to_string()), "where it is stays here");
    }
    let cut = connect(&server).try_request("GET", "/cut", &[], b"");
    assert!(cut.is_err(), "an answer that was cut never looks whole: {cut:?}");
}

#[test]
fn ambiguous_requests_are_refused_and_slow_ones_are_cut() {
    let upstream = Upstream::start();
    let config = "limits: {header_timeout_ms: 500}\ngateway: {body_idle_timeout_ms: 500}";
    let server = gateway(&upstream, "default: false\nrules: []").config(config).start();
    let both = "POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    let twice = "POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ncontent-length: 5\r\n\r\nabcd";
    let odd = "POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n";
    for raw in [both, twice, odd] {
        let mut client = connect(&server);
        client.write(raw.as_bytes()).expect("sent");
        let answer = client.read_response().expect("an answer");
        assert_eq!(answer.status, 400, "{raw}");
    }
    let huge = format!("GET /x HTTP/1.1\r\nhost: x\r\nx-big: {}\r\n\r\n", "a".repeat(1 << 20));
    let mut client = connect(&server);
    // The server may have answered and closed before all of it was sent.
    let _ = client.write(huge.as_bytes());
    if let Ok(answer) = client.read_response() {
        assert_eq!(answer.status, 431);
    }
    // One byte now and then: neither a head nor a body may take so long.
    let mut head = connect(&server);
    head.write(b"GET /x HT").expect("sent");
    assert!(head.is_closed_by_server());
    let mut body = connect(&server);
    body.write(b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\na").expect("sent");
    let answer = body.read_response().expect("an answer");
    assert_eq!(answer.status, 408, "{}", answer.text());
    assert!(upstream.arrived().iter().all(|request| request.path != "/x"), "none arrived whole");
}

#[test]
fn throttled_requests_wait_and_go_on() {
    let upstream = Upstream::start();
    let rules = "default: false
rules: [{rule_id: slow, algorithm: leaky_bucket, limit: 50, window: 1s, burst: 5, action: throttle, max_delay_ms: 1000}]";
    let server = gateway(&upstream, rules).start();
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let addr = server.gateway_addr();
            std::thread::spawn(move || {
                Client::connect(addr).expect("a connection").get("/x").status
            })
        })
        .collect();
    let statuses: Vec<u16> = calls.into_iter().map(|call| call.join().expect("a call")).collect();
    let passed = statuses.iter().filter(|status| **status == 200).count();
    assert!(passed >= 5, "the queue holds five, and drains meanwhile: {statuses:?}");
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    assert_eq!(upstream.arrived().len(), passed);
}
