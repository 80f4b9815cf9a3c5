//! Which decisions the observer receives.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::sync::{Arc, Mutex};

use tollgate_engine::{Decision, Engine, ManualClock, Observer, Request};
use tollgate_policy::{Attributes, Known, RuleSet};
use tollgate_store::{MemoryStore, Mode};

#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Observer for Notes {
    fn decided(&self, request: &Request<'_>, decision: &Decision<'_>, _: &dyn Fn() -> u64) {
        let user = request.attributes.get(Known::UserId).unwrap_or("-");
        self.0.lock().unwrap().push(format!("{user} {}", decision.verdict.name()));
    }
}

impl Notes {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn request<'a>(user: &'a str, id: Option<&'a str>) -> Request<'a> {
    let mut attributes = Attributes::default();
    attributes.set(Known::UserId, user);
    Request { attributes, request_id: id, ..Request::default() }
}

fn bed() -> (Engine<MemoryStore>, Arc<Notes>) {
    let text = "default: false\nrules: [{rule_id: r, identifier_type: user_id, limit: 2, window: 1d}]\n\
        deny_list: [\"user_id:mallory\"]";
    let set = RuleSet::from_yaml(text, "t").unwrap();
    let notes = Arc::new(Notes::default());
    let engine = Engine::new(MemoryStore::new(1_000), Arc::new(ManualClock::new(1)), set);
    (engine.with_observer(Arc::clone(&notes) as Arc<_>), notes)
}

#[tokio::test]
async fn decisions_are_reported_once_and_peeks_never() {
    let (engine, notes) = bed();
    let rules = engine.rules();
    for user in ["ann", "ann", "ann", "mallory"] {
        let asked = request(user, None);
        engine.decide(&rules, &asked, Mode::Peek).await.unwrap();
        engine.decide(&rules, &asked, Mode::Charge).await.unwrap();
    }
    let expected = ["ann allowed", "ann allowed", "ann denied", "mallory denied"];
    assert_eq!(notes.take(), expected);
    let asked = request("ann", None);
    engine.decide_once(&rules, &asked, |_| ()).await.unwrap();
    assert_eq!(notes.take(), ["ann denied"]);
}

#[tokio::test]
async fn a_repeated_id_is_reported_once() {
    let (engine, notes) = bed();
    let rules = engine.rules();
    for _ in 0..3 {
        let asked = request("ann", Some("one"));
        engine.decide_once(&rules, &asked, |_| ()).await.unwrap();
    }
    assert_eq!(notes.take(), ["ann allowed"]);
    let batch = [
        request("ann", None),
        request("ann", Some("one")),
        request("ann", None),
        request("bob", None),
    ];
    engine.decide_batch(&rules, &batch, |_| ()).await;
    assert_eq!(notes.take(), ["ann allowed", "ann denied", "bob allowed"]);
}
