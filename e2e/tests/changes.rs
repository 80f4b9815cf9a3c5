//! Changes under stress: many writers at once, a process that is killed, listeners.

use serde_json::{Value, json};
use tollgate_e2e::{ADMIN, Admin, Server, ServerBuilder, eventually};

fn rule(id: &str, limit: u64) -> Value {
    json!({"rule_id": id, "identifier_type": "user_id", "limit": limit, "window": "365d",
           "algorithm": "fixed_window"})
}

#[test]
fn fifty_writers_lose_nothing() {
    let mut server = Server::start();
    server.admin().put("rules", &rule("shared", 1));
    let addr = server.admin_addr();
    let work = |_| {
        std::thread::spawn(move || {
            let mut admin = Admin::connect(addr);
            let mut accepted = 0;
            while accepted < 4 {
                let got = admin.call("GET", "rules/shared", &[], None);
                let mut rule = got.json()["rule"].clone();
                rule["limit"] = json!(rule["limit"].as_u64().unwrap() + 1);
                let tag = got.header("etag").unwrap().to_owned();
                let put = admin.call("PUT", "rules/shared", &[("if-match", &tag)], Some(&rule));
                match put.status {
                    200 => accepted += 1,
                    412 | 409 => {}
                    status => panic!("{status} {}", put.text()),
                }
            }
        })
    };
    let writers: Vec<_> = (0..50).map(work).collect();
    for writer in writers {
        writer.join().unwrap();
    }
    let mut admin = server.admin();
    let shared = admin.get("rules/shared");
    assert_eq!((&shared["rule"]["limit"], &shared["version"]), (&json!(201), &json!(201)));
    let log = admin.get("audit?entry_id=shared&limit=1000");
    assert_eq!(log["items"].as_array().unwrap().len(), 201);
    server.crash_and_restart();
    assert_eq!(server.admin().get("rules/shared")["rule"]["limit"], 201);
}

/// Killed while changes are being made: what was answered is there, with its record; what was not is
/// there with its record, or not at all.
#[test]
fn killed_in_the_middle_of_changes() {
    let mut server = Server::start();
    let addr = server.admin_addr();
    let accepted = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let accepted = std::sync::Arc::clone(&accepted);
            std::thread::spawn(move || {
                let bearer = format!("Bearer {}", tollgate_e2e::ADMIN_TOKEN);
                let mut client = tollgate_e2e::Client::connect(addr).unwrap();
                for number in 0.. {
                    let id = format!("w{writer}-{number}");
                    let body = rule(&id, 5).to_string();
                    let path = format!("{ADMIN}rules");
                    let headers = [("authorization", bearer.as_str())];
                    match client.try_request("POST", &path, &headers, body.as_bytes()) {
                        Ok(answer) if answer.status == 201 => accepted.lock().unwrap().push(id),
                        Ok(answer) => panic!("{} {}", answer.status, answer.text()),
                        Err(_) => return,
                    }
                }
            })
        })
        .collect();
    eventually("some changes are made", || accepted.lock().unwrap().len() > 100);
    server.crash_and_restart();
    for writer in writers {
        writer.join().unwrap();
    }
    let mut admin = server.admin();
    let mut there = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = admin.get(&format!("rules?limit=1000{cursor}"));
        let items = page["items"].as_array().unwrap();
        there.extend(items.iter().map(|one| one["rule_id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    let mut recorded = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = admin.get(&format!("audit?entry_kind=rule&limit=1000{cursor}"));
        let items = page["items"].as_array().unwrap();
        recorded.extend(items.iter().map(|one| one["entry_id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    there.sort();
    recorded.sort();
    assert_eq!(there, recorded, "every change has its record, once");
    let accepted = accepted.lock().unwrap();
    assert!(accepted.iter().all(|id| there.binary_search(id).is_ok()), "nothing accepted is lost");
    assert!(there.len() <= accepted.len() + 8, "at most one unanswered for each writer");
}

fn listen(server: &Server, token: &str) -> std::net::TcpStream {
    use std::io::Write as _;
    let mut stream = std::net::TcpStream::connect(server.admin_addr()).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    write!(
        stream,
        "GET {ADMIN}events HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\r\n"
    )
    .unwrap();
    stream
}

fn status(stream: &mut std::net::TcpStream) -> String {
    use std::io::Read as _;
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    String::from_utf8_lossy(&head[9..]).into_owned()
}

/// A listener gets every change, and does not keep the server from stopping.
#[test]
fn changes_as_they_happen() {
    use std::io::BufRead as _;
    // Quiet connections are cut after a moment; this one is none.
    let mut server = ServerBuilder::default().env("TOLLGATE_LIMITS_IDLE_TIMEOUT_MS", "200").start();
    let stream = listen(&server, tollgate_e2e::ADMIN_TOKEN);
    let mut lines = std::io::BufReader::new(stream).lines();
    let mut next = |what: &str| loop {
        let line = lines.next().unwrap_or_else(|| panic!("it ended before {what}")).unwrap();
        if let Some(data) = line.strip_prefix("data: ") {
            break serde_json::from_str::<Value>(data).unwrap();
        }
    };
    assert_eq!(next("the first word")["revision"], 0);
    for number in 1..4 {
        server.admin().put("rules", &rule("r", number));
        assert_eq!(next("a change")["revision"], number);
        std::thread::sleep(std::time::Duration::from_millis(400));
    }
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    assert!(!server.log().contains("were cut"), "{}", server.log());
}

/// A token that is revoked hears nothing more, and one token does not take all places.
#[test]
fn listeners_have_a_token_that_holds_and_leave_room_for_others() {
    use std::io::Read as _;
    let server = Server::start();
    let body = json!({"name": "looks", "role": "viewer"});
    let made = server.admin().call("POST", "tokens", &[], Some(&body)).json();
    let token = made["token"].as_str().unwrap();
    let mut streams = Vec::new();
    loop {
        let mut stream = listen(&server, token);
        let status = status(&mut stream);
        if status != "200" {
            assert_eq!((status.as_str(), streams.len()), ("503", 64));
            break;
        }
        streams.push(stream);
    }
    let mut another = listen(&server, tollgate_e2e::ADMIN_TOKEN);
    assert_eq!(status(&mut another), "200");
    let gone = server.admin().call(
        "DELETE",
        &format!("tokens/{}", made["token_id"].as_str().unwrap()),
        &[],
        None,
    );
    assert_eq!(gone.status, 200, "{}", gone.text());
    let mut rest = String::new();
    for mut stream in streams {
        rest.clear();
        stream.read_to_string(&mut rest).expect("it comes to its end");
        assert!(rest.ends_with("0\r\n\r\n"), "{rest}");
    }
    another.set_nonblocking(true).unwrap();
    let why = loop {
        match another.read(&mut [0; 4096]) {
            Ok(0) => panic!("another's stream has ended, too"),
            Ok(_) => {}
            Err(error) => break error.kind(),
        }
    };
    assert_eq!(why, std::io::ErrorKind::WouldBlock);
}
