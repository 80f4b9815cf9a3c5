//! Every row of the table of request shapes, as far as the gateway decides it before the limits.

use serde_json::Value as Json;
use tollgate_testkit::Shape;

use super::super::ask::Ask;
use super::super::paths::{CallPath, check_query, looks_like_call};
use super::super::text::{EstimateMode, Tariff, TextSink};

/// What an answer is charged where the request does not say.
const DEFAULT_OUTPUT: u64 = 1_000;

/// What a shape is: the model and the charges in both modes, or the parameter that is wrong.
fn decide(shape: &Shape) -> Result<(String, u64, u64), (&'static str, Option<&'static str>)> {
    let (path, query) = shape.path.split_once('?').unwrap_or((&shape.path, ""));
    let call = CallPath::read(path, [0]).ok_or(("unknown_url", None))?;
    check_query(Some(query)).map_err(|_| ("unknown_query", None))?;
    let body = shape.text();
    let model = call.model.and_then(|range| path.get(range));
    let ask = Ask::read(call.call, body.as_bytes(), model)
        .map_err(|wrong| ("invalid_request", wrong.param))?;
    let charge = |estimate: EstimateMode| {
        let mut sink = TextSink::new(Tariff { estimate, ..Tariff::default() });
        ask.prompt(&mut sink);
        sink.total() + ask.longest_answer(|| DEFAULT_OUTPUT) * ask.answers
    };
    let charges = (charge(EstimateMode::Default), charge(EstimateMode::UpperBound));
    Ok((ask.model.to_string(), charges.0, charges.1))
}

#[test]
fn every_shape_is_charged_or_refused_as_the_table_says() {
    let shapes = Shape::all();
    assert!(shapes.len() >= 200, "{}", shapes.len());
    let mut wrong = Vec::new();
    for shape in &shapes {
        let decided = decide(shape);
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
    for shape in Shape::all().iter().filter(|shape| shape.refused.is_none()) {
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

#[test]
fn nothing_that_looks_like_a_call_is_forwarded_uncounted() {
    for shape in Shape::all() {
        let path = shape.path.split('?').next().unwrap();
        assert!(shape.refused.is_some() || looks_like_call(path), "{path}");
    }
}
