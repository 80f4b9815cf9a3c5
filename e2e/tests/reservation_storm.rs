//! Ten thousand reservations that end in every way, while a node dies.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};
use tollgate_e2e::{Client, Fleet, eventually};
use tollgate_testkit::Redis;

use crate::reservations::{Draw, RULES, id_of, reserve, used};

const RESERVATIONS: usize = 10_000;
const CALLERS: usize = 16;

/// What is to become of one reservation in the storm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Settle,
    SettleTwice,
    /// Both nodes at the same time.
    SettleOnBoth,
    Release,
    /// It expires, or is open at the end: as estimated either way.
    Nothing,
}

/// Asks one node, and when that is gone the other, until there is an answer.
fn surely(addrs: [SocketAddr; 2], what: &str, body: &Value) -> (u16, Value) {
    let path = format!("/rate-limit/{what}");
    for attempt in 0..200 {
        let Ok(mut client) = Client::connect(addrs[attempt % 2]) else { continue };
        let body = body.to_string();
        if let Ok(answer) = client.try_request("POST", &path, &[], body.as_bytes())
            && answer.status != 503
        {
            return (answer.status, answer.json());
        }
    }
    panic!("nobody answers {what} {body}");
}

/// 10,000 reservations end in every way, some of them several times and on two nodes at once, while one
/// node is killed: afterwards the counters say exactly what was settled.
#[test]
fn ten_thousand_reservations_are_conserved_while_a_node_dies() {
    let _alone = tollgate_e2e::alone();
    // A log in Redis gives back only what has few entries behind it; two counters do always.
    let rules = RULES
        .replace("limit: 100000,", "limit: 1000000000,")
        .replace("sliding_window_log", "sliding_window_counter");
    let redis = Redis::start();
    let fleet = Fleet::patient(2, &rules, &["--redis", &redis.url()]);
    let addrs = [fleet.nodes()[0].addr(), fleet.nodes()[1].addr()];
    let estimate = |number: usize| 1 + Draw(number as u64).next(1_000);
    let truth = |number: usize| Draw(number as u64 + 1_000_000).next(1_500);
    let fate = |number: usize| match Draw(number as u64 + 2_000_000).next(6) {
        0 | 1 => Fate::Settle,
        2 => Fate::SettleTwice,
        3 => Fate::SettleOnBoth,
        4 => Fate::Release,
        _ => Fate::Nothing,
    };
    let numbers = |caller: usize| (caller..RESERVATIONS).step_by(CALLERS);
    let made: Vec<Vec<(usize, String)>> = thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                scope.spawn(move || {
                    let mut client = Client::connect(addrs[caller % 2]).expect("a connection");
                    let made = |number| (number, id_of(&reserve(&mut client, estimate(number))));
                    numbers(caller).map(made).collect()
                })
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().expect("a caller")).collect()
    });
    let reserved: u64 = (0..RESERVATIONS).map(estimate).sum();
    assert_eq!(used(&fleet.nodes()[0], "tokens"), reserved);
    let done = AtomicUsize::new(0);
    let refunded_and_extra: Vec<(u64, u64)> = thread::scope(|scope| {
        let done = &done;
        let callers: Vec<_> = made
            .iter()
            .map(|mine| {
                scope.spawn(move || {
                    let (mut refunded, mut extra) = (0, 0);
                    for (number, id) in mine {
                        let (number, turn) =
                            (*number, [addrs[number % 2], addrs[(number + 1) % 2]]);
                        let settle = json!({"reservationId": id, "tokens": truth(number)});
                        let answer = match fate(number) {
                            Fate::Nothing => None,
                            Fate::Release => {
                                Some(surely(turn, "release", &json!({"reservationId": id})))
                            }
                            Fate::Settle => Some(surely(turn, "settle", &settle)),
                            Fate::SettleTwice => {
                                let first = surely(turn, "settle", &settle);
                                assert_eq!(surely([turn[1], turn[0]], "settle", &settle), first);
                                Some(first)
                            }
                            Fate::SettleOnBoth => Some(thread::scope(|both| {
                                let settle = &settle;
                                let other = both
                                    .spawn(move || surely([turn[1], turn[0]], "settle", settle));
                                let first = surely(turn, "settle", settle);
                                assert_eq!(other.join().expect("the other"), first);
                                first
                            })),
                        };
                        if let Some((status, answer)) = answer {
                            assert_eq!(status, 200, "{number}: {answer}");
                            refunded += answer["refundedTokens"].as_u64().unwrap_or(0);
                            extra += answer["extraTokens"].as_u64().unwrap_or(0);
                        }
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    (refunded, extra)
                })
            })
            .collect();
        eventually("half of it is done", || done.load(Ordering::Relaxed) > RESERVATIONS / 2);
        fleet.nodes()[1].signal("KILL");
        callers.into_iter().map(|caller| caller.join().expect("a caller")).collect()
    });
    let refunded: u64 = refunded_and_extra.iter().map(|(refunded, _)| refunded).sum();
    let extra: u64 = refunded_and_extra.iter().map(|(_, extra)| extra).sum();
    let of = |wanted: &[Fate], figure: &dyn Fn(usize) -> u64| -> u64 {
        (0..RESERVATIONS).filter(|number| wanted.contains(&fate(*number))).map(figure).sum()
    };
    let settled = of(&[Fate::Settle, Fate::SettleTwice, Fate::SettleOnBoth], &truth);
    let expired = of(&[Fate::Nothing], &estimate);
    assert_eq!(
        reserved + extra,
        settled + refunded + expired,
        "conservation, as the answers report it"
    );
    for rule in ["tokens", "log"] {
        assert_eq!(used(&fleet.nodes()[0], rule), settled + expired, "{rule}: as it was counted");
    }
    let open = of(&[Fate::Nothing], &|_| 1);
    let released = of(&[Fate::Release], &|_| 1);
    assert_eq!(used(&fleet.nodes()[0], "slots"), open, "no slot leaked");
    assert_eq!(used(&fleet.nodes()[0], "calls"), RESERVATIONS as u64 - released);
}
