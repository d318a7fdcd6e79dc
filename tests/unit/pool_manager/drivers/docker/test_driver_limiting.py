"""When containers get their limits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import docker
import pytest

from pool_manager.drivers.docker.driver import ContainerLimiter
from pool_manager.drivers.docker.engine import Times
from pool_manager.drivers.docker.events import KnownContainer
from pool_manager.drivers.docker.spec import Owner
from registry.errors import DriverError
from registry.tasks import Tasks
from tests.support.containers import RecordedEngine, Recorder, refusal, settled
from tests.support.scenes import a_record

OWNER = Owner("0123456789abcdef")
RECORD = replace(a_record(), memory_mib=300)
TOO_LARGE = refusal(500, "unable to set memory limit to 1 (current usage: 2, peak usage: 3)")
LOST = docker.errors.DockerException("gone")


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    made = Tasks("test")
    yield made
    await made.close()


def running() -> KnownContainer:
    known = KnownContainer()
    known.start_returned("c1")
    return known


def limiter(client: Recorder, tasks: Tasks) -> ContainerLimiter:
    engine: Any = RecordedEngine(client)
    return ContainerLimiter(engine, OWNER, tasks, Times(limit_after_s=0.0, limit_retry_s=0.0))


async def test_limits_at_once(tasks: Tasks) -> None:
    """Limits and name are set before `now` returns; a refusal is raised."""
    client = Recorder(limit=[None, TOO_LARGE])

    await limiter(client, tasks).now(running(), RECORD)
    with pytest.raises(DriverError, match="unable to set memory limit"):
        await limiter(client, tasks).now(running(), RECORD)

    assert client.done == ["limit c1", "rename c1", "limit c1"]


async def test_a_name_that_is_taken_costs_nothing(tasks: Tasks) -> None:
    """A name conflict does not fail the limits."""
    client = Recorder(rename=[refusal(409, "The container name is already in use")])

    await limiter(client, tasks).now(running(), RECORD)


async def test_limits_wait_for_an_engine_that_is_away(tasks: Tasks) -> None:
    """Limits are retried until the engine is back."""
    client, known = Recorder(limit=[LOST, LOST, None]), running()

    limiter(client, tasks).soon(known, RECORD)
    await settled(tasks)

    assert client.done == ["limit c1"] * 3 + ["rename c1"]
    assert not known.out_of_memory


async def test_who_has_taken_too_much_is_ended(tasks: Tasks) -> None:
    """A container above its new limit is killed and reported as out of memory, also if the engine
    is away in between."""
    client, known = Recorder(limit=[TOO_LARGE], kill=[LOST, None]), running()

    limiter(client, tasks).soon(known, RECORD)
    await settled(tasks)

    assert client.done == ["limit c1", "kill c1", "kill c1"]
    assert known.out_of_memory


async def test_who_cannot_be_limited_is_ended(tasks: Tasks) -> None:
    """A container that cannot be limited is killed; only lack of memory is reported as such."""
    client, known = Recorder(limit=[refusal(500, "cgroup is broken")]), running()

    limiter(client, tasks).soon(known, RECORD)
    await settled(tasks)

    assert client.done == ["limit c1", "kill c1"]
    assert not known.out_of_memory


async def test_who_has_ended_is_left_alone(tasks: Tasks) -> None:
    """A container that has ended is not limited."""
    client, known = Recorder(), running()
    known.is_reported = True

    limiter(client, tasks).soon(known, RECORD)
    await settled(tasks)

    assert client.done == []
