//! Requests that are made up to see what happens: decided as any other, and shown as their client would see it.

use http::HeaderMap;
use serde_json::{Map, Value, json};
use tollgate_engine::Decision;
use tollgate_store::Mode;
use tollgate_tower::headers::describe;
use tollgate_tower::{Dialect, Format, Rejection};

use super::read::Query;
use super::respond::{AdminError, Answer};
use super::routes::Call;
use super::{Admin, Asked};
use crate::http::decision_json::write_decision;
use crate::http::read::{Prepared, parse};
use crate::http::wire::AllowBody;

impl Admin {
    /// Decides a request, and charges it unless it is only looked at.
    pub(super) async fn decide(&self, asked: &Asked) -> Result<Answer, AdminError> {
        Query::new(&asked.query)?.end()?;
        let rules = self.engine.rules();
        let body: AllowBody<'_> = parse(&asked.body)?;
        let prepared = Prepared::new(&body)?;
        // Its request ids are not those of the callers of the decision API.
        let caller = format!("admin:{}", asked.identity.token_id);
        let request = prepared.request(&body, caller.as_str());
        if asked.route.call != Call::Decide {
            let looked = self.engine.decide(&rules, &request, Mode::Peek).await?;
            return Ok(Answer::ok(self.tried(&looked)));
        }
        let show = |decision: &Decision<'_>| (self.tried(decision), decision.slot);
        let (tried, slot) = self.engine.decide_once(&rules, &request, show).await?;
        if let Some(slot) = slot {
            // Nothing is being worked on: nobody else waits for it. If that fails, it comes back by itself.
            let _ = self.engine.release_reservation(slot.0).await;
        }
        Ok(Answer::ok(tried))
    }

    fn tried(&self, decision: &Decision<'_>) -> Value {
        let mut bytes = Vec::new();
        write_decision(&mut bytes, decision);
        let (status, headers) = if decision.is_allowed() {
            let mut headers = HeaderMap::new();
            describe(&mut headers, decision, self.config.headers);
            (200, headers)
        } else {
            let refused = Rejection::of(decision, None, Dialect::Plain, self.config.headers);
            let refused = refused.into_response(Format::Json);
            (refused.status().as_u16(), refused.headers().clone())
        };
        let headers: Map<String, Value> = headers
            .iter()
            .map(|(name, value)| {
                let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
                (name.as_str().to_owned(), value.into())
            })
            .collect();
        json!({
            "status": status,
            "headers": headers,
            // What was just written reads.
            "decision": serde_json::from_slice::<Value>(&bytes).unwrap_or_default(),
        })
    }
}
