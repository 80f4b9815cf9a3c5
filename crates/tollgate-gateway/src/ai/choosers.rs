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
const CHOOSERS: [&str; 57] = [
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
    "vertex_ai_project",
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
    "lora",
    "adapters",
    "draft_model",
    // Agents, guarded configurations and stored prompts name a model themselves.
    "agent",
    "agent_reference",
    "config_id",
    "prompt_id",
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
    "headers",
    "provider_specific_header",
    "allowed_models",
];

/// By these, servers that stand in front of others try again where an answer fails. Nobody sees what the tries before the
/// last one used, so nobody could charge it.
const RETRIES: [&str; 11] = [
    "num_retries",
    "max_retries",
    "retries",
    "retry",
    "retry_count",
    "retry_attempts",
    "retry_policy",
    "retry_strategy",
    "retry_options",
    "model_group_retry_policy",
    "max_fallbacks",
];

/// Templates next to those of [`super::ask`]: each message is written by them, so a short one can write a long prompt.
const TEMPLATES: [&str; 6] = [
    "chat_template_str",
    "instruction_template_str",
    "custom_prompt_dict",
    "roles",
    "role_mapping",
    "adapter",
];

/// Those that some servers read inside of other objects, too.
const NESTED: [&str; 10] = [
    "models",
    "fallbacks",
    "fallback_models",
    "default_fallbacks",
    "context_window_fallbacks",
    "content_policy_fallbacks",
    "model_list",
    "api_base",
    "allowed_models",
    "config_id",
];

/// Refuses a body that chooses what was not decided on.
pub(super) fn check(whole: Value<'_>) -> Result<(), Wrong> {
    for member in whole.members().filter(|it| !is_off(it.value)) {
        let name = member.name.as_ref();
        let folded = plain(name);
        if let Some(chooser) = CHOOSERS.iter().find(|it| is_plain(it, &folded)) {
            return Err(refused(chooser));
        }
        check_retry(&folded, member.value)?;
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
            if has_options || depth > 0 {
                check_retry(&folded, member.value)?;
            }
            if has_options && folded == "model" {
                return Err(refused("model"));
            }
            nested(&member, depth + 1)?;
        }
    }
    Ok(())
}

fn check_retry(folded: &str, value: Value<'_>) -> Result<(), Wrong> {
    let is_none = |value: Value<'_>| is_off(value) || value.whole() == Some(0);
    let has_none = value.is_object() && value.members().all(|it| is_none(it.value));
    match RETRIES.iter().find(|it| is_plain(it, folded)) {
        Some(name) if !is_none(value) && !has_none => {
            let message = "is not accepted: what failed tries use is not known here";
            Err(wrong(name, format!("{name:?} {message}")))
        }
        _ => Ok(()),
    }
}

/// Refuses tools of the upstream that bring a model of their own. The parameters of a function are its schema, in which
/// a `model` is described, and not named.
pub(super) fn check_tools(whole: Value<'_>) -> Result<(), Wrong> {
    let tools = whole.members().filter(|it| matches!(&*it.name, "tools" | "plugins"));
    for tool in tools.flat_map(|it| it.value.elements()) {
        for member in tool.members().filter(|it| !is_off(it.value)) {
            let folded = plain(&member.name);
            if let Some(name) = chosen(&folded, member.value) {
                return Err(refused(name));
            }
            let inner = member.value.members().filter(|_| is_options(&folded));
            for option in inner.filter(|it| !is_off(it.value)) {
                if let Some(name) = chosen(&plain(&option.name), option.value) {
                    return Err(refused(name));
                }
            }
        }
    }
    Ok(())
}

/// The field by which a member of a tool names models.
fn chosen(plain: &str, value: Value<'_>) -> Option<&'static str> {
    match plain {
        "model" if value.is_string() => Some("model"),
        "models" if !value.is_object() => Some("models"),
        "allowedmodels" => Some("allowed_models"),
        _ => None,
    }
}

fn is_off(value: Value<'_>) -> bool {
    value.is_null() || value.text == "false"
}

fn refused(name: &'static str) -> Wrong {
    let message = "is not accepted here: \"model\" and the bounds of the body alone decide";
    wrong(name, format!("{name:?} {message}"))
}

#[cfg(test)]
mod tests {
    use super::super::json::parse;
    use super::*;

    #[test]
    fn nobody_has_an_upstream_try_again_unseen() {
        for (body, param) in [
            (r#"{"model":"m","num_retries":2}"#, "num_retries"),
            (r#"{"model":"m","numRetries":2}"#, "num_retries"),
            (r#"{"model":"m","max_retries":"2"}"#, "max_retries"),
            (r#"{"model":"m","retry":{"count":3}}"#, "retry"),
            (r#"{"model":"m","retry_policy":{"TimeoutErrorRetries":3}}"#, "retry_policy"),
            (r#"{"model":"m","provider_options":{"max_retries":3}}"#, "max_retries"),
            (r#"{"model":"m","x":{"config":{"num_retries":3}}}"#, "num_retries"),
        ] {
            let wrong = check(parse(body).unwrap()).unwrap_err();
            assert_eq!(wrong.param, Some(param), "{body}");
        }
        for body in [
            r#"{"model":"m","num_retries":0,"max_retries":null,"retry":{"count":0},"retries":false}"#,
            r#"{"model":"m","metadata":{"num_retries":3},"messages":[{"num_retries":3}]}"#,
        ] {
            assert_eq!(check(parse(body).unwrap()), Ok(()), "{body}");
        }
    }

    #[test]
    fn no_tool_agent_adapter_or_header_chooses_a_model() {
        for (body, param) in [
            (r#"{"model":"small","tools":[{"type":"image_generation","model":"large"}]}"#, "model"),
            (r#"{"model":"small","tools":[{"type":"x","parameters":{"model":"large"}}]}"#, "model"),
            (
                r#"{"model":"small","tools":[{"type":"x","parameters":{"models":["large"]}}]}"#,
                "models",
            ),
            (r#"{"model":"small","plugins":[{"id":"web","model":"large"}]}"#, "model"),
            (
                r#"{"model":"small","plugins":[{"id":"auto-router","allowed_models":["large"]}]}"#,
                "allowed_models",
            ),
            (r#"{"model":"small","headers":{"x-model":"large"}}"#, "headers"),
            (
                r#"{"model":"small","provider_specific_header":{"a":"b"}}"#,
                "provider_specific_header",
            ),
            (r#"{"model":"small","vertex_ai_project":"x"}"#, "vertex_ai_project"),
            (r#"{"model":"small","lora":[{"id":0,"scale":1}]}"#, "lora"),
            (r#"{"model":"small","adapters":"large"}"#, "adapters"),
            (r#"{"model":"small","draft_model":"large"}"#, "draft_model"),
            (r#"{"model":"small","agent":{"name":"large"}}"#, "agent"),
            (r#"{"model":"small","agent_reference":{"name":"large"}}"#, "agent_reference"),
            (r#"{"model":"small","config_id":"large"}"#, "config_id"),
            (r#"{"model":"small","guardrails":{"config_id":"large"}}"#, "config_id"),
            (r#"{"model":"small","prompt_id":"large"}"#, "prompt_id"),
            (r#"{"model":"small","role_mapping":{"user":"long"}}"#, "role_mapping"),
        ] {
            let whole = parse(body).unwrap();
            let wrong = check(whole).and_then(|()| check_tools(whole)).unwrap_err();
            assert_eq!(wrong.param, Some(param), "{body}");
        }
        for body in [
            r#"{"model":"small","tools":[{"function":{"parameters":{"properties":{"model":{}}}}}]}"#,
            r#"{"model":"small","tools":[{"parameters":{"model":{"type":"string"}}}],"lora":null}"#,
        ] {
            let whole = parse(body).unwrap();
            assert_eq!(check(whole).and_then(|()| check_tools(whole)), Ok(()), "{body}");
        }
    }
}
