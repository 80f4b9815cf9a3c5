//! Every row of the tables of request shapes, as far as the gateway decides it before the limits.

use serde_json::Value as Json;
use tollgate_testkit::Shape;

use super::super::ask::{Ask, Call};
use super::super::options::{AiOptions, Others};
use super::super::other_calls::is_forwarded;
use super::super::paths::CallPath;
use super::super::protocol::Protocol;
use super::super::text::{EstimateMode, Tariff, TextSink};

/// What an answer is charged where the request does not say.
const DEFAULT_OUTPUT: u64 = 1_000;

/// What a shape is: the model and the charges in both modes, or the parameter that is wrong.
fn decide(
    protocol: Protocol,
    shape: &Shape,
) -> Result<(String, u64, u64), (&'static str, Option<&'static str>)> {
    let (unknown_url, unknown_query, invalid) = match protocol {
        Protocol::OpenAi => ("unknown_url", "unknown_query", "invalid_request"),
        Protocol::Anthropic => {
            ("not_found_error", "invalid_request_error", "invalid_request_error")
        }
    };
    let (path, query) = shape.path.split_once('?').unwrap_or((&shape.path, ""));
    let call = CallPath::read(protocol, path, [0]).ok_or((unknown_url, None))?;
    protocol.check_query(Some(query), false).map_err(|_| (unknown_query, None))?;
    let body = shape.text();
    let model = call.model.and_then(|range| path.get(range));
    let ask =
        Ask::read(call.call, body.as_bytes(), model).map_err(|wrong| (invalid, wrong.param))?;
    let charge = |estimate: EstimateMode| {
        if ask.call == Call::CountTokens {
            return 0;
        }
        let mut sink = TextSink::new(Tariff { estimate, ..Tariff::default() });
        ask.prompt(&mut sink);
        sink.total() + ask.longest_answer(|| DEFAULT_OUTPUT) * ask.answers
    };
    let charges = (charge(EstimateMode::Default), charge(EstimateMode::UpperBound));
    Ok((ask.model.to_string(), charges.0, charges.1))
}

#[test]
fn every_shape_is_charged_or_refused_as_the_table_says() {
    let (openai, anthropic) = (Shape::all(), Shape::anthropic());
    assert!(openai.len() >= 200, "{}", openai.len());
    assert!(anthropic.len() >= 40, "{}", anthropic.len());
    let mut wrong = Vec::new();
    let openai = openai.iter().map(|it| (Protocol::OpenAi, it));
    for (protocol, shape) in openai.chain(anthropic.iter().map(|it| (Protocol::Anthropic, it))) {
        let decided = decide(protocol, shape);
        let expected = match &shape.refused {
            Some(refused) => Err((refused.code.as_str(), refused.param.as_deref())),
            None => Ok((shape.model.clone().unwrap(), shape.charge, shape.bound)),
        };
        if decided.as_ref().map_err(|it| *it) != expected.as_ref().map_err(|it| *it) {
            wrong.push(format!("{:?}: {decided:?}, not {expected:?}", shape.name));
        }
    }
    assert!(wrong.is_empty(), "{} rows:\n{}", wrong.len(), wrong.join("\n"));
}

/// Every text in a body, names of members included, except data of media.
fn texts(value: &Json, all: &mut Vec<String>) {
    match value {
        Json::String(text) if text.len() > 64 && !text.contains(";base64,") => {
            all.push(text.clone());
        }
        Json::Array(values) => values.iter().for_each(|value| texts(value, all)),
        Json::Object(members) => {
            for (name, value) in members {
                let media = ["image", "audio", "video", "file", "multimodal", "prompt_embeds"];
                let is_media = media.iter().any(|media| name.contains(media));
                // Images and documents of Anthropic, and images that a model made.
                let is_data = matches!(name.as_str(), "data" | "result")
                    && value.as_str().is_some_and(|data| !data.contains(' '));
                if !is_media && !is_data || name.contains("filename") {
                    texts(value, all);
                }
            }
        }
        _ => {}
    }
}

/// No text of any shape is free: the charge is never below what a real tokenizer makes of all of them.
#[test]
fn no_text_of_a_shape_is_free() {
    let tokenizers = [bpe_openai::cl100k_base(), bpe_openai::o200k_base()];
    let charged = |shape: &&Shape| shape.refused.is_none() && shape.bound > 0;
    let shapes: Vec<Shape> = Shape::all().into_iter().chain(Shape::anthropic()).collect();
    for shape in shapes.iter().filter(charged) {
        let body: Json = serde_json::from_str(&shape.text()).unwrap();
        let mut all = Vec::new();
        texts(&body, &mut all);
        let count = |tokenizer: &bpe_openai::Tokenizer| {
            all.iter().map(|text| tokenizer.count(text.as_str()) as u64).sum::<u64>()
        };
        let most = tokenizers.into_iter().map(count).max().unwrap();
        assert!(shape.bound >= most, "{}: {} of {most}", shape.name, shape.bound);
        assert!(shape.charge * 3 >= most * 2, "{}: {} of {most}", shape.name, shape.charge);
    }
}

/// What a model would read of a value: its texts, and numbers as ids of tokens.
fn readable(value: &Json, count: &dyn Fn(&str) -> u64) -> u64 {
    match value {
        Json::String(text) => count(text),
        Json::Number(_) => 1,
        Json::Array(values) => values.iter().map(|value| readable(value, count)).sum(),
        Json::Object(members) => members.values().map(|value| readable(value, count)).sum(),
        Json::Bool(_) | Json::Null => 0,
    }
}

/// A prompt in fields that the API does not have is charged so that no more than three fit where two should.
#[test]
fn a_hidden_prompt_is_charged() {
    let tokenizers = [bpe_openai::cl100k_base(), bpe_openai::o200k_base()];
    let most = |text: &str| {
        let counts = tokenizers.iter().map(|tokenizer| tokenizer.count(text) as u64);
        counts.max().unwrap()
    };
    let hidden: Vec<Shape> = Shape::all().into_iter().filter(|it| it.tokens.is_some()).collect();
    assert!(hidden.len() >= 10, "{}", hidden.len());
    let known = ["model", "max_tokens", "messages", "prompt", "input"];
    let mut wrong = Vec::new();
    for shape in hidden {
        let body: Json = serde_json::from_str(&shape.text()).unwrap();
        let mut tokens = body["max_tokens"].as_u64().unwrap_or(0);
        for (name, value) in body.as_object().unwrap() {
            if !known.contains(&name.as_str()) {
                tokens += readable(value, &most);
                tokens += if name.starts_with("xx_") { 0 } else { most(name) };
            }
        }
        let is_charged = shape.charge * 3 > tokens * 2 && shape.bound >= tokens;
        if shape.tokens != Some(tokens) || !is_charged {
            wrong.push(format!("{:?}: {tokens}, {} {}", shape.name, shape.charge, shape.bound));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// No row that is refused for its path is forwarded by any method that could make something work.
#[test]
fn no_path_of_the_tables_is_forwarded_uncounted() {
    let options = AiOptions { others: Others::Forward, ..AiOptions::default() };
    let openai = Shape::all().into_iter().map(|it| (Protocol::OpenAi, it));
    for (protocol, shape) in
        openai.chain(Shape::anthropic().into_iter().map(|it| (Protocol::Anthropic, it)))
    {
        let path = shape.path.split('?').next().unwrap();
        for method in ["POST", "PUT", "PATCH", "DELETE"] {
            assert!(!is_forwarded(&options, protocol, Some(method), path), "{method} {path}");
        }
    }
}
