"""What a trial does last: it prepares, and hands out the files to whoever runs it."""

from __future__ import annotations

import ctypes
import gc
import json
import socket
import tempfile
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
from runtime_image.link.frames import Frame, FrameReader, LinkError, pack
from runtime_image.verification.prepare import Example, Place, prepared_or_why_not

ASKED_S: Final = 60.0
"""How long a trial waits for the next question; its server ends it when there is none."""
QUESTION_MAX: Final = 1024
"""Bytes of one."""


def prepare(
    listener: socket.socket,
    record: ReplicaRecord,
    spec: ModelSpec,
    signature: Signature,
    report: dict[str, Any],
) -> None:
    """Prepare what a trial has reported of, `Report` as JSON."""
    batch_max = report["batch_max"] if report["compared"] else 1
    tried = Example(signature, batch_max, report["memory_mib"])
    make_and_hand_out(listener, record, spec, tried)


def make_and_hand_out(
    listener: socket.socket, record: ReplicaRecord, spec: ModelSpec, tried: Example
) -> None:
    """Prepare the model of a trial, then answer one connection about it. Never raises: whoever
    waits for it goes on without.

    It writes into a folder below $HOME, which goes when the replica does: its run folder, or a
    container's /tmp.
    """
    with tempfile.TemporaryDirectory(dir=Path.home(), ignore_cleanup_errors=True) as scratch:
        place = Place(
            Path(record.model_dir),
            Path(scratch),
            record.device_kind,
            record.threads,
            record.memory_mib,
        )
        _give_back_memory()
        described = prepared_or_why_not(spec, tried, place)
        with suppress(LinkError, OSError):
            hand_out(listener, described, place.scratch)


def hand_out(listener: socket.socket, described: Described, scratch: Path) -> None:
    """Answer FETCH frames of one connection until it ends. Blocks; raises LinkError or OSError."""
    listener.settimeout(ASKED_S)
    sock, _ = listener.accept()
    with sock:
        sock.settimeout(ASKED_S)
        reader = FrameReader(QUESTION_MAX)
        while count := sock.recv_into(reader.buffer()):
            for frame in reader.received(count):
                _answer(sock, frame, described, scratch)


def _answer(sock: socket.socket, frame: Frame, described: Described, scratch: Path) -> None:
    if frame.kind is not Kind.FETCH:
        raise LinkError(f"expected FETCH, got {frame.kind.name}")
    if frame.aux == Part.DESCRIPTION:
        _send(sock, Kind.PART, frame.id, json.dumps(described).encode())
    elif not described["why_not"] and frame.aux in (Part.GRAPH, Part.WEIGHTS):
        name = GRAPH_FILE if frame.aux == Part.GRAPH else WEIGHTS_FILE
        _send_file(sock, frame.id, scratch / FOLDER / name)
    else:
        raise LinkError(f"there is no part {frame.aux}")
    _send(sock, Kind.END, frame.id)


def _give_back_memory() -> None:
    """What the first session had counts in a container's memory until the C library lets it go."""
    gc.collect()
    with suppress(OSError, AttributeError):  # of glibc only
        ctypes.CDLL(None).malloc_trim(0)


def _send_file(sock: socket.socket, id: int, path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while part := file.read(PART_MAX):
            _send(sock, Kind.PART, id, part)


def _send(sock: socket.socket, kind: Kind, id: int, body: bytes = b"") -> None:
    for piece in pack(kind, id, body):
        sock.sendall(piece)
