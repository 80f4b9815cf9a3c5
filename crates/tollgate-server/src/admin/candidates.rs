//! Candidates of rules: how often they agree with the limits in force, and the steps of their rollout.

use http::StatusCode;
use serde_json::{Value, json};
use tollgate_control::{CandidateStep, ControlError, Kind};
use tollgate_policy::{AgreementCounts, Rollout};

use super::entries::dry_run;
use super::openapi::{Described, put_answer};
use super::read::{Query, body};
use super::respond::{AdminError, Answer};
use super::routes::Call;
use super::schemas::{reference, text};
use super::{Admin, Asked};
use tollgate_control::draft::rfc3339;

/// Nanoseconds in a millisecond.
const NANOS_PER_MILLI: u64 = 1_000_000;

impl Admin {
    /// The candidate of a rule as this node tries it.
    pub(super) fn candidate(&self, asked: &Asked) -> Result<Answer, AdminError> {
        Query::new(&asked.query)?.end()?;
        let (id, rules) = (asked.id(), self.engine.rules());
        let rule = rules.set.rule(id);
        let Some(candidate) = rule.and_then(|rule| rule.candidate.as_ref()) else {
            return Err(ControlError::NotFound("candidate of a rule", id.to_owned()).into());
        };
        let now = u64::try_from(asked.now).unwrap_or(0).saturating_mul(NANOS_PER_MILLI);
        let percent = |share: u16| f64::from(share) / 100.0;
        let share = candidate.rollout.share(now).map(percent);
        let (tenants, steps) = match &candidate.rollout {
            Rollout::Share(_) => (None, None),
            Rollout::Tenants(tenants) => (Some(tenants), None),
            Rollout::Schedule(steps) => {
                let step = |(from, share): &(u64, u16)| {
                    let from = i64::try_from(from / NANOS_PER_MILLI).unwrap_or(i64::MAX);
                    json!({ "from": rfc3339(from), "percent": percent(*share) })
                };
                (None, Some(steps.iter().map(step).collect::<Vec<_>>()))
            }
        };
        let AgreementCounts { both_allow, both_refuse, only_live_refuses, only_candidate_refuses } =
            candidate.agreement.counts();
        Ok(Answer::ok(json!({
            "rule_id": id, "percent": share, "tenants": tenants, "schedule": steps,
            "agreement": {
                "both_allow": both_allow, "both_refuse": both_refuse,
                "only_live_refuses": only_live_refuses,
                "only_candidate_refuses": only_candidate_refuses,
            },
        })))
    }

    /// Promotes, halts or widens a candidate.
    pub(super) async fn change_candidate(&self, asked: &Asked) -> Result<Answer, AdminError> {
        let how = Self::how(asked)?;
        let step = match asked.route.call {
            Call::PromoteCandidate => CandidateStep::Promote,
            Call::HaltCandidate => CandidateStep::Halt,
            _ => CandidateStep::Advance(percent_of(asked)?),
        };
        if !matches!(step, CandidateStep::Advance(_)) && !is_empty(&asked.body) {
            return Err(AdminError::invalid("body", "must be empty, or {}"));
        }
        let id = asked.id();
        let changed = self.control.change_candidate(&asked.actor, id, step, &how).await?;
        if how.is_dry {
            return Ok(Answer::ok(dry_run(&changed, Kind::Rule, id)));
        }
        let mut answer = self.answer_put(asked, &changed, Kind::Rule, id).await?;
        (answer.status, answer.location) = (StatusCode::OK, None);
        Ok(answer)
    }
}

fn is_empty(body: &[u8]) -> bool {
    body.is_empty() || serde_json::from_slice(body).is_ok_and(|value: Value| value == json!({}))
}

fn percent_of(asked: &Asked) -> Result<f64, AdminError> {
    let body = body(&asked.body)?;
    let percent = body.get("percent").and_then(Value::as_f64);
    let is_alone = body.as_object().is_some_and(|fields| fields.len() == 1);
    percent.filter(|percent| is_alone && (0.0..=100.0).contains(percent)).ok_or_else(|| {
        AdminError::invalid("percent", "must be a number from 0 to 100, and the only field")
    })
}

/// What a call takes and answers.
pub(super) fn describe(call: Call) -> Described {
    let step = |summary, body: Option<(Value, Value)>| Described {
        body,
        changes: true,
        ..Described::plain(summary, put_answer(Kind::Rule))
    };
    match call {
        Call::PromoteCandidate => {
            step("Put a candidate's limits in force, with what it has counted", None)
        }
        Call::HaltCandidate => step("Let a candidate enforce for nobody; it is still tried", None),
        Call::AdvanceCandidate => {
            let schema = json!({ "type": "object", "required": ["percent"],
                "additionalProperties": false,
                "properties": { "percent": { "type": "number", "minimum": 0, "maximum": 100 } } });
            step(
                "Let a candidate enforce for another share of keys",
                Some((schema, json!({ "percent": 25 }))),
            )
        }
        _ => Described::plain(
            "For whom a candidate enforces now, and how often it agreed on this node",
            reference("AdminCandidate"),
        ),
    }
}

/// A candidate as this node tries it.
pub(super) fn schema() -> Value {
    let count = |description: &str| json!({ "type": "integer", "description": description });
    json!({ "type": "object", "required": ["rule_id", "percent", "tenants", "schedule", "agreement"],
        "properties": {
            "rule_id": text(),
            "percent": { "type": ["number", "null"], "description": "The share of keys now; null with tenants" },
            "tenants": { "type": ["array", "null"], "items": text() },
            "schedule": { "type": ["array", "null"], "items": { "type": "object",
                "required": ["from", "percent"],
                "properties": { "from": { "type": "string", "format": "date-time" },
                    "percent": { "type": "number" } } } },
            "agreement": { "type": "object",
                "required": ["both_allow", "both_refuse", "only_live_refuses", "only_candidate_refuses"],
                "properties": {
                    "both_allow": count("Neither refuses"),
                    "both_refuse": count("Both refuse"),
                    "only_live_refuses": count("The limits in force refuse, the candidate does not"),
                    "only_candidate_refuses": count("The candidate refuses, the limits in force do not") } } } })
}
