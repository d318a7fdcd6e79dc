"""Endpoints as published to gateways."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pool_manager.core import events
from pool_manager.core.state import PoolSpec
from pool_manager.host import Located
from pool_manager.replicas.run_folders import RunFolders
from pool_manager.reports import Journal, Publisher
from registry.exchange import Endpoints, decode_endpoints
from registry.model.devices import DeviceModel, Use
from registry.model.history import ColdStart, StateInterval
from tests.support.play import Play
from tests.support.replicas import KEY, binding, pool_settings


class Forgetful:
    """Keeps nothing of the past."""

    def cold_start(self, record: ColdStart) -> None:
        pass

    def state_interval(self, record: StateInterval) -> None:
        pass

    def use(self, record: Use) -> None:
        """Ignore the record."""

    def device_model(self, record: DeviceModel) -> None:
        """Ignore the record."""


class Rig:
    """A publisher of a machine with one pool, and its messages."""

    def __init__(self, folders: RunFolders) -> None:
        self.play = Play(PoolSpec(KEY), devices=1)
        self.bindings = {KEY: binding()}
        self.told: list[Endpoints] = []
        self.publisher = Publisher(
            self.play.machine,
            Journal(Forgetful(), lambda: 0.0, 1),
            self.bindings,
            lambda id: Located(str(folders.data_socket(id))),
            lambda: self.play.now,
        )
        self.end = self.publisher.messages.subscribe(
            lambda data: self.told.append(decode_endpoints(data))
        )


@pytest.fixture
def rig() -> Iterator[Rig]:
    with pool_settings() as settings:
        yield Rig(RunFolders(settings))


def test_nobody_is_told_while_there_is_no_worker(rig: Rig) -> None:
    """Without a worker nothing is sent; the first one gets every pool, once."""
    rig.publisher.publish(frozenset({KEY}))
    rig.publisher.add_worker("w1")
    rig.publisher.add_worker("w1")

    assert [(one.seq, one.full, list(one.pools)) for one in rig.told] == [(1, True, [KEY])]
    assert rig.told[0].pools[KEY].state == "cold"


def test_a_worker_that_comes_back_is_told_anew(rig: Rig) -> None:
    """A worker that was removed and returns gets all pools again."""
    rig.publisher.add_worker("w1")
    rig.publisher.remove_worker("w1")
    rig.publisher.publish(frozenset({KEY}))
    rig.publisher.add_worker("w1")

    assert [one.full for one in rig.told] == [True, True]


def test_a_pool_that_is_gone_is_forgotten(rig: Rig) -> None:
    """The end of a pool is published, and its binding is dropped."""
    rig.publisher.add_worker("w1")
    rig.play.on(events.PoolRemoved(KEY))
    rig.publisher.publish(frozenset({KEY}))

    assert rig.told[-1].pools[KEY].state == "gone"
    assert rig.bindings == {}


def test_a_trial_is_nobodys_to_call(rig: Rig) -> None:
    """Trials are not published."""
    rig.publisher.add_worker("w1")
    rig.play.on(events.PoolDefined(PoolSpec("default/new@1", role="trial")))
    rig.publisher.publish(frozenset({"default/new@1"}))

    assert rig.told[-1].pools == {}


def test_the_end_of_a_subscription(rig: Rig) -> None:
    """After unsubscribing, a receiver gets nothing more."""
    rig.publisher.add_worker("w1")
    rig.end()
    rig.publisher.publish(frozenset({KEY}))

    assert len(rig.told) == 1


def test_a_replica_of_an_unknown_function_keeps_no_pool_back(rig: Rig) -> None:
    """An earlier manager may have ended while a removed function drained. What is published with
    its pool, as all pools of a host that is up again, reaches the gateways."""
    rig.publisher.add_worker("w1")
    rig.play.on(events.Found("r9", "default/gone@1", ("cpu:0",), "serve"))

    rig.publisher.publish(frozenset({KEY, "default/gone@1"}))

    assert rig.told[-1].pools.keys() == {KEY, "default/gone@1"}
    assert rig.told[-1].pools["default/gone@1"].replicas == []
