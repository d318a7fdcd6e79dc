"""Tests of /v1 by OpenAI's Python client, sync and async: every result equals that of a direct call
of the server, warm and cold, and everything that goes wrong is the client's own error."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.support import chat_server
from tests.support.chat import answers
from tests.support.model_gate import (
    ALIAS,
    LATE_S,
    SERVED,
    ModelGate,
    Stopwatch,
    model_gates,
    renamed,
)
from tests.support.node_client import NodeClient
from tests.support.openai_calls import CALLS, MESSAGES, SAID, Call, done, items

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning"),  # of audio.translations
]

FORMS = ("sync", "async")
BREAKS = [("die", False), ("die", True), ("cut", False), ("cut", True), ("error", True)]
"""Orders that end an answer in its middle, and whether the answer is a stream."""
NODE_ERRORS = {
    "wrong key": ["AuthenticationError", 401],
    "unknown model": ["NotFoundError", 404],
    "bad request": ["BadRequestError", 400],
    "too many": ["RateLimitError", 429],
    "failure": ["InternalServerError", 500],
    "dies in a stream": ["APIError", None],
    "cut in a stream": ["APIError", None],
    "dies in an answer": ["TypeError", None],  # of fetch, which the client lets through
    "timeout": ["APIConnectionTimeoutError", None],
}


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, ModelGate]]:
    """Servers by their number of workers."""
    with model_gates(tmp_path_factory.mktemp("openai")) as made:
        yield made


@pytest.fixture(scope="module", params=[1, 2], ids=["1 worker", "2 workers"])
def gate(request: pytest.FixtureRequest, gates: dict[int, ModelGate]) -> ModelGate:
    """A server with the functions."""
    return gates[request.param]


@pytest.fixture(scope="module")
def openai() -> Any:
    """The library. It takes a second to import: not while tests are collected."""
    return importlib.import_module("openai")


@pytest.fixture(scope="module")
def direct() -> Iterator[str]:
    """The base URL of the same server, reached without fngate."""
    with chat_server.running() as port:
        yield f"http://127.0.0.1:{port}/v1"


@pytest.fixture(params=FORMS)
async def client(
    request: pytest.FixtureRequest, gate: ModelGate, openai: Any
) -> AsyncIterator[Any]:
    """The client in both forms. It does not retry."""
    made = client_of(openai, gate, request.param)
    yield made
    await done(made.close())


@pytest.fixture
async def one_client(
    request: pytest.FixtureRequest, gate: ModelGate, openai: Any
) -> AsyncIterator[Any]:
    """The sync client with one worker, the async one with two. It does not retry."""
    made = client_of(openai, gate, FORMS[request.node.callspec.params["gate"] - 1])
    yield made
    await done(made.close())


def client_of(openai: Any, gate: ModelGate, form: str) -> Any:
    """Return a client."""
    given = {"base_url": gate.base, "api_key": gate.key, "max_retries": 0, "timeout": 30}
    # Without TLS: reading the system's certificates takes longer than a call.
    if form == "sync":
        return openai.OpenAI(**given, http_client=openai.DefaultHttpxClient(verify=False))
    return openai.AsyncOpenAI(**given, http_client=openai.DefaultAsyncHttpxClient(verify=False))


@pytest.fixture(scope="module")
def wanted(direct: str, openai: Any) -> dict[str, Any]:
    """Results of direct calls, as if the server had the name of the function."""

    async def asked() -> dict[str, Any]:
        async with openai.AsyncOpenAI(base_url=direct, api_key="any", max_retries=0) as near:
            return {name: await call(near, SERVED) for name, call in CALLS.items()}

    return {name: renamed(got, SERVED, "chat") for name, got in asyncio.run(asked()).items()}


def without_none(value: Any) -> Any:
    """Return plain data without members that are null."""
    if isinstance(value, list):
        return [without_none(one) for one in value]
    if isinstance(value, dict):
        return {name: without_none(one) for name, one in value.items() if one is not None}
    return value


def say(text: str) -> list[dict[str, str]]:
    """Return a conversation of one message."""
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(("name", "call"), CALLS.items(), ids=CALLS)
async def test_a_warm_call_gets_what_a_direct_one_gets(
    client: Any, wanted: dict[str, Any], name: str, call: Call
) -> None:
    """The result is that of the server itself, under the name by which the client calls it."""
    assert await call(client, "chat") == wanted[name]


@pytest.mark.parametrize("name", ["chat", "chat stream", "response stream", "transcription"])
async def test_a_cold_call_gets_what_a_direct_one_gets(
    one_client: Any, gate: ModelGate, wanted: dict[str, Any], name: str
) -> None:
    """A call that wakes its function differs from others in nothing but its time."""
    await gate.go_cold("chat")

    assert await CALLS[name](one_client, "chat") == wanted[name]


async def test_calls_of_all_kinds_wait_for_one_start(
    openai: Any, gate: ModelGate, wanted: dict[str, Any]
) -> None:
    """Calls of all endpoints at once are held, and each gets its own answer."""
    await gate.go_cold("chat")

    async def ask(client: Any, name: str) -> Any:
        return await CALLS[name](client, "chat")

    async with (
        openai.AsyncOpenAI(base_url=gate.base, api_key=gate.key, max_retries=0) as client,
        asyncio.TaskGroup() as group,
    ):
        tasks = {name: group.create_task(ask(client, name)) for name in CALLS}

    assert {name: task.result() for name, task in tasks.items()} == wanted


async def test_the_answers_are_the_ones_that_are_known(wanted: dict[str, Any]) -> None:
    """The results that others are compared with have the known text and tokens."""
    words = answers.words_of(f"be brief {SAID}", 6)
    chunks = wanted["chat stream with usage"]
    plain = wanted["chat"]

    assert plain["choices"][0]["message"]["content"] == "".join(words)
    assert plain["usage"] == {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}
    assert [one["choices"][0]["delta"].get("content") for one in chunks[1:-2]] == words
    assert (chunks[-1]["choices"], chunks[-1]["usage"]) == ([], plain["usage"])
    assert all(one.get("usage") is None for one in wanted["chat stream"])
    assert wanted["transcription"]["text"] == "76800 bytes for chat" or SERVED in str(wanted)
    assert [one["flagged"] for one in wanted["moderation"]["results"]] == [False, True]


async def test_models_are_listed_and_found_cold(one_client: Any, gate: ModelGate) -> None:
    """The list has every function and alias, and asking for one wakes nothing. A slash in its name
    is no separator."""
    await gate.go_cold("chat")
    listed = [one.id for one in (await done(one_client.models.list())).data]

    assert {"chat", ALIAS, "plain", "late"} <= set(listed)
    for name in ("chat", "chat@1", ALIAS):
        found = await done(one_client.models.retrieve(name))
        assert (found.id, found.object) == (name, "model")
    assert gate.is_cold("chat")


@pytest.mark.parametrize("name", [ALIAS, "chat@1"])
async def test_a_model_has_the_name_by_which_it_was_called(
    client: Any, wanted: dict[str, Any], name: str
) -> None:
    """Answers name the alias or the revision of the request, not the server's model."""
    for call in ("chat", "chat stream", "response stream"):
        assert await CALLS[call](client, name) == renamed(wanted[call], "chat", name)


async def test_a_key_sees_its_own_models(openai: Any, gate: ModelGate) -> None:
    """A model that a key may not call does not exist for it."""
    async with openai.AsyncOpenAI(base_url=gate.base, api_key=gate.other_key) as client:
        assert [one.id for one in (await client.models.list()).data] == ["plain"]
        for asked in (
            client.models.retrieve("chat"),
            client.chat.completions.create(model="chat", messages=MESSAGES),
        ):
            with pytest.raises(openai.NotFoundError) as caught:
                await asked
            assert caught.value.code == "model_not_found"


async def test_a_wrong_key_is_an_authentication_error(openai: Any, gate: ModelGate) -> None:
    """A key that the server does not know is refused before anything else."""
    async with openai.AsyncOpenAI(base_url=gate.base, api_key="sk-none", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.chat.completions.create(model="none", messages=MESSAGES)

    assert (caught.value.status_code, caught.value.code) == (401, "invalid_api_key")


async def test_what_the_gateway_refuses_is_the_clients_error(one_client: Any, openai: Any) -> None:
    """An unknown model and a request that no sleeping server can answer have codes of their own."""
    with pytest.raises(openai.NotFoundError, match="no model 'none'") as unknown:
        await done(one_client.chat.completions.create(model="none", messages=MESSAGES))
    with pytest.raises(openai.BadRequestError, match="previous_response_id") as stateful:
        await done(one_client.responses.create(model="chat", input="x", previous_response_id="r"))

    assert (unknown.value.code, unknown.value.type) == ("model_not_found", "invalid_request_error")
    assert stateful.value.param == "previous_response_id"


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "BadRequestError"),
        (404, "NotFoundError"),
        (422, "UnprocessableEntityError"),
        (429, "RateLimitError"),
        (500, "InternalServerError"),
    ],
)
async def test_errors_of_the_server_pass(
    client: Any, openai: Any, status: int, kind: str, is_stream: bool
) -> None:
    """An error of the model's server is the client's error of that status, with its text."""
    with pytest.raises(getattr(openai, kind), match="as the request orders") as caught:
        await done(
            client.chat.completions.create(
                model="chat", messages=say(f"[fail={status}]"), stream=is_stream
            )
        )

    assert caught.value.status_code == status
    assert caught.value.request_id


async def test_a_retry_waits_as_the_server_says(one_client: Any, gate: ModelGate) -> None:
    """The client repeats a call after the seconds that the model's server has named."""
    text = say("[fail=429] [fail_times=1] [retry_after=1] [tokens=2]")
    watch, before = Stopwatch(), len(gate.served())

    got = await done(
        one_client.with_options(max_retries=2).chat.completions.create(model="plain", messages=text)
    )

    assert got.usage.completion_tokens == 2
    assert gate.served()[before:] == ["failed", "calls"]
    assert watch.seconds >= 1


@pytest.mark.parametrize("gate", [1], indirect=True)
async def test_a_start_that_takes_too_long_is_retried(
    one_client: Any, openai: Any, gate: ModelGate
) -> None:
    """A call that is not held until its function is awake is a 503, which says when to come back;
    a client that retries then gets its answer."""
    hasty = {"Prefer": "wait=0"}
    await gate.go_cold("late")
    watch = Stopwatch()
    with pytest.raises(openai.InternalServerError) as caught:
        await done(
            one_client.chat.completions.create(model="late", messages=MESSAGES, extra_headers=hasty)
        )
    assert (caught.value.status_code, caught.value.code) == (503, "wait_budget_over")
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 10

    got = await done(
        one_client.with_options(max_retries=5).chat.completions.create(
            model="late", messages=MESSAGES, extra_headers=hasty
        )
    )

    assert got.usage.completion_tokens == 6
    assert watch.seconds >= LATE_S


@pytest.mark.parametrize("gate", [2], indirect=True)
async def test_a_comment_keeps_a_cold_stream(one_client: Any, openai: Any, gate: ModelGate) -> None:
    """A client that gives up after 2 s without a byte gets a stream whose start takes longer,
    because of the comment; without a stream it gives up."""
    hasty = one_client.with_options(timeout=2.0)
    await gate.go_cold("late")
    watch = Stopwatch()

    async with asyncio.TaskGroup() as group:
        stream = group.create_task(CALLS["chat stream"](hasty, "late"))
        with pytest.raises(openai.APITimeoutError):
            await hasty.chat.completions.create(model="late", messages=MESSAGES)

    assert watch.seconds >= LATE_S
    said = [one["choices"][0]["delta"].get("content", "") for one in stream.result()]
    assert "".join(said) == "".join(answers.words_of(f"be brief {SAID}", 6))


@pytest.mark.parametrize("model", ["chat", "plain"])
@pytest.mark.parametrize(("order", "is_stream"), BREAKS)
async def test_an_answer_that_breaks_off_is_an_error(
    one_client: Any, openai: Any, order: str, model: str, is_stream: bool
) -> None:
    """A server that dies or hangs up in the middle of its answer is an error for the client, never
    a short answer."""
    text = say(f"[{order}=3] [tokens=9] [rate=100]")

    async def ask() -> None:
        sent = one_client.chat.completions.create(model=model, messages=text, stream=is_stream)
        await (items(sent) if is_stream else done(sent))

    with pytest.raises(openai.APIError):
        await ask()


@pytest.mark.parametrize("order", ["think", "hang"])
async def test_a_timeout_ends_the_call_at_the_server(
    one_client: Any, openai: Any, gate: ModelGate, order: str
) -> None:
    """A client that has waited long enough raises its timeout, and the server need not go on."""
    before = len(gate.served())
    with pytest.raises(openai.APITimeoutError):
        await done(
            one_client.with_options(timeout=0.4).chat.completions.create(
                model="chat", messages=say(f"[{order}=20]" if order == "think" else "[hang=3]")
            )
        )
    if order == "hang":
        assert await gate.ended(before, "left")


@pytest.mark.parametrize(("model", "end"), [("chat", "left"), ("plain", "calls")])
async def test_a_client_that_leaves_a_stream(
    one_client: Any, gate: ModelGate, model: str, end: str
) -> None:
    """A stream that its client closes in the middle ends at the server, or goes on to its end where
    `on_disconnect` is `drain`."""
    before = len(gate.served())
    stream = await done(
        one_client.chat.completions.create(
            model=model, messages=say("[tokens=60] [rate=60]"), stream=True
        )
    )
    if hasattr(stream, "__aiter__"):
        await anext(aiter(stream))
    else:
        next(iter(stream))
    await done(stream.close())

    assert await gate.ended(before, end)


async def test_a_cancelled_task_ends_its_stream(openai: Any, gate: ModelGate) -> None:
    """A task that is cancelled while it reads ends the stream at the server."""
    before = len(gate.served())
    began = asyncio.Event()

    async def read(client: Any) -> None:
        async for _ in await client.chat.completions.create(
            model="chat", messages=say("[tokens=500] [rate=100]"), stream=True
        ):
            began.set()

    async with (
        openai.AsyncOpenAI(base_url=gate.base, api_key=gate.key) as client,
        asyncio.TaskGroup() as group,
    ):
        task = group.create_task(read(client))
        await began.wait()
        task.cancel()

    assert await gate.ended(before, "left")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> NodeClient:
    """The client for Node."""
    return NodeClient(tmp_path_factory.mktemp("node"))


async def test_the_client_for_node_gets_the_same(
    node: NodeClient, gate: ModelGate, wanted: dict[str, Any]
) -> None:
    """OpenAI's client for Node, whose first call wakes the function, gets what the one for Python
    gets, and raises errors of its own for all that goes wrong."""
    await gate.go_cold("chat")

    got = await asyncio.to_thread(node.results, gate.base, gate.key, "chat")

    same = ["chat", "tool", "embeddings", "transcription", "speech"]
    streams = ["chat stream", "chat stream with usage", "tool stream", "response stream"]
    assert {name: without_none(got[name]) for name in [*same, *streams]} == {
        name: wanted[name] for name in [*same, *streams]
    }
    assert {"chat", "plain", "late", ALIAS} <= set(got["models"])
    assert got["model with a slash"] == ALIAS
    assert {name: one[:2] for name, one in got.items() if name in NODE_ERRORS} == NODE_ERRORS
    assert (got["wrong key"][2], got["unknown model"][2]) == ("invalid_api_key", "model_not_found")
    assert (got["retry"], got["left stream"]) == (2, "left")
