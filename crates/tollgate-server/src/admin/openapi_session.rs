//! Signing in and out from a browser, described.

use serde_json::{Value, json};

use super::schemas::reference;
use super::{oidc, session};

/// The calls, by path.
pub(super) fn paths() -> [(String, Value); 4] {
    [
        (session::PATH.to_owned(), session_calls()),
        (oidc::PATH.to_owned(), configured()),
        (oidc::START.to_owned(), start()),
        (oidc::CALLBACK.to_owned(), callback()),
    ]
}

fn problem(text: &str) -> Value {
    json!({ "description": text,
            "content": { "application/problem+json": { "schema": reference("ProblemBody") } } })
}

fn page(text: &str) -> Value {
    json!({ "description": text, "content": { "text/html": { "schema": { "type": "string" } } } })
}

/// Whether single sign-on is configured. The sign-in page asks before anybody has a token.
fn configured() -> Value {
    let schema = reference("AdminSignInOptions");
    json!({ "get": { "tags": ["admin"], "operationId": "oidc_get",
        "summary": "Whether single sign-on is configured", "responses": {
            "200": { "description": "Whether it is",
                     "content": { "application/json": { "schema": schema } } },
            "405": problem("The path takes other methods") } } })
}

fn start() -> Value {
    json!({ "get": { "tags": ["admin"], "operationId": "oidc_start",
        "summary": "Begin single sign-on: a browser opens this", "responses": {
            "303": { "description": "To the provider" },
            "404": problem("Single sign-on is not configured"),
            "405": problem("The path takes other methods"),
            "502": page("The provider does not answer as it should"),
            "503": page("Too many at once") } } })
}

fn callback() -> Value {
    let parameter =
        |name: &str| json!({ "name": name, "in": "query", "schema": { "type": "string" } });
    let parameters = ["code", "state", "error", "iss"].map(parameter);
    json!({ "get": { "tags": ["admin"], "operationId": "oidc_callback",
        "summary": "Complete single sign-on: the provider sends browsers here",
        "parameters": parameters, "responses": {
            "303": { "description": "Signed in: to the console, with the cookie of a session" },
            "400": page("The answer fits no sign-in of this browser"),
            "403": page("The provider refused, or no group of the person has a role"),
            "404": problem("Single sign-on is not configured"),
            "405": problem("The path takes other methods"),
            "502": page("The provider does not answer as it should, or its answer cannot be verified"),
            "503": page("Too many at once, or the database is not available") } } })
}

/// Signing in and out with a token or a link.
fn session_calls() -> Value {
    let one = |id: &str, summary: &str, success: (&str, Value)| {
        json!({ "tags": ["admin"], "operationId": id, "summary": summary, "responses": {
            success.0: success.1,
            "400": problem("Something that was sent is wrong; `field` says what"),
            "401": problem("An admin token is needed"),
            "403": problem("The page that asks is not the console's"),
            "405": problem("The path takes other methods"),
            "408": problem("The body did not arrive in time"),
            "413": problem("The body is too large"),
            "429": problem("Too many wrong tokens"),
            "503": problem("The database is not available, or too much at once") } })
    };
    let who = || {
        json!({ "description": "Who is signed in",
                "content": { "application/json": { "schema": reference("AdminIdentity") } } })
    };
    let mut sign_in = one("session_post", "Sign in: sets a cookie with the token", ("200", who()));
    if let Some(sign_in) = sign_in.as_object_mut() {
        let secret = json!({ "type": "string", "format": "password" });
        let schema = json!({ "type": "object", "additionalProperties": false, "minProperties": 1,
            "maxProperties": 1, "properties": { "token": secret, "code": secret } });
        let content = json!({ "application/json": { "schema": schema } });
        sign_in.insert("requestBody".to_owned(), json!({ "required": true, "content": content }));
    }
    let gone = json!({ "description": "Signed out" });
    let mut sign_out = one("session_delete", "Sign out", ("204", gone));
    let also = json!({ "description": "Signed out of a session of single sign-on; where to sign out of the provider",
        "content": { "application/json": { "schema": { "type": "object",
            "required": ["end_session_url"],
            "properties": { "end_session_url": { "type": "string" } } } } } });
    if let Some(responses) = sign_out.get_mut("responses").and_then(Value::as_object_mut) {
        responses.insert("200".to_owned(), also);
    }
    json!({
        "get": one("session_get", "Who is signed in", ("200", who())),
        "post": sign_in,
        "delete": sign_out,
    })
}
