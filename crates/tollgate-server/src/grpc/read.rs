//! Requests of the decision service: from protobuf to the body that HTTP takes too, so that both are
//! checked by the same code.

use std::borrow::Cow;

use tollgate_engine::MAX_ATTRIBUTES;
use tollgate_policy::Known;

use super::fields::{Fields, Malformed, Texts};
use crate::http::MAX_BATCH;
use crate::http::amounts_body::{MoneyBody, UsageBody};
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
            12 => body.amounts.cost = Some(value.number()?),
            13 => body.amounts.tokens = Some(value.number()?),
            14 => body.request_id = texts.text(value, fields.0.len())?,
            15 => {
                let (name, value) = pair(value.bytes()?)?;
                put(&mut body.attributes, name, value);
            }
            16 => body.amounts.input_tokens = Some(value.number()?),
            17 => body.amounts.output_tokens = Some(value.number()?),
            18 => body.amounts.cached_tokens = Some(value.number()?),
            19 => read_money(value.bytes()?, body.amounts.money.get_or_insert_default())?,
            20 => read_usage(value.bytes()?, body.amounts.usage.get_or_insert_default())?,
            _ => {
                if let Some(known) = Known::from_number(number) {
                    body.set(known, texts.text(value, fields.0.len())?);
                }
            }
        }
    }
    Ok(body)
}

/// A `Money`, over what came before: messages of one field are merged.
fn read_money<'a>(bytes: &'a [u8], money: &mut MoneyBody<'a>) -> Result<(), Malformed> {
    let mut fields = Fields(bytes);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => money.currency = value.text()?.unwrap_or_default(),
            2 => money.amount = value.text()?.unwrap_or_default(),
            _ => {}
        }
    }
    Ok(())
}

/// A `Usage`, over what came before.
fn read_usage(bytes: &[u8], usage: &mut UsageBody) -> Result<(), Malformed> {
    let mut fields = Fields(bytes);
    while let Some((number, value)) = fields.next()? {
        let place = match number {
            1 => &mut usage.input,
            2 => &mut usage.output,
            3 => &mut usage.cached_read,
            4 => &mut usage.cached_write,
            5 => &mut usage.reasoning,
            6 => &mut usage.audio_input,
            7 => &mut usage.audio_output,
            8 => &mut usage.images,
            _ => continue,
        };
        *place = Some(value.number()?);
    }
    Ok(())
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
                input_tokens: tokens,
                output_tokens: cost,
                cached_tokens: None,
                money: cost.map(|_| v1::Money { currency: next(), amount: "0.5".to_owned() }),
                usage: tokens.map(|tokens| v1::Usage {
                    input: tokens,
                    reasoning: 7,
                    images: cost.unwrap_or(0),
                    ..v1::Usage::default()
                }),
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
            cost: body.amounts.cost,
            tokens: body.amounts.tokens,
            request_id: body.request_id.clone().unwrap_or_default().into_owned(),
            attributes: pairs.map(|(n, v)| (n.clone().into(), v.clone().into())).collect(),
            input_tokens: body.amounts.input_tokens,
            output_tokens: body.amounts.output_tokens,
            cached_tokens: body.amounts.cached_tokens,
            money: body.amounts.money.as_ref().map(|money| v1::Money {
                currency: money.currency.clone().into(),
                amount: money.amount.clone().into(),
            }),
            usage: body.amounts.usage.map(|usage| v1::Usage {
                input: usage.input.unwrap_or(0),
                output: usage.output.unwrap_or(0),
                cached_read: usage.cached_read.unwrap_or(0),
                cached_write: usage.cached_write.unwrap_or(0),
                reasoning: usage.reasoning.unwrap_or(0),
                audio_input: usage.audio_input.unwrap_or(0),
                audio_output: usage.audio_output.unwrap_or(0),
                images: usage.images.unwrap_or(0),
            }),
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
