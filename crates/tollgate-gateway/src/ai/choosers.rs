//! Fields by which a request would reach another model, upstream or bound than those that were decided on, or have a
//! prompt of unknown length written.

use super::ask::{Wrong, wrong};
use super::bounds::is_options;
use super::fields::{FIELDS, NO_OPTIONS, OPTIONS, READ};
use super::json::{Member, Value};
use super::names::{is_plain, plain};

/// Objects that are nested deeper are not searched: no server reads options there.
const MAX_DEPTH: u32 = 8;

/// By these, servers that stand in front of others choose a model, an upstream or bounds that were not decided on.
const CHOOSERS: [&str; 46] = [
    "models",
    "model_id",
    "fallbacks",
    "fallback_models",
    "default_fallbacks",
    "context_window_fallbacks",
    "context_window_fallback_dict",
    "content_policy_fallbacks",
    "model_list",
    "model_alias_map",
    "model_group_alias",
    "user_config",
    "deployment_id",
    "engine",
    "specific_deployment",
    "api_base",
    "base_url",
    "azure_endpoint",
    "aws_bedrock_runtime_endpoint",
    "vertex_project",
    "custom_llm_provider",
    "litellm_params",
    "litellm_credential_name",
    "router_settings_override",
    "fallback",
    "route",
    // Of LiteLLM: it serves the deployments that have them.
    "tags",
    "api_key",
    "model_info",
    "preset",
    "adapter_id",
    "lora_path",
    "lora_request",
    // They fail on purpose, and a fallback of the upstream is served.
    "mock_response",
    "mock_timeout",
    "mock_tool_calls",
    "mock_testing_fallbacks",
    "mock_testing_context_fallbacks",
    "mock_testing_content_policy_fallbacks",
    "mock_testing_rate_limit_error",
    // The bounds of the body do not reach the model, or do not hold.
    "additional_drop_params",
    "auto_max_new_tokens",
    // The answer is fetched later, by a call that nobody counts.
    "deferred",
    // Of client libraries: what is in them replaces fields of the body, or headers.
    "extra_body",
    "extra_headers",
    "extra_query",
];

/// Templates next to those of [`super::ask`]: each message is written by them, so a short one can write a long prompt.
const TEMPLATES: [&str; 5] =
    ["chat_template_str", "instruction_template_str", "custom_prompt_dict", "roles", "adapter"];

/// Those that some servers read inside of other objects, too.
const NESTED: [&str; 8] = [
    "models",
    "fallbacks",
    "fallback_models",
    "default_fallbacks",
    "context_window_fallbacks",
    "content_policy_fallbacks",
    "model_list",
    "api_base",
];

/// Refuses a body that chooses what was not decided on.
pub(super) fn check(whole: Value<'_>) -> Result<(), Wrong> {
    for member in whole.members().filter(|it| !is_off(it.value)) {
        let name = member.name.as_ref();
        let folded = plain(name);
        if let Some(chooser) = CHOOSERS.iter().find(|it| is_plain(it, &folded)) {
            return Err(refused(chooser));
        }
        if let Some(template) = TEMPLATES.iter().find(|it| is_plain(it, &folded))
            && (template.contains("template") || member.value.is_object())
        {
            let message = "is not accepted: the length of what it writes is not known here";
            return Err(wrong(template, format!("{template:?} {message}")));
        }
        // The name of one; an object holds preferences among those that serve the model.
        if folded == "provider" && member.value.is_string() {
            return Err(refused("provider"));
        }
        let lists = [&READ[..], &FIELDS, &OPTIONS, &NO_OPTIONS];
        if !lists.iter().any(|it| it.contains(&name)) && !folded.contains("metadata") {
            nested(&member, 0)?;
        }
    }
    Ok(())
}

fn nested(outer: &Member<'_>, depth: u32) -> Result<(), Wrong> {
    if depth >= MAX_DEPTH {
        return Ok(());
    }
    let has_options = is_options(&plain(&outer.name));
    let objects = outer.value.elements().filter(|it| it.is_object());
    for object in std::iter::once(outer.value).chain(objects) {
        for member in object.members().filter(|it| !is_off(it.value)) {
            let folded = plain(&member.name);
            if let Some(chooser) = NESTED.iter().find(|it| is_plain(it, &folded)) {
                return Err(refused(chooser));
            }
            if has_options && folded == "model" {
                return Err(refused("model"));
            }
            nested(&member, depth + 1)?;
        }
    }
    Ok(())
}

fn is_off(value: Value<'_>) -> bool {
    value.is_null() || value.text == "false"
}

fn refused(name: &'static str) -> Wrong {
    let message = "is not accepted here: \"model\" and the bounds of the body alone decide";
    wrong(name, format!("{name:?} {message}"))
}
