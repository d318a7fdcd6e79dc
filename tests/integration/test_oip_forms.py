"""Real replicas behind a real server: the same tensors through every form of a request."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from aiohttp import ClientSession, ClientTimeout

from runtime_image.contract.signature import UNKNOWN_RANK_MAX
from tests.support import oip_grpc
from tests.support.doses import amount
from tests.support.oip_forms import (
    HALVES,
    LENGTH,
    WHOLES,
    WIDTH,
    Form,
    Tensors,
    Wire,
    binary,
    decoded,
    echo,
    forms_of,
    recurrent,
    same,
    tensors,
    unranked,
)
from tests.support.oip_mutants import mutants
from tests.support.process_server import ServerProcess, server_process

pytestmark = pytest.mark.timeout(600)

FUNCTIONS = {"wholes": WHOLES, "halves": ("INT64", *HALVES), "floats": ("FP32",)}
"""Datatypes by function; the last one has a fast path in replicas."""
UNRANKED = "unranked"
"""A function that declares no shapes."""
RECURRENT = "recurrent"
"""A function with an operator on which an empty axis ends the process."""
PLAIN = "schema = 1\n"
LABELLED = """schema = 1

[output]
tensor = "out_fp32"
labels = ["cat", "dog"]
"""
AT_ONCE = 16
CLASSES = ["3.000000:0:cat", "2.500000:2"]


@pytest.fixture(scope="module")
def grpc_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, grpc_port: int) -> Iterator[ServerProcess]:
    """A server with functions that return their inputs."""
    folder = tmp_path_factory.mktemp("forms")
    with server_process(folder / "data", "--grpc-port", str(grpc_port)) as server:
        with ThreadPoolExecutor(len(FUNCTIONS)) as threads:
            names = (*FUNCTIONS, UNRANKED, RECURRENT)
            list(threads.map(partial(deploy, server, folder), names))
        yield server


def deploy(server: ServerProcess, parent: Path, name: str) -> None:
    """Deploy one of the functions."""
    folder = parent / name
    folder.mkdir()
    if name == UNRANKED:
        unranked(folder, name, WHOLES)
    elif name == RECURRENT:
        recurrent(folder, name)
    else:
        echo(folder, name, FUNCTIONS[name])
    (folder / "function.toml").write_text(LABELLED if name == "floats" else PLAIN)
    server.fnctl_json("deploy", str(folder), "--name", name)


@pytest.fixture
async def session(server: ServerProcess) -> AsyncIterator[ClientSession]:
    """A client that leaves compressed answers as they are."""
    timeout = ClientTimeout(total=90)
    async with ClientSession(server.url, timeout=timeout, auto_decompress=False) as session:
        yield session


@pytest.fixture(scope="module")
def grpc_threads() -> Iterator[None]:
    """What gRPC opens once per process, and its event engine. The last channel's end would end the
    engine some time later, in a thread of its own; so one channel stays open meanwhile."""

    async def begin() -> None:
        grpc.aio.init_grpc_aio()

    with asyncio.Runner() as runner:
        runner.run(begin())
    nobody = grpc.insecure_channel("127.0.0.1:9")
    nobody.subscribe(lambda _: None, try_to_connect=True)
    yield
    nobody.close()
    grpc.aio.shutdown_grpc_aio()


@pytest.fixture
async def channel(
    server: ServerProcess, grpc_port: int, grpc_threads: None
) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to the server's port of gRPC."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        yield channel


async def post(session: ClientSession, wire: Wire) -> tuple[int, Wire]:
    async with session.post(
        wire.path, data=wire.body, headers=wire.headers, skip_auto_headers=["Content-Type"]
    ) as answer:
        return answer.status, Wire(wire.path, answer.headers, await answer.read())


@pytest.mark.parametrize("name", FUNCTIONS)
async def test_every_form_returns_the_same_tensors(
    session: ClientSession, channel: grpc.aio.Channel, name: str
) -> None:
    """Random tensors of all datatypes, sent at once in all forms that can carry them, come back as
    they were, to the bit; the replica may join them."""
    random = np.random.default_rng(18)
    used: set[str] = set()
    for turn in range(amount(12, 1000)):
        given = tensors(random, FUNCTIONS[name], finite=turn % 4 != 0)
        forms = list(forms_of(given))
        calls = oip_grpc.forms_of(given)
        used |= {form.name for form in forms} | set(calls)
        async with asyncio.TaskGroup() as group:
            for form in forms:
                group.create_task(_echoed(session, form, name, given))
            for call in calls:
                group.create_task(_called(channel, call, name, given))
    assert len(used) == (4 if name == "halves" else 9)


async def _echoed(session: ClientSession, form: Form, name: str, given: Tensors) -> None:
    status, answer = await post(session, form.write(name, given))
    assert status == 200, (form.name, answer.body[:300])
    assert same(form.read(decoded(answer)), given), form.name


async def _called(channel: grpc.aio.Channel, form: str, name: str, given: Tensors) -> None:
    assert same(await oip_grpc.infer(channel, form, name, given), given), form


@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 0), (2, 3, 1, 2)])
async def test_an_unknown_rank_takes_every_shape(
    session: ClientSession, channel: grpc.aio.Channel, shape: tuple[int, ...]
) -> None:
    """Tensors of any rank come back from a model that declares no shapes, in every form."""
    row = tensors(np.random.default_rng(6), WHOLES, finite=True)
    given = {one: np.resize(array, shape) for one, array in row.items()}
    for form in forms_of(given):
        if shape or form.name != "nested JSON":  # data are always a list
            await _echoed(session, form, UNRANKED, given)
    for call in oip_grpc.forms_of(given):
        if given["BYTES"].size or call != oip_grpc.FORMS[0]:
            await _called(channel, call, UNRANKED, given)


async def test_an_unknown_rank_is_described(session: ClientSession) -> None:
    """It is null here, a list of any items in OpenAPI, and one dynamic axis in the protocol, which
    has no word for it."""
    async with session.get(f"/fn/{UNRANKED}") as answer:
        signature = (await answer.json())["signature"]
    async with session.get(f"/fn/{UNRANKED}/openapi.json") as answer:
        document = await answer.text()
    async with session.get(f"/v2/models/{UNRANKED}") as answer:
        metadata = await answer.json()

    sides = ("inputs", "outputs")
    assert {one["shape"] for side in sides for one in signature[side]} == {None}
    assert json.dumps(UNKNOWN_RANK_MAX) in document
    assert all(one["shape"] == [-1] for side in sides for one in metadata[side])


@pytest.mark.parametrize("shape", [(0, 2, WIDTH), (2, 0, WIDTH), (0, 0, WIDTH)])
async def test_an_empty_axis_does_not_end_a_replica(
    session: ClientSession, channel: grpc.aio.Channel, shape: tuple[int, ...]
) -> None:
    """Where the model has an operator that would end the process, a request with an empty axis is
    refused in every form, and calls beside it are answered by the same replica."""
    good = {"FP32": np.ones((2, 4, WIDTH), np.float32)}
    empty = {"FP32": np.ones(shape, np.float32)}
    status, answer = await post(session, binary(RECURRENT, good))
    assert status == 200, answer.body
    replica = replica_of(answer)

    async def is_refused(form: Form) -> None:
        status, answer = await post(session, form.write(RECURRENT, empty))
        assert status == 400, (form.name, answer.body)
        text = decoded(answer).body.decode()
        assert "in_fp32" in text, form.name
        assert "the operator GRU takes no empty one" in text, form.name

    async def is_answered() -> None:
        status, answer = await post(session, binary(RECURRENT, good))
        assert (status, replica_of(answer)) == (200, replica)

    async with asyncio.TaskGroup() as group:
        for form in forms_of(empty):
            group.create_task(is_refused(form))
            group.create_task(is_answered())
    for call in oip_grpc.forms_of(empty):
        code, text = await _refusal(channel, call, RECURRENT, empty)
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert "the operator GRU takes no empty one" in text
    await is_answered()


async def _refusal(
    channel: grpc.aio.Channel, form: str, name: str, given: Tensors
) -> tuple[grpc.StatusCode, str]:
    """Return code and text; the error itself would keep the channel open."""
    try:
        await oip_grpc.infer(channel, form, name, given)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


async def test_outputs_are_classified(session: ClientSession) -> None:
    """The best classes of an output come with the labels of function.toml, in both forms."""
    document: dict[str, Any] = {
        "inputs": [{"name": "in_fp32", "shape": [1, 3], "datatype": "FP32", "data": [3, 2, 2.5]}],
        "outputs": [{"name": "out_fp32", "parameters": {"classification": 2}}],
    }
    for is_raw in (False, True):
        document["parameters"] = {"binary_data_output": is_raw}
        body = json.dumps(document).encode()
        status, answer = await post(session, Wire("/v2/models/floats/infer", {}, body))
        assert status == 200, answer.body
        head = json.loads(answer.body[: int(answer.headers.get(LENGTH, len(answer.body)))])
        (item,) = head["outputs"]
        assert (item["shape"], item["datatype"]) == ([1, 2], "BYTES")
        if is_raw:
            assert answer.body.endswith(b"\x0a\x00\x00\x00" + b"2.500000:2")
        else:
            assert item["data"] == CLASSES


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("wholes", {"parameters": {"sequence_id": 4}}, "without a sequence"),
        ("wholes", {"parameters": {"triton_x": 4}}, "triton_"),
        ("wholes", {"parameters": {"timeout": "1"}}, "timeout (microseconds)"),
        ("halves", {}, "FP16 as binary data"),
    ],
)
async def test_what_the_protocol_does_not_allow_is_refused(
    session: ClientSession, name: str, change: dict[str, Any], words: str
) -> None:
    """Sequences, reserved names, wrong types and FP16 in JSON are the client's mistakes."""
    given = tensors(np.random.default_rng(1), FUNCTIONS[name], finite=True)
    inputs = [
        {"name": f"in_{one.lower()}", "shape": list(array.shape), "datatype": one,
         "data": array.ravel().tolist()}
        for one, array in given.items()
    ]  # fmt: skip
    body = json.dumps({"inputs": inputs, **change}).encode()
    status, answer = await post(session, Wire(f"/v2/models/{name}/infer", {}, body))
    assert status == 400
    assert words in json.loads(answer.body)["error"]


async def test_bombs_are_stopped_at_the_limit(session: ClientSession) -> None:
    """A compressed body is inflated no further than the largest body of the function."""
    bomb = gzip.compress(bytes(64 * 2**20 + 1), 1)
    wire = Wire("/v2/models/wholes/infer", {"Content-Encoding": "gzip"}, bomb)
    status, answer = await post(session, wire)
    assert (status, answer.headers["Fn-Problem"]) == (413, "body_too_large")


@pytest.mark.parametrize("name", ["wholes", "floats"])
async def test_damaged_bodies_harm_nothing(
    server: ServerProcess, session: ClientSession, name: str
) -> None:
    """Damaged bodies are read or refused, by the same replica, and no error is logged."""
    given = tensors(np.random.default_rng(3), FUNCTIONS[name], finite=True)
    _, answer = await post(session, binary(name, given))
    replica = replica_of(answer)
    complaints = len(server.complaints)
    wires = [form.write(name, given) for form in forms_of(given) if "in " not in form.name]
    bodies = [(wire.body, int(wire.headers[LENGTH])) for wire in wires if LENGTH in wire.headers]
    queue = mutants(19, bodies, amount(200, 10_000))
    statuses: set[int] = set()

    async def send() -> None:
        for body, length in queue:
            headers = {LENGTH: str(length)} if length >= 0 else {}
            status, _ = await post(session, Wire(f"/v2/models/{name}/infer", headers, body))
            statuses.add(status)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(send())
    assert statuses <= {200, 400}
    assert 400 in statuses
    assert list(itertools.islice(server.complaints, complaints, None)) == []
    status, answer = await post(session, binary(name, given))
    assert (status, replica_of(answer)) == (200, replica), answer.body


def replica_of(answer: Wire) -> str:
    """Return the id of the replica that has answered."""
    found = re.search('replica;desc="([^"]+)"', answer.headers["Server-Timing"])
    assert found is not None
    return found[1]
