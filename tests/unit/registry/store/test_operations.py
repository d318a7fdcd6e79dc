"""Tests of operations in the store, and of the steps of a rollout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.errors import Conflict, Unknown, UnknownRevision
from registry.model.operations import Operation
from registry.store.database import MIGRATIONS, Database
from registry.store.functions import Functions
from registry.store.operations import RUNNING_MAX, Operations, Traffic
from tests.support.nouns import bundle, function, profile, revision


def operation(id: str, **changes: object) -> Operation:
    return replace(Operation(id, "deploy", "digits", {"bundle": "ab"}), **changes)


@pytest.fixture
def operations(database: Database) -> Operations:
    """Repository over an empty store that keeps two ended operations."""
    return Operations(database, ended_max=2)


async def test_an_operation_is_found_again(operations: Operations) -> None:
    """An operation is read back as stored, and after an update as updated."""
    first = operation("1")
    await operations.put(first)
    assert await operations.get("1") == first

    later = replace(first, phase="profile", result={"load_ms": 1.5})
    await operations.update(later)

    assert await operations.get("1") == later


async def test_unknown_operations(operations: Operations) -> None:
    """An unknown id, or one of another namespace, raises."""
    await operations.put(operation("1", namespace="team"))

    with pytest.raises(Unknown):
        await operations.get("1")
    with pytest.raises(Unknown):
        await operations.update(operation("1"))
    assert (await operations.get("1", "team")).namespace == "team"


async def test_operation_ids_are_unique(operations: Operations) -> None:
    """A second operation with the same id is refused."""
    await operations.put(operation("1"))

    with pytest.raises(Conflict, match="UNIQUE"):
        await operations.put(operation("1", name="other"))


async def test_running_operations_are_listed(operations: Operations) -> None:
    """Running operations of all namespaces are listed in the order of their start."""
    await operations.put(operation("1", namespace="team"))
    await operations.put(operation("2"))
    await operations.put(operation("3"))
    await operations.update(operation("2", state="failed"))

    assert [one.id for one in await operations.running()] == ["1", "3"]


async def test_operations_are_listed_newest_first(operations: Operations) -> None:
    """A list starts with the newest and ends at its limit."""
    for id in ("1", "2", "3"):
        await operations.put(operation(id))

    assert [one.id for one in await operations.list()] == ["3", "2", "1"]
    assert [one.id for one in await operations.list(1)] == ["3"]
    assert await operations.list(-1) == []


async def test_only_the_newest_ended_are_kept(operations: Operations) -> None:
    """Ended operations beyond the limit are removed, oldest first; running ones never are."""
    for id in ("1", "2", "3", "4"):
        await operations.put(operation(id))
    for id in ("4", "2", "3"):
        await operations.update(operation(id, state="done", ended_s=1.0))

    assert [one.id for one in await operations.list()] == ["4", "3", "1"]


async def test_running_operations_are_bounded(operations: Operations) -> None:
    """An operation beyond the limit is refused; an ended one makes room."""
    for n in range(RUNNING_MAX):
        await operations.put(operation(str(n)))

    with pytest.raises(Conflict, match="200 operations run already"):
        await operations.put(operation("more"))

    await operations.update(operation("0", state="cancelled"))
    await operations.put(operation("more"))


@pytest.fixture
def functions(database: Database) -> Functions:
    """Repository of functions."""
    return Functions(database)


@pytest.fixture
def traffic(database: Database) -> Traffic:
    """Repository of traffic over the same store."""
    return Traffic(database)


async def deploy(functions: Functions, count: int) -> None:
    """Deploy digits@1 and so on; each has the traffic for a while."""
    for _ in range(count):
        await functions.deploy(function("digits", 0), revision(number=0), bundle(), profile())


async def stage(traffic: Traffic, operation: str = "o1") -> int:
    return (await traffic.stage(revision(number=0), bundle(), profile(), operation)).number


async def numbers(functions: Functions) -> list[int]:
    return [one.revision.number for one in await functions.load_all()]


async def test_a_staged_revision_has_no_traffic(functions: Functions, traffic: Traffic) -> None:
    """A staged revision has the next number, and its operation finds it."""
    await deploy(functions, 1)

    assert await stage(traffic) == 2
    assert (await traffic.staged("o1"), await traffic.staged("o2")) == (2, None)
    assert {one.function.revision for one in await functions.load_all()} == {1}


async def test_a_staged_revision_gets_the_traffic(functions: Functions, traffic: Traffic) -> None:
    """After the move it is no longer staged, and a rollback leads to the previous revision."""
    await deploy(functions, 1)
    await stage(traffic)

    await traffic.move(function(revision=2))

    assert (await traffic.staged("o1"), await traffic.previous("digits")) == (None, 1)
    assert await traffic.unstage("o1") is None
    assert await numbers(functions) == [1, 2]


async def test_a_staged_revision_can_be_removed(functions: Functions, traffic: Traffic) -> None:
    """Only its number stays reserved."""
    await deploy(functions, 1)
    await stage(traffic)

    assert await traffic.unstage("o1") == ("digits", 2)
    assert await traffic.unstage("o1") is None
    assert await numbers(functions) == [1]
    assert await stage(traffic) == 3


async def test_abandoned_staged_revisions_are_found(functions: Functions, traffic: Traffic) -> None:
    """A staged revision whose operation does not run is listed by its operation."""
    await deploy(functions, 1)
    await stage(traffic, "o1")
    await stage(traffic, "o2")

    assert await traffic.abandoned({"o1"}) == ["o2"]


async def test_staged_and_previous_revisions_are_not_trimmed(
    functions: Functions, traffic: Traffic
) -> None:
    """Staged and previous revisions stay, whatever the limit."""
    await deploy(functions, 3)
    await stage(traffic)
    await traffic.move(function(revision=1))
    await traffic.move(function(revision=3))

    assert await functions.trim_revisions("digits", 1) == (2,)
    assert await numbers(functions) == [1, 3, 4]


async def test_rollbacks_go_back_step_by_step(functions: Functions, traffic: Traffic) -> None:
    """Each rollback leads one revision further back; revisions left behind are no rollback
    target."""
    await deploy(functions, 3)
    way = []
    while (number := await traffic.previous("digits")) is not None:
        await traffic.move(function(revision=number))
        way.append(number)

    assert way == [2, 1]


async def test_a_move_further_back_skips_revisions(functions: Functions, traffic: Traffic) -> None:
    """A move to the first revision equals rolling back step by step."""
    await deploy(functions, 3)

    await traffic.move(function(revision=1))

    assert await traffic.previous("digits") is None


async def test_a_move_forward_can_be_rolled_back(functions: Functions, traffic: Traffic) -> None:
    """A move to a later revision records the one before it, as a deploy does."""
    await deploy(functions, 3)
    await traffic.move(function(revision=1))

    await traffic.move(function(revision=3))

    assert await traffic.previous("digits") == 1


async def test_saved_settings_move_no_traffic(functions: Functions, traffic: Traffic) -> None:
    """Saving a function with the same revision changes no rollback target."""
    await deploy(functions, 2)

    await functions.save_function(function(revision=2, labels={"team": "vision"}))

    assert await traffic.previous("digits") == 1


async def test_a_removed_function_has_no_traffic_history(
    functions: Functions, traffic: Traffic
) -> None:
    """A removed function has neither a rollback target nor a staged revision."""
    await deploy(functions, 2)
    await stage(traffic)

    await functions.remove_function("digits")

    assert (await traffic.previous("digits"), await traffic.staged("o1")) == (None, None)


async def test_traffic_needs_a_revision(functions: Functions, traffic: Traffic) -> None:
    """A move to an unknown revision raises and changes nothing."""
    await deploy(functions, 1)
    with pytest.raises(UnknownRevision, match="no revision 7"):
        await traffic.move(function(revision=7))

    assert await traffic.previous("digits") is None


async def test_the_migration_fills_the_traffic_history(database: Database) -> None:
    """Deploys from before the migration are rollback targets, because every deploy moved the
    traffic."""
    move = next(one for one in MIGRATIONS if one.name == "traffic").sql
    functions = Functions(database)
    await deploy(functions, 3)
    fill = move[move.index("INSERT INTO traffic") :].partition(";")[0]
    async with database.write() as transaction:
        await transaction.query("DELETE FROM traffic")
        await transaction.query(fill)

    assert await Traffic(database).previous("digits") == 2
    rows = await database.read("SELECT number FROM traffic ORDER BY id")
    assert [row[0] for row in rows] == [1, 2]
