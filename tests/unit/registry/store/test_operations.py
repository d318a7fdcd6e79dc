"""Operations in the store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.errors import Conflict, Unknown
from registry.model import Operation
from registry.store.database import Database
from registry.store.operations import RUNNING_MAX, Operations


def operation(id: str, **changes: object) -> Operation:
    return replace(Operation(id, "deploy", "digits", {"bundle": "ab"}), **changes)


@pytest.fixture
def operations(database: Database) -> Operations:
    """The repository over an empty store; two ended operations are kept."""
    return Operations(database, ended_max=2)


async def test_an_operation_is_found_again(operations: Operations) -> None:
    """What was put comes back, and after an update what it was updated to."""
    first = operation("1")
    await operations.put(first)
    assert await operations.get("1") == first

    later = replace(first, phase="profile", result={"load_ms": 1.5})
    await operations.update(later)

    assert await operations.get("1") == later


async def test_unknown_operations(operations: Operations) -> None:
    """An id there is not, or of another namespace, is unknown."""
    await operations.put(operation("1", namespace="team"))

    with pytest.raises(Unknown):
        await operations.get("1")
    with pytest.raises(Unknown):
        await operations.update(operation("1"))
    assert (await operations.get("1", "team")).namespace == "team"


async def test_an_id_is_taken_once(operations: Operations) -> None:
    """A second operation of the same id is refused."""
    await operations.put(operation("1"))

    with pytest.raises(Conflict, match="UNIQUE"):
        await operations.put(operation("1", name="other"))


async def test_a_restart_finds_what_runs(operations: Operations) -> None:
    """Running operations of all namespaces are listed in the order of their start."""
    await operations.put(operation("1", namespace="team"))
    await operations.put(operation("2"))
    await operations.put(operation("3"))
    await operations.update(operation("2", state="failed"))

    assert [one.id for one in await operations.running()] == ["1", "3"]


async def test_the_newest_come_first(operations: Operations) -> None:
    """A list has the newest first, no more than asked for."""
    for id in ("1", "2", "3"):
        await operations.put(operation(id))

    assert [one.id for one in await operations.list()] == ["3", "2", "1"]
    assert [one.id for one in await operations.list(1)] == ["3"]
    assert await operations.list(-1) == []


async def test_only_the_newest_ended_are_kept(operations: Operations) -> None:
    """Ended operations beyond the limit go, oldest first; running ones never do."""
    for id in ("1", "2", "3", "4"):
        await operations.put(operation(id))
    for id in ("4", "2", "3"):
        await operations.update(operation(id, state="done", ended_s=1.0))

    assert [one.id for one in await operations.list()] == ["4", "3", "1"]


async def test_running_operations_are_bounded(operations: Operations) -> None:
    """One more than may run is refused; an ended one makes room."""
    for n in range(RUNNING_MAX):
        await operations.put(operation(str(n)))

    with pytest.raises(Conflict, match="200 operations run already"):
        await operations.put(operation("more"))

    await operations.update(operation("0", state="cancelled"))
    await operations.put(operation("more"))
