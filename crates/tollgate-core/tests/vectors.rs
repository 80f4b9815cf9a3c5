//! The shared vectors: what the scripts of the Redis store must show as well.

use tollgate_core::{
    Algorithm, Ask, Examination, Limit, LimitSpec, MICRO, Nanos, Receipt, Status, Window,
};

const VECTORS: &str = include_str!("vectors.txt");
const FIRST: Nanos = 1_789_000_000_123_456 * MICRO;

#[test]
fn the_core_shows_what_the_vectors_say() {
    let mut counter = None;
    let (mut now, mut last, mut checked) = (FIRST, Receipt::Nothing, 0);
    let mut open: Vec<Receipt> = Vec::new();
    for (number, line) in (1..).zip(VECTORS.lines()) {
        let words: Vec<&str> = line.split(' ').collect();
        let parse = |index: usize| words[index].parse::<u64>().unwrap();
        if words[0] == "#" || line.starts_with('#') {
            continue;
        }
        if words[0] == "limit" {
            let limit = Limit::new(LimitSpec {
                algorithm: Algorithm::from_name(words[1]).unwrap(),
                quota: parse(2),
                window: Window::Every(parse(3) * MICRO),
                burst: words[4].parse().ok(),
                slot_ttl: 0,
            });
            let limit = limit.unwrap();
            assert!(limit.fits_micros(), "{line}");
            counter = Some((limit.clone(), limit.fresh()));
            now = FIRST;
            open.clear();
            continue;
        }
        let (limit, state) = counter.as_mut().unwrap();
        now =
            now.checked_add_signed(words[0].parse::<i64>().unwrap() * MICRO.cast_signed()).unwrap();
        if words[1] == "give_back" {
            limit.give_back(state, &last, now);
            continue;
        }
        if words[1] == "refund" || words[1] == "close" {
            let part = open[parse(2) as usize].part(parse(3));
            if words[1] == "refund" {
                limit.give_back(state, &part, now);
            } else {
                limit.close(state, &part, now);
            }
            continue;
        }
        let is_open = words[1] == "open";
        let cost = Ask::cost(parse(2));
        let ask = if is_open { cost.refundable() } else { cost };
        let examination = limit.examine(state, &ask, now);
        if words[1] == "owe" || words[1] != "peek" && examination.admits() {
            last = limit.charge(state, &ask, now);
            open.extend(is_open.then_some(last));
        }
        let (expected, rest) = match words[3] {
            "admit" => (Examination::Admit { wait: parse(4) }, 5),
            "refuse" => (Examination::Refuse { retry_at: Some(now + parse(4)) }, 5),
            _ => (Examination::Refuse { retry_at: None }, 4),
        };
        let status = Status {
            used: parse(rest),
            remaining: parse(rest + 1),
            reset_at: now + parse(rest + 2),
        };
        let actual = (examination, limit.status(state, now));
        assert_eq!(actual, (expected, status), "line {number}: {line}");
        checked += 1;
    }
    assert!(checked > 1_000, "{checked}");
}
