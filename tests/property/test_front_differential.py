"""Differential tests: the fast path and aiohttp alone answer the same bytes alike.

Thousands of generated connections go to two gateways of one process. `make chaos` plays 50,000.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.doses import amount
from tests.support.fronts.compare import Tally, compare_stream, play
from tests.support.fronts.grammar import make_stream
from tests.support.fronts.sites import KEYED, Pair, both, listening

pytestmark = pytest.mark.slow


def check(tally: Tally) -> None:
    """Check that nothing differs and that the fast path answered its share of requests; otherwise
    aiohttp would be compared with itself."""
    assert tally.differences == []
    assert tally.plain > 0.2 * tally.streams
    assert tally.handed_over < 0.8 * tally.streams
    assert tally.apart < 0.1 * tally.streams


@pytest.mark.parametrize(
    ("is_open", "count"), [(False, amount(500, 2000)), (True, amount(250, 1000))]
)
def test_generated_connections_on_the_loop_of_production(
    tmp_path: Path, is_open: bool, count: int
) -> None:
    """On uvloop, answers, headers, bodies, keep-alive and the requests at the replicas are
    equal."""
    tally = Tally()
    seeds = (f"uvloop/{number}" for number in range(count))
    uvloop.run(play(tmp_path, tally, seeds, is_open=is_open))
    check(tally)
    assert {b"HTTP/1.1 200 OK", b"HTTP/1.0 400 Bad Request"} < tally.answers.keys()


def test_generated_connections_on_asyncios_own_loop(tmp_path: Path) -> None:
    """The comparison holds on asyncio's loop too, whose transports read and pause at other
    times."""
    tally = Tally()
    seeds = (f"asyncio/{number}" for number in range(amount(250, 1000)))
    asyncio.run(play(tmp_path, tally, seeds, is_open=False))
    check(tally)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize(
    ("seed", "apart"),
    [
        pytest.param("35/uvloop/740", 1, id="whole requests before a malformed body"),
        pytest.param("36/uvloop/2208", 0, id="a client that leaves while nothing is read"),
        pytest.param("36/uvloop/2443", 0, id="a malformed head without an end"),
        pytest.param("37/uvloop/4291", 0, id="a refused request without a body"),
    ],
)
def test_connections_that_once_differed(
    tmp_path: Path, seed: str, apart: int, is_open: bool
) -> None:
    """Rare connections of `make chaos`."""
    tally = Tally()
    uvloop.run(play(tmp_path, tally, [seed], is_open=is_open))
    assert tally.differences == []
    assert tally.apart == apart


def test_generated_connections_over_tcp(tmp_path: Path) -> None:
    """The comparison holds over TCP as over socket pairs."""

    async def over_tcp(tally: Tally) -> None:
        async with both(tmp_path, KEYED) as pair, listening(pair.fast), listening(pair.plain):
            for number in range(amount(100, 300)):
                stream = make_stream(Random(f"tcp/{number}"))
                await compare_stream(pair, tally, stream, f"tcp/{number}")

    tally = Tally()
    uvloop.run(over_tcp(tally))
    check(tally)


@pytest.fixture
def played(tmp_path: Path) -> Iterator[tuple[asyncio.Runner, Pair]]:
    """The runner of an event loop, and both gateways in it."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        gateways = both(tmp_path, KEYED)
        yield runner, runner.run(gateways.__aenter__())
        runner.run(gateways.__aexit__(None, None, None))


@settings(
    max_examples=amount(20, 60),
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)
@given(random=st.randoms(use_true_random=False))
def test_connections_generated_by_hypothesis(
    played: tuple[asyncio.Runner, Pair], random: Random
) -> None:
    """Hypothesis draws from the same grammar, so that a failure is shrunk."""
    runner, pair = played
    tally = Tally()
    runner.run(compare_stream(pair, tally, make_stream(random), "hypothesis"))
    assert tally.differences == []
