//! Wrong admin tokens that arrive at the same time are counted before any of them is answered.

use std::sync::Barrier;
use std::thread;

use tollgate_e2e::{ADMIN_TOKEN, Client, Server};

const WHO_AM_I: &str = "/admin/api/v1/rate-limits/whoami";
const WRONG_AT_ONCE: usize = 60;
const CORRECT_AT_ONCE: usize = 20;
/// The default of `admin.wrong_tokens`.
const FORGIVEN: usize = 10;

/// The statuses of one call per token, each on a connection of its own, all sent at the same time.
fn send_at_once(server: &Server, tokens: &[String]) -> Vec<u16> {
    let addr = server.admin_addr();
    let start = Barrier::new(tokens.len());
    thread::scope(|scope| {
        let call = |token: &String| {
            let bearer = format!("Bearer {token}");
            let start = &start;
            scope.spawn(move || {
                let mut client = Client::connect(addr).expect("a connection");
                start.wait();
                client.request("GET", WHO_AM_I, &[("authorization", &bearer)], b"").status
            })
        };
        let calls: Vec<_> = tokens.iter().map(call).collect();
        calls.into_iter().map(|call| call.join().expect("a status")).collect()
    })
}

#[test]
fn wrong_tokens_at_once_are_all_counted() {
    let server = Server::start();
    let wrong: Vec<_> = (0..WRONG_AT_ONCE).map(|number| format!("tgt_{number:064}")).collect();
    let statuses = send_at_once(&server, &wrong);
    let count = |wanted: u16| statuses.iter().filter(|&&status| status == wanted).count();
    assert_eq!((count(401), count(429)), (FORGIVEN, WRONG_AT_ONCE - FORGIVEN), "{statuses:?}");
}

#[test]
fn correct_tokens_are_accepted_amid_wrong_ones_at_once() {
    let server = Server::start();
    let mut tokens: Vec<_> = (0..WRONG_AT_ONCE).map(|number| format!("tgt_{number:064}")).collect();
    for number in 0..CORRECT_AT_ONCE {
        tokens.insert(number * (WRONG_AT_ONCE / CORRECT_AT_ONCE + 1), ADMIN_TOKEN.to_owned());
    }
    // Before the burst is counted, and once the address is known for its wrong tokens.
    for round in 0..3 {
        let statuses = send_at_once(&server, &tokens);
        for (token, status) in tokens.iter().zip(statuses) {
            let is_expected =
                if token == ADMIN_TOKEN { status == 200 } else { matches!(status, 401 | 429) };
            assert!(is_expected, "round {round}, {token}: {status}");
        }
    }
}
