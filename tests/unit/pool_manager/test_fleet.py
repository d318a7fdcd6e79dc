"""The hosts of a manager by name, and their images."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pool_manager.driver import EngineLosses, Exit, Exits
from pool_manager.fleet import Fleet, FleetImages
from registry.errors import EngineDown, HostDown
from tests.support.cluster import Node, one_host
from tests.support.fake_driver.driver import FakeDriver
from tests.support.replicas import ModelFolder, pool_settings
from tests.support.scenes import a_record

ID = "aaaa0001"


async def test_an_operation_goes_to_the_host_of_the_replica(tmp_path: Path) -> None:
    """One on a host that was removed fails as on one that is down: its replicas are given up by the
    machine. What nobody registered is the first host's."""
    with pool_settings() as settings:
        fleet = one_host(settings)
        node = Node("node1", settings, ModelFolder(tmp_path))
        fleet.add(node)
        record = node.complete(a_record())
        fleet.adopt(record)

        assert fleet.of(record.id) is fleet.get("node1") is node
        assert fleet.records("node1") == {record.id: record}
        assert fleet.of("dead0001") is fleet.first
        fleet.remove("node1")
        assert fleet.find("node1") is None
        with pytest.raises(HostDown, match="node1 was removed"):
            fleet.of(record.id)
        fleet.forget(record.id)
        assert fleet.of(record.id) is fleet.first
        assert "node1" not in fleet._records


async def test_an_engine_is_silent_if_its_host_cannot_be_reached(tmp_path: Path) -> None:
    """Then the host is named, not the engine."""
    silent = EngineDown("no answer")
    with pool_settings() as settings:
        fleet = one_host(settings)
        node = Node("node1", settings, ModelFolder(tmp_path))
        fleet.add(node)
        assert fleet.explained("node1", silent) is fleet.explained("local", silent) is silent

        node.transport.set_up(is_up=False)
        explained = fleet.explained("node1", silent)

    assert str(explained) == "host node1 is not up: the cable is cut"
    assert isinstance(explained, HostDown)
    assert fleet.explained("local", explained) is explained
    assert fleet.explained("node9", silent) is silent


async def test_the_ends_of_all_hosts_replicas_are_reported(tmp_path: Path) -> None:
    """Once each, also if a host is announced again, or comes back; an engine's loss with the name
    of its host. One that was replaced reports nothing more."""
    ends: list[tuple[str, Exit]] = []
    losses: list[tuple[str, str]] = []
    with pool_settings() as settings:
        here = FakeDriver()
        fleet = one_host(settings, here)
        fleet.exits.subscribe(lambda id, how: ends.append((id, how)))
        fleet.engine_losses.subscribe(lambda host, reason: losses.append((host, reason)))
        node = Node("node1", settings, ModelFolder(tmp_path))
        replaced = Node("node1", settings, ModelFolder(tmp_path))
        fleet.add(replaced)
        for _ in range(2):
            fleet.add(node)
        fleet.remove("node1")
        fleet.add(node)
        for driver in (here, node.replicas, replaced.replicas):
            driver.exits.notify(ID, Exit("exited"))
            driver.engine_losses.notify("away")

    assert ends == [(ID, Exit("exited"))] * 2
    assert losses == [("local", "away"), ("node1", "away")]


class Pins:
    """Images of one engine, or of a host, whose pins are removed."""

    def __init__(self, name: str = "", *, is_up: bool = True) -> None:
        self.name, self.is_up, self.maps_users = name, is_up, True
        self.kept: list[Collection[str]] = []
        self.find = self.pull = self.pin = self.pinned = lambda: None

    async def unpin_others(self, ids: Collection[str]) -> None:
        self.kept.append(ids)
        if self.name == "gpu2":
            raise HostDown("gpu2 is gone")

    async def prune(self, ids: Collection[str]) -> list[Any]:
        self.kept.append(ids)
        return ["removed"]


async def test_pins_of_images_go_on_all_hosts() -> None:
    """A host that fails or is down does not keep the others."""
    own: Any = Pins()
    pins = [Pins("gpu2"), Pins("gpu3"), Pins("gpu4", is_up=False)]
    fleet = Fleet(_host(own))
    for one in pins:
        fleet.add(_host(one))
    images = FleetImages(own, fleet)

    await images.unpin_others(["a"])
    assert await images.prune(["b"]) == ["removed"]

    assert own.kept == pins[0].kept == pins[1].kept == [["a"], ["b"]]
    assert pins[2].kept == []
    assert not images.maps_users
    assert FleetImages(own, Fleet(_host(own))).maps_users


def _host(pins: Pins) -> Any:
    """Return a host whose images are these."""
    transport = SimpleNamespace(why_down="" if pins.is_up else "cut")
    ends = {"exits": Exits(), "engine_losses": EngineLosses()}
    return SimpleNamespace(name=pins.name, files=pins, transport=transport, **ends)
