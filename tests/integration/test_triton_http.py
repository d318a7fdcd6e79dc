"""Triton's HTTP client, both forms, over real replicas: every public method, warm and cold, with
one worker and with two. What this server does not have fails with the client's own error."""

from __future__ import annotations

import asyncio
import importlib
import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from time import monotonic
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.support import models
from tests.support.process_server import ServerProcess, server_process
from tests.support.triton_client import MODULES, TritonClient, triton_client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MODEL, WORDS = "add", "words"
UNTIL_S = 30.0
CROWD = 200
ROWS = np.arange(12, dtype=np.float32).reshape(3, models.WIDTH)
TEXTS = np.array(["one", "zwölf", ""], dtype=object)
LOCAL = {
    *("close", "plugin", "register_plugin", "unregister_plugin"),
    *("generate_request_body", "parse_response_body"),
}
"""Methods that send nothing."""
CLAIMED: dict[str, list[tuple[Any, ...]]] = {
    "is_server_live": [()],
    "is_server_ready": [()],
    "is_model_ready": [(MODEL,), (MODEL, "1")],
    "get_server_metadata": [()],
    "get_model_metadata": [(MODEL,), (MODEL, "1")],
    "get_model_config": [(MODEL,), (MODEL, "1")],
    "get_model_repository_index": [()],
    "get_inference_statistics": [(), (MODEL,), (MODEL, "1")],
    "get_system_shared_memory_status": [()],
    "get_cuda_shared_memory_status": [()],
    "unregister_system_shared_memory": [(), ("region",)],
    "unregister_cuda_shared_memory": [(), ("region",)],
}
"""Arguments of calls that succeed, and wake nothing."""
REFUSED: dict[str, list[tuple[Any, ...]]] = {
    "register_system_shared_memory": [("region", "/key", 64)],
    "register_cuda_shared_memory": [("region", b"aGFuZGxl", 0, 64)],
    "get_system_shared_memory_status": [("region",)],
    "update_trace_settings": [(None, {"trace_rate": "1"}), (MODEL, {"trace_rate": "1"})],
    "update_log_settings": [({"log_verbose_level": 1},)],
    "is_model_ready": [],
    "get_model_metadata": [("nobody",), (MODEL, "9"), (MODEL, "x")],
    "get_model_config": [("nobody",)],
    "get_inference_statistics": [("nobody",)],
    "load_model": [("nobody",)],
    "unload_model": [("nobody",)],
}
"""Arguments of calls that fail, for an administrator, too."""
CALLED = {"infer", "async_infer", "load_model", "unload_model"}
SETTINGS = {"get_trace_settings", "get_log_settings"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, ServerProcess]]:
    """Servers by their number of workers."""
    folder = tmp_path_factory.mktemp("triton")
    files = {MODEL: models.add_one(folder), WORDS: models.strings(folder)}
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        options, more = ("--cpu-slots", "2", "--workers"), {"FN_PREPARE": "0"}
        made = {
            count: server_process(folder / f"{count}", *options, f"{count}", environment=more)
            for count in (1, 2)
        }
        found = dict(zip(made, pool.map(stack.enter_context, made.values()), strict=True))
        deploys = [
            partial(one.fnctl_json, "deploy", str(file), "--name", name)
            for one in found.values()
            for name, file in files.items()
            if name == MODEL or one is found[1]
        ]
        list(pool.map(lambda deploy: deploy(), deploys))
        yield found
        complaints = [line for one in found.values() for line in one.complaints]
    assert complaints == []


@pytest.fixture(params=[1, 2], ids=["one worker", "two workers"])
def server(request: pytest.FixtureRequest, servers: dict[int, ServerProcess]) -> ServerProcess:
    """A server with one worker, and one with two."""
    return servers[request.param]


@pytest.fixture(params=list(MODULES))
def client(request: pytest.FixtureRequest, servers: dict[int, ServerProcess]) -> Iterator[Any]:
    """A client of the server with one worker, in both forms."""
    with triton_client(request.param, servers[1].url) as made:
        yield made


@pytest.fixture
def both(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[TritonClient]:
    """A client of each server."""
    with triton_client("http", server.url) as made:
        yield made


def admin(server: ServerProcess) -> dict[str, Any]:
    """Return the argument for an administrator's headers."""
    return {"headers": server.headers}


def is_resident(client: TritonClient, name: str = MODEL) -> bool:
    """Return whether a replica of the model is ready."""
    return bool(client.is_model_ready(name, query_params={"strict": "1"}))


def go_cold(client: TritonClient, name: str = MODEL) -> None:
    """Unload a model, and return when it is cold. One that was just called is unloaded later."""
    client.unload_model(name)
    until_s = monotonic() + UNTIL_S
    while monotonic() < until_s:
        found = client.get_model_repository_index()
        if next(one["reason"] for one in found if one["name"] == name) == "cold":
            return
    raise AssertionError(f"{name} does not sleep")


def test_every_method_has_a_test(client: TritonClient) -> None:
    """A method of another release of the client would show up here."""
    known = {*LOCAL, *CLAIMED, *REFUSED, *CALLED, *SETTINGS}

    assert client.methods() <= known
    assert known - client.methods() <= {"async_infer", "plugin"}


@pytest.mark.parametrize("is_warm", [True, False], ids=["warm", "cold"])
def test_questions_are_answered_and_wake_nothing(client: TritonClient, *, is_warm: bool) -> None:
    """Every question has the same answer while a model is resident and while it is cold."""
    if is_warm:
        client.load_model(MODEL)
    else:
        go_cold(client)
    found = {name: [getattr(client, name)(*one) for one in CLAIMED[name]] for name in CLAIMED}

    assert is_resident(client) is is_warm
    assert found["is_server_live"] == found["is_server_ready"] == [True]
    assert found["is_model_ready"] == [True, True]
    assert found["get_server_metadata"][0]["name"] == "fngate"
    tensor = {"datatype": "FP32", "shape": [-1, models.WIDTH]}
    for one in found["get_model_metadata"]:
        assert (one["name"], one["versions"]) == (MODEL, ["1"])
        assert one["inputs"] == [{"name": "x", **tensor}]
        assert one["outputs"] == [{"name": "y", **tensor}]
    for one in found["get_model_config"]:
        rows = one["max_batch_size"]
        dims = [models.WIDTH] if rows else [-1, models.WIDTH]
        assert one["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": dims}]
    (index,) = found["get_model_repository_index"]
    state = {one["name"]: (one["version"], one["state"], one["reason"]) for one in index}
    assert state[MODEL] == ("1", "READY", "" if is_warm else "cold")
    counts = [len(one["model_stats"]) for one in found["get_inference_statistics"]]
    assert counts == [2, 1, 1]
    assert found["get_system_shared_memory_status"] == [[]]
    assert found["unregister_cuda_shared_memory"] == [None, None]


def test_what_is_not_served_fails_with_the_clients_error(
    client: TritonClient, servers: dict[int, ServerProcess]
) -> None:
    """Each error has a text and a status that are not the client's own."""
    for name, calls in REFUSED.items():
        for one in calls:
            with pytest.raises(InferenceServerException) as caught:
                getattr(client, name)(*one, **admin(servers[1]))
            assert re.fullmatch("40[04]", caught.value.status()), (name, one)
            assert "exception occurred in the client" not in caught.value.message()
    assert client.is_model_ready("nobody") is False


def test_settings_are_for_administrators(
    client: TritonClient, servers: dict[int, ServerProcess]
) -> None:
    """They are read with the scope admin, and an update that changes nothing shows them."""
    for name in sorted(SETTINGS):
        with pytest.raises(InferenceServerException, match="A key is needed"):
            getattr(client, name)()
    trace = client.get_trace_settings(**admin(servers[1]))
    assert trace["trace_level"] == ["OFF"]
    assert client.get_trace_settings(MODEL, **admin(servers[1])) == trace
    assert client.update_trace_settings(None, {"trace_rate": None}, **admin(servers[1])) == trace
    logs = client.get_log_settings(**admin(servers[1]))
    assert logs["log_info"] is True
    assert client.update_log_settings({}, **admin(servers[1])) == logs


@pytest.mark.parametrize("is_binary", [True, False], ids=["binary", "JSON"])
def test_an_inference(client: TritonClient, *, is_binary: bool) -> None:
    """The answer names model and version as the client knows them, and has the request's id."""
    output = client.module.InferRequestedOutput("y", binary_data=is_binary)
    sent = [client.input("x", ROWS, is_binary=is_binary)]

    found = client.infer(MODEL, sent, outputs=[output], request_id="a-1", model_version="1")

    np.testing.assert_array_equal(found.as_numpy("y"), ROWS + 1)
    answer = found.get_response()
    assert (answer["model_name"], answer["model_version"], answer["id"]) == (MODEL, "1", "a-1")


def test_a_cold_model_wakes(client: TritonClient) -> None:
    """The client's own limits of time are enough."""
    go_cold(client)

    found = client.infer(MODEL, [client.input("x", ROWS)])

    np.testing.assert_array_equal(found.as_numpy("y"), ROWS + 1)


def test_texts_are_passed_on(client: TritonClient) -> None:
    """Texts of a model are UTF-8, also empty ones."""
    found = client.infer(WORDS, [client.input("x", TEXTS)])

    assert [bytes(one).decode() for one in found.as_numpy("y")] == list(TEXTS)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compressed_both_ways(client: TritonClient, coding: str) -> None:
    """Bodies may have either coding, requests and answers."""
    codings = {"request_compression_algorithm": coding, "response_compression_algorithm": coding}
    found = client.infer(MODEL, [client.input("x", ROWS)], **codings)

    np.testing.assert_array_equal(found.as_numpy("y"), ROWS + 1)


def test_the_best_classes(client: TritonClient) -> None:
    """The classification extension returns value and index of the best elements."""
    output = client.module.InferRequestedOutput("y", class_count=1)
    found = client.infer(MODEL, [client.input("x", ROWS[:1])], outputs=[output]).as_numpy("y")

    assert [bytes(one) for one in found.ravel()] == [b"4.000000:3"]


@pytest.mark.parametrize(
    ("array", "text"),
    [(ROWS[:, :3], "shape"), (TEXTS, "FP32")],
)
def test_a_wrong_input_is_named(client: TritonClient, array: Any, text: str) -> None:
    """The client's error has the server's reason."""
    with pytest.raises(InferenceServerException, match=text) as caught:
        client.infer(MODEL, [client.input("x", array)])

    assert caught.value.status() == "400"


def test_inferences_at_once(servers: dict[int, ServerProcess]) -> None:
    """`async_infer` of the form with threads returns its results later."""
    with triton_client("http", servers[1].url) as client:
        sent = [client.async_infer(MODEL, [client.input("x", ROWS + n)]) for n in range(8)]
        for number, one in enumerate(sent):
            np.testing.assert_array_equal(one.get_result().as_numpy("y"), ROWS + number + 1)


@pytest.mark.parametrize(
    "given", [{"config": "{}"}, {"config": "{}", "files": {"file:1/m.onnx": b"x"}}]
)
def test_a_load_with_another_configuration_is_refused(
    client: TritonClient, given: dict[str, Any]
) -> None:
    """A model is what was deployed."""
    with pytest.raises(InferenceServerException, match="as they were deployed"):
        client.load_model(MODEL, **given)


def test_load_and_unload(both: TritonClient) -> None:
    """A model that is loaded is resident; unloaded, it is cold, and the next call wakes it. So with
    workers, where any of them may be asked."""
    both.load_model(MODEL)
    assert is_resident(both)
    go_cold(both)
    assert not is_resident(both)
    assert both.is_model_ready(MODEL)
    both.infer(MODEL, [both.input("x", ROWS)])
    both.unload_model(MODEL, unload_dependents=True)


def test_statistics_count_all_workers(both: TritonClient) -> None:
    """Each inference is counted once, whichever worker answered it."""

    def counted() -> int:
        (one,) = both.get_inference_statistics(MODEL)["model_stats"]
        return int(one["inference_stats"]["success"]["count"])

    before = counted()
    for _ in range(4):
        both.infer(MODEL, [both.input("x", ROWS)])

    assert counted() == before + 4


def test_a_crowd_causes_one_start(server: ServerProcess) -> None:
    """Clients that load a cold model at once all get it, by one cold start."""
    with triton_client("http", server.url) as client:
        go_cold(client)
        before = starts(server)
        asyncio.run(load_at_once(server.url))
        assert is_resident(client)

    assert starts(server) == before + 1


async def load_at_once(url: str) -> None:
    """Load the model with CROWD connections at once."""
    module = importlib.import_module(MODULES["aio"])
    address = url.removeprefix("http://")
    async with module.InferenceServerClient(address, conn_limit=CROWD) as client:
        await asyncio.gather(*(client.load_model(MODEL) for _ in range(CROWD)))


def starts(server: ServerProcess) -> int:
    """Return the number of replicas that the model has had, by the log of decisions."""
    asked = urllib.request.Request(
        f"{server.url}/admin/v1/functions/{MODEL}/why", headers=server.headers
    )
    with urllib.request.urlopen(asked) as answer:
        return len(re.findall(rb"wakes standby|starts r", answer.read()))
