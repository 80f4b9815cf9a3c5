//! Calls about responses that were made in the background: reading, cancelling and deleting them.

use std::sync::Arc;

use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use tollgate_tower::{Decide, EdgeRequest, Pass, Rejection};

use super::access::clean_headers;
use super::answer::metered;
use super::ask::{Ask, Call};
use super::background::{self, Found, Owner, Source};
use super::expect::HistoryKey;
use super::meter::{Ending, Estimate, Meter, Metering};
use super::options::Overrun;
use super::paths::{ResponsePath, check_response_query};
use super::protocol::Protocol;
use super::serve::shaped;
use super::text::{Tariff, TextSink};
use crate::body::{GatewayBody, RequestBody};
use crate::gateway::ConnectionInfo;
use crate::respond::rejected;
use crate::routes::Route;
use crate::worker::Worker;

/// The response that a request is about, if it is about one.
pub(crate) fn response_of<'a>(
    parts: &Parts,
    asked: &'a EdgeRequest,
    route: &Route,
) -> Option<ResponsePath<'a>> {
    let path = asked.endpoint.as_deref().unwrap_or("/");
    let found = ResponsePath::read(path, route.bases(path))?;
    let is_known = match parts.method {
        Method::GET | Method::DELETE => !found.is_cancel,
        Method::POST => found.is_cancel,
        _ => false,
    };
    is_known.then_some(found)
}

impl<D: Decide> Worker<D> {
    /// What becomes of a request's charge; an error where it asks for the background, and has no room there.
    pub(super) fn ending(
        &self,
        ask: &Ask<'_>,
        asked: &EdgeRequest,
        source: Source,
    ) -> Result<Ending, Box<Rejection>> {
        if ask.call != Call::Responses {
            return Ok(Ending::Settle);
        }
        let background = Arc::clone(&self.gateway.ai.background);
        let (owner, is_wanted) = (Owner::of(&asked.identity), background::is_wanted(ask));
        if is_wanted && !background.has_room(&owner) {
            let (status, code) = (StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_BACKGROUND_RESPONSES");
            let message = "too many of your responses are remembered here; try again later";
            return Err(Box::new(Rejection::new(status, code, message).param("background")));
        }
        Ok(Ending::Keep { background, owner, source, is_wanted })
    }

    /// Answers a call about a response. None where it is none of this gateway's, and others may answer.
    pub(crate) async fn answer_response(
        &self,
        parts: &mut Parts,
        asked: &EdgeRequest,
        route: &Route,
        connection: &ConnectionInfo,
    ) -> Option<Response<GatewayBody>> {
        let protocol = route.protocol.filter(|it| *it == Protocol::OpenAi)?;
        let found = response_of(parts, asked, route)?;
        let ai = &self.gateway.ai;
        let source = match ai.background.find(found.id, &Owner::of(&asked.identity)) {
            Found::Own(source) => source,
            Found::Unknown if ai.forwards_others(protocol, asked) => return None,
            Found::Unknown | Found::Hidden => {
                return Some(rejected(unknown_response(found.id), protocol.format()));
            }
        };
        let id = found.id.to_owned();
        let answered = self.follow(id, source, parts, asked.clone(), route, connection).await;
        Some(answered.unwrap_or_else(|rejection| rejected(*rejection, protocol.format())))
    }

    async fn follow(
        &self,
        id: String,
        source: Source,
        parts: &mut Parts,
        asked: EdgeRequest,
        route: &Route,
        connection: &ConnectionInfo,
    ) -> Result<Response<GatewayBody>, Box<Rejection>> {
        let checked = check_response_query(parts.uri.query());
        checked.map_err(|message| {
            Box::new(Rejection::new(StatusCode::BAD_REQUEST, "UNKNOWN_QUERY", message))
        })?;
        // It is about work that was charged already, and a caller in debt must get at it.
        let dialect = Protocol::OpenAi.dialect();
        let asked = EdgeRequest { uses_no_tokens: true, dialect, ..asked };
        let pass = self.decide_ai(&asked).await?;
        let Pass { wait, headers, held, charge, .. } = pass;
        if !wait.is_zero() {
            let waited = Box::pin(self.wait(wait, &asked.identity)).await;
            waited.map_err(|fault| shaped(fault, &headers))?;
        }
        let is_delete = parts.method == Method::DELETE;
        let request = Box::new(self.outgoing_follow(parts, &asked, connection));
        let outgoing = self.outgoing_to(route, source.pool, request, None);
        let (pool, outgoing) = outgoing.map_err(|fault| shaped(fault, &headers))?;
        let mut meter = Box::new(self.meter_of(&id, &source));
        let sent = charge.sent();
        let answered = self.forward_to(route, source.pool, pool, outgoing, &sent).await;
        let answered = answered.map_err(|fault| shaped(fault, &headers))?;
        if is_delete {
            if answered.response.status().is_success() {
                self.gateway.ai.background.delete(&id);
            }
            meter.not_served();
        }
        let response = metered(answered, meter, route);
        let mut response = response.map_err(|fault| shaped(fault, &headers))?;
        response.body_mut().hold(held);
        headers.put_into(response.headers_mut());
        Ok(response)
    }

    /// The call as the upstream gets it: without a body, which none of these calls needs.
    fn outgoing_follow(
        &self,
        parts: &mut Parts,
        asked: &EdgeRequest,
        connection: &ConnectionInfo,
    ) -> Request<RequestBody> {
        self.clean(parts, connection);
        let headers = &mut parts.headers;
        clean_headers(headers, asked);
        headers.remove(TRANSFER_ENCODING);
        headers.remove(CONTENT_TYPE);
        headers.remove(CONTENT_LENGTH);
        if parts.method == Method::POST {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
        }
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        Request::from_parts(parts.clone(), RequestBody::empty())
    }

    /// Reads out of the answer what the response used.
    fn meter_of(&self, id: &str, source: &Source) -> Meter {
        let estimate = Estimate {
            call: Call::Responses,
            model: String::new(),
            history_key: HistoryKey::default(),
            prompt: source.prompt,
            uncorrected: source.prompt,
            output: 0,
            bound: None,
            thinking: 0,
            asks_thinking: false,
            answers: 1,
            prompts: 1,
            sink: TextSink::new(Tariff::default()),
            hides_usage: false,
            is_extended: false,
            may_hear: false,
            may_speak: false,
        };
        let sent = crate::forward::SentFlag::default();
        sent.set();
        let background = Arc::clone(&self.gateway.ai.background);
        let how = Metering {
            expectations: None,
            learns: false,
            overrun: Overrun::Run,
            more: None,
            sent,
            max_usage: source.max_usage,
            shown_name: source.shown_name.clone(),
            ending: Ending::Follow { background, id: id.to_owned() },
        };
        Meter::new(None, estimate, how)
    }
}

/// To a caller that asks for a response that is not its own.
fn unknown_response(id: &str) -> Rejection {
    let shown: String = id.chars().take(100).collect();
    let message = format!("Response with id '{shown}' not found.");
    Rejection::new(StatusCode::NOT_FOUND, "RESPONSE_NOT_FOUND", message)
}
