"""Operations in the store, and the steps of a rollout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.errors import Conflict, Unknown, UnknownRevision
from registry.model import Operation
from registry.store.database import MIGRATIONS, Database
from registry.store.functions import Functions
from registry.store.operations import RUNNING_MAX, Operations, Traffic
from tests.support.nouns import bundle, function, profile, revision


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


@pytest.fixture
def functions(database: Database) -> Functions:
    """What is deployed."""
    return Functions(database)


@pytest.fixture
def traffic(database: Database) -> Traffic:
    """The repository over the same store."""
    return Traffic(database)


async def deploy(functions: Functions, count: int) -> None:
    """digits@1 and so on, each with the traffic for a while."""
    for _ in range(count):
        await functions.deploy(function("digits", 0), revision(number=0), bundle(), profile())


async def stage(traffic: Traffic, operation: str = "o1") -> int:
    return (await traffic.stage(revision(number=0), bundle(), profile(), operation)).number


async def numbers(functions: Functions) -> list[int]:
    return [one.revision.number for one in await functions.load_all()]


async def test_a_staged_revision_waits_without_traffic(
    functions: Functions, traffic: Traffic
) -> None:
    """It is stored under the next number, and its operation finds it."""
    await deploy(functions, 1)

    assert await stage(traffic) == 2
    assert (await traffic.staged("o1"), await traffic.staged("o2")) == (2, None)
    assert {one.function.revision for one in await functions.load_all()} == {1}


async def test_a_staged_revision_gets_the_traffic(functions: Functions, traffic: Traffic) -> None:
    """From then on it waits no more, and the one before is where a rollback goes."""
    await deploy(functions, 1)
    await stage(traffic)

    await traffic.move(function(revision=2))

    assert (await traffic.staged("o1"), await traffic.previous("digits")) == (None, 1)
    assert await traffic.unstage("o1") is None
    assert await numbers(functions) == [1, 2]


async def test_a_staged_revision_is_removed_again(functions: Functions, traffic: Traffic) -> None:
    """Nothing of it stays but its number, which is not given again."""
    await deploy(functions, 1)
    await stage(traffic)

    assert await traffic.unstage("o1") == ("digits", 2)
    assert await traffic.unstage("o1") is None
    assert await numbers(functions) == [1]
    assert await stage(traffic) == 3


async def test_what_nobody_goes_on_with_is_found(functions: Functions, traffic: Traffic) -> None:
    """A staged revision whose operation does not run is told by that operation."""
    await deploy(functions, 1)
    await stage(traffic, "o1")
    await stage(traffic, "o2")

    assert await traffic.abandoned({"o1"}) == ["o2"]


async def test_staged_and_previous_revisions_are_not_trimmed(
    functions: Functions, traffic: Traffic
) -> None:
    """However few are to be kept."""
    await deploy(functions, 3)
    await stage(traffic)
    await traffic.move(function(revision=1))
    await traffic.move(function(revision=3))

    assert await functions.trim_revisions("digits", 1) == (2,)
    assert await numbers(functions) == [1, 3, 4]


async def test_rollbacks_go_back_along_the_line(functions: Functions, traffic: Traffic) -> None:
    """Each goes one further, and what was left that way is no place to come back to."""
    await deploy(functions, 3)
    way = []
    while (number := await traffic.previous("digits")) is not None:
        await traffic.move(function(revision=number))
        way.append(number)

    assert way == [2, 1]


async def test_a_move_further_back_forgets_what_lay_between(
    functions: Functions, traffic: Traffic
) -> None:
    """To the first at once is as far back as step by step."""
    await deploy(functions, 3)

    await traffic.move(function(revision=1))

    assert await traffic.previous("digits") is None


async def test_a_move_forward_can_be_taken_back(functions: Functions, traffic: Traffic) -> None:
    """To a revision off the line: the one before it is remembered as after a deploy."""
    await deploy(functions, 3)
    await traffic.move(function(revision=1))

    await traffic.move(function(revision=3))

    assert await traffic.previous("digits") == 1


async def test_settings_move_nothing(functions: Functions, traffic: Traffic) -> None:
    """Saving a function whose revision stays leaves the line as it is."""
    await deploy(functions, 2)

    await functions.save_function(function(revision=2, labels={"team": "vision"}))

    assert await traffic.previous("digits") == 1


async def test_what_is_removed_is_on_no_line(functions: Functions, traffic: Traffic) -> None:
    """A removed function has no past and nothing that waits."""
    await deploy(functions, 2)
    await stage(traffic)

    await functions.remove_function("digits")

    assert (await traffic.previous("digits"), await traffic.staged("o1")) == (None, None)


async def test_traffic_needs_a_revision(functions: Functions, traffic: Traffic) -> None:
    """It cannot be sent to one there is not, and then everything is as before."""
    await deploy(functions, 1)
    with pytest.raises(UnknownRevision, match="no revision 7"):
        await traffic.move(function(revision=7))

    assert await traffic.previous("digits") is None


async def test_an_older_store_knows_the_way_back(database: Database) -> None:
    """What was deployed before the line was kept is on it: every deploy moved the traffic."""
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
