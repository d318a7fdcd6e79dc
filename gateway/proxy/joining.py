"""Writing of a head together with the body that is there already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

JOINED_MAX: Final = 16 * 1024
"""Bytes of a body up to which they are copied behind their head."""


def write_joined(write: Callable[[bytes], None], head: bytes, body: Sequence[bytes]) -> None:
    """Write a head and the first pieces of its body: at once, unless they are large.

    Each write of a socket is a system call, and a segment that wakes its receiver.
    """
    if sum(map(len, body)) <= JOINED_MAX:
        write(b"".join((head, *body)))
        return
    write(head)
    for piece in body:
        write(piece)
