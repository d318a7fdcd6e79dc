"""Runs hostile inputs through a builder and notes what it did."""

from __future__ import annotations

import gc
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field

from tests.fuzz.inputs import hostile
from tests.fuzz.oracles import Wrong, judge, outcome_of
from tests.fuzz.subject import Subject

BOMB_EVERY = 40
"""One of so many inputs is a bomb."""
SHOWN = 5
"""Failures that are kept in words."""
COLLECTED_EVERY = 500
"""Inputs between two collections of garbage, which are not the builder's time."""


@dataclass
class Result:
    """What the inputs of one builder did. `longest_at` is the number of the slowest one."""

    name: str
    limit_ms: float
    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    failed: int = 0
    longest_ms: float = 0.0
    longest_at: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def is_slow(self) -> bool:
        """Whether an input took longer than the builder may."""
        return self.longest_ms > self.limit_ms

    def line(self) -> str:
        """Return the result in one line, and a line for each failure."""
        slow = " TOO LONG" if self.is_slow else ""
        text = (
            f"{self.name:11} {self.inputs:8} inputs, {self.accepted} accepted, {self.refused}"
            f" refused, {self.failed} failed, longest {self.longest_ms:.1f} ms of"
            f" {self.limit_ms:.0f} (input {self.longest_at}){slow}"
        )
        return "\n".join([text, *(f"    {one}" for one in self.failures)])


def input_of(subject: Subject, seed: int, number: int) -> bytes:
    """Return an input by its number."""
    chance = random.Random(f"{seed}:{subject.name}:{number}")
    valid = chance.choice(subject.valid)
    return hostile(chance, valid, subject.size_max, is_bomb=number % BOMB_EVERY == 0)


def fuzz(subject: Subject, seed: int, count: int) -> Result:
    """Run `count` inputs through a builder."""
    result = Result(subject.name, subject.steps_s * 1e3)
    gc.disable()
    try:
        for number in range(count):
            if number % COLLECTED_EVERY == 0:
                gc.collect()
            _run(subject, input_of(subject, seed, number), number, result)
    finally:
        gc.enable()
    return result


def _run(subject: Subject, data: bytes, number: int, result: Result) -> None:
    """Time a call, and judge what came of it; the lines and the memory of bombs too."""
    result.inputs += 1
    began = time.thread_time()
    with suppress(Exception):  # judged below
        subject.call(data)
    took_ms = (time.thread_time() - began) * 1e3
    if took_ms > result.longest_ms:
        result.longest_ms, result.longest_at = took_ms, number
    try:
        found = outcome_of(subject, data)
        result.refused += isinstance(found, Exception)
        result.accepted += not isinstance(found, Exception)
        if number % BOMB_EVERY == 0:
            judge(subject, data)
    except Wrong as error:
        result.failed += 1
        if len(result.failures) < SHOWN:
            result.failures.append(f"input {number}: {error}")
