//! Records of reservations.

use std::sync::Arc;

use super::Harness;
use super::meter::{LONG, SHORT};
use crate::{RecordAnswer, RecordAsk, Store};

async fn ask(harness: &impl Harness, id: u128, ask: RecordAsk<'_>) -> RecordAnswer {
    let now = harness.now().await;
    harness.store().record(id, &ask, now).await.expect("the store answers")
}

const fn keep(ttl: u64) -> RecordAsk<'static> {
    RecordAsk::Keep { content: b"what\0 was \xFF charged", ttl, is_here: false }
}

const END: RecordAsk<'static> = RecordAsk::End { how: b"this way", ttl: LONG };
const END_OTHERWISE: RecordAsk<'static> = RecordAsk::End { how: b"that way", ttl: LONG };

/// A reservation ends the way that the first call asks for, and later calls return the first
/// answer.
pub async fn a_reservation_ends_one_way<H: Harness>(harness: &Arc<H>) {
    let harness = &**harness;
    let id = 0xE4D << 64 | 1;
    assert_eq!(ask(harness, id, END).await, RecordAnswer::Absent);
    let content = b"what\0 was \xFF charged".to_vec();
    let RecordAnswer::Open { content: kept, expires_at } = ask(harness, id, keep(LONG)).await
    else {
        panic!("it is open");
    };
    assert_eq!(kept, content);
    let now = harness.now().await;
    assert!(expires_at > now && expires_at <= now + LONG, "{expires_at} {now}");
    let renewed = ask(harness, id, RecordAsk::Renew { ttl: Some(1_000_000) }).await;
    let RecordAnswer::Open { expires_at: later, .. } = renewed else { panic!("it is open") };
    assert_eq!(later, expires_at, "it never ends sooner than before");
    let ending = RecordAnswer::Ending { content, how: b"this way".to_vec() };
    for asked in [END, END_OTHERWISE, RecordAsk::Renew { ttl: None }] {
        assert_eq!(ask(harness, id, asked).await, ending);
    }
    let complete = RecordAsk::Complete { answer: b"done" };
    assert_eq!(ask(harness, id, complete).await, ending, "as it was before");
    let ended = RecordAnswer::Ended { answer: b"done".to_vec() };
    let again = RecordAsk::Complete { answer: b"something else" };
    for asked in [again, END, END_OTHERWISE, RecordAsk::Renew { ttl: None }] {
        assert_eq!(ask(harness, id, asked).await, ended);
    }
}

/// It is gone when its time is over, unless that was made longer.
pub async fn a_reservation_is_over_when_its_time_is<H: Harness>(harness: &Arc<H>) {
    let harness = &**harness;
    let (short, renewed, ending) = (0xE4D << 64 | 2, 0xE4D << 64 | 3, 0xE4D << 64 | 4);
    for id in [short, renewed, ending] {
        assert!(matches!(ask(harness, id, keep(SHORT)).await, RecordAnswer::Open { .. }));
    }
    let longer = ask(harness, renewed, RecordAsk::Renew { ttl: Some(LONG) }).await;
    assert!(matches!(longer, RecordAnswer::Open { .. }));
    assert!(matches!(ask(harness, ending, END).await, RecordAnswer::Ending { .. }));
    harness.advance(SHORT).await;
    assert_eq!(ask(harness, short, END).await, RecordAnswer::Absent);
    assert_eq!(ask(harness, short, RecordAsk::Renew { ttl: None }).await, RecordAnswer::Absent);
    assert!(matches!(ask(harness, renewed, END).await, RecordAnswer::Ending { .. }));
    assert!(matches!(ask(harness, ending, END).await, RecordAnswer::Ending { .. }));
}
