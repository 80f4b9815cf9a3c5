//! The calls that report what nodes see, described.

use serde_json::json;

use super::openapi::Described;
use super::routes::Call;
use super::schemas::{reference, text};
use super::spend::MAX_ROWS;

/// What a call takes and answers.
pub(super) fn describe(call: Call) -> Described {
    match call {
        Call::Top => Described {
            query: vec![
                ("rule_id", text()),
                ("window", json!({ "enum": ["minutes", "hours"], "default": "minutes" })),
                ("limit", json!({ "type": "integer", "minimum": 1, "maximum": 1000 })),
                ("node", text()),
            ],
            ..Described::plain(
                "Who consumes most and who is refused most, on all nodes or on one",
                reference("AdminTop"),
            )
        },
        Call::History => Described {
            query: vec![
                ("minutes", json!({ "type": "integer", "minimum": 1, "maximum": 1440 })),
                ("by", json!({ "enum": ["tenant_id", "model_id", "scope"] })),
                ("name", text()),
                ("node", text()),
                ("latencies", json!({ "type": "boolean" })),
            ],
            ..Described::plain(
                "What happened lately on all nodes or on one, in steps",
                reference("AdminHistory"),
            )
        },
        Call::Nodes => Described::plain(
            "All nodes that share a Redis or a PostgreSQL, also those that have gone",
            reference("AdminNodes"),
        ),
        Call::Overview => Described {
            query: vec![("node", text())],
            ..Described::plain(
                "The whole installation in a few figures, or one of its nodes",
                reference("AdminOverview"),
            )
        },
        Call::Incidents => Described::plain(
            "States that an operator must see: those that last, then those that are over",
            reference("AdminIncidents"),
        ),
        Call::UsageReport => Described {
            query: vec![
                (
                    "group_by",
                    json!({ "type": "string", "description":
                    "Some of day, tenant, key, user and model, separated by commas; the currency always" }),
                ),
                (
                    "from",
                    json!({ "type": "string", "description":
                    "A day such as 2027-01-31, an instant, or a time before now such as 7d; the month by default" }),
                ),
                (
                    "until",
                    json!({ "type": "string", "description": "The day after the last; now by default" }),
                ),
                ("tenant_id", text()),
                ("api_key_id", text()),
                ("user_id", text()),
                ("model_id", text()),
                ("format", json!({ "enum": ["json", "csv", "focus"], "default": "json" })),
                ("limit", json!({ "type": "integer", "minimum": 1, "maximum": MAX_ROWS })),
            ],
            ..Described::plain(
                "Usage and money of the ledger, grouped; csv and focus answer text/csv",
                reference("AdminUsageReport"),
            )
        },
        _ => Described::plain("How the node that answers is", reference("AdminNode")),
    }
}
