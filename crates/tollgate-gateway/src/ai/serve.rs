//! The road of a request for a model.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use tollgate_tower::openai::{error, kind_of, reshape};
use tollgate_tower::{
    Asked, Decide, Dialect, HeaderLines, Held, Identity, Line, Pass, Refused, Ruling, Unsent,
};

use super::answer::metered;
use super::ask::{Ask, Call, Wrong};
use super::door::keep_own_key;
use super::intake;
use super::is_verified;
use super::lanes::RECHECK;
use super::meter::{Estimate, Meter};
use super::models::Model;
use super::more::{self, AskMore};
use super::options::Overrun;
use super::text::TextSink;
use super::turn;
use crate::body::{GatewayBody, RequestBody};
use crate::fair::{Place, Wants};
use crate::gateway::ConnectionInfo;
use crate::respond::{Fault, own};
use crate::routes::Route;
use crate::worker::Worker;

/// The largest estimate: what can still be counted exactly everywhere.
const MAX_ESTIMATE: u64 = (1 << 53) - 1;

/// An answer is never expected to have less than this part of the default.
const LEAST_LEARNED: u64 = 4;

/// Tells the client which model answered, where it is not the one that it asked for.
const SERVED_MODEL: HeaderName = HeaderName::from_static("x-tollgate-model");

/// The user that a verified client says it acts for.
const END_USER: &str = "end_user";

type Refusal = Box<Response<Bytes>>;

/// A request for a model that was let pass.
struct Admitted<'m> {
    model: &'m Model,
    /// Its pool's place among pools, and its own place in the pool.
    pool: usize,
    place: Option<Place>,
    /// What rules know the model as.
    name: String,
    pass: Pass,
    /// Gives the charge back where the request is never sent.
    charge: Unsent,
    estimate: Estimate,
}

/// The call of the API that a request is, if it is one that is known.
pub(crate) fn call_of(parts: &Parts, asked: &Asked) -> Option<Call> {
    let path = asked.endpoint.as_deref().unwrap_or("/");
    Call::of_path(path).filter(|_| parts.method == Method::POST)
}

impl<D: Decide> Worker<D> {
    /// The models that are listed, where that is asked for and answered here.
    pub(crate) fn ai_list(&self, parts: &Parts, asked: &Asked) -> Option<Response<GatewayBody>> {
        let path = asked.endpoint.as_deref()?.trim_end_matches('/');
        let ai = &self.gateway.ai;
        if !ai.options.lists_models || parts.method != Method::GET {
            return None;
        }
        let describe = |name: &str| serde_json::json!({"id": name, "object": "model", "created": 0, "owned_by": "tollgate"});
        let body = if path.ends_with("/models") {
            let data: Vec<_> = ai.models.names().map(describe).collect();
            serde_json::json!({"object": "list", "data": data})
        } else {
            let (_, name) = path.rsplit_once("/models/")?;
            match ai.models.names().find(|known| *known == name) {
                Some(name) => describe(name),
                None => return Some(own(unknown_model(name))),
            }
        };
        let mut response = Response::new(Bytes::from(body.to_string()));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Some(own(response))
    }

    /// Answers a request for a model.
    pub(crate) async fn answer_ai(
        &self,
        call: Call,
        (parts, body): (Parts, Incoming),
        asked: Asked,
        route: &Route,
        connection: &ConnectionInfo,
    ) -> Response<GatewayBody> {
        match self.serve_ai(call, (parts, body), asked, route, connection).await {
            Ok(response) => response,
            Err(refusal) => own(*refusal),
        }
    }

    async fn serve_ai(
        &self,
        call: Call,
        (mut parts, body): (Parts, Incoming),
        mut asked: Asked,
        route: &Route,
        connection: &ConnectionInfo,
    ) -> Result<Response<GatewayBody>, Refusal> {
        let ai = &self.gateway.ai;
        if parts.headers.get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
            let message =
                "the body must not be compressed: its model and its length decide what it costs";
            return Err(refuse(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_encoding",
                message,
                None,
            ));
        }
        let (most, timeout) = (ai.options.max_body_bytes, ai.options.body_timeout);
        let body = RequestBody::from_client(body, route.timeouts.request_idle);
        // Until the answer begins, the body is here.
        let mut taken = ai.room.enter(ai.options.weights.of(&asked.identity).0);
        let body = intake::read(body, most, timeout, &mut taken).await;
        let body = body.map_err(|fault| unread(fault, most))?;
        let ask = Ask::read(call, &body).map_err(|wrong| bad_request(&wrong))?;
        let model =
            ai.models.find(&ask.model).ok_or_else(|| Box::new(unknown_model(&ask.model)))?;
        asked.dialect = Dialect::OpenAi;
        if let Some(user) = &ask.user
            && is_verified(&asked.identity)
        {
            asked.identity.extra.push((END_USER.to_owned(), user.clone().into_owned()));
        }
        let admitted = self.admit(&ask, model, &mut asked, &parts.headers, route).await?;
        let rewritten = ask.rewritten(admitted.model.sent_as(), admitted.model.asks_usage);
        let tops_up = ai.options.overrun == Overrun::TopUp && ask.is_stream;
        let more = tops_up.then(|| more::asker(&self.gateway, &asked));
        // One of the two is enough.
        let body = rewritten.map_or(body, Bytes::from);
        self.clean(&mut parts, connection);
        prepare(&mut parts.headers, body.len());
        keep_own_key(&mut parts.headers, &asked);
        let request = Box::new(Request::from_parts(parts, RequestBody::from(body)));
        let path = asked.endpoint.as_deref().unwrap_or("/");
        let is_other = !std::ptr::eq(admitted.model, model);
        let name = admitted.name.clone();
        let mut response = Box::pin(self.forward_ai(admitted, request, more, route, path)).await?;
        if is_other && let Ok(name) = HeaderValue::try_from(name) {
            response.headers_mut().insert(SERVED_MODEL, name);
        }
        Ok(response)
    }

    /// Decides about a model, and about those that may be served in its place.
    async fn admit<'m>(
        &'m self,
        ask: &Ask<'_>,
        first: &'m Model,
        asked: &mut Asked,
        headers: &HeaderMap,
        route: &Route,
    ) -> Result<Admitted<'m>, Refusal> {
        let ai = &self.gateway.ai;
        let mut model = first;
        loop {
            let estimate = self.estimate(ask, model, &asked.identity);
            let name = estimate.model.clone();
            asked.model_id = Some(name.clone());
            asked.tokens = Some(estimate.total().min(MAX_ESTIMATE));
            let (refusal, leads_on) = match self.decide_in_line(asked, headers).await {
                Ok((pass, charge)) => {
                    // Nobody has a place while it waits for something else.
                    if !pass.wait.is_zero() {
                        let waited = Box::pin(self.wait(pass.wait, None)).await;
                        waited.map_err(|fault| shaped(fault, &pass.headers))?;
                    }
                    let pool = model.pool.unwrap_or(route.pool);
                    match self.place(pool, model, &name, &asked.identity).await {
                        Ok(place) => {
                            return Ok(Admitted {
                                model,
                                pool,
                                place,
                                name,
                                pass,
                                charge,
                                estimate,
                            });
                        }
                        Err(refusal) => (refusal, true),
                    }
                }
                Err(refusal) => leads_on(model, refusal),
            };
            match ai.models.fallback(model) {
                Some(next) if leads_on => model = next,
                _ => return Err(Box::new(refusal)),
            }
        }
    }

    async fn decide_ai(
        &self,
        asked: &Asked,
        headers: &HeaderMap,
    ) -> Result<(Pass, Unsent), Response<Bytes>> {
        let decide = &self.gateway.decide;
        let ruling = match decide.decide_now(asked, headers) {
            Some(ruling) => ruling,
            None => Box::pin(decide.decide(asked, headers)).await,
        };
        match ruling {
            Ruling::Pass(mut pass) => {
                let charge = Unsent::new(pass.bill.take());
                Ok((pass, charge))
            }
            Ruling::Refuse(refusal) => Err(reshape(refusal)),
            // Whoever asks a model waits for the answer: it is not sent later.
            Ruling::Queue(postponed) => Err(reshape(postponed.refusal)),
        }
    }

    /// Decides; where nothing but a slot is missing, and its rule lets requests wait, as soon as it is this one's turn.
    async fn decide_in_line(
        &self,
        asked: &Asked,
        headers: &HeaderMap,
    ) -> Result<(Pass, Unsent), Response<Bytes>> {
        let ai = &self.gateway.ai;
        let decided = self.decide_ai(asked, headers).await;
        let line = match &decided {
            // Others wait for what this one got: it is given back, and waits behind them.
            Ok((pass, _)) => ai.lanes.crowded(&pass.lines).cloned(),
            Err(refusal) => waits_for(refusal),
        };
        let Some(line) = line else { return decided };
        let overtaken = decided.is_ok();
        drop(decided);
        Box::pin(self.wait_in_line(asked, headers, &line, overtaken)).await
    }

    async fn wait_in_line(
        &self,
        asked: &Asked,
        headers: &HeaderMap,
        line: &Line,
        gave_back: bool,
    ) -> Result<(Pass, Unsent), Response<Bytes>> {
        let ai = &self.gateway.ai;
        let name = asked.model_id.as_deref().unwrap_or_default();
        let deadline = tokio::time::Instant::now() + line.max_wait;
        let lane = ai.lanes.join(&line.lane);
        if gave_back {
            lane.freed.notify_one();
        }
        let (tenant, weight) = ai.options.weights.of(&asked.identity);
        let wants = Wants { share: 0, tenant, weight, cost: 1 };
        // Who has this place is the one that asks.
        let entered = lane.gate.enter(&wants, line.max_wait).await;
        let _first = entered.map_err(|why| turn::busy(why, name))?;
        loop {
            let refusal = match self.decide_ai(asked, headers).await {
                Ok(passed) => return Ok(passed),
                Err(refusal) => refusal,
            };
            if waits_for(&refusal).is_none_or(|other| other.lane != line.lane) {
                return Err(refusal);
            }
            if tokio::time::Instant::now() >= deadline {
                return Err(refusal);
            }
            tokio::select! {
                () = lane.freed.notified() => {}
                () = tokio::time::sleep(RECHECK) => {}
            }
        }
    }

    /// A place at a pool, where they are counted. A model that another can stand in for waits for none.
    async fn place(
        &self,
        pool: usize,
        model: &Model,
        name: &str,
        identity: &Identity,
    ) -> Result<Option<Place>, Response<Bytes>> {
        let Some(pool) = self.gateway.pools.get(pool) else { return Ok(None) };
        let (Some(gate), Some(options)) = (&pool.gate, &pool.options.places) else {
            return Ok(None);
        };
        let weights = &self.gateway.ai.options.weights;
        let patience = if model.fallback.is_some() { Duration::ZERO } else { options.max_wait };
        let entered = turn::enter(gate, options, weights, identity, patience).await;
        entered.map(Some).map_err(|why| turn::busy(why, name))
    }

    fn estimate(&self, ask: &Ask<'_>, model: &Model, identity: &Identity) -> Estimate {
        let ai = &self.gateway.ai;
        let name = if model.is_prefix { ask.model.as_ref() } else { &model.name };
        // Nobody is charged by what others ask for.
        let lesson = format!("{name} {}", ai.options.weights.of(identity).0);
        let mut prompt = TextSink::new(model.tariff);
        ask.prompt(&mut prompt);
        let each = if ask.call == Call::Embeddings {
            0
        } else {
            let learned = || ai.options.learns.then(|| ai.expectations.expected(&lesson)).flatten();
            // Short answers teach only so much: the next may be as long as any.
            let least = model.default_output / LEAST_LEARNED;
            let learned = || learned().map(|learned| learned.max(least));
            let each = ask.max_output.or_else(learned).unwrap_or(model.default_output);
            each.min(model.max_output)
        };
        Estimate {
            call: ask.call,
            model: name.to_owned(),
            lesson,
            prompt: prompt.total(),
            output: each.saturating_mul(ask.answers),
            answers: ask.answers,
            sink: TextSink::new(model.tariff),
            hides_usage: model.asks_usage
                && ask.is_stream
                && ask.call.has_stream_options()
                && !ask.wants_usage,
        }
    }

    /// What a request holds until its answer has ended; then those who wait for it are told.
    fn held(&self, held: Option<Held>, place: Option<Place>, lines: Vec<Line>) -> Option<Held> {
        if place.is_none() && lines.is_empty() {
            return held;
        }
        let lanes = Arc::clone(&self.gateway.ai.lanes);
        Some(Held::new(move || {
            drop((held, place));
            lanes.freed(&lines);
        }))
    }

    async fn forward_ai(
        &self,
        admitted: Admitted<'_>,
        request: Box<Request<RequestBody>>,
        more: Option<AskMore>,
        route: &Route,
        path: &str,
    ) -> Result<Response<GatewayBody>, Refusal> {
        let Admitted { pool: at, place, pass, charge, estimate, .. } = admitted;
        let Pass { headers, held, lines, .. } = pass;
        let held = self.held(held, place, lines);
        let outgoing = self.outgoing_to(route, at, path, request, None);
        let (pool, outgoing) = outgoing.map_err(|fault| shaped(fault, &headers))?;
        let ai = &self.gateway.ai;
        let expectations = ai.options.learns.then(|| Arc::clone(&ai.expectations));
        // From here on the upstream may do something for it: what it did is paid, also if the client leaves.
        let overrun = ai.options.overrun;
        let mut meter = Box::new(Meter::new(charge.sent(), estimate, expectations, overrun, more));
        let answered = match self.forward_to(route, at, pool, outgoing).await {
            Ok(answered) => answered,
            Err(fault) => {
                match fault {
                    Fault::NoUpstream => meter.not_sent(),
                    // It may still be at it: what it has read is paid, as by a client that leaves.
                    Fault::UpstreamTimeout => drop(meter),
                    _ => meter.not_served(),
                }
                return Err(shaped(fault, &headers));
            }
        };
        let mut response = metered(answered, meter, route);
        response.body_mut().hold(held);
        headers.put_into(response.headers_mut());
        Ok(response)
    }
}

/// What a refused request may wait for.
fn waits_for(refusal: &Response<Bytes>) -> Option<Line> {
    refusal.extensions().get::<Refused>().and_then(|refused| refused.line.clone())
}

/// A refusal, and whether the model's fallback is served in its place.
fn leads_on(model: &Model, refusal: Response<Bytes>) -> (Response<Bytes>, bool) {
    let rule = refusal.extensions().get::<Refused>().map(|it| it.rule_id.as_str());
    let is_listed = |rule: &str| model.fallback_rules.iter().any(|listed| listed == rule);
    let leads_on = rule.is_some_and(is_listed);
    (refusal, leads_on)
}

/// What a request's headers must say of a body that we have read, and of answers that we want to read.
fn prepare(headers: &mut HeaderMap, length: usize) {
    headers.remove(ACCEPT_ENCODING);
    headers.remove(CONTENT_ENCODING);
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
}

fn refuse(status: StatusCode, code: &str, message: &str, param: Option<&str>) -> Refusal {
    Box::new(error(status, kind_of(status), Some(code), message, param))
}

fn bad_request(wrong: &Wrong) -> Refusal {
    refuse(StatusCode::BAD_REQUEST, "invalid_request", &wrong.message, wrong.param)
}

fn unread(fault: Fault, most: usize) -> Refusal {
    if fault == Fault::BodyTooLarge {
        let message = format!("the body must not have more than {most} bytes");
        return refuse(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", &message, None);
    }
    Box::new(reshape(fault.problem()))
}

fn unknown_model(name: &str) -> Response<Bytes> {
    let shown: String = name.chars().take(100).collect();
    let message = format!("The model `{shown}` does not exist or you do not have access to it.");
    let (status, kind) = (StatusCode::NOT_FOUND, "invalid_request_error");
    error(status, kind, Some("model_not_found"), &message, Some("model"))
}

/// A fault with what the decision said.
fn shaped(fault: Fault, headers: &HeaderLines) -> Refusal {
    let mut response = reshape(fault.problem());
    for (name, value) in headers.iter() {
        if !response.headers().contains_key(name) {
            response.headers_mut().append(name.clone(), value.clone());
        }
    }
    Box::new(response)
}
