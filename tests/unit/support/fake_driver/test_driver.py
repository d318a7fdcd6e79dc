"""The fake driver: what the contract of all drivers does not say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from pool_manager.core import events
from tests.support.fake_driver.driver import FakeDriver, Script
from tests.support.replicas import Stage, pool_settings

Make = Callable[[Script], Stage]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Make]:
    with pool_settings() as settings:
        made: list[Stage] = []

        def make(script: Script) -> Stage:
            made.append(Stage(settings, FakeDriver(script), tmp_path))
            return made[-1]

        yield make
        for each in made:
            await each.close()


async def test_the_first_replicas_crash_and_the_rest_behaves(stage: Make) -> None:
    """`crash_count` counts over all replicas of the driver."""
    acts = stage(Script(crash_at="load", crash_count=2))

    reasons = []
    for id in ("aaaa0001", "aaaa0002"):
        acts.launch(id)
        reasons.append((await acts.next(events.Lost, id)).reason)

    assert reasons == ["crashed", "crashed"]
    assert await acts.ready("aaaa0003")


async def test_the_log_tells_start_and_end(stage: Make) -> None:
    """A fake replica's log has its start and its end."""
    acts = stage(Script(crash_at="start"))
    acts.launch("aaaa0001")
    lost = await acts.next(events.Lost)

    assert lost.log_tail == (
        "fake replica aaaa0001 starts for default/digits@1",
        "fake replica aaaa0001 crashed",
    )


async def test_replicas_end_with_their_driver(stage: Make) -> None:
    """Closing the driver ends its replicas and reports them."""
    acts = stage(Script())
    await acts.ready("aaaa0001")

    await acts.driver.close()

    assert await acts.driver.list() == set()
    assert acts.exits == [("aaaa0001", "was killed")]


@pytest.mark.parametrize("phase", ["start", "load"])
async def test_a_hanging_replica_can_be_ended(stage: Make, phase: str) -> None:
    """A replica that hangs before it serves obeys TERM; the script's delays use `sleep`."""
    slept: asyncio.Queue[float] = asyncio.Queue()
    acts = stage(Script(start_s=1.5, load_s=2.5, hang_at=phase))  # type: ignore[arg-type]  # the parameter is a phase

    async def sleep(seconds: float) -> None:
        slept.put_nowait(seconds)

    acts.driver._sleep = sleep  # type: ignore[attr-defined]  # the stage knows it as a Driver
    acts.launch("aaaa0001")
    while await slept.get() != {"start": 1.5, "load": 2.5}[phase]:
        pass

    await acts.driver.terminate("aaaa0001")

    assert await acts.exit("aaaa0001") == "exited with code 0"


async def test_a_fake_replica_has_no_process(stage: Make) -> None:
    """The pids of a live fake replica are unknown; afterwards it has none."""
    acts = stage(Script())
    await acts.ready("aaaa0001")
    assert await acts.driver.processes.pids("aaaa0001") is None

    await acts.release("aaaa0001")

    assert await acts.driver.processes.pids("aaaa0001") == frozenset()
