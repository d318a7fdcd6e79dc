"""Calls of OpenAI's Python client by its own methods, the same for its sync and its async form."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

SAID = "a call wakes a model [tokens=6] [rate=200]"
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": SAID}]
PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": PARAMETERS}}
FLAT_TOOL = {"type": "function", "name": "look_up", "parameters": PARAMETERS, "strict": False}
SOUND = ("call.wav", bytes(range(256)) * 300)
PICTURE = ("dot.png", b"\x89PNG" + bytes(5000))
Call = Callable[[Any, str], Awaitable[Any]]


async def done(value: Any) -> Any:
    """Return a call's result, whichever form of the client made it."""
    return await value if inspect.isawaitable(value) else value


async def whole(value: Any) -> Any:
    """Return a call's result as plain data."""
    return (await done(value)).model_dump(mode="json", exclude_none=True)


async def items(value: Any) -> list[Any]:
    """Return all items of a stream as plain data."""
    stream = await done(value)
    if hasattr(stream, "__aiter__"):
        return [one.model_dump(mode="json", exclude_none=True) async for one in stream]
    return [one.model_dump(mode="json", exclude_none=True) for one in stream]


async def _bytes(value: Any) -> str:
    return base64.b64encode((await done(value)).content).decode()


def _chat(client: Any, model: str, **more: Any) -> Any:
    return client.chat.completions.create(model=model, messages=MESSAGES, **more)


async def _tool_result(client: Any, model: str) -> Any:
    """Call a tool and tell its result."""
    asked = (await done(_chat(client, model, tools=[TOOL]))).choices[0].message
    assert asked.tool_calls[0].function.name == "look_up"
    result = {"role": "tool", "tool_call_id": asked.tool_calls[0].id, "content": "42"}
    talk = [*MESSAGES, asked.model_dump(exclude_none=True), result]
    return await whole(client.chat.completions.create(model=model, messages=talk, tools=[TOOL]))


async def _rerank(client: Any, model: str) -> Any:
    given = {"model": model, "query": "cold call", "documents": ["a warm one", "a cold call"]}
    return await done(client.post("/rerank", body=given, cast_to=dict[str, Any]))


CALLS: dict[str, Call] = {
    "chat": lambda c, m: whole(_chat(c, m)),
    "chat stream": lambda c, m: items(_chat(c, m, stream=True)),
    "chat stream with usage": lambda c, m: items(
        _chat(c, m, stream=True, stream_options={"include_usage": True})
    ),
    "tool": lambda c, m: whole(_chat(c, m, tools=[TOOL])),
    "tool stream": lambda c, m: items(_chat(c, m, tools=[TOOL], stream=True)),
    "tool result": _tool_result,
    "completion": lambda c, m: whole(c.completions.create(model=m, prompt=SAID)),
    "completion stream": lambda c, m: items(
        c.completions.create(model=m, prompt=SAID, stream=True)
    ),
    "response": lambda c, m: whole(c.responses.create(model=m, input=SAID, store=False)),
    "response stream": lambda c, m: items(
        c.responses.create(model=m, input=SAID, stream=True, instructions="be brief")
    ),
    "response tool": lambda c, m: whole(
        c.responses.create(model=m, input=[{"role": "user", "content": SAID}], tools=[FLAT_TOOL])
    ),
    "embeddings": lambda c, m: whole(c.embeddings.create(model=m, input=["one", "two words"])),
    "embeddings as numbers": lambda c, m: whole(
        c.embeddings.create(model=m, input="one", encoding_format="float", dimensions=20)
    ),
    "rerank": _rerank,
    "moderation": lambda c, m: whole(c.moderations.create(model=m, input=["good", "bad one"])),
    "transcription": lambda c, m: whole(c.audio.transcriptions.create(model=m, file=SOUND)),
    "transcription stream": lambda c, m: items(
        c.audio.transcriptions.create(model=m, file=SOUND, stream=True)
    ),
    "translation": lambda c, m: whole(c.audio.translations.create(model=m, file=SOUND)),
    "speech": lambda c, m: _bytes(c.audio.speech.create(model=m, voice="a", input="one two")),
    "image": lambda c, m: whole(c.images.generate(model=m, prompt="a gate", n=2)),
    "image edit": lambda c, m: whole(c.images.edit(model=m, prompt="a gate", image=PICTURE)),
}
"""All calls by what they are for."""
