//! The road of a request for a model.

use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_ENCODING;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use tollgate_tower::{
    Decide, EdgeRequest, EdgeUsage, HeaderLines, Held, Identity, Line, Pass, Rejection,
};

use super::access::clean_headers;
use super::answer::metered;
use super::ask::{Ask, Call, Wrong};
use super::background::Source;
use super::expect::HistoryKey;
use super::intake::{self, Taken};
use super::is_verified;
use super::lanes::RECHECK;
use super::list::unknown_model;
use super::meter::{Ending, Estimate, Meter, Metering};
use super::models::Model;
use super::more::{self, AskMore};
use super::options::Overrun;
use super::outgoing::ModelRequest;
use super::paths::CallPath;
use super::protocol::Protocol;
use super::text::{EstimateMode, Tariff, TextSink};
use super::thinking::Thinking;
use super::turn;
use crate::body::{GatewayBody, RequestBody};
use crate::fair::{Place, Wants};
use crate::gateway::ConnectionInfo;
use crate::respond::{Fault, rejected};
use crate::routes::Route;
use crate::worker::Worker;

/// The largest estimate: what can still be counted exactly everywhere.
const MAX_ESTIMATE: u64 = (1 << 53) - 1;

/// An answer is never expected to have less than this part of the default.
const LEAST_LEARNED: u64 = 4;

/// Names the model that answered, where it is not the one that the client asked for.
const SERVED_MODEL: HeaderName = HeaderName::from_static("x-tollgate-model");

/// The code of refusals of a model that a key may not use.
const MODEL_NOT_ALLOWED: &str = "MODEL_NOT_ALLOWED";

/// The user that a verified client says it acts for.
const END_USER: &str = "end_user";

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
    estimate: Estimate,
}

/// The call of the API that a request is, if it is one that is known.
pub(crate) fn call_of(
    protocol: Protocol,
    parts: &Parts,
    asked: &EdgeRequest,
    route: &Route,
) -> Option<CallPath> {
    let path = asked.endpoint.as_deref().unwrap_or("/");
    let is_post = parts.method == Method::POST;
    CallPath::read(protocol, path, route.bases(path)).filter(|_| is_post)
}

impl<D: Decide> Worker<D> {
    /// Answers a request for a model.
    pub(crate) async fn answer_ai(
        &self,
        call: CallPath,
        (parts, body): (Parts, Incoming),
        asked: EdgeRequest,
        route: &Route,
        connection: &ConnectionInfo,
    ) -> Response<GatewayBody> {
        let format = call.call.protocol().format();
        match self.serve_ai(call, (parts, body), asked, route, connection).await {
            Ok(response) => response,
            Err(rejection) => rejected(*rejection, format),
        }
    }

    async fn serve_ai(
        &self,
        call: CallPath,
        (mut parts, body): (Parts, Incoming),
        mut asked: EdgeRequest,
        route: &Route,
        connection: &ConnectionInfo,
    ) -> Result<Response<GatewayBody>, Box<Rejection>> {
        let ai = &self.gateway.ai;
        if parts.headers.get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
            let message =
                "the body must not be compressed: its model and its length decide what it costs";
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Err(Box::new(Rejection::new(status, "UNSUPPORTED_ENCODING", message)));
        }
        let (most, timeout) = (ai.options.max_body_bytes, ai.options.body_timeout);
        let body = RequestBody::from_client(body, &route.timeouts);
        // Until the answer begins, the body is here.
        let mut taken = ai.room.enter(&ai.options.weights.of(&asked.identity).0);
        let body = intake::read(body, most, timeout, &mut taken).await;
        let body = body.map_err(|fault| unread(fault, most))?;
        asked.dialect = call.call.protocol().dialect();
        // What only counts tokens uses none.
        asked.uses_no_tokens = call.call == Call::CountTokens;
        self.clean(&mut parts, connection);
        clean_headers(&mut parts.headers, &asked);
        let path = asked.endpoint.clone().unwrap_or_default();
        let request = ModelRequest { call, path, parts, body };
        Box::pin(self.serve_model(request, taken, asked, route)).await
    }

    /// Has a request answered by its model, or by those that may be served in its place.
    async fn serve_model(
        &self,
        request: ModelRequest,
        mut taken: Taken,
        mut asked: EdgeRequest,
        route: &Route,
    ) -> Result<Response<GatewayBody>, Box<Rejection>> {
        let ai = &self.gateway.ai;
        let (mut first, mut left, mut before) = (None, Some(request), None);
        while let Some(request) = left.take() {
            let ask = Ask::read(request.call.call, &request.body, request.path_model());
            let ask = ask.map_err(|wrong| bad_request(&wrong))?;
            let model = ai.models.find(&ask.model);
            let model = model.ok_or_else(|| Box::new(unknown_model(&ask.model)))?;
            if first.is_none() {
                add_end_user(&mut asked.identity, &ask);
            }
            let first_tried = first.unwrap_or(model);
            ask.check_history(&first_tried.tariff).map_err(|wrong| bad_request(&wrong))?;
            let admitted = self.admit(&ask, first_tried, &mut asked, route).await;
            let admitted = admitted.map_err(|refusal| allowed_refusal(refusal, before.take()))?;
            let (served, name) = (admitted.model, admitted.name.clone());
            // Kept for the next model, where there is room for two bodies.
            let next = ai.models.fallback(served).filter(|_| taken.grow(2 * request.body.len()));
            left = next.map(|_| request.again());
            let bound = admitted.estimate.bound;
            let tops_up = ai.options.overrun == Overrun::TopUp || bound.is_some();
            let more = (tops_up && ask.is_stream).then(|| more::asker(&self.gateway, &asked));
            let bound = bound.map(|most| (served.bound_field, most));
            let rewritten = ask.rewritten(served.sent_as(), served.asks_usage, bound);
            let is_other = !std::ptr::eq(served, model);
            let source = Source {
                pool: admitted.pool,
                prompt: admitted.estimate.prompt,
                max_usage: served.max_usage,
                shown_name: served.shown_name.clone(),
            };
            let ending = self.ending(&ask, &asked, source)?;
            let outgoing = Box::new(request.outgoing(served.sent_as(), rewritten));
            match Box::pin(self.forward_ai(admitted, outgoing, (more, ending), route)).await {
                Ok(mut response) => {
                    if is_other && let Ok(name) = HeaderValue::try_from(name) {
                        response.headers_mut().insert(SERVED_MODEL, name);
                    }
                    return Ok(response);
                }
                // Nothing was sent, and everything was refunded.
                Err((Fault::NoUpstream, refusal)) if left.is_some() => {
                    (first, before) = (next, Some(refusal));
                }
                Err((_, refusal)) => return Err(refusal),
            }
        }
        Err(Box::new(Fault::NoUpstream.rejection()))
    }

    /// Decides about a model, and about those that may be served in its place.
    async fn admit<'m>(
        &'m self,
        ask: &Ask<'_>,
        first: &'m Model,
        asked: &mut EdgeRequest,
        route: &Route,
    ) -> Result<Admitted<'m>, Box<Rejection>> {
        let ai = &self.gateway.ai;
        let (mut model, mut before) = (first, None);
        loop {
            let pool = model.pool.unwrap_or(route.pool);
            if let Some(next) = ai.models.fallback(model)
                && self.is_down(pool)
            {
                before.get_or_insert_with(|| Box::new(Fault::NoUpstream.rejection()));
                model = next;
                continue;
            }
            let name = model.known_as(&ask.model).to_owned();
            asked.model_id = Some(name.clone());
            let is_hard = !asked.uses_no_tokens && self.gateway.decide.meets_hard_budget(asked);
            if is_hard {
                ask.check_bounds().map_err(|wrong| bad_request(&wrong))?;
            }
            let estimate = self.estimate(ask, model, &asked.identity, is_hard);
            let tokens = (!asked.uses_no_tokens).then(|| estimate.total());
            asked.tokens = tokens.map(|tokens| tokens.min(MAX_ESTIMATE));
            asked.usage = (!asked.uses_no_tokens).then(|| EdgeUsage {
                input: estimate.prompt.min(MAX_ESTIMATE),
                output: estimate.output.min(MAX_ESTIMATE),
                may_hear: estimate.may_hear,
                may_speak: estimate.may_speak,
            });
            let (refusal, leads_on) = match self.decide_in_line(asked).await {
                Ok(pass) => {
                    // Nobody has a place while it waits for something else.
                    if !pass.wait.is_zero() {
                        let waited = Box::pin(self.wait(pass.wait, &asked.identity)).await;
                        waited.map_err(|fault| shaped(fault, &pass.headers))?;
                    }
                    match self.place(pool, model, &name, &asked.identity).await {
                        Ok(place) => {
                            return Ok(Admitted { model, pool, place, name, pass, estimate });
                        }
                        Err(rejection) => (Box::new(rejection), true),
                    }
                }
                Err(refusal) => leads_on(model, refusal),
            };
            match ai.models.fallback(model) {
                Some(next) if leads_on => {
                    before.get_or_insert(refusal);
                    model = next;
                }
                _ => return Err(allowed_refusal(refusal, before)),
            }
        }
    }

    /// Whether no target of a pool takes requests: all are unhealthy, or failed a moment ago.
    fn is_down(&self, pool: usize) -> bool {
        let targets = self.gateway.pools.get(pool).map(|pool| &pool.targets);
        targets.is_none_or(|targets| targets.iter().all(|target| !target.is_available()))
    }

    /// Decides. A client of a model waits for the answer, so no request is sent later.
    pub(super) async fn decide_ai(&self, asked: &EdgeRequest) -> Result<Pass, Box<Rejection>> {
        let decide = &self.gateway.decide;
        let ruling = match decide.decide_now(asked) {
            Some(ruling) => ruling,
            None => Box::pin(decide.decide(asked)).await,
        };
        ruling.passed()
    }

    /// Decides; where nothing but a slot is missing, and its rule lets requests wait, as soon as it is this one's turn.
    async fn decide_in_line(&self, asked: &EdgeRequest) -> Result<Pass, Box<Rejection>> {
        let ai = &self.gateway.ai;
        let decided = self.decide_ai(asked).await;
        let line = match &decided {
            // Others wait for what this one got: it is given back, and waits behind them.
            Ok(pass) => ai.lanes.crowded(&pass.lines).cloned(),
            Err(rejection) => rejection.line().cloned(),
        };
        let Some(line) = line else { return decided };
        let overtaken = decided.is_ok();
        drop(decided);
        Box::pin(self.wait_in_line(asked, &line, overtaken)).await
    }

    async fn wait_in_line(
        &self,
        asked: &EdgeRequest,
        line: &Line,
        gave_back: bool,
    ) -> Result<Pass, Box<Rejection>> {
        let ai = &self.gateway.ai;
        let name = asked.model_id.as_deref().unwrap_or_default();
        let deadline = tokio::time::Instant::now() + line.max_wait;
        let lane = ai.lanes.join(&line.lane);
        if gave_back {
            lane.freed.notify_one();
        }
        let (tenant, weight) = ai.options.weights.of(&asked.identity);
        let wants = Wants { share: 0, tenant: &tenant, weight, cost: 1 };
        // Who has this place is the one that asks.
        let entered = lane.gate.enter(&wants, line.max_wait).await;
        let _first = entered.map_err(|why| Box::new(turn::busy(why, name)))?;
        loop {
            let rejection = match self.decide_ai(asked).await {
                Ok(passed) => return Ok(passed),
                Err(rejection) => rejection,
            };
            let waits = rejection.line().is_some_and(|other| other.lane == line.lane);
            if !waits || tokio::time::Instant::now() >= deadline {
                return Err(rejection);
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
    ) -> Result<Option<Place>, Rejection> {
        let Some(pool) = self.gateway.pools.get(pool) else { return Ok(None) };
        let (Some(gate), Some(options)) = (&pool.gate, &pool.options.places) else {
            return Ok(None);
        };
        let weights = &self.gateway.ai.options.weights;
        let patience = if model.fallback.is_some() { Duration::ZERO } else { options.max_wait };
        let entered = turn::enter(gate, options, weights, identity, patience).await;
        entered.map(Some).map_err(|why| turn::busy(why, name))
    }

    /// What a request is thought to use; for a hard budget, the most that it can.
    fn estimate(
        &self,
        ask: &Ask<'_>,
        model: &Model,
        identity: &Identity,
        is_hard: bool,
    ) -> Estimate {
        let ai = &self.gateway.ai;
        let name = model.known_as(&ask.model);
        // Nobody is charged by what others ask for.
        let tenant = ai.options.weights.of(identity).0;
        let history_key = HistoryKey { model: name.to_owned(), tenant };
        let bounded = Tariff { estimate: EstimateMode::UpperBound, ..model.tariff };
        let mut prompt = TextSink::new(if is_hard { bounded } else { model.tariff });
        ask.prompt(&mut prompt);
        // What most answers had is no bound.
        let learns = ai.options.learns && !is_hard;
        let correction = if learns { ai.expectations.correction(&history_key) } else { 1_000 };
        let usual = || {
            let learned = || learns.then(|| ai.expectations.expected(&history_key)).flatten();
            // Short answers teach only so much: the next may be as long as any.
            let least = model.default_output / LEAST_LEARNED;
            learned().map_or(model.default_output, |learned| learned.max(least))
        };
        let each = ask.longest_answer(usual).min(model.max_output);
        Estimate {
            call: ask.call,
            model: name.to_owned(),
            history_key,
            prompt: prompt.corrected(correction),
            uncorrected: prompt.total(),
            output: each.saturating_mul(ask.answers),
            bound: is_hard.then_some(each),
            thinking: ask.thinking.saturating_mul(ask.answers),
            asks_thinking: ask.asks_thinking
                || model.sent_as().is_some_and(|name| Thinking::of_name(name).is_asked),
            answers: ask.answers,
            prompts: ask.prompts,
            sink: prompt.for_answer(),
            hides_usage: model.asks_usage
                && ask.is_stream
                && ask.call.has_stream_options()
                && !ask.wants_usage,
            is_extended: ask.call == Call::Messages && ask.stored_field().is_some(),
            may_hear: !prompt.is_text(),
            // What is not known here may ask for sound, too.
            may_speak: ask.may_speak() || !prompt.is_text(),
        }
    }

    /// What a request holds until its answer has ended; then the requests that wait for it are woken.
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
        (more, ending): (Option<AskMore>, Ending),
        route: &Route,
    ) -> Result<Response<GatewayBody>, (Fault, Box<Rejection>)> {
        let Admitted { model, pool: at, place, pass, estimate, .. } = admitted;
        let Pass { headers, held, lines, charge, .. } = pass;
        let held = self.held(held, place, lines);
        let outgoing = self.outgoing_to(route, at, request, None);
        let (pool, outgoing) = outgoing.map_err(|fault| (fault, shaped(fault, &headers)))?;
        let ai = &self.gateway.ai;
        let expectations = Some(Arc::clone(&ai.expectations));
        // As soon as it is sent the upstream may work on it, and that is paid, also if the client leaves.
        let how = Metering {
            expectations,
            learns: ai.options.learns,
            overrun: if estimate.bound.is_some() { Overrun::TopUp } else { ai.options.overrun },
            more,
            sent: outgoing.sent.clone(),
            max_usage: model.max_usage,
            shown_name: model.shown_name.clone(),
            ending,
        };
        let mut sent = charge.sent();
        let mut meter = Box::new(Meter::new(sent.take_pending(), estimate, how));
        let answered = match self.forward_to(route, at, pool, outgoing, &sent).await {
            Ok(answered) => answered,
            Err(fault) => {
                // Unless nothing was sent, it may have been read, or may still be at work: the prompt is paid.
                if fault == Fault::NoUpstream {
                    meter.not_sent();
                } else {
                    meter.breaks();
                }
                return Err((fault, shaped(fault, &headers)));
            }
        };
        let response = metered(answered, meter, route);
        let mut response = response.map_err(|fault| (fault, shaped(fault, &headers)))?;
        response.body_mut().hold(held);
        headers.put_into(response.headers_mut());
        Ok(response)
    }
}

/// Adds the user that a verified client acts for.
fn add_end_user(identity: &mut Identity, ask: &Ask<'_>) {
    if let Some(user) = &ask.user
        && is_verified(identity)
    {
        identity.extra.push((END_USER.to_owned(), user.clone().into_owned()));
    }
}

/// A refusal, and whether the model's fallback is served in its place.
fn leads_on(model: &Model, rejection: Box<Rejection>) -> (Box<Rejection>, bool) {
    let is_listed = |rule: &str| model.fallback_rules.iter().any(|listed| listed == rule);
    let leads_on = rejection.rule_id().is_some_and(is_listed);
    (rejection, leads_on)
}

/// How a request is refused that another model might have been served for. A client that may not use that one did not ask
/// for it: it gets the refusal `before`.
fn allowed_refusal(refusal: Box<Rejection>, before: Option<Box<Rejection>>) -> Box<Rejection> {
    before.filter(|_| refusal.code == MODEL_NOT_ALLOWED).unwrap_or(refusal)
}

fn bad_request(wrong: &Wrong) -> Box<Rejection> {
    let message = wrong.message.clone();
    let mut rejection = Rejection::new(StatusCode::BAD_REQUEST, "INVALID_REQUEST", message);
    rejection.param = wrong.param;
    Box::new(rejection)
}

fn unread(fault: Fault, most: usize) -> Box<Rejection> {
    if fault == Fault::BodyTooLarge {
        let message = format!("the body must not have more than {most} bytes");
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        return Box::new(Rejection::new(status, "BODY_TOO_LARGE", message));
    }
    Box::new(fault.rejection())
}

/// A fault with the headers of the decision.
pub(super) fn shaped(fault: Fault, headers: &HeaderLines) -> Box<Rejection> {
    let mut rejection = fault.rejection();
    rejection.headers.extend(headers);
    Box::new(rejection)
}
