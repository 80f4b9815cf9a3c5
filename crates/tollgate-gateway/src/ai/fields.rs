//! The fields of a body that are known by name.

/// What is read by the model, and counted. A prompt that is there twice could be read in two ways too.
pub(super) const READ: [&str; 17] = [
    "messages",
    "prompt",
    "input",
    "content",
    "suffix",
    "instructions",
    "tools",
    "functions",
    "response_format",
    "text",
    "prompt_embeds",
    "multimodal_data",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "previous_response_id",
    "conversation",
];

/// The fields that are looked at. One that is there twice could be read in two ways.
pub(super) const FIELDS: [&str; 12] = [
    "model",
    "user",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    // llama.cpp goes by it before all others.
    "n_predict",
    "n",
    // The same, by llama.cpp.
    "n_cmpl",
    "best_of",
    // Of vLLM: no answer ends before it has so many.
    "min_tokens",
];

/// These refer to something that the upstream keeps or fetches: its length is not known here.
pub(super) const STORED: [&str; 21] = [
    "previous_response_id",
    "conversation",
    "conversation_id",
    "thread_id",
    "assistant_id",
    "agent_id",
    "memory_id",
    // Of SGLang: the request continues what the session holds.
    "session_params",
    "cached_content",
    "context_id",
    "container",
    "web_search_options",
    "search_parameters",
    "plugins",
    "enable_search",
    "connectors",
    "data_sources",
    "mcp_servers",
    "knowledge_base_ids",
    "vector_store_ids",
    "url_context",
];

/// What names of fields contain that make the upstream search, without underscores, in small letters.
pub(super) const SEARCHES: [&str; 8] = [
    "search",
    "grounding",
    "retriev",
    "browsing",
    "datasource",
    "knowledge",
    "vectorstore",
    "mcpserver",
];

/// Words that contain the name of a search and are none. Deep research is one.
pub(super) const NO_SEARCHES: [&str; 4] = ["research", "beamsearch", "searchable", "acknowledge"];

/// What names of members contain by which a tool runs at the upstream, whatever else it says.
pub(super) const SERVER_TOOLS: [&str; 15] = [
    "search",
    "grounding",
    "retriev",
    "brows",
    "fetch",
    "datasource",
    "knowledge",
    "vectorstore",
    "connector",
    "server",
    "mcp",
    "urlcontext",
    "codeexecution",
    "codeinterpreter",
    "maps",
];

/// Kinds of tools that the client runs, and how names of others begin.
/// A search for tools finds those of the request.
pub(super) const CLIENT_KINDS: [&str; 7] =
    ["function", "custom", "local_shell", "shell", "apply_patch", "tool_search", "namespace"];
pub(super) const CLIENT_KIND_STARTS: [&str; 6] =
    ["computer_use", "computer_2", "bash_2", "text_editor_2", "memory_2", "tool_search_tool_"];

/// The members of a tool that the client runs.
pub(super) const CLIENT_TOOL: [&str; 21] = [
    "function",
    "custom",
    "name",
    "allowed_callers",
    "annotations",
    "metadata",
    "title",
    "description",
    "parameters",
    "input_schema",
    "inputSchema",
    "output_schema",
    "outputSchema",
    "input_examples",
    "functionDeclarations",
    "function_declarations",
    "strict",
    "format",
    "cache_control",
    "defer_loading",
    "eager_input_streaming",
];

/// Members that hold texts, schemas or labels, and no options.
pub(super) const NO_OPTIONS: [&str; 16] = [
    "metadata",
    "client_metadata",
    "logit_bias",
    "guided_json",
    "guided_choice",
    "guided_regex",
    "guided_grammar",
    "regex",
    "grammar",
    "choices",
    "json_schema",
    "format",
    "structured_outputs",
    "guided_decoding",
    "input_extra",
    "prediction",
];

/// Options: numbers and short names in them cost nothing.
pub(super) const OPTIONS: [&str; 62] = [
    "add_generation_prompt",
    "add_special_tokens",
    "allowed_token_ids",
    "background",
    "best_of",
    "cache_prompt",
    "conversation",
    "detokenize",
    "dimensions",
    "echo",
    "encoding_format",
    "frequency_penalty",
    "ignore_eos",
    "include",
    "include_reasoning",
    "length_penalty",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "max_tool_calls",
    "metadata",
    "min_p",
    "min_tokens",
    "mirostat",
    "modalities",
    "model",
    "n",
    "n_cmpl",
    "n_predict",
    "normalize",
    "parallel_tool_calls",
    "presence_penalty",
    "previous_response_id",
    "priority",
    "prompt_cache_key",
    "reasoning",
    "reasoning_effort",
    "repetition_penalty",
    "repeat_penalty",
    "safety_identifier",
    "seed",
    "service_tier",
    "skip_special_tokens",
    "stop",
    "stop_token_ids",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "top_k",
    "top_logprobs",
    "top_p",
    "truncate_prompt_tokens",
    "truncation",
    "typical_p",
    "use_beam_search",
    "user",
    "verbosity",
    "web_search_options",
];
