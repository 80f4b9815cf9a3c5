//! The JSON Schema of rule files.

use serde_json::{Value, json};

/// The JSON Schema (draft 2020-12) of rule files, for editors.
pub fn rule_file_schema() -> Value {
    json!({"$schema": "https://json-schema.org/draft/2020-12/schema"})
}
