"""Tests of loading and unloading models, asked by a gateway. `warm_up` itself is tested with the
admin API's `warm`, too."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from admin.workers import hub
from admin.workers.local import LocalGateway
from admin.workers.messages import ANSWERS, Activity
from gateway.ports import ModelControl, NoStatistics
from registry.errors import NoRoom, QueueFull, UnknownFunction
from tests.support import nouns
from tests.support.fake_driver.driver import FakeDriver, Script
from tests.support.operator import MODEL, until
from tests.support.server import Gate, ServingServer, serving

CROWD = 200
WAIT_S = 30.0


def models_of(server: ServingServer) -> ModelControl:
    """Return the models of a server, as its gateway reaches them."""
    models = server.gateway.invoker.model_control
    assert models is not None
    return models


async def test_a_crowd_causes_one_start(tmp_path: Path) -> None:
    """All that load a cold model at once wait for one replica; one that leaves ends alone."""
    gate = Gate()
    async with serving(tmp_path, FakeDriver(Script(load_s=1), sleep=gate)) as server:
        await server.deploy({"m.onnx": MODEL}, name="digits", max=5)
        models, deployed = models_of(server), server.server.store.catalog.resolve("digits")
        gate.shut()
        loads = [asyncio.create_task(models.load(deployed, WAIT_S)) for _ in range(CROWD)]
        await until(lambda: gate.waiting > 0)
        loads[0].cancel()
        gate.open()
        results = await asyncio.gather(*loads, return_exceptions=True)

        assert isinstance(results[0], asyncio.CancelledError)
        assert results[1:] == [None] * (CROWD - 1)
        assert len(server.bound()) == 1
        await models.load(deployed, 0.0)
        unknown = nouns.deployed("other")
        with pytest.raises(UnknownFunction):
            await models.load(unknown, 1.0)
        await models.unload(unknown)


async def test_a_wait_ends_in_time(tmp_path: Path) -> None:
    """A model that is not resident within the wait keeps starting; the error says so."""
    gate = Gate()
    async with serving(tmp_path, FakeDriver(Script(load_s=1), sleep=gate)) as server:
        await server.deploy({"m.onnx": MODEL}, name="digits")
        gate.shut()
        deployed = server.server.store.catalog.resolve("digits")
        with pytest.raises(NoRoom):
            await models_of(server).load(deployed, 0.0)
        gate.open()


async def test_waits_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One wait more than the limit is refused at once."""
    monkeypatch.setattr(hub, "WAITING_MAX", 0)
    async with serving(tmp_path, FakeDriver()) as server:
        await server.deploy({"m.onnx": MODEL}, name="digits")
        with pytest.raises(QueueFull):
            await models_of(server).load(server.server.store.catalog.resolve("digits"), 1.0)


async def test_every_revision_is_unloaded(tmp_path: Path) -> None:
    """The replicas of the function stop, also those of a revision that has no traffic."""
    async with serving(tmp_path, FakeDriver()) as server:
        for rows in (2, 3):
            await server.deploy({"m.onnx": MODEL}, name="digits", max=2, batch_max=rows)
        models, catalog = models_of(server), server.server.store.catalog
        for one in catalog.revisions("digits"):
            await models.load(one, WAIT_S)
        assert len(server.bound()) == 2

        await models.unload(catalog.resolve("digits"))

        await server.until_pools(lambda: not server.bound())


async def test_every_question_is_answered_at_one_end(tmp_path: Path) -> None:
    """Each kind of question has a handler in the server or in its gateways, and only there."""
    async with serving(tmp_path, FakeDriver()) as server:
        store, manager = server.server.store, server.server.manager
        above = hub.ServerAnswers(store.catalog, manager, NoStatistics()).handlers().keys()
        [slot] = server.server.gateways._slots
        assert isinstance(slot.process, LocalGateway)
        below = slot.process.node._link._handlers.keys()
        assert slot.session is not None
        of_each = slot.session.requests._handlers.keys()

    assert of_each == above | {Activity}
    assert of_each | below == ANSWERS.keys()
    assert not of_each & below
