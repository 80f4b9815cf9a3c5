//! The calls of the signed history, described.

use serde_json::{Value, json};

use super::openapi::{Described, page, pages};
use super::routes::Call;
use super::schemas::text;

/// What a call takes and answers.
pub(super) fn describe(call: Call) -> Described {
    match call {
        Call::AuditExport => Described {
            query: page(),
            ..Described::plain(
                "The signed history of changes, oldest first, as `tollgate audit verify` reads it",
                pages("AdminHistoryLink"),
            )
        },
        _ => Described::plain(
            "The public key with which this node signs the history of changes",
            json!({ "type": "object", "required": ["algorithm", "public_key"],
                "properties": { "algorithm": { "const": "ed25519" },
                    "public_key": { "type": ["string", "null"],
                        "description": "In hex; null if this node has no key" } } }),
        ),
    }
}

/// A link of the signed history.
pub(super) fn link_schema() -> Value {
    json!({ "type": "object", "required": ["type"],
        "properties": { "type": { "enum": ["start", "earlier", "change", "removed", "head"] },
            "number": { "type": "integer", "description": "The place in the chain, from 1" },
            "hash": text(), "public_key": text(), "signature": text() },
        "additionalProperties": true })
}
