//! Requests as JSON, for the HTTP calls.

use std::fmt::Write as _;

use crate::fields::Value;
use crate::message::Message;
use crate::plan::{Plan, PlanError, Target};

/// What `check` is asked about if nothing else is said: it needs a model.
const MODEL: &str = "model-1";

/// The body of a request.
pub(crate) fn body(plan: &Plan) -> Result<Message, PlanError> {
    let mut body = Message::default();
    if plan.target != Target::Batch {
        body.append(&item(plan)?);
        body.end_part();
        return Ok(body);
    }
    let item = item(plan)?;
    body.push(r#"{"requests":["#);
    for index in 0..plan.batch {
        if index > 0 {
            body.push(",");
        }
        body.append(&item);
        body.end_part();
    }
    body.push("]}");
    Ok(body)
}

fn item(plan: &Plan) -> Result<Message, PlanError> {
    let mut item = Message::default();
    let mut names: Vec<String> = Vec::new();
    let mut begin = |item: &mut Message, name: &str| {
        item.push(if names.is_empty() { "{" } else { "," });
        item.push(quoted(name));
        item.push(":");
        names.push(name.to_owned());
    };
    for attribute in &plan.vary {
        begin(&mut item, attribute.name());
        item.push("\"");
        item.push_attribute(*attribute, plan.keys);
        item.push("\"");
    }
    let mut further = String::new();
    for field in &plan.fields {
        match &field.value {
            Value::Text(known, value) => {
                begin(&mut item, known.name);
                item.push(quoted(value));
            }
            Value::Number(known, value) => {
                begin(&mut item, known.name);
                item.push(value.to_string());
            }
            Value::Further(name, value) => {
                let comma = if further.is_empty() { "" } else { "," };
                let _ = write!(further, "{comma}{}:{}", quoted(name), quoted(value));
            }
        }
    }
    if !further.is_empty() {
        begin(&mut item, "attributes");
        item.push(format!("{{{further}}}"));
    }
    if plan.target == Target::Check {
        if !names.iter().any(|name| name == "modelId") {
            item.push(format!("{}\"modelId\":{}", begin_or_comma(&names), quoted(MODEL)));
            names.push("modelId".to_owned());
        }
        if names.len() != 2 || !names.iter().any(|name| name == "userId") {
            let message = "target check takes userId and modelId, and nothing else";
            return Err(PlanError::Field(message.to_owned()));
        }
    }
    item.push(if names.is_empty() { "{}" } else { "}" });
    Ok(item)
}

const fn begin_or_comma(names: &[String]) -> &'static str {
    if names.is_empty() { "{" } else { "," }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fields::{Attribute, Field};
    use crate::keys::Keys;
    use crate::plan::Distribution;
    use crate::random::Random;

    fn made(plan: &Plan) -> Value {
        let mut message = body(plan).expect("a body");
        message.fill(&Keys::new(plan.keys, Distribution::Uniform), &mut Random::new(1, 1));
        serde_json::from_slice(message.bytes()).expect("JSON")
    }

    #[test]
    fn fields_stand_where_the_server_looks_for_them() {
        let mut plan = Plan { keys: 1, ..Plan::new("http://h") };
        plan.vary = vec![Attribute::UserId, Attribute::Ip];
        for (name, value) in
            [("modelId", "a\"b"), ("cost", "3"), ("attributes.region", "eu"), ("attributes.x", "y")]
        {
            plan.fields.push(Field::new(name, value).expect("a field"));
        }
        assert_eq!(
            made(&plan),
            json!({"userId": "user-0", "ip": "100.100.100.100", "modelId": "a\"b", "cost": 3,
                   "attributes": {"region": "eu", "x": "y"}})
        );
        plan = Plan { vary: Vec::new(), ..Plan::new("http://h") };
        assert_eq!(made(&plan), json!({}));
    }

    #[test]
    fn a_batch_has_its_requests() {
        let plan = Plan { target: Target::Batch, batch: 3, keys: 1, ..Plan::new("http://h") };
        let one = json!({"userId": "user-0"});
        assert_eq!(made(&plan), json!({"requests": [one, one, one]}));
    }

    #[test]
    fn the_small_form_has_a_user_and_a_model() {
        let plan = Plan { target: Target::Check, keys: 1, ..Plan::new("http://h") };
        assert_eq!(made(&plan), json!({"userId": "user-0", "modelId": "model-1"}));
        let fields = vec![Field::new("cost", "1").expect("a field")];
        assert!(body(&Plan { fields, ..plan.clone() }).is_err());
        assert!(body(&Plan { vary: vec![Attribute::Ip], ..plan }).is_err());
    }

    #[test]
    fn fields_that_are_none_are_refused() {
        assert!(Field::new("userID", "x").is_err());
        assert!(Field::new("attributes.", "x").is_err());
        assert!(Field::new("cost", "-1").is_err());
        assert_eq!(Field::new("apiKey", "secret").expect("a field").shown(), "apiKey=…");
    }
}
