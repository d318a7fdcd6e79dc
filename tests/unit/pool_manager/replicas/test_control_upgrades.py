"""UPGRADE and UPGRADED on the control link, with the replica played by the test."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from pool_manager.core import events
from pool_manager.replicas.control import UPGRADES_MAX
from runtime_image.contract.compiled import CompiledFile, CompiledModel, compiled_from_json
from runtime_image.contract.enrolment import FetchedFile
from runtime_image.contract.link import Kind
from tests.support.blocking import BlockingLink
from tests.unit.pool_manager.replicas.test_control import ID, LOADED, Rig, read, rig

__all__ = ["rig"]  # fixtures

COMPILED = CompiledModel("k", "onnxruntime", "context", (CompiledFile("m", 1, "0" * 64),), ())


async def loaded(rig: Rig) -> BlockingLink:
    """Return the link of a replica that has loaded its model."""
    rig.open()
    link = await rig.greeted()
    link.send(Kind.LOADED, body=json.dumps(LOADED).encode())
    assert isinstance(await rig.events.get(), events.Loaded)
    return link


def answer(link: BlockingLink, **result: Any) -> None:
    """Send UPGRADED."""
    link.send(Kind.UPGRADED, body=json.dumps(result).encode())


async def test_an_upgrade_is_sent_and_its_outcome_returned(rig: Rig) -> None:
    """The outcome is emitted, too: the core keeps the session."""
    link = await loaded(rig)

    upgrading = asyncio.ensure_future(rig.control.upgrade(COMPILED))
    request = json.loads((await read(link, Kind.UPGRADE)).body)
    answer(link, session="fast", reason="too little memory")

    assert "files" not in request
    assert compiled_from_json(request["compiled"]) == COMPILED
    assert await upgrading == {"session": "fast", "reason": "too little memory"}
    assert await rig.events.get() == events.Upgraded(ID, "fast", "too little memory")


async def test_a_replica_that_fetches_is_told_the_files_of_its_upgrade(rig: Rig) -> None:
    """They are named beside the compiled model."""
    link = await loaded(rig)
    file: FetchedFile = {"path": ".compiled/a", "size": 3, "sha256": "ab" * 32}

    upgrading = asyncio.ensure_future(rig.control.upgrade(COMPILED, [file]))
    request = json.loads((await read(link, Kind.UPGRADE)).body)
    answer(link, session="compiled", reason="")

    assert request["files"] == [file]
    assert (await upgrading)["session"] == "compiled"


async def test_an_answer_whose_caller_has_left_still_counts(rig: Rig) -> None:
    """It belongs to the oldest request; a replica that answers none gets no more."""
    link = await loaded(rig)
    upgrading = [asyncio.ensure_future(rig.control.upgrade(COMPILED)) for _ in range(UPGRADES_MAX)]
    for _ in upgrading:
        await read(link, Kind.UPGRADE)
    with pytest.raises(ConnectionError, match="takes no upgrade"):
        await rig.control.upgrade(COMPILED)
    upgrading[0].cancel()
    await asyncio.wait(upgrading[:1])

    answer(link, session="compiled", reason="")
    answer(link, session="compiled", reason="another upgrade is in progress")

    assert await upgrading[1] == {
        "session": "compiled",
        "reason": "another upgrade is in progress",
    }
    assert await rig.events.get() == events.Upgraded(ID, "compiled", "")
    rig.control.close()
    with pytest.raises(ConnectionError, match="closed"):
        await upgrading[2]


async def test_only_a_loaded_replica_is_upgraded(rig: Rig) -> None:
    """Any other one would load the compiled model by its spec."""
    rig.open()
    await rig.greeted()

    with pytest.raises(ConnectionError, match="takes no upgrade"):
        await rig.control.upgrade(COMPILED)


async def test_the_end_of_a_replica_ends_its_upgrade(rig: Rig) -> None:
    """With the reason of the lost link."""
    link = await loaded(rig)
    upgrading = asyncio.ensure_future(rig.control.upgrade(COMPILED))
    await read(link, Kind.UPGRADE)

    link.close()

    with pytest.raises(ConnectionError, match="closed by the other side"):
        await upgrading


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"session": "compiled2", "reason": "x"},
        {"session": "fast"},
        {"session": "fast", "reason": ""},
        {"session": ["compiled"], "reason": ""},
    ],
)
async def test_a_malformed_outcome_ends_the_link(rig: Rig, result: dict[str, Any]) -> None:
    """A session must be a known one, and any but the compiled one needs a reason."""
    link = await loaded(rig)
    upgrading = asyncio.ensure_future(rig.control.upgrade(COMPILED))
    await read(link, Kind.UPGRADE)

    with capture_logs():
        answer(link, **result)

        assert (await rig.lost).startswith("malformed UPGRADED")
    with pytest.raises(ConnectionError):
        await upgrading


async def test_an_unrequested_outcome_ends_the_link(rig: Rig) -> None:
    """It would change the manager's record of the replica."""
    link = await loaded(rig)

    with capture_logs():
        answer(link, session="compiled", reason="")

        assert await rig.lost == "unexpected UPGRADED"
