//! Responses that the stand-in makes in the background.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use hyper::http::request::Parts;
use hyper::{Method, Response};
use serde_json::{Value, json};

use super::{Body, json_answer};

/// What a response is, and what it will have used.
struct Stored {
    model: Value,
    usage: Value,
    status: &'static str,
}

/// Responses by their ids.
#[derive(Default)]
pub(super) struct Background(Mutex<BTreeMap<String, Stored>>);

impl Background {
    /// Begins one, which is under way until [`Self::finish`].
    pub(super) fn start(&self, model: &Value, usage: Value) -> Response<Body> {
        let mut stored = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let id = format!("resp_{}", stored.len() + 1);
        let one = Stored { model: model.clone(), usage, status: "queued" };
        let answer = shown(&id, &one);
        stored.insert(id, one);
        json_answer(200, &answer)
    }

    /// Ends all of them.
    pub(super) fn finish(&self) {
        let mut stored = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stored.values_mut().for_each(|one| one.status = "completed");
    }

    /// The answer to a call about one of them, if it is one.
    pub(super) fn answer(&self, head: &Parts) -> Option<Response<Body>> {
        let id = head.uri.path().strip_prefix("/v1/responses/")?;
        let id = id.strip_suffix("/cancel").unwrap_or(id);
        let mut stored = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(one) = stored.get_mut(id) else {
            return Some(json_answer(
                404,
                &json!({"error": {"message": "unknown", "type": "bad"}}),
            ));
        };
        if head.method == Method::DELETE {
            stored.remove(id);
            return Some(json_answer(200, &json!({"id": id, "deleted": true})));
        }
        if head.method == Method::POST {
            one.status = "cancelled";
        }
        Some(json_answer(200, &shown(id, one)))
    }
}

fn shown(id: &str, one: &Stored) -> Value {
    let usage = if one.status == "completed" { one.usage.clone() } else { Value::Null };
    json!({"id": id, "object": "response", "status": one.status, "background": true,
        "model": one.model, "output": [], "usage": usage})
}
