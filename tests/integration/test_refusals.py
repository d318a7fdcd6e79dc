"""Tests of requests that are refused before a replica is involved."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import models
from tests.support.fake_driver.driver import FakeDriver
from tests.support.fake_driver.service import Script
from tests.support.nouns import SIGNATURE
from tests.support.server import Answer, ServingServer, serving

ROW: dict[str, Any] = {"inputs": {"x": [[1, 2, 3, 4]]}}
FINITE = 'schema = 1\nmodel = "add_one.onnx"\n[limits]\nbody_mib = 1\n[input.x]\nfinite = true\n'
JSON_TYPES = "application/json, application/octet-stream with Inference-Header-Content-Length"
MIB = 2**20


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServingServer]:
    """A server with the cold function `strict`, which takes finite FP32 [-1, 4] in at most 1
    MiB."""
    async with serving(tmp_path, standbys=0) as server:
        await server.deploy(models.add_one(tmp_path), name="strict", manifest=FINITE)
        await server.until_pools(lambda: not server.server.manager.replicas())
        yield server


async def has_woken(server: ServingServer) -> bool:
    """Return whether a replica was started for `strict` since its deploy."""
    why = (await server.admin("GET", "/functions/strict/why")).json()
    nothing = not server.server.manager.replicas() and why["state"] == "cold"
    return not nothing or any("starts" in one["text"] for one in why["decisions"])


def npy(values: Any, dtype: str = "<f4") -> bytes:
    """Return the bytes of an .npy file."""
    file = io.BytesIO()
    np.save(file, np.array(values, dtype=dtype))
    return file.getvalue()


def tensor(**changes: Any) -> bytes:
    """Return an Open Inference Protocol request with one input."""
    one = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4], **changes}
    return json.dumps({"inputs": [one]}).encode()


def said(answer: Answer) -> tuple[Any, ...]:
    """Return what a 400 names: code, input, expected and got."""
    problem = answer.problem
    return tuple(problem.get(key, "") for key in ("code", "input", "expected", "got"))


WANTED = "FP32 of shape [-1, 4]"
BAD_INPUTS: list[tuple[bytes, str, tuple[str, str, str]]] = [
    (b"", "application/json", ("", "a JSON object", "an empty body")),
    (b'{"inputs": {"y": [[1]]}}', "application/json", ("y", "one of: x", "an unknown name")),
    (b'{"inputs": {}}', "application/json", ("x", WANTED, "nothing: this input is missing")),
    (b'{"inputs": {"x": [[1, 2]]}}', "application/json", ("x", WANTED, "a list of 2 at index [0]")),
    (tensor(datatype="INT64"), "application/json", ("x", WANTED, "datatype INT64")),
    (
        tensor(data=[1, 2, 3]),
        "application/json",
        ("x", "4 elements for shape [1, 4]", "3 elements"),
    ),
    (npy([[1, 2, 3, 4]], "<i8"), "application/x-npy", ("x", WANTED, "dtype INT64")),
    (
        npy([[1, 2, 3, 4], [1, float("nan"), 3, 4]]),
        "application/x-npy",
        ("x", "finite FP32 values", "NaN or infinity at index [1, 1]"),
    ),
]


async def test_bad_input_is_named_and_wakes_no_device(server: ServingServer) -> None:
    """Every malformed input is 400 with input, expected and got, and starts nothing."""
    for body, content_type, named in BAD_INPUTS:
        answer = await server.call("strict", body, Content_Type=content_type)

        assert answer.status == 400, (body, answer)
        assert said(answer) == ("bad_input", *named)
        assert answer.problem["detail"].endswith(f"expected {named[1]}, got {named[2]}")
    assert not await has_woken(server)


async def test_a_warm_function_refuses_the_same_input_in_the_same_words(
    server: ServingServer,
) -> None:
    """A replica's refusal of bad input has the words of the gateway's while the function was
    cold."""
    assert (await server.call("strict", ROW)).status == 200

    for body, content_type, named in BAD_INPUTS:
        answer = await server.call("strict", body, Content_Type=content_type)
        assert (answer.status, said(answer)) == (400, ("bad_input", *named))


async def test_broken_json_says_where_it_breaks(server: ServingServer) -> None:
    """A body that is not JSON is 400 with what was expected, and starts nothing."""
    answer = await server.call("strict", b'{"inputs": {"x": [[1,', Content_Type="application/json")

    assert answer.status == 400
    assert answer.problem["code"] == "bad_input"
    assert "JSON" in answer.problem["expected"]
    assert not await has_woken(server)


async def test_large_bad_input_wakes_no_device_either(server: ServingServer) -> None:
    """A large body, which is checked in a thread, is refused in the same way."""
    answer = await server.call("strict", {"inputs": {"x": [[1.0, 2.0, 3.0]] * 20_000}})

    assert answer.status == 400
    assert said(answer) == ("bad_input", "x", WANTED, "a list of 3 at index [0]")
    assert not await has_woken(server)


async def test_a_wrong_content_type_is_told_what_the_function_takes(server: ServingServer) -> None:
    """An unsupported content type is 415 with every supported one and the one received; nothing
    starts."""
    answer = await server.call("strict", b"x: 1", Content_Type="application/yaml")

    assert answer.status == 415
    assert answer.problem["detail"] == (
        f"content type: expected one of: {JSON_TYPES}, application/x-npy, got application/yaml"
    )
    assert not await has_woken(server)


async def test_an_impossible_accept_is_refused(server: ServingServer) -> None:
    """An Accept header that allows no form of answer is 406 and starts nothing."""
    answer = await server.call("strict", ROW, Accept="image/png")

    assert (answer.status, answer.problem["code"]) == (406, "not_acceptable")
    assert "image/png" in answer.problem["got"]
    assert not await has_woken(server)


async def test_a_body_over_the_limit_is_refused_by_its_announced_length(
    server: ServingServer,
) -> None:
    """A Content-Length over the limit is 413 with both numbers; nothing starts."""
    body = io.BytesIO(b"x" * (MIB + 1))
    answer = await server.call("strict", body, Content_Type="application/json")

    assert answer.status == 413
    assert answer.problem["detail"] == f"expected at most {MIB} bytes, got {MIB + 1} or more"
    assert not await has_woken(server)


async def test_a_chunked_body_over_the_limit_is_refused_while_it_comes(
    server: ServingServer,
) -> None:
    """A chunked body is 413 as soon as it exceeds the limit; nothing starts."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(32):
            yield b"x" * (MIB // 16)

    answer = await server.call("strict", pieces(), Content_Type="application/json")

    assert answer.status == 413
    assert answer.problem["detail"].startswith(f"expected at most {MIB} bytes, got ")
    assert not await has_woken(server)


async def test_a_body_at_the_limit_is_taken(server: ServingServer) -> None:
    """A body of exactly the limit is accepted and judged by its content."""
    body = io.BytesIO(b" " * MIB)
    answer = await server.call("strict", body, Content_Type="application/json")

    assert answer.status == 400


async def test_an_unknown_function_is_answered_with_the_nearest_names(
    server: ServingServer,
) -> None:
    """An unknown function is 404 with similar names, in the text and as data."""
    answer = await server.call("strikt", ROW)

    assert answer.status == 404
    assert answer.problem["detail"] == "no function 'strikt'; did you mean 'strict'?"
    assert answer.problem["nearest"] == ["strict"]


async def test_an_unknown_revision_is_answered_with_those_there_are(server: ServingServer) -> None:
    """An unknown revision is 404 with the existing numbers."""
    answer = await server.call("strict@7", ROW)

    assert answer.status == 404
    assert answer.problem["detail"] == "function 'strict' has no revision 7; there is 1"
    assert answer.problem["revisions"] == [1]


async def test_another_method_is_refused_with_those_allowed(server: ServingServer) -> None:
    """Another method is 405 with Allow, as a problem document."""
    answer = await server.request("DELETE", "/fn/strict")

    assert answer.status == 405
    assert answer.headers["Allow"] == "GET, HEAD, POST"
    assert answer.problem["detail"] == "expected GET, HEAD, POST, got DELETE"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/nowhere"), ("POST", "/"), ("GET", "/fn/"), ("PUT", "/healthz")]
)
async def test_an_unknown_route_is_a_problem_document(
    tmp_path: Path, method: str, path: str
) -> None:
    """An unknown route is 404 as a problem document with method and path."""
    async with serving(tmp_path, FakeDriver()) as server:
        answer = await server.request(method, path)

    assert answer.status == 404
    assert answer.problem["detail"] == f"no route {method} {path}"


async def test_a_slow_body_is_given_up(tmp_path: Path) -> None:
    """A body that does not arrive in time is 408."""
    script = Script(signature=SIGNATURE)
    async with serving(tmp_path, FakeDriver(script), body_read_s=0.05) as server:
        await server.deploy({"m.onnx": models.add_one(tmp_path).read_bytes()}, name="f")
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST /fn/f HTTP/1.1\r\nHost: {host}\r\nContent-Length: 9\r\n\r\n123".encode()
        )
        answer = await reader.readuntil(b"}")
        writer.close()
        await writer.wait_closed()

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the body did not arrive within 0.05 s" in answer
