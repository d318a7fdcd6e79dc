"""The replica's side of the HELLO exchange: token and version out, the data listener in.

It runs on the bare socket, because only there can a descriptor travel beside the bytes
(SCM_RIGHTS, unix(7)). `reception` is the other side, kept apart because it needs asyncio.
"""

from __future__ import annotations

import json
import os
import socket

from runtime_image.contract.control import Hello
from runtime_image.contract.link import Kind
from runtime_image.link.frames import Frame, FrameReader, LinkError, pack


def packed_hello(hello: Hello) -> list[bytes | bytearray | memoryview]:
    """The HELLO frame of a replica."""
    return pack(Kind.HELLO, body=json.dumps(hello).encode())


def greet(sock: socket.socket, hello: Hello) -> tuple[FrameReader, int, list[Frame]]:
    """Replica, blocking: send HELLO, wait for WELCOME.

    Returns the reader to go on with, the data listener's descriptor and frames that came behind
    WELCOME. Raises LinkError when the manager refuses, OSError when it is gone.
    """
    sock.sendall(b"".join(packed_hello(hello)))
    reader = FrameReader()
    descriptors: list[int] = []
    frames: list[Frame] = []
    while not frames:
        data, received, _, _ = socket.recv_fds(sock, 16 * 1024, 1)
        descriptors += received
        if not data:
            _close(descriptors)
            raise LinkError("the manager refused the greeting")
        reader.buffer()[: len(data)] = data
        frames = reader.received(len(data))
    if frames[0].kind is not Kind.WELCOME or len(descriptors) != 1:
        _close(descriptors)
        got = f"{frames[0].kind.name} with {len(descriptors)}"
        raise LinkError(f"expected WELCOME with one descriptor, got {got}")
    return reader, descriptors[0], frames[1:]


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
