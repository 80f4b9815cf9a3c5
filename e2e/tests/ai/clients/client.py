"""What a program does with the official client of the API. Prints what it saw as one JSON object."""

import asyncio
import json
import os
import sys

import openai

URL = os.environ["BASE_URL"]
MESSAGES = [{"role": "user", "content": "abcd"}]


def client(**more):
    return openai.OpenAI(base_url=URL, api_key="sk-acme", **more)


def plain():
    answer = client().chat.completions.create(model="m", max_tokens=20, messages=MESSAGES)
    return {"text": answer.choices[0].message.content, "total": answer.usage.total_tokens}


def stream():
    chunks = client().chat.completions.create(model="m", max_tokens=20, messages=MESSAGES, stream=True)
    chunks = list(chunks)
    return {
        "text": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        "usage": [chunk.usage is not None for chunk in chunks],
    }


def stream_usage():
    options = {"include_usage": True}
    chunks = client().chat.completions.create(
        model="m", max_tokens=20, messages=MESSAGES, stream=True, stream_options=options
    )
    return {"total": [chunk.usage.total_tokens for chunk in chunks if chunk.usage]}


def async_stream():
    async def one(caller):
        text = ""
        answer = await caller.chat.completions.create(model="m", max_tokens=20, messages=MESSAGES, stream=True)
        async for chunk in answer:
            text += chunk.choices[0].delta.content or ""
        return text

    async def many():
        async with openai.AsyncOpenAI(base_url=URL, api_key="sk-acme") as caller:
            return await asyncio.gather(*(one(caller) for _ in range(5)))

    return {"texts": asyncio.run(many())}


def others():
    caller = client()
    embedding = caller.embeddings.create(model="m", input="abcd", encoding_format="float")
    completion = caller.completions.create(model="m", prompt="abcd", max_tokens=20)
    response = caller.responses.create(model="m", input="abcd", max_output_tokens=20)
    events = caller.responses.create(model="m", input="abcd", max_output_tokens=20, stream=True)
    kinds = [event.type for event in events]
    return {
        "embedding": embedding.usage.total_tokens,
        "completion": completion.choices[0].text,
        "response": response.output_text,
        "last_event": kinds[-1],
        "models": [model.id for model in caller.models.list()],
    }


def limited():
    try:
        client(max_retries=0).chat.completions.create(model="m", max_tokens=20, messages=MESSAGES)
    except openai.RateLimitError as error:
        body = {"code": error.code, "type": error.type, "message": error.message}
        return {**body, "retry_after_ms": error.response.headers.get("retry-after-ms")}
    return {}


def retried():
    """The second call is refused first, and passes when the client retries after the time in the response."""
    caller = client(max_retries=1)
    texts = []
    for _ in range(2):
        answer = caller.chat.completions.create(model="m", max_tokens=20, messages=MESSAGES)
        texts.append(answer.choices[0].message.content)
    return {"texts": texts}


def errors():
    seen = []
    for model, key in [("none", "sk-acme"), ("m", "sk-unknown")]:
        caller = openai.OpenAI(base_url=URL, api_key=key, max_retries=0)
        try:
            caller.chat.completions.create(model=model, messages=MESSAGES)
        except openai.APIStatusError as error:
            seen.append([type(error).__name__, error.code])
    return {"errors": seen}


print(json.dumps(globals()[sys.argv[1]]()))
