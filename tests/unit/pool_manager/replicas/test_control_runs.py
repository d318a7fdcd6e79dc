"""Runs that a replica reports with PONG, as its control link passes them on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pool_manager.core import events
from pool_manager.replicas.control import ASKED_MAX
from runtime_image.contract.link import Kind
from runtime_image.link.run_counts import RunCount, pack_runs
from tests.support.blocking import BlockingLink
from tests.support.greetings import HELLO
from tests.unit.pool_manager.replicas.test_control import LOADED, Rig, read, rig, sidecar

__all__ = ["rig", "sidecar"]  # fixtures

ONE = RunCount(1, 2, 30, 400, 5000)
FOUR = RunCount(4, 1, 1, 1, 1)


def pong(rig: Rig, link: BlockingLink, *counts: RunCount) -> None:
    """Answer a PING with these totals."""
    rig.control.ask()
    link.send(Kind.PONG, body=pack_runs(counts))


async def arrived(rig: Rig, link: BlockingLink) -> None:
    """Return when everything that the replica has sent so far is handled."""
    link.send(Kind.FIRST_RUN)
    while not isinstance(await rig.events.get(), events.FirstRun):
        pass


async def loaded(rig: Rig) -> BlockingLink:
    """Return the link of a replica that has loaded its model."""
    rig.open()
    link = await rig.greeted()
    link.send(Kind.LOADED, body=json.dumps(LOADED).encode())
    return link


async def adopted(rig: Rig) -> BlockingLink:
    """Return the link of a replica that served under an earlier server, and has its first PING."""
    rig.open()
    link = rig.connect()
    hello: Any = {**HELLO, "loaded": LOADED}
    link.send(Kind.HELLO, body=json.dumps(hello).encode())
    await read(link, Kind.WELCOME)
    await read(link, Kind.PING)
    return link


async def test_each_run_is_passed_on_once(rig: Rig) -> None:
    """A PONG has totals; passed on is what was added since the last one, also across empty ones."""
    link = await loaded(rig)

    pong(rig, link, ONE)
    pong(rig, link)
    pong(rig, link, ONE)
    pong(rig, link, RunCount(1, 3, 31, 402, 5003), FOUR)
    await arrived(rig, link)

    assert rig.runs == [ONE, RunCount(1, 1, 1, 2, 3), FOUR]


async def test_runs_under_an_earlier_server_are_not_counted(rig: Rig) -> None:
    """A replica that is adopted is asked at once; its first report is where counting begins."""
    link = await adopted(rig)

    link.send(Kind.PONG, body=pack_runs([ONE]))
    pong(rig, link, RunCount(1, 3, 31, 402, 5003), FOUR)
    await arrived(rig, link)

    assert rig.runs == [RunCount(1, 1, 1, 2, 3), FOUR]


async def test_an_adopted_replica_may_have_run_nothing(rig: Rig) -> None:
    """An empty first report is a beginning as well: all later runs count."""
    link = await adopted(rig)

    link.send(Kind.PONG)
    pong(rig, link, ONE)
    await arrived(rig, link)

    assert rig.runs == [ONE]


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ([RunCount(1, 1, 30, 400, 5000)], "malformed PONG: numbers of 1 rows fell"),
        ([RunCount(1, 9, 30, 399, 5000)], "malformed PONG: numbers of 1 rows fell"),
        ([FOUR], "malformed PONG: a batch size is missing"),
        ([FOUR, ONE], "malformed PONG: 1 rows after 4"),
    ],
)
async def test_totals_never_fall(rig: Rig, second: list[RunCount], reason: str) -> None:
    """A replica whose totals fall or vanish ends its link; what it reported before stays."""
    link = await loaded(rig)

    pong(rig, link, ONE)
    pong(rig, link, *second)

    assert await rig.lost == reason
    assert rig.runs == [ONE]


async def test_nothing_runs_before_the_load(rig: Rig) -> None:
    """A replica without a model that reports runs ends its link."""
    rig.open()
    link = await rig.greeted()

    pong(rig, link, ONE)

    assert await rig.lost == "unexpected PONG"


async def test_a_sidecar_runs_nothing(sidecar: Rig) -> None:
    """The replica of a server function has exchanges, not runs."""
    sidecar.open()
    link = await sidecar.greeted()
    link.send(Kind.LOADED, body=json.dumps(LOADED).encode())

    pong(sidecar, link, ONE)

    assert await sidecar.lost == "unexpected PONG"


async def test_a_report_can_be_asked_for(rig: Rig) -> None:
    """A PING sent ahead of its time is answered when its own PONG has come, not an earlier one."""
    link = await loaded(rig)
    numbers = [rig.control.ask(), rig.control.ask()]

    def answered() -> list[bool]:
        return [rig.control.has_answered(number) for number in numbers]

    found: list[Any] = [answered()]
    link.send(Kind.PONG)
    await arrived(rig, link)
    found.append(answered())
    link.send(Kind.PONG)
    link.send(Kind.NOT_IDLE)  # handled after the PONG; ends the link, as nobody asked for it
    await rig.lost
    found.append(answered())

    assert found == [[False, False], [True, False], [True, True]]


async def test_a_mute_replica_is_not_flooded(rig: Rig) -> None:
    """Beyond a limit of unanswered PINGs none is added; a closed link counts as answered."""
    await loaded(rig)

    numbers = [rig.control.ask() for _ in range(2 * ASKED_MAX)]

    assert numbers == [*range(1, ASKED_MAX), *[ASKED_MAX] * (ASKED_MAX + 1)]
    assert not rig.control.has_answered(1)
    rig.control.close()
    assert rig.control.has_answered(1)
