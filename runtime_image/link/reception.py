"""The manager's side of the handshake: checks HELLO, answers WELCOME with the data listener.

The handshake uses the bare socket before any transport owns it, because asyncio transports cannot
pass descriptors (SCM_RIGHTS, unix(7)).
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any, cast

from runtime_image.contract.control import Hello
from runtime_image.contract.link import SPOKEN, Kind
from runtime_image.link.frames import Frame, FrameReader, LinkError, pack

DIAL_MAX = 2**53
"""Largest accepted number of a connection."""
GREETING_MAX = 256 * 1024
"""Max bytes of a HELLO body."""


async def read_hello(sock: socket.socket, timeout_s: float) -> Hello:
    """Read the HELLO of a connection just accepted. Raises LinkError on anything else."""
    loop = asyncio.get_running_loop()
    reader = FrameReader(GREETING_MAX)
    frames: list[Frame] = []
    try:
        async with asyncio.timeout(timeout_s):
            while not frames:
                count = await loop.sock_recv_into(sock, reader.buffer())
                if not count:
                    raise LinkError("closed before HELLO")
                frames = reader.received(count)
    except (TimeoutError, OSError) as error:
        raise LinkError(f"no HELLO: {error!r}") from error
    if frames[0].kind is not Kind.HELLO or len(frames) != 1:
        raise LinkError(f"expected HELLO alone, got {frames[0].kind.name}")
    return _checked(frames[0])


def _checked(frame: Frame) -> Hello:
    try:
        data: dict[str, Any] = json.loads(frame.body)
        version, token = data["version"], data["token"]
        if not isinstance(data["pid"], int) or not isinstance(data["bound"], str):
            raise TypeError("pid or bound")
        if type(data["dial"]) is not int or not 0 < data["dial"] <= DIAL_MAX:
            raise TypeError("dial")
        if not isinstance(data["phases"], dict) or not isinstance(token, str):
            raise TypeError("phases or token")
        if not isinstance(data.get("loaded", {}), dict):
            raise TypeError("loaded")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LinkError(f"malformed HELLO: {error!r}") from error
    if version not in SPOKEN:
        raise LinkError(f"link version {str(version)[:20]} is not {SPOKEN[0]} to {SPOKEN[-1]}")
    return cast("Hello", data)


def welcome(sock: socket.socket, listener: socket.socket | None, ping_ms: int = 0) -> None:
    """Answer HELLO and pass `listener`, None if the replica has one or binds it itself. `ping_ms`:
    milliseconds between PINGs for a replica that must notice missing ones, 0 for any other.

    The socket is non-blocking and fresh, so these few bytes always fit its buffer.
    """
    data = b"".join(pack(Kind.WELCOME, aux=ping_ms))
    if listener is None:
        sock.send(data)
    else:
        socket.send_fds(sock, [data], [listener.fileno()])
