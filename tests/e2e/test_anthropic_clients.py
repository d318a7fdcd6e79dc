"""Tests of /v1/messages by Anthropic's Python client, sync and async: results equal those of direct
calls of the server, warm and cold, and everything that goes wrong is the client's own error."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.support import chat_server
from tests.support.chat import answers
from tests.support.model_gate import ALIAS, SERVED, ModelGate, model_gates, renamed
from tests.support.openai_calls import PARAMETERS, SAID, done, items, whole

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

FORMS = ("sync", "async")
TOOL = {"name": "look_up", "input_schema": PARAMETERS}
BREAKS = [("die", False), ("die", True), ("cut", False), ("cut", True), ("error", True)]
"""Orders that end an answer in its middle, and whether the answer is a stream."""


def ask(client: Any, model: str, text: str = SAID, **more: Any) -> Any:
    """Ask for a message."""
    talk = [{"role": "user", "content": text}]
    return client.messages.create(model=model, max_tokens=50, messages=talk, **more)


async def _helped(client: Any, model: str) -> Any:
    """Return the text and the message of the client's own helper for streams."""
    talk = [{"role": "user", "content": SAID}]
    made = client.messages.stream(model=model, max_tokens=4, system="be brief", messages=talk)
    if hasattr(made, "__aenter__"):
        async with made as stream:
            said = [text async for text in stream.text_stream]
            message = await stream.get_final_message()
    else:
        with made as stream:
            said = list(stream.text_stream)
            message = stream.get_final_message()
    return [said, message.model_dump(mode="json", exclude_none=True)]


async def _tool_result(client: Any, model: str) -> Any:
    """Call a tool and tell its result."""
    asked = await done(ask(client, model, tools=[TOOL]))
    call = asked.content[0]
    assert (call.type, call.name, asked.stop_reason) == ("tool_use", "look_up", "tool_use")
    result = [{"type": "tool_result", "tool_use_id": call.id, "content": "42"}]
    talk = [
        {"role": "user", "content": SAID},
        {"role": "assistant", "content": [call.model_dump(exclude_none=True)]},
        {"role": "user", "content": result},
    ]
    sent = client.messages.create(model=model, max_tokens=50, messages=talk, tools=[TOOL])
    return await whole(sent)


async def _tokens(client: Any, model: str) -> Any:
    talk = [{"role": "user", "content": SAID}]
    return (await done(client.messages.count_tokens(model=model, messages=talk))).input_tokens


CALLS: dict[str, Callable[[Any, str], Awaitable[Any]]] = {
    "message": lambda c, m: whole(ask(c, m)),
    "message stream": lambda c, m: items(ask(c, m, stream=True)),
    "helper": _helped,
    "tool stream": lambda c, m: items(ask(c, m, tools=[TOOL], stream=True)),
    "tool result": _tool_result,
    "tokens": _tokens,
}


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, ModelGate]]:
    """Servers by their number of workers."""
    with model_gates(tmp_path_factory.mktemp("anthropic"), has_late=False) as made:
        yield made


@pytest.fixture(scope="module", params=[1, 2], ids=["1 worker", "2 workers"])
def gate(request: pytest.FixtureRequest, gates: dict[int, ModelGate]) -> ModelGate:
    """A server with the functions `chat` and `plain`."""
    return gates[request.param]


@pytest.fixture(scope="module")
def anthropic() -> Any:
    """The library. It takes a second to import: not while tests are collected."""
    return importlib.import_module("anthropic")


@pytest.fixture(params=FORMS)
async def client(
    request: pytest.FixtureRequest, gate: ModelGate, anthropic: Any
) -> AsyncIterator[Any]:
    """The client in both forms. It does not retry, and sends its key as `x-api-key`."""
    made = client_of(anthropic, gate.url, gate.key, request.param)
    yield made
    await done(made.close())


@pytest.fixture
async def one_client(
    request: pytest.FixtureRequest, gate: ModelGate, anthropic: Any
) -> AsyncIterator[Any]:
    """The sync client with one worker, the async one with two; else as `client`."""
    form = FORMS[request.node.callspec.params["gate"] - 1]
    made = client_of(anthropic, gate.url, gate.key, form)
    yield made
    await done(made.close())


def client_of(anthropic: Any, url: str, key: str, form: str = "async") -> Any:
    """Return a client."""
    given = {"base_url": url, "api_key": key, "max_retries": 0, "timeout": 30}
    # Without TLS: reading the system's certificates takes longer than a call.
    if form == "sync":
        plain = anthropic.DefaultHttpxClient(verify=False)
        return anthropic.Anthropic(**given, http_client=plain)
    plain = anthropic.DefaultAsyncHttpxClient(verify=False)
    return anthropic.AsyncAnthropic(**given, http_client=plain)


@pytest.fixture(scope="module")
def wanted(anthropic: Any) -> dict[str, Any]:
    """Results of direct calls, as if the server had the name of the function."""

    async def asked(url: str) -> dict[str, Any]:
        async with client_of(anthropic, url, "any") as near:
            return {name: await call(near, SERVED) for name, call in CALLS.items()}

    with chat_server.running() as port:
        got = asyncio.run(asked(f"http://127.0.0.1:{port}"))
    return {name: renamed(one, SERVED, "chat") for name, one in got.items()}


@pytest.mark.parametrize("name", CALLS)
async def test_a_warm_call_gets_what_a_direct_one_gets(
    client: Any, wanted: dict[str, Any], name: str
) -> None:
    """The result is that of the server itself, under the name by which the client calls it."""
    assert await CALLS[name](client, "chat") == wanted[name]


@pytest.mark.parametrize("name", ["message", "message stream"])
async def test_a_cold_call_gets_what_a_direct_one_gets(
    one_client: Any, gate: ModelGate, wanted: dict[str, Any], name: str
) -> None:
    """A call that wakes its function differs from others in nothing but its time."""
    await gate.go_cold("chat")

    assert await CALLS[name](one_client, "chat") == wanted[name]


async def test_the_answers_are_the_ones_that_are_known(wanted: dict[str, Any]) -> None:
    """The results that others are compared with have the known text and tokens."""
    message = wanted["message"]
    said, final = wanted["helper"]

    assert message["content"][0]["text"] == "".join(answers.words_of(SAID, 6))
    assert message["usage"]["input_tokens"] == wanted["tokens"] == 5
    assert message["usage"]["output_tokens"] == 6
    assert said == answers.words_of(f"be brief {SAID}", 4)
    assert (final["stop_reason"], final["usage"]["output_tokens"]) == ("max_tokens", 4)


async def test_models_are_listed_and_found(one_client: Any) -> None:
    """The list has the functions and aliases, in the client's own form."""
    listed = [one.id for one in (await done(one_client.models.list())).data]

    assert {"chat", ALIAS, "plain"} <= set(listed)
    for name in ("chat", ALIAS):
        found = await done(one_client.models.retrieve(name))
        assert (found.id, found.type) == (name, "model")


async def test_keys_are_checked(gate: ModelGate, anthropic: Any) -> None:
    """A key is taken from either header; an unknown one is refused, and a model that a key may not
    call does not exist for it."""
    async with client_of(anthropic, gate.url, "sk-none") as unknown:
        with pytest.raises(anthropic.AuthenticationError) as refused:
            await ask(unknown, "chat")
    async with client_of(anthropic, gate.url, gate.other_key) as other:
        with pytest.raises(anthropic.NotFoundError) as hidden:
            await ask(other, "chat")
    async with anthropic.AsyncAnthropic(base_url=gate.url, auth_token=gate.key) as bearer:
        got = await ask(bearer, "chat")

    assert refused.value.body["error"]["type"] == "authentication_error"
    assert hidden.value.body["error"]["type"] == "not_found_error"
    assert got.usage.output_tokens == 6


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "BadRequestError"), (429, "RateLimitError"), (529, "InternalServerError")],
)
async def test_errors_of_the_server_pass(
    one_client: Any, anthropic: Any, status: int, kind: str, is_stream: bool
) -> None:
    """An error of the model's server is the client's error of that status, with its text."""
    with pytest.raises(getattr(anthropic, kind), match="as the request orders") as caught:
        await done(ask(one_client, "chat", f"[fail={status}]", stream=is_stream))

    assert caught.value.status_code == status


async def test_the_gateways_errors_are_the_clients(one_client: Any, anthropic: Any) -> None:
    """An unknown model is an error of the client's own, with the id of the request."""
    with pytest.raises(anthropic.NotFoundError, match="no model 'none'") as caught:
        await done(ask(one_client, "none"))

    assert caught.value.body["request_id"]


@pytest.mark.parametrize(("order", "is_stream"), BREAKS)
async def test_an_answer_that_breaks_off_is_an_error(
    one_client: Any, anthropic: Any, order: str, is_stream: bool
) -> None:
    """A server that dies or hangs up in the middle of its answer is an error for the client, never
    a short answer."""

    async def read() -> None:
        sent = ask(one_client, "chat", f"[{order}=3] [tokens=9] [rate=100]", stream=is_stream)
        await (items(sent) if is_stream else done(sent))

    with pytest.raises(anthropic.APIError):
        await read()


async def test_a_client_that_leaves_ends_its_stream(gate: ModelGate, one_client: Any) -> None:
    """A stream that its client closes in the middle ends at the server."""
    before = len(gate.served())
    stream = await done(ask(one_client, "chat", "[tokens=50] [rate=50]", stream=True))
    await (anext(aiter(stream)) if hasattr(stream, "__aiter__") else done(next(iter(stream))))
    await done(stream.close())

    assert await gate.ended(before, "left")


async def test_a_timeout_is_the_clients(one_client: Any, anthropic: Any) -> None:
    """A client that has waited long enough raises its timeout."""
    with pytest.raises(anthropic.APITimeoutError):
        await done(ask(one_client.with_options(timeout=0.4), "chat", "[think=20]"))
