//! The slots that requests under way hold.

use serde_json::{Value, json};
use tollgate_engine::HeldSlots;

use super::read::Query;
use super::respond::Answer;
use super::{Admin, AdminError, Asked};
use crate::http::time::Rfc3339;

/// How many digits of a slot's name are shown: a caller that has all of them can release the slot.
const SHOWN_DIGITS: usize = 8;

impl Admin {
    /// A page of the concurrency counters that this node has seen and that hold slots.
    pub(super) async fn held_slots(&self, asked: &Asked) -> Result<Answer, AdminError> {
        let mut query = Query::new(&asked.query)?;
        let page = query.page()?;
        let rule_id = query.take("rule_id");
        query.end()?;
        let after = match page.after.as_deref() {
            None => None,
            Some(cursor) => {
                let wrong = || AdminError::invalid("cursor", "must be a next_cursor of this call");
                Some(u128::from_str_radix(cursor, 16).map_err(|_| wrong())?)
            }
        };
        let most = usize::try_from(page.limit).unwrap_or(usize::MAX);
        let page = self.engine.slots(rule_id.as_deref(), after, most).await?;
        Ok(Answer::ok(json!({
            "items": page.counters.iter().map(counter).collect::<Vec<_>>(),
            "next_cursor": page.next.map(|next| format!("{next:032x}")),
        })))
    }
}

fn counter(held: &HeldSlots) -> Value {
    let slots = held.slots.iter().map(|slot| {
        let id: String = format!("{:032x}", { slot.id.0 }).chars().take(SHOWN_DIGITS).collect();
        json!({ "id": id, "expires_at": Rfc3339(slot.expires_at) })
    });
    json!({
        "rule_id": held.rule_id,
        "key": held.key,
        "limit": held.limit,
        "held": held.slots.len(),
        "slots": slots.collect::<Vec<_>>(),
    })
}
