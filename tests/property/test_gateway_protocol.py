"""Random sequences of messages against both ends of the gateway protocol; `make protocol` plays a
hundred thousand."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import structlog

from admin.workers import messages as m
from tests.support.gateway_messages import DOWN, UP
from tests.support.gateway_protocol import SPARE_MIB, _drop, damaged, play, sequence


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Each refused message is logged with its traceback: thousands here."""
    before = structlog.get_config()["processors"]
    structlog.configure(processors=[_drop])
    yield
    structlog.configure(processors=before)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_no_sequence_leaves_anything_behind(seed: int) -> None:
    """No exception leaves an end, nothing stays of a sequence, and the next stream makes the copy
    of the state right."""
    played, grown_mib = await play(100, seed)

    assert played == 200
    assert grown_mib < SPARE_MIB


def test_sequences_are_not_all_refused_at_once() -> None:
    """Most sequences begin with Hello, and some have only valid messages: the deep states are
    reached."""
    chance = random.Random(1)
    hello = m.encode(m.Hello(m.VERSION, "1"))
    found = [sequence(chance, UP, DOWN) for _ in range(200)]

    assert sum(hello in one[: len(hello) + 4] for one in found) > 100
    assert damaged(chance, hello) != hello
