"""Writing of a head together with the body that is there already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from gateway.proxy.framing import Data

Piece = TypeVar("Piece", bytes, Data)

JOINED_MAX: Final = 16 * 1024
"""Bytes of a piece up to which it is copied behind what is written before it."""


def write_joined(write: Callable[[Piece], None], head: bytes, body: Sequence[Piece]) -> None:
    """Write a head and the first pieces of its body: at once, unless they are large.

    Each write of a socket is a system call, and a segment that wakes its receiver.
    """
    if len(body) == 1 and len(body[0]) <= JOINED_MAX:
        write(head + body[0])
        return
    joined: list[bytes | Piece] = [head]
    for piece in body:
        if len(piece) > JOINED_MAX:
            if joined:
                write(b"".join(joined))
            write(piece)
            joined = []
        else:
            joined.append(piece)
    if joined:
        write(b"".join(joined))
