"""Tests of server functions in chaos, in small doses, as `make chaos` has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import (
    chats,
    exact_servers,
    fuzzed_servers,
    kept_streams,
    killed_servers,
    python_streams,
    sick_servers,
)
from tests.support.doses import amount

SEED = 20261123

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


async def test_odd_messages_are_neither_smuggled_nor_mixed_up(tmp_path: Path) -> None:
    """Odd requests reach the server whole or not at all, odd answers their own client or nobody;
    the gateway's memory stays flat."""
    ledger = await fuzzed_servers.run(tmp_path, SEED, amount(300, 3_000))

    assert ledger.violations == []


async def test_servers_that_sleep_and_die_answer_right(tmp_path: Path) -> None:
    """While three servers sleep and wake, and servers, sidecars and gateway
    workers are killed, each answer is right or a documented refusal, and no process is left."""
    ledger = await killed_servers.run(tmp_path, SEED, cycles=amount(3, 20))

    assert ledger.violations == []


async def test_open_streams_are_never_cut(tmp_path: Path) -> None:
    """Event streams and WebSockets stay open over sleep, scale-down and rollout."""
    ledger = await kept_streams.run(tmp_path, each=amount(3, 25), events=amount(40, 100))

    assert ledger.violations == []


async def test_streams_of_python_functions_are_never_cut(tmp_path: Path) -> None:
    """Over sleep, scale-down, rollout and rollback; only those of a killed worker or function are.
    Readers that stop hold one value each, and nothing is left of clients that leave."""
    small = python_streams.Dose(SEED, each=3, events=40, readers=6, leavers=30)
    dose = amount(small, python_streams.Dose(SEED))

    ledger = await python_streams.run(tmp_path, dose)

    assert ledger.violations == []


async def test_a_server_never_sees_more_than_its_limit(tmp_path: Path) -> None:
    """With four gateway workers and 200 clients, the server sees exactly its limit at once."""
    ledger = await exact_servers.run(tmp_path, calls=amount(3, 20))

    assert ledger.violations == []


async def test_sick_servers_are_replaced_and_odd_ones_are_not(tmp_path: Path) -> None:
    """Each sick one is replaced for the documented reason, or reported; none of the odd ones is,
    and each call gets a right answer or a documented error."""
    every = sick_servers.SICK + sick_servers.ODD
    small = tuple(kind for kind in every if kind.name in sick_servers.SMALL)

    ledger = await sick_servers.run(tmp_path, amount(small, every))

    assert ledger.violations == []


async def test_answers_of_models_are_whole_or_errors(tmp_path: Path) -> None:
    """While models share few slots, and replicas, servers and a gateway worker are killed, each
    answer of /v1 is whole and right or an error that its client sees; tokens add up."""
    functions, callers = amount(3, 10), amount(8, 30)
    dose = chats.Dose(
        SEED, seconds=amount(5, 60), functions=functions, callers=callers, think_s=(0.0, 0.5)
    )

    ledger = await chats.run(tmp_path, dose)

    assert ledger.violations == []
    assert ledger.figures["whole"] >= 2 * functions
