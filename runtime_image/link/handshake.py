"""The replica's handshake with its manager: HELLO, WELCOME, and validation of BIND.

HELLO carries token and version, WELCOME the data listener. Both use the bare socket, because
asyncio transports cannot pass descriptors (SCM_RIGHTS, unix(7)). `reception` is the manager's side,
a separate module because it needs asyncio.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from runtime_image.contract import model as models
from runtime_image.contract import server as servers
from runtime_image.contract.control import PHASES, BindRequest, Hello
from runtime_image.contract.link import Kind
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.server import ServerSpec
from runtime_image.link.frames import Frame, FrameReader, LinkError, pack
from runtime_image.link.record import is_number, is_texts

Spec = TypeVar("Spec", ModelSpec, ServerSpec)
_ROLES: Final = ("serve", "trial", "build")
_TEXTS: Final = ("bound", "namespace", "role", "device_kind")
_COUNTS: Final = ("threads", "memory_mib")


def pack_hello(hello: Hello) -> list[bytes | bytearray | memoryview]:
    """Encode a replica's HELLO frame."""
    return pack(Kind.HELLO, body=json.dumps(hello).encode())


def greet(sock: socket.socket, hello: Hello) -> tuple[FrameReader, int, list[Frame]]:
    """Send HELLO and wait for WELCOME, blocking.

    Returns the reader of the link, the data listener's descriptor and frames received after
    WELCOME. Raises LinkError if the manager refuses, OSError if it is gone.
    """
    reader, descriptors, frames = _exchange(sock, hello)
    if frames[0].kind is not Kind.WELCOME or len(descriptors) != 1:
        _close(descriptors)
        got = f"{frames[0].kind.name} with {len(descriptors)}"
        raise LinkError(f"expected WELCOME with one descriptor, got {got}")
    return reader, descriptors[0], frames[1:]


def greet_remote(sock: socket.socket, hello: Hello) -> tuple[FrameReader, list[Frame]]:
    """As `greet`, for a manager on another host: return the reader and all frames, the first of
    which is WELCOME."""
    reader, descriptors, frames = _exchange(sock, hello)
    _close(descriptors)
    if frames[0].kind is not Kind.WELCOME:
        raise LinkError(f"expected WELCOME, got {frames[0].kind.name}")
    return reader, frames


def _exchange(sock: socket.socket, hello: Hello) -> tuple[FrameReader, list[int], list[Frame]]:
    """Send HELLO; return the reader, and descriptors and frames that answer it."""
    sock.sendall(b"".join(pack_hello(hello)))
    reader = FrameReader()
    descriptors: list[int] = []
    frames: list[Frame] = []
    while not frames:
        data, received, _, _ = socket.recv_fds(sock, 16 * 1024, 1)
        descriptors += received
        if not data:
            _close(descriptors)
            raise LinkError("the manager refused the HELLO")
        reader.buffer()[: len(data)] = data
        frames = reader.received(len(data))
    return reader, descriptors, frames


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def pack_bind(request: BindRequest) -> list[bytes | bytearray | memoryview]:
    """Encode a manager's BIND frame."""
    return pack(Kind.BIND, body=json.dumps(request).encode())


def read_bind(frame: Frame) -> tuple[BindRequest, ModelSpec]:
    """Return request and spec of a BIND frame to a model. Raises LinkError with expected and actual
    value."""
    request = _request(frame)
    return request, _spec(request, models.from_json)


def read_server_bind(frame: Frame) -> tuple[BindRequest, ServerSpec]:
    """Return request and spec of a BIND frame to a server. Raises LinkError as `read_bind`."""
    request = _request(frame)
    secrets: Any = request.get("secrets", {})
    if not isinstance(secrets, dict) or not all(
        isinstance(value, str) for value in secrets.values()
    ):
        # The value is not quoted: this text gets into logs.
        raise LinkError("malformed BIND: expected text by variable as secrets")
    return request, _spec(request, servers.from_json)


def _request(frame: Frame) -> BindRequest:
    try:
        data = json.loads(frame.body)
    except ValueError as error:
        raise LinkError(f"malformed BIND: {error}") from error
    if not isinstance(data, dict):
        raise _malformed("expected an object", data)
    _check_words(data)
    _check_numbers(data)
    return cast("BindRequest", data)


def _check_words(data: dict[str, Any]) -> None:
    for name in _TEXTS:
        if not isinstance(data.get(name), str):
            raise _malformed(f"expected a string as {name}", data.get(name))
    if not is_texts(data.get("devices")):
        raise _malformed("expected strings as devices", data.get("devices"))
    if not data["bound"]:
        raise _malformed("expected a pool's key as bound", data["bound"])
    if data["role"] not in _ROLES:
        raise _malformed("expected serve, trial or build as role", data["role"])


def _check_numbers(data: dict[str, Any]) -> None:
    for name in _COUNTS:
        if not is_number(data.get(name)):
            raise _malformed(f"expected a number of 0 or more as {name}", data.get(name))
    if not is_number(data.get("assigned_s")):
        raise _malformed("expected seconds as assigned_s", data.get("assigned_s"))
    phases = data.get("phases")
    if not isinstance(phases, dict) or not all(
        name in PHASES and is_number(ms) for name, ms in phases.items()
    ):
        raise _malformed("expected milliseconds by phase as phases", phases)


def _spec(request: BindRequest, parse: Callable[[dict[str, Any]], Spec]) -> Spec:
    data: Any = request.get("spec")
    if not isinstance(data, dict):
        raise _malformed("expected an object as spec", data)
    try:
        return parse(data)
    except (TypeError, ValueError, AttributeError) as error:
        raise LinkError(f"malformed BIND: spec: {error}") from error


def _malformed(expected: str, got: Any) -> LinkError:
    return LinkError(f"malformed BIND: {expected}, got {str(got)[:100]!r}")
