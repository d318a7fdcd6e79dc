"""What is fuzzed: one reader of a stranger's bytes, its bounds, and what its answers must be."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from registry.errors import FnError
from runtime_image.contract.errors import RequestError

KIB = 1024
LOOP_S = 0.020
"""Most CPU seconds of a builder in the event loop."""
THREAD_S = 0.100
"""Most CPU seconds of a builder of Python code in a thread, which lets the loop run."""
FNCTL_S = 1.0
"""Most CPU seconds of a builder in fnctl, which holds up nobody else."""


@dataclass(frozen=True)
class Bound:
    """Most of something that an input may take: `base`, and `each` for each of its bytes."""

    base: int
    each: float

    def of(self, data: bytes) -> int:
        """Return the most for an input."""
        return self.base + int(self.each * len(data))


LINES = Bound(2_000, 12)
"""Lines of Python that a reader runs."""
MEMORY = Bound(192 * KIB, 24)
"""Bytes that a reader has allocated at most at one moment, and that its answer takes."""


@dataclass(frozen=True)
class Subject:
    """One reader. `call` takes any bytes; it returns, or raises one of `refusals`. `check` gets the
    input and what came of it, an answer or a refusal, and raises AssertionError for a wrong one.
    `lines` and `memory` bound what a call takes; `steps_s` are its most CPU seconds, for inputs of
    at most `size_max` bytes."""

    name: str
    call: Callable[[bytes], Any]
    valid: tuple[bytes, ...]
    size_max: int
    refusals: tuple[type[Exception], ...] = (FnError, RequestError)
    steps_s: float = field(default=LOOP_S)
    check: Callable[[bytes, Any], None] | None = None
    lines: Bound = LINES
    memory: Bound = MEMORY


def chance_of(data: bytes) -> random.Random:
    """Return the random choices of an input: the same ones each time."""
    return random.Random(zlib.crc32(data))


def pieces(data: bytes, chance: random.Random) -> Iterator[bytes]:
    """Yield an input in pieces, of one byte each or with cuts anywhere."""
    cuts: list[int] | range = range(1, len(data))
    if len(data) > 200 or chance.random() < 0.5:
        cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(1, 6)))
    at = 0
    for cut in (*cuts, len(data)):
        if cut > at:
            yield data[at:cut]
            at = cut
