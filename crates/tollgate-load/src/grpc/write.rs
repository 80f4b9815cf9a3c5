//! Requests as protobuf, written field by field, with holes where keys go.

use crate::fields::{ATTRIBUTES_NUMBER, Field, Value};
use crate::message::Message;
use crate::plan::{Plan, PlanError, Target};

/// Where a key goes in the value of a descriptor's entry.
const KEY: &str = "{key}";
/// Where an address made of the key goes.
const ADDRESS: &str = "{ip}";

/// gRPC puts a flag and the length before each message.
const NOT_COMPRESSED: u8 = 0;

/// One request with its prefix.
pub(crate) fn framed(plan: &Plan) -> Result<Message, PlanError> {
    let body = match plan.target {
        Target::GrpcBatch => several(plan, 1),
        Target::GrpcStream => several(plan, 2),
        Target::Envoy => envoy(plan)?,
        _ => {
            let mut one = Message::default();
            one.append(&allow(plan));
            one.end_part();
            one
        }
    };
    let mut framed = Message::default();
    framed.push([NOT_COMPRESSED]);
    framed.push((body.len() as u32).to_be_bytes());
    framed.append_parts(&body);
    Ok(framed)
}

/// A batch, or a question on a stream, whose requests are the field `number`.
fn several(plan: &Plan, number: u32) -> Message {
    let one = allow(plan);
    let mut all = Message::default();
    for _ in 0..plan.batch {
        push_message(&mut all, number, &one);
        all.end_part();
    }
    all
}

/// An `AllowRequest`.
fn allow(plan: &Plan) -> Message {
    let mut request = Message::default();
    for attribute in &plan.vary {
        let mut value = Message::default();
        value.push_attribute(*attribute, plan.keys);
        push_message(&mut request, attribute.known().number, &value);
    }
    for field in &plan.fields {
        match &field.value {
            Value::Text(known, value) => push_text(&mut request, known.number, value),
            Value::Number(known, value) => push_number(&mut request, known.number, *value),
            Value::Further(name, value) => {
                push_message(&mut request, ATTRIBUTES_NUMBER, &pair(name, &text(value)));
            }
        }
    }
    request
}

/// A `RateLimitRequest`.
fn envoy(plan: &Plan) -> Result<Message, PlanError> {
    let mut request = Message::default();
    push_text(&mut request, 1, &plan.domain);
    if plan.descriptors.is_empty() {
        push_message(&mut request, 2, &descriptor_of_fields(plan)?);
    }
    for described in &plan.descriptors {
        push_message(&mut request, 2, &descriptor(described, plan.keys)?);
    }
    let hits = plan.fields.iter().find_map(|field| match &field.value {
        Value::Number(known, hits) if known.name == "cost" => Some(*hits),
        _ => None,
    });
    if let Some(hits) = hits {
        push_number(&mut request, 3, hits);
    }
    request.end_part();
    Ok(request)
}

/// `user_id={key},path=/a`.
fn descriptor(described: &str, keys: u32) -> Result<Message, PlanError> {
    let mut made = Message::default();
    for entry in described.split(',') {
        let (name, value) =
            entry.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(|| {
                PlanError::Field(format!("descriptor entry {entry:?} is not NAME=VALUE"))
            })?;
        let mut written = Message::default();
        let mut rest = value;
        while let Some((before, mark, after)) = first_mark(rest) {
            written.push(before);
            if mark == KEY {
                written.push_key(keys);
            } else {
                written.push_address();
            }
            rest = after;
        }
        written.push(rest);
        push_message(&mut made, 1, &pair(name, &written));
    }
    Ok(made)
}

/// What is before the first mark, the mark, and what is behind it.
fn first_mark(text: &str) -> Option<(&str, &'static str, &str)> {
    let found = [KEY, ADDRESS].into_iter().filter_map(|mark| Some((text.find(mark)?, mark)));
    let (_, mark) = found.min()?;
    text.split_once(mark).map(|(before, after)| (before, mark, after))
}

fn descriptor_of_fields(plan: &Plan) -> Result<Message, PlanError> {
    let mut made = Message::default();
    for attribute in &plan.vary {
        let mut value = Message::default();
        value.push_attribute(*attribute, plan.keys);
        push_message(&mut made, 1, &pair(attribute.known().entry, &value));
    }
    for field in &plan.fields {
        match &field.value {
            Value::Text(known, value) => {
                push_message(&mut made, 1, &pair(known.entry, &text(value)));
            }
            Value::Further(name, value) => push_message(&mut made, 1, &pair(name, &text(value))),
            // What a request costs is no entry.
            Value::Number(known, _) if known.name == "cost" => {}
            Value::Number(..) => return Err(no_entry(field)),
        }
    }
    Ok(made)
}

fn no_entry(field: &Field) -> PlanError {
    PlanError::Field(format!("target envoy has no field {}", field.name()))
}

/// A name and a value, which is how maps and descriptors hold them.
fn pair(name: &str, value: &Message) -> Message {
    let mut pair = Message::default();
    push_text(&mut pair, 1, name);
    push_message(&mut pair, 2, value);
    pair
}

fn text(text: &str) -> Message {
    let mut message = Message::default();
    message.push(text);
    message
}

fn push_text(message: &mut Message, number: u32, value: &str) {
    push_message(message, number, &text(value));
}

/// A field with a length: text or a message.
fn push_message(message: &mut Message, number: u32, value: &Message) {
    push_varint(message, u64::from(number << 3 | 2));
    push_varint(message, value.len() as u64);
    message.append(value);
}

fn push_number(message: &mut Message, number: u32, value: u64) {
    push_varint(message, u64::from(number << 3));
    push_varint(message, value);
}

fn push_varint(message: &mut Message, mut value: u64) {
    while value >= 0x80 {
        message.push([value as u8 | 0x80]);
        value >>= 7;
    }
    message.push([value as u8]);
}

#[cfg(test)]
mod tests {
    use tollgate_proto::envoy::service::ratelimit::v3::RateLimitRequest;
    use tollgate_proto::v1::{AllowBatchRequest, AllowRequest, AllowStreamRequest};

    use super::*;
    use crate::fields::Attribute;

    fn plan(target: Target) -> Plan {
        let mut plan = Plan { target, keys: 300, ..Plan::new("http://h") };
        plan.vary = vec![Attribute::UserId, Attribute::Ip];
        let long = "m".repeat(200);
        for (name, value) in [("modelId", long.as_str()), ("cost", "300"), ("attributes.a", "b")] {
            plan.fields.push(Field::new(name, value).expect("a field"));
        }
        plan
    }

    fn decoded<T: prost::Message + Default>(plan: &Plan) -> T {
        let message = framed(plan).expect("a message");
        let (head, body) = message.bytes().split_at(5);
        assert_eq!(head, [[0].as_slice(), &(body.len() as u32).to_be_bytes()].concat());
        T::decode(body).expect("protobuf")
    }

    fn expected() -> AllowRequest {
        AllowRequest {
            user_id: "user-000".to_owned(),
            ip: "100.100.100.100".to_owned(),
            model_id: "m".repeat(200),
            cost: Some(300),
            attributes: [("a".to_owned(), "b".to_owned())].into(),
            ..AllowRequest::default()
        }
    }

    #[test]
    fn messages_are_what_the_protocol_says() {
        assert_eq!(decoded::<AllowRequest>(&plan(Target::Grpc)), expected());
        let batch: AllowBatchRequest = decoded(&Plan { batch: 3, ..plan(Target::GrpcBatch) });
        assert_eq!(batch.requests, vec![expected(); 3]);
        let stream: AllowStreamRequest = decoded(&plan(Target::GrpcStream));
        assert_eq!(stream.requests, [expected()]);
    }

    fn text_of(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).expect("text")
    }

    fn entries(request: &RateLimitRequest) -> Vec<Vec<(&str, &str)>> {
        let descriptors = request.descriptors.iter();
        let entries = descriptors.map(|descriptor| {
            let entries = descriptor.entries.iter();
            entries
                .map(|entry| (text_of(entry.key.as_ref()), text_of(entry.value.as_ref())))
                .collect()
        });
        entries.collect()
    }

    #[test]
    fn envoys_descriptors_are_those_given_or_made_of_the_fields() {
        let made: RateLimitRequest = decoded(&plan(Target::Envoy));
        assert_eq!((made.domain.as_str(), made.hits_addend), ("tollgate", 300));
        let model = "m".repeat(200);
        let fields = vec![
            ("user_id", "user-000"),
            ("remote_address", "100.100.100.100"),
            ("model_id", &model),
            ("a", "b"),
        ];
        assert_eq!(entries(&made), [fields]);

        let mut plan = Plan { domain: "edge".to_owned(), ..plan(Target::Envoy) };
        plan.descriptors = vec!["user_id=u{key}/{key},path=/a".into(), "ip={ip}".into()];
        let given: RateLimitRequest = decoded(&plan);
        assert_eq!(given.domain, "edge");
        let first = vec![("user_id", "u000/000"), ("path", "/a")];
        assert_eq!(entries(&given), [first, vec![("ip", "100.100.100.100")]]);

        plan.descriptors = vec!["user_id".into()];
        assert!(framed(&plan).is_err());
    }
}
