//! The admin API of a running server.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use tollgate_server::config::{ClientCertificates, HttpListener};

use crate::args::{HealthArgs, Reach};
use crate::client::{Answer, Call, Caller, TlsFiles};
use crate::failure::Failure;
use crate::ready::{self, variable};

/// The server that is asked by default.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// What every admin path begins with.
pub(crate) const PREFIX: &str = "/admin/api/v1/rate-limits/";

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// For calls that change many things at once.
pub(crate) const LONG_TIMEOUT: Duration = Duration::from_secs(60);

/// Entries of a page: as many as the server gives.
const PAGE: usize = 1_000;

/// What need not be escaped in a path or a query.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Escapes a segment of a path, or a value of a query.
pub(crate) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// A query: those parameters that have a value, after a question mark.
pub(crate) fn query(parameters: &[(&str, Option<&str>)]) -> String {
    let given = parameters.iter().filter_map(|(name, value)| Some((name, (*value)?)));
    let pairs: Vec<String> =
        given.map(|(name, value)| format!("{name}={}", escaped(value))).collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

/// A state that the server reports to operators.
pub(crate) struct Incident {
    pub(crate) kind: String,
    pub(crate) message: String,
}

/// A server, and how it is asked.
pub(crate) struct Server {
    caller: Caller,
}

impl Server {
    pub(crate) fn new(reach: &Reach) -> Self {
        let url = reach.url.clone().or_else(|| variable("TOLLGATE_URL"));
        let token = reach.token.clone().or_else(|| variable("TOLLGATE_TOKEN"));
        let url = url.unwrap_or_else(|| DEFAULT_URL.to_owned());
        Self { caller: Caller::new(url, token, TlsFiles::new(&reach.tls)) }
    }

    /// The server that a probe asks: the one at the URL, else the one of this machine that the
    /// configuration describes.
    pub(crate) fn to_probe(args: &HealthArgs) -> Result<Self, Failure> {
        let tls = TlsFiles::new(&args.tls);
        let given = args.url.clone().or_else(|| variable("TOLLGATE_URL"));
        if let Some(url) = given.filter(|_| args.config.is_none()) {
            return Ok(Self { caller: Caller::new(url, None, tls) });
        }
        let listener = ready::http_listener(args.config.as_deref())?;
        if listener.address.port() == 0 {
            return Err(Failure::usage(anyhow!(
                "the configuration lets the server pick a free port: say which as --url"
            )));
        }
        let tls = tls.for_own_server(own_certificate(&listener));
        Ok(Self { caller: Caller::new(listener.url(), None, tls) })
    }

    /// Fails if no token was given, for calls that no server answers without one.
    pub(crate) fn need_token(&self) -> Result<(), Failure> {
        if self.caller.has_token() {
            return Ok(());
        }
        Err(Failure::usage(anyhow!(
            "this needs an admin token: set TOLLGATE_TOKEN, or pass --token (the first start of the \
             server printed one, and `tollgate token create` makes more)"
        )))
    }

    /// The server's URL.
    pub(crate) fn url(&self) -> &str {
        &self.caller.url
    }

    /// Any call, whatever its answer.
    pub(crate) fn ask(
        &self,
        method: &'static str,
        path: &str,
        body: Option<&str>,
    ) -> Result<Answer, Failure> {
        let call = Call { method, path, body, if_match: None, timeout: ANSWER_TIMEOUT };
        self.caller.ask(&call)
    }

    pub(crate) fn get(&self, path: &str) -> Result<Value, Failure> {
        self.call("GET", path, None)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.call("POST", path, Some(body))
    }

    pub(crate) fn put(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.call("PUT", path, Some(body))
    }

    pub(crate) fn delete(&self, path: &str) -> Result<Value, Failure> {
        self.call("DELETE", path, None)
    }

    fn call(
        &self,
        method: &'static str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let body = body.map(Value::to_string);
        let answer = self.ask(method, &format!("{PREFIX}{path}"), body.as_deref())?;
        self.value(&answer)
    }

    /// A call that changes many things, if the revision is still this one.
    pub(crate) fn post_many(
        &self,
        path: &str,
        body: &Value,
        if_match: Option<i64>,
    ) -> Result<Value, Failure> {
        let (path, body) = (format!("{PREFIX}{path}"), body.to_string());
        let call = Call {
            method: "POST",
            path: &path,
            body: Some(&body),
            if_match,
            timeout: LONG_TIMEOUT,
        };
        let answer = self.caller.ask(&call)?;
        if answer.status == 412 && if_match.is_some() {
            return Err(Failure::Failed(anyhow!(
                "someone changed the rules meanwhile, so they were left alone: run it again to see what \
                 would change now"
            )));
        }
        self.value(&answer)
    }

    /// The states that the server reports to operators. The list is empty if the token may not read it,
    /// or the server is an older one.
    pub(crate) fn incidents(&self) -> Vec<Incident> {
        let Ok(node) = self.get("node") else { return Vec::new() };
        let incidents = node.get("incidents").and_then(Value::as_array);
        let text = |incident: &Value, name: &str| Some(printable(incident.get(name)?.as_str()?));
        let read = |incident: &Value| {
            let (kind, message) = (text(incident, "kind")?, text(incident, "message")?);
            Some(Incident { kind, message })
        };
        incidents.into_iter().flatten().filter_map(read).collect()
    }

    /// All entries of a list, page by page.
    pub(crate) fn list(
        &self,
        path: &str,
        parameters: &[(&str, Option<&str>)],
    ) -> Result<Vec<Value>, Failure> {
        self.list_some(path, parameters, usize::MAX)
    }

    /// The first entries of a list.
    pub(crate) fn list_some(
        &self,
        path: &str,
        parameters: &[(&str, Option<&str>)],
        most: usize,
    ) -> Result<Vec<Value>, Failure> {
        let mut all = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let limit = (most - all.len()).min(PAGE).to_string();
            let mut parameters = parameters.to_vec();
            parameters.extend([("limit", Some(limit.as_str())), ("cursor", cursor.as_deref())]);
            let mut page = self.get(&format!("{path}{}", query(&parameters)))?;
            let Some(Value::Array(items)) = page.get_mut("items").map(Value::take) else {
                return Err(Failure::Failed(anyhow!("the answer of {} is no list", self.url())));
            };
            let is_empty = items.is_empty();
            all.extend(items);
            cursor = page.get("next_cursor").and_then(Value::as_str).map(str::to_owned);
            if cursor.is_none() || is_empty || all.len() >= most {
                return Ok(all);
            }
        }
    }

    /// The content of an answer, or what the server has against the call.
    fn value(&self, answer: &Answer) -> Result<Value, Failure> {
        let body: Result<Value, _> = serde_json::from_slice(&answer.body);
        if (200..300).contains(&answer.status) {
            let odd = || format!("the answer of {} is not JSON; is that Tollgate?", self.url());
            return Ok(body.with_context(odd)?);
        }
        let problem = body.unwrap_or_default();
        let hint = self.hint(answer.status, problem.get("code").and_then(Value::as_str));
        let hint = hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
        let error = anyhow!("{} (status {}){hint}", complaint(&problem), answer.status);
        // What the server calls a bad request was typed here.
        Err(if answer.status == 400 { Failure::Usage(error) } else { Failure::Failed(error) })
    }

    fn hint(&self, status: u16, code: Option<&str>) -> Option<String> {
        Some(match (status, code) {
            (401, _) if !self.caller.has_token() => {
                "no token was given: set TOLLGATE_TOKEN, or pass --token".to_owned()
            }
            (401, _) => {
                "this server does not know the token, or it was revoked or has expired".to_owned()
            }
            (403, _) => "`tollgate token list` shows what tokens may do".to_owned(),
            (503, Some("DATABASE_UNAVAILABLE")) => {
                "the server cannot reach its database; nothing was changed, try again later"
                    .to_owned()
            }
            (404 | 405, None) => format!(
                "{} may serve no admin API: the server's first line says where it is, as admin=…",
                self.url()
            ),
            _ => return None,
        })
    }
}

/// The certificate of a server that asks clients for one: its probe shows the same.
fn own_certificate(listener: &HttpListener) -> Option<(PathBuf, PathBuf)> {
    let tls = &listener.tls;
    let pair = tls.cert_file.clone().zip(tls.key_file.clone());
    pair.filter(|_| tls.client_certificates != ClientCertificates::Off)
}

/// Everything that the server says is wrong, with its fields.
fn complaint(problem: &Value) -> String {
    let one = |error: &Value| {
        let message = error.get("message")?.as_str()?;
        let field = error.get("field").and_then(Value::as_str);
        Some(field.map_or_else(|| message.to_owned(), |field| format!("{field}: {message}")))
    };
    let all: Vec<String> = match problem.get("errors").and_then(Value::as_array) {
        Some(errors) => errors.iter().filter_map(one).collect(),
        None => problem.get("error").and_then(one).into_iter().collect(),
    };
    let text = if all.is_empty() { "it does not say why".to_owned() } else { all.join("\n") };
    printable(&text)
}

/// Text of a server, in which what a terminal would obey is escaped, but line feeds.
pub(crate) fn printable(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(crate::output::visible).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn queries_have_what_was_given() {
        assert_eq!(query(&[("a", None)]), "");
        assert_eq!(
            query(&[("a", Some("x y&z")), ("b", None), ("c", Some("1"))]),
            "?a=x%20y%26z&c=1"
        );
        assert_eq!(escaped("ip:10.0.0.0/8"), "ip%3A10.0.0.0%2F8");
    }

    #[test]
    fn complaints_name_every_field() {
        let problem = json!({"errors": [{"field": "limit", "message": "must be 1 or more"},
            {"message": "is odd\u{1b}"}], "error": {"message": "not this"}});
        assert_eq!(complaint(&problem), "limit: must be 1 or more\nis odd\\u{1b}");
        assert_eq!(complaint(&json!({"error": {"message": "no"}})), "no");
        assert_eq!(complaint(&Value::Null), "it does not say why");
    }
}
