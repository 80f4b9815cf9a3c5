"""What a program does with the official client of the Messages API. Prints what it saw as one JSON object."""

import asyncio
import json
import os
import sys

import anthropic

URL = os.environ["BASE_URL"]
ASK = {"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "abcd"}]}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "weather", "description": "Of a city.", "input_schema": SCHEMA}


def client(**more):
    return anthropic.Anthropic(base_url=URL, api_key="sk-acme", **more)


def total(usage):
    cached = usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    return usage.input_tokens + cached + usage.output_tokens


def plain():
    answer = client().messages.create(**ASK)
    return {"text": answer.content[0].text, "total": total(answer.usage), "reason": answer.stop_reason}


def bearer():
    caller = anthropic.Anthropic(base_url=URL, auth_token="sk-acme", api_key=None)
    return {"text": caller.messages.create(**ASK).content[0].text}


def stream():
    with client().messages.stream(**ASK) as events:
        text = "".join(events.text_stream)
        answer = events.get_final_message()
    raw = [event.type for event in client().messages.create(**ASK, stream=True)]
    return {"text": text, "output": answer.usage.output_tokens, "first": raw[0], "last": raw[-1]}


def async_stream():
    async def one(caller):
        async with caller.messages.stream(**ASK) as events:
            return "".join([text async for text in events.text_stream])

    async def many():
        async with anthropic.AsyncAnthropic(base_url=URL, api_key="sk-acme") as caller:
            return await asyncio.gather(*(one(caller) for _ in range(5)))

    return {"texts": asyncio.run(many())}


def tools():
    answer = client().messages.create(**ASK, tools=[TOOL], tool_choice={"type": "any"})
    with client().messages.stream(**ASK, tools=[TOOL]) as events:
        streamed = events.get_final_message()
    called = [message.content[0] for message in (answer, streamed)]
    return {"calls": [[call.name, call.input] for call in called], "reason": streamed.stop_reason}


def others():
    caller = client()
    counted = caller.messages.count_tokens(model="m", messages=ASK["messages"])
    beta = caller.beta.messages.create(**ASK, betas=["context-management-2025-06-27"])
    models = [model.id for model in caller.models.list()]
    return {"counted": counted.input_tokens, "beta": beta.content[0].text, "models": models}


def limited():
    try:
        client(max_retries=0).messages.create(**ASK)
    except anthropic.RateLimitError as error:
        return {"body": error.body, "retry_after": error.response.headers.get("retry-after")}
    return {}


def retried():
    """The second call is refused first, and passes when the client retries after the time in the response."""
    caller = client(max_retries=1)
    return {"texts": [caller.messages.create(**ASK).content[0].text for _ in range(2)]}


def errors():
    seen = []
    for more, key in [({"model": "none"}, "sk-acme"), ({}, "sk-unknown"), ({"max_tokens": -1}, "sk-acme")]:
        caller = anthropic.Anthropic(base_url=URL, api_key=key, max_retries=0)
        try:
            caller.messages.create(**{**ASK, **more})
        except anthropic.APIStatusError as error:
            seen.append([type(error).__name__, error.body["error"]["type"]])
    return {"errors": seen}


def failing():
    """Errors of the upstream: before an answer, and within a stream."""
    seen = []
    for stand_in in [{"status": 529}, {"status": 500}]:
        try:
            client(max_retries=0).messages.create(**ASK, extra_body={"stand_in": stand_in})
        except anthropic.APIStatusError as error:
            seen.append([type(error).__name__, error.status_code])
    try:
        for _ in client(max_retries=0).messages.create(**ASK, stream=True, extra_body={"stand_in": {"error_after": 2}}):
            pass
    except anthropic.APIStatusError as error:
        seen.append(error.body["error"]["type"])
    return {"errors": seen}


print(json.dumps(globals()[sys.argv[1]]()))
