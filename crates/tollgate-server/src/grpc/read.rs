//! Requests of the decision service: from protobuf to the body that HTTP takes too, so that both are
//! checked by the same code.

use std::borrow::Cow;

use tollgate_engine::MAX_ATTRIBUTES;
use tollgate_policy::Known;

use super::fields::{Fields, Malformed, Texts};
use crate::http::MAX_BATCH;
use crate::http::respond::ApiError;
use crate::http::wire::{AllowBody, Pairs};

impl From<Malformed> for ApiError {
    fn from(Malformed(why): Malformed) -> Self {
        Self::Invalid { message: why.to_owned(), field: None }
    }
}

/// An `AllowRequest`.
pub(crate) fn allow_body(bytes: &[u8]) -> Result<AllowBody<'_>, Malformed> {
    let mut body = AllowBody::default();
    let (mut fields, texts) = (Fields(bytes), Texts::of(bytes));
    while let Some((number, value)) = fields.next()? {
        match number {
            12 => body.cost = Some(value.number()?),
            13 => body.tokens = Some(value.number()?),
            14 => body.request_id = texts.text(value, fields.0.len())?,
            15 => {
                let (name, value) = pair(value.bytes()?)?;
                put(&mut body.attributes, name, value);
            }
            _ => {
                if let Some(known) = Known::from_number(number) {
                    body.set(known, texts.text(value, fields.0.len())?);
                }
            }
        }
    }
    Ok(body)
}

/// An entry of a map.
fn pair(bytes: &[u8]) -> Result<(Cow<'_, str>, Cow<'_, str>), Malformed> {
    let (mut name, mut content) = (Cow::default(), Cow::default());
    let mut fields = Fields(bytes);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => name = value.text()?.unwrap_or_default(),
            2 => content = value.text()?.unwrap_or_default(),
            _ => {}
        }
    }
    Ok((name, content))
}

/// Of several entries with one name the last counts. Past the bound they are only counted: that many
/// are refused.
fn put<'a>(pairs: &mut Pairs<'a>, name: Cow<'a, str>, value: Cow<'a, str>) {
    let known = match pairs.0.len() {
        0..=MAX_ATTRIBUTES => pairs.0.iter_mut().find(|(other, _)| *other == name),
        _ => None,
    };
    match known {
        Some((_, place)) => *place = value,
        None => pairs.0.push((name, value)),
    }
}

/// A message whose field 1 is an `AllowRequest`, beside others that `other` reads.
pub(crate) fn wrapped<'a>(
    bytes: &'a [u8],
    mut other: impl FnMut(u32, super::fields::Value<'a>) -> Result<(), Malformed>,
) -> Result<AllowBody<'a>, Malformed> {
    let mut body = AllowBody::default();
    let mut fields = Fields(bytes);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => body = allow_body(value.bytes()?)?,
            _ => other(number, value)?,
        }
    }
    Ok(body)
}

/// The requests of an `AllowBatchRequest`, each yet to be read, so that one that is no message does
/// not spoil the others.
pub(crate) fn batch(bytes: &[u8]) -> Result<Vec<&[u8]>, ApiError> {
    let mut requests = Vec::new();
    several(bytes, 1, &mut requests, |_, _| Ok(()))?;
    Ok(requests)
}

/// The id and the requests of an `AllowStreamRequest`. The requests are added to those before.
pub(crate) fn question<'a>(
    bytes: &'a [u8],
    requests: &mut Vec<&'a [u8]>,
) -> Result<(u64, usize), ApiError> {
    let (mut id, before) = (0, requests.len());
    several(bytes, 2, requests, |number, value| {
        if number == 1 {
            id = value.number()?;
        }
        Ok(())
    })?;
    Ok((id, requests.len() - before))
}

fn several<'a>(
    bytes: &'a [u8],
    wanted: u32,
    requests: &mut Vec<&'a [u8]>,
    mut other: impl FnMut(u32, super::fields::Value<'a>) -> Result<(), Malformed>,
) -> Result<(), ApiError> {
    let before = requests.len();
    let mut fields = Fields(bytes);
    while let Some((number, value)) = fields.next()? {
        if number == wanted {
            requests.push(value.bytes()?);
        } else {
            other(number, value)?;
        }
        if requests.len() - before > MAX_BATCH {
            let message = format!("at most {MAX_BATCH} requests are taken at once");
            return Err(ApiError::invalid("requests", message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;
    use tollgate_proto::v1;

    use super::*;

    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            8 => Just(String::new()),
            8 => "[a-zA-Z0-9/._é-]{1,12}",
            // Its length takes two bytes, which are no text.
            1 => "[a-zé]{128,140}",
        ]
    }

    fn request() -> impl Strategy<Value = v1::AllowRequest> {
        let texts = proptest::collection::vec(text(), 12);
        let pairs = proptest::collection::btree_map(text(), text(), 0..5);
        let number = proptest::option::of(any::<u64>());
        (texts, number.clone(), number, pairs).prop_map(|(mut texts, cost, tokens, attributes)| {
            let mut next = || texts.pop().unwrap_or_default();
            v1::AllowRequest {
                user_id: next(),
                model_id: next(),
                api_key: next(),
                tenant_id: next(),
                model_tier: next(),
                client_type: next(),
                endpoint: next(),
                method: next(),
                ip: next(),
                tier: next(),
                domain: next(),
                cost,
                tokens,
                request_id: next(),
                attributes,
            }
        })
    }

    /// What was read, as the generated code has it.
    fn again(body: &AllowBody<'_>) -> v1::AllowRequest {
        let text = |known| body.get(known).unwrap_or_default().to_owned();
        let pairs = body.attributes.0.iter();
        v1::AllowRequest {
            user_id: text(Known::UserId),
            model_id: text(Known::ModelId),
            api_key: text(Known::ApiKey),
            tenant_id: text(Known::TenantId),
            model_tier: text(Known::ModelTier),
            client_type: text(Known::ClientType),
            endpoint: text(Known::Endpoint),
            method: text(Known::Method),
            ip: text(Known::Ip),
            tier: text(Known::Tier),
            domain: text(Known::Domain),
            cost: body.cost,
            tokens: body.tokens,
            request_id: body.request_id.clone().unwrap_or_default().into_owned(),
            attributes: pairs.map(|(n, v)| (n.clone().into(), v.clone().into())).collect(),
        }
    }

    proptest! {
        #[test]
        fn requests_are_read_as_the_generated_code_reads_them(request in request()) {
            let bytes = request.encode_to_vec();
            prop_assert_eq!(again(&allow_body(&bytes).unwrap()), request);
        }

        #[test]
        fn no_bytes_are_read_as_anything_but_what_they_are(
            bytes in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let _ = batch(&bytes);
            // Groups, which nobody sends any more, are all that the generated code reads beyond.
            if let Ok(body) = allow_body(&bytes) {
                let known = v1::AllowRequest::decode(&*bytes).unwrap();
                prop_assert_eq!(again(&body), known);
            }
        }

        #[test]
        fn batches_and_questions_hold_what_was_put_in(
            requests in proptest::collection::vec(request(), 0..6),
            id: u64,
        ) {
            let read = |parts: Vec<&[u8]>| -> Vec<_> {
                parts.into_iter().map(|part| again(&allow_body(part).unwrap())).collect()
            };
            let bytes = v1::AllowBatchRequest { requests: requests.clone() }.encode_to_vec();
            prop_assert_eq!(read(batch(&bytes).unwrap()), requests.clone());
            let bytes = v1::AllowStreamRequest { id, requests: requests.clone() }.encode_to_vec();
            let mut parts = Vec::new();
            prop_assert_eq!(question(&bytes, &mut parts).unwrap(), (id, requests.len()));
            prop_assert_eq!(read(parts), requests);
        }
    }

    #[test]
    fn a_batch_is_bounded() {
        let requests = vec![v1::AllowRequest::default(); MAX_BATCH + 1];
        let bytes = v1::AllowBatchRequest { requests }.encode_to_vec();
        assert!(matches!(batch(&bytes), Err(ApiError::Invalid { .. })));
    }
}
