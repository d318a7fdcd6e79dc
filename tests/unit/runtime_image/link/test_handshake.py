"""A replica's handshake: HELLO, WELCOME, BIND."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from runtime_image.contract import server as servers
from runtime_image.contract.link import HEADER, Kind
from runtime_image.contract.model import ImageForm, InputRule, ModelSpec
from runtime_image.contract.samples import SampleRequest
from runtime_image.contract.server import ServerSpec
from runtime_image.link.frames import Frame, LinkError, pack
from runtime_image.link.handshake import greet, pack_bind, read_bind, read_server_bind
from runtime_image.link.reception import read_hello, welcome
from tests.support.greetings import HELLO, Pair, bind_request


async def test_a_replica_is_welcomed(pair: Pair) -> None:
    """The manager learns who connects; the replica receives the data listener's descriptor."""
    replica, manager = pair
    with socket.socket(socket.AF_UNIX) as listener:
        async with asyncio.TaskGroup() as group:
            greeted = group.create_task(asyncio.to_thread(greet, replica, HELLO))
            hello = await read_hello(manager, 10)
            welcome(manager, listener)

        _, descriptor, frames = greeted.result()
        same = os.path.samestat(os.fstat(descriptor), os.fstat(listener.fileno()))
        os.close(descriptor)

    assert hello == HELLO
    assert same
    assert frames == []


def test_frames_behind_the_welcome_are_kept(pair: Pair) -> None:
    """Frames received together with WELCOME are delivered, and a partial frame is completed
    later."""
    replica, manager = pair
    [ping] = pack(Kind.PING, aux=3)
    data = b"".join([*pack(Kind.WELCOME), *pack(Kind.PING, aux=2), ping[:5]])
    socket.send_fds(manager, [data], [manager.fileno()])

    reader, descriptor, frames = greet(replica, HELLO)
    os.close(descriptor)
    rest = ping[5:]
    reader.buffer()[: len(rest)] = rest

    assert frames == [Frame(Kind.PING, 0, 0, 2, b"", b"")]
    assert reader.received(len(rest)) == [Frame(Kind.PING, 0, 0, 3, b"", b"")]


def test_a_refused_replica_gets_an_error(pair: Pair) -> None:
    """A manager that closes instead of answering has refused the replica."""
    replica, manager = pair
    manager.shutdown(socket.SHUT_WR)

    with pytest.raises(LinkError, match="the manager refused the HELLO"):
        greet(replica, HELLO)


@pytest.mark.parametrize(("kind", "count"), [(Kind.PING, 1), (Kind.WELCOME, 0)])
def test_a_wrong_welcome_leaves_no_descriptor(pair: Pair, kind: Kind, count: int) -> None:
    """Another frame, or a WELCOME without a listener, is an error and leaves no descriptor open."""
    replica, manager = pair
    socket.send_fds(manager, [b"".join(pack(kind))], [manager.fileno()] * count)

    with pytest.raises(LinkError, match=f"got {kind.name} with {count}"):
        greet(replica, HELLO)


@pytest.mark.slow
def test_a_replica_does_not_pay_for_asyncio() -> None:
    """Importing the handshake does not import asyncio."""
    code = "import sys, runtime_image.link.handshake; sys.exit('asyncio' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


SPEC = ModelSpec("digits@1", inputs={"x": InputRule("image", image=ImageForm((8, 8)))})


def frame(body: bytes) -> Frame:
    return Frame(Kind.BIND, 0, 0, 0, b"", body)


def changed(**changes: Any) -> bytes:
    return json.dumps({**bind_request(SPEC), **changes}).encode()


def test_a_bind_survives_serialisation() -> None:
    """A BIND request survives serialisation, with its complete model spec."""
    request = bind_request(SPEC, role="trial", memory_mib=64, assigned_s=12.5)

    [packed] = pack_bind(request)
    read, spec = read_bind(frame(bytes(packed[HEADER.size :])))

    assert packed[8] == Kind.BIND
    assert {**read, "spec": None} == {**request, "spec": None}
    assert spec == SPEC


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "malformed BIND: Expecting property name"),
        (b"\xff", "malformed BIND: 'utf-8' codec can't decode"),
        (b"[1]", r"expected an object, got '\[1\]'"),
        (changed(bound=7), "expected a string as bound, got '7'"),
        (changed(bound=""), "expected a pool's key as bound, got ''"),
        (changed(namespace=None), "expected a string as namespace, got 'None'"),
        (changed(role="standby"), "expected serve, trial or build as role, got 'standby'"),
        (changed(threads="2"), "expected a number of 0 or more as threads, got '2'"),
        (changed(memory_mib=True), "expected a number of 0 or more as memory_mib, got 'True'"),
        (changed(memory_mib=-1), "expected a number of 0 or more as memory_mib, got '-1'"),
        (changed(assigned_s=None), "expected seconds as assigned_s, got 'None'"),
        (changed(assigned_s=float("nan")), "expected seconds as assigned_s, got 'nan'"),
        (changed(phases=[]), r"expected milliseconds by phase as phases, got '\[\]'"),
        (changed(phases={"lunch": 1}), "expected milliseconds by phase as phases"),
        (changed(phases={"place": "1"}), "expected milliseconds by phase as phases"),
        (changed(spec="model.onnx"), "expected an object as spec, got 'model.onnx'"),
        (changed(spec={"model": "m.onnx"}), "spec: .* missing 1 required .* 'revision'"),
        (changed(spec={"revision": "a@1", "surprise": 1}), "spec: .* 'surprise'"),
        (changed(spec={"revision": "a@1", "inputs": []}), "spec: "),
        (changed(bound={"x": "y" * 1000}), "got .{100,110}$"),
    ],
)
def test_a_malformed_bind_is_refused(body: bytes, reason: str) -> None:
    """A malformed BIND is refused with the expected and the actual value."""
    with pytest.raises(LinkError, match=reason):
        read_bind(frame(body))


def test_a_bind_to_a_server_has_its_specification() -> None:
    """By the record's engine: a model's specification is refused."""
    spec = ServerSpec("web@1", ("x", "${PORT}"), samples=(SampleRequest("/a"),))

    request, read = read_server_bind(frame(changed(spec=servers.to_json(spec))))

    assert read == spec
    assert request["role"] == "serve"
    with pytest.raises(LinkError, match="malformed BIND: spec: "):
        read_server_bind(frame(changed()))


@pytest.mark.parametrize("secrets", [["s3cret"], {"A": ["s3cret"]}, "s3cret"])
def test_malformed_secrets_are_not_quoted(secrets: object) -> None:
    """The reason gets into logs and answers, so it has nothing of the values."""
    spec = servers.to_json(ServerSpec("web@1", ("x",)))

    request, _ = read_server_bind(frame(changed(spec=spec, secrets={"A": "s3cret"})))
    with pytest.raises(LinkError) as refused:
        read_server_bind(frame(changed(spec=spec, secrets=secrets)))

    assert request["secrets"] == {"A": "s3cret"}
    assert str(refused.value) == "malformed BIND: expected text by variable as secrets"
