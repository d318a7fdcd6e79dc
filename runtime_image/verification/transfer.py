"""Last step of a trial: prepares the model and sends the files that the pool manager requests."""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import socket
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.link import Kind
from runtime_image.contract.model import (
    FOLDER,
    GRAPH_FILE,
    PART_MAX,
    WEIGHTS_FILE,
    Described,
    ModelSpec,
    Part,
)
from runtime_image.contract.signature import Signature
from runtime_image.link.data_listener import DataListener, pack_greeting
from runtime_image.link.frames import Frame, FrameReader, LinkError, pack
from runtime_image.verification.prepare import Example, Workspace, prepared_or_why_not

FETCH_WAIT_S: Final = 60.0
"""Max seconds a trial waits for the next FETCH; the server ends it after the last one."""
FETCH_MAX: Final = 1024
"""Max bytes of a FETCH body."""


def prepare(
    listener: DataListener,
    record: ReplicaRecord,
    spec: ModelSpec,
    signature: Signature,
    report: dict[str, Any],
) -> None:
    """Prepare the model of a trial; `report` is its `Report` as JSON, `spec` that of the file that
    it has chosen."""
    batch_max = report["batch_max"] if report["compared"] else 1
    tried = Example(signature, batch_max, report["memory_mib"])
    prepare_and_serve(listener, record, spec, tried)


def prepare_and_serve(
    listener: DataListener, record: ReplicaRecord, spec: ModelSpec, tried: Example
) -> None:
    """Send the files of a trial over one connection: the chosen candidate, if any, and the prepared
    files, which are made when their description is requested. A preparation that ends the process
    does not cost the candidate.

    Never raises: on an error, the manager deploys without the prepared files. They go to a folder
    below $HOME that is removed with the replica: its run folder, or a container's /tmp.
    """
    with tempfile.TemporaryDirectory(dir=Path.home(), ignore_cleanup_errors=True) as scratch:
        workspace = Workspace(
            Path(record.model_dir),
            Path(scratch),
            record.device_kind,
            record.threads,
            record.memory_mib,
        )
        parts = {int(Part.OPTIMISED): Path(spec.optimised)} if spec.optimised else {}

        @functools.cache
        def described() -> Described:
            trim_memory()
            found = prepared_or_why_not(spec, tried, workspace)
            if not found["why_not"]:
                folder = workspace.scratch / FOLDER
                parts[Part.GRAPH], parts[Part.WEIGHTS] = folder / GRAPH_FILE, folder / WEIGHTS_FILE
            return found

        with suppress(LinkError, OSError):
            serve_parts(listener, described, parts, record.greeting)


def serve_parts(
    listener: DataListener,
    described: Callable[[], Mapping[str, Any]],
    parts: Mapping[int, Path],
    greeting: str = "",
) -> None:
    """Answer FETCH frames of one connection until it ends; `greeting` is sent first, unless it is
    empty.

    `described` is called for each FETCH of the description and may block; `parts` are files by the
    `aux` of their FETCH. Blocks; raises LinkError or OSError.
    """
    listener.settimeout(FETCH_WAIT_S)
    sock, _ = listener.accept()
    with sock:
        sock.settimeout(FETCH_WAIT_S)
        if greeting:
            sock.sendall(b"".join(pack_greeting(greeting)))
        reader = FrameReader(FETCH_MAX)
        while count := sock.recv_into(reader.buffer()):
            for frame in reader.received(count):
                _answer(sock, frame, described, parts)


def _answer(
    sock: socket.socket,
    frame: Frame,
    described: Callable[[], Mapping[str, Any]],
    parts: Mapping[int, Path],
) -> None:
    if frame.kind is not Kind.FETCH:
        raise LinkError(f"expected FETCH, got {frame.kind.name}")
    if frame.aux == Part.DESCRIPTION:
        _send(sock, Kind.PART, frame.id, json.dumps(described()).encode())
    elif frame.aux in parts:
        _send_file(sock, frame.id, parts[frame.aux])
    else:
        raise LinkError(f"there is no part {frame.aux}")
    _send(sock, Kind.END, frame.id)


def trim_memory() -> None:
    """Return the first session's freed memory to the kernel: it counts against the container."""
    gc.collect()
    with suppress(OSError, AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)


def _send_file(sock: socket.socket, id: int, path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while part := file.read(PART_MAX):
            _send(sock, Kind.PART, id, part)


def _send(sock: socket.socket, kind: Kind, id: int, body: bytes = b"") -> None:
    for piece in pack(kind, id, body):
        sock.sendall(piece)
