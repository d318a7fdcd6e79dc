"""Transfers to one host, for display."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

MIB = 2**20


class Progress(Protocol):
    """Receiver of a transfer's progress."""

    def __call__(self, done_bytes: int, total: int = 0, *, is_sent: bool = True) -> None:
        """Show the bytes done so far and in all (0: as known). Not `is_sent`: what is new among
        those done was there before."""


@dataclass(slots=True, eq=False)
class Transfer:
    """A transfer in progress; `total_bytes` is 0 if unknown."""

    what: str
    total_bytes: int = 0
    done_bytes: int = 0

    def __str__(self) -> str:
        if not self.total_bytes:
            return f"{self.what}: {self.done_bytes // MIB} MiB"
        # The size of an image is an estimate: what is sent has headers and padding.
        total_bytes = max(self.done_bytes, self.total_bytes)
        return f"{self.what}: {self.done_bytes // MIB} of {total_bytes // MIB} MiB"


class Transfers:
    """The transfers to one host, in the order of their begin. `total_bytes` counts what was sent;
    `on_change` is called when a transfer begins or ends."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._running: dict[Transfer, None] = {}
        self._on_change = on_change
        self.total_bytes = 0

    @contextmanager
    def of(self, what: str, total_bytes: int = 0) -> Iterator[Progress]:
        """Show a transfer while the block runs; it yields a receiver of its progress."""
        one = Transfer(what, total_bytes)
        self._running[one] = None
        self._on_change()

        def progress(done_bytes: int, total: int = 0, *, is_sent: bool = True) -> None:
            if is_sent:
                self.total_bytes += max(0, done_bytes - one.done_bytes)
            one.done_bytes = done_bytes
            one.total_bytes = total or one.total_bytes

        try:
            yield progress
        finally:
            del self._running[one]
            self._on_change()

    @property
    def text(self) -> str:
        """The transfers in progress, "" for none."""
        return "; ".join(map(str, self._running))
