//! `tollgate check`
//!
//! A running server and a rule file are asked the same call with the same body, so that both answer
//! the same to the same request.

mod local;
mod render;

use anyhow::{Context as _, anyhow};
use serde_json::{Map, Value};

use crate::args::{CheckArgs, RequestArgs};
use crate::client::Answer;
use crate::failure::{Ended, Failure, Outcome};
use crate::output;
use crate::server::Server;

pub(super) fn run(args: &CheckArgs) -> Ended {
    let path = if args.peek { "/rate-limit/peek" } else { "/rate-limit/allow" };
    let body = body(&args.request).to_string();
    let answer = match &args.rules {
        Some(file) => local::ask(file, path, body)?,
        None => Server::new(&args.reach).ask("POST", path, Some(&body))?,
    };
    let decision = decision(&answer)?;
    let is_allowed = decision
        .get("allowed")
        .and_then(Value::as_bool)
        .ok_or_else(|| anyhow!("the answer does not say whether the request is allowed"))?;
    if args.json {
        output::print_json(&decision)?;
    } else {
        output::print(&render::render(&decision, is_allowed))?;
    }
    Ok(if is_allowed { Outcome::Done } else { Outcome::Refused })
}

/// The body of the call: what was given, and nothing else.
pub(super) fn body(request: &RequestArgs) -> Value {
    let mut body = Map::new();
    for (known, text) in request.known.given() {
        body.insert(known.field().to_owned(), text.into());
    }
    for (name, number) in [("cost", request.cost), ("tokens", request.tokens)] {
        if let Some(number) = number {
            body.insert(name.to_owned(), number.into());
        }
    }
    request.usage.put_into(&mut body);
    if !request.attribute.is_empty() {
        let pairs = request.attribute.iter();
        let pairs = pairs.map(|(name, value)| (name.clone(), value.as_str().into()));
        body.insert("attributes".to_owned(), Value::Object(pairs.collect()));
    }
    Value::Object(body)
}

/// The decision of an answer, or why there is none.
pub(super) fn decision(answer: &Answer) -> Result<Value, Failure> {
    let body: Result<Value, _> = serde_json::from_slice(&answer.body);
    if answer.status == 200 {
        return Ok(body.context("the answer is no decision; is that a Tollgate server?")?);
    }
    let said = |field: &str| {
        let error = body.as_ref().ok()?.get("error")?;
        error.get(field)?.as_str().map(str::to_owned)
    };
    let field = said("field").map(|field| format!("{field}: ")).unwrap_or_default();
    let message = said("message").unwrap_or_else(|| "it does not say why".to_owned());
    let error = anyhow!("{field}{message} (status {})", answer.status);
    // What the server calls a bad request was typed here.
    Err(if answer.status == 400 { Failure::Usage(error) } else { Failure::Failed(error) })
}
