"""The shell around the machine, over the fake driver."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pool_manager import waiters
from pool_manager.core.pool import AT_REST
from pool_manager.core.state import Device, PoolSpec
from pool_manager.devices import cpu_slots
from pool_manager.manager import Manager
from pool_manager.ports import ServerContainer
from pool_manager.replicas.run_folders import new_ids
from pool_manager.reports import Decision
from pool_manager.settings import PoolSettings
from registry.errors import ModelRefused, ShuttingDown
from registry.exchange import Demand, Endpoints, Load, PoolEndpoints, decode_endpoints, encode
from registry.model.devices import DeviceModel, Use
from registry.model.history import ColdStart, StateInterval
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.link import Kind
from tests.support.fake_driver.driver import BEHAVES, FakeDriver, Script
from tests.support.operator import operating
from tests.support.replicas import KEY, GatewayLink, ModelFolder, binding, pool_settings


class Records:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.cold_starts: asyncio.Queue[ColdStart] = asyncio.Queue()
        self.intervals: list[StateInterval] = []
        self.use_kept: list[Use] = []

    def cold_start(self, record: ColdStart) -> None:
        self.cold_starts.put_nowait(record)

    def state_interval(self, record: StateInterval) -> None:
        self.intervals.append(record)

    def use(self, record: Use) -> None:
        self.use_kept.append(record)

    def device_model(self, record: DeviceModel) -> None:
        """Ignore the record."""


class Gateway:
    """One worker: its load, and the pools as it received them."""

    def __init__(self, manager: Manager, name: str = "w1") -> None:
        self.manager = manager
        self.name = name
        self.pools: dict[str, PoolEndpoints] = {}
        self.messages: list[Endpoints] = []
        self._seq = 0
        self._held = 0
        self._news = asyncio.Event()
        self.leave = manager.subscribe(self._receive)

    def hold(self, queued: int) -> None:
        """Report the number of waiting requests; repeated while the test waits."""
        self._held = queued
        self._seq += 1
        load = {KEY: Load(queued, 0, 0.0)}
        self.manager.receive_demand(encode(Demand(self.name, self._seq, True, load)))

    async def news(self) -> None:
        """Wait for the next message."""
        self._news.clear()
        await self._news.wait()

    async def state(self, state: str, key: str = KEY) -> PoolEndpoints:
        """Wait until a pool is published in this state."""
        while key not in self.pools or self.pools[key].state != state:
            await self.news()
            if self._held:
                self.hold(self._held)
        return self.pools[key]

    def _receive(self, data: bytes) -> None:
        message = decode_endpoints(data)
        self.messages.append(message)
        self.pools.update(message.pools)
        self._news.set()


@pytest.fixture
def settings() -> Iterator[PoolSettings]:
    with pool_settings(tick_s=0.01) as made:
        yield made


class Rig:
    """A manager with its records and one gateway."""

    def __init__(self, settings: PoolSettings, models: Path, script: Script) -> None:
        self.settings = settings
        self.slept: asyncio.Queue[float] = asyncio.Queue()
        self.driver = FakeDriver(script, sleep=self.slept.put)
        self.records = Records()
        self.manager = Manager(
            settings, self.driver, cpu_slots(2), ModelFolder(models), self.records
        )
        self.gateway = Gateway(self.manager)

    def define(self, **spec: Any) -> None:
        self.manager.define(PoolSpec(KEY, **spec), binding())

    async def warm(self) -> PoolEndpoints:
        """Define the pool and hold a request until it is warm."""
        self.define()
        self.gateway.hold(1)
        return await self.gateway.state("warm")


@pytest.fixture
async def rig(
    request: pytest.FixtureRequest, settings: PoolSettings, tmp_path: Path
) -> AsyncIterator[Rig]:
    """Started; with the script given as the fixture's parameter."""
    made = Rig(settings, tmp_path, getattr(request, "param", BEHAVES))
    await made.manager.start()
    yield made
    await made.manager.close()


async def test_before_a_gateway_has_spoken_nothing_is_published(rig: Rig) -> None:
    """Nothing is published before the first worker, which gets all pools: thousands of pools cost
    no message."""
    rig.define()
    assert rig.gateway.messages == []

    rig.gateway.hold(0)

    assert [message.full for message in rig.gateway.messages] == [True]
    assert rig.gateway.pools[KEY].state == "cold"


async def test_a_waiter_wakes_a_pool(rig: Rig) -> None:
    """A held request starts a replica, and the gateway gets its endpoint."""
    warm = await rig.warm()
    [replica] = warm.replicas
    link = GatewayLink()
    await link.open(Path(replica.path))
    answer = await link.call(1)
    await link.close()

    assert answer.kind is Kind.RESPONSE
    assert (replica.limit, replica.marks_started) == (2, True)
    assert {"place", "start", "import", "load"} <= set(replica.phases)
    assert [r.id for r in rig.manager.replicas()] == [replica.id]
    assert [device.id for device in rig.manager.devices()] == ["cpu:0", "cpu:1"]


async def test_a_cold_start_has_a_receipt(rig: Rig) -> None:
    """The first run completes a cold start, which is recorded with the kind of device."""
    warm = await rig.warm()
    link = GatewayLink()
    await link.open(Path(warm.replicas[0].path))
    await link.call(1)
    receipt = await rig.records.cold_starts.get()
    await link.close()

    assert (receipt.name, receipt.number, receipt.device_kind) == ("digits", 1, "cpu")
    assert (receipt.outcome, "first_run" in receipt.phases) == ("ready", True)
    assert [i.state for i in rig.records.intervals] == ["cold", "waking"]


async def test_why_is_told(rig: Rig) -> None:
    """A pool's state, its wanted replicas and its decisions can be queried."""
    await rig.warm()

    shown = rig.manager.pool(KEY)

    assert shown is not None
    assert (shown[0].state, shown[1]) == ("warm", 1)
    texts = [decision.text for decision in rig.manager.decisions(KEY)]
    assert texts[0].startswith("wants 1 replica: 1 held")
    assert texts[-1].endswith("is ready")
    assert rig.manager.pool("default/none@1") is None


async def test_an_idle_pool_goes_to_zero(rig: Rig) -> None:
    """Without requests for `idle_s`, the last replica is stopped."""
    rig.define(idle_s=0.0)
    rig.gateway.hold(1)
    await rig.gateway.state("warm")

    rig.gateway.hold(0)
    await rig.gateway.state("cold")

    assert rig.manager.replicas() == []
    assert await rig.driver.list() == set()


async def test_a_removed_pool_is_gone(rig: Rig) -> None:
    """The replicas of a removed pool are drained, gateways are notified, and nothing of it is
    left."""
    await rig.warm()

    rig.gateway.hold(0)
    rig.manager.remove(KEY)
    gone = await rig.gateway.state("gone")

    assert gone.replicas == []
    assert rig.manager.pool(KEY) is None
    assert rig.manager.decisions(KEY) == []


async def test_a_lost_worker_holds_nothing(rig: Rig) -> None:
    """The load of a worker ends with its connection."""
    rig.define(idle_s=0.0)
    rig.gateway.hold(1)
    await rig.gateway.state("warm")

    rig.gateway.leave()
    other = Gateway(rig.manager, "w2")
    other.hold(0)
    rig.manager.worker_lost("w1")

    await other.state("cold")


async def test_a_new_worker_is_told_everything(rig: Rig) -> None:
    """A new worker's first demand is answered with a full message; a removed worker gets nothing
    more."""
    await rig.warm()
    late = Gateway(rig.manager, "w2")
    late.hold(0)
    rig.gateway.leave()
    before = len(rig.gateway.messages)

    rig.define(max=2)
    late.hold(1)

    assert late.messages[0].full
    assert late.pools[KEY].state == "warm"
    assert len(rig.gateway.messages) == before


async def test_living_pools_are_told_again(rig: Rig) -> None:
    """Live pools are published at every tick, for gateways that missed a change or could not
    connect."""
    await rig.warm()
    rig.gateway.hold(0)
    told = len(rig.gateway.messages)
    while len(rig.gateway.messages) < told + 3:
        await rig.gateway.news()

    assert all(KEY in message.pools for message in rig.gateway.messages[told:])


async def test_logs_can_be_read(rig: Rig) -> None:
    """The output of a function's replicas is returned by replica, oldest first."""
    warm = await rig.warm()

    [(id, output)] = await rig.manager.logs("digits")

    assert id == warm.replicas[0].id
    assert output.startswith(f"fake replica {id} starts".encode())


@pytest.mark.parametrize("rig", [Script(batch=4)], indirect=True)
async def test_a_trial_gives_its_report(rig: Rig) -> None:
    """A trial returns its report, is not published, and is removed."""
    rig.gateway.hold(0)

    report = await rig.manager.trial(PoolSpec("trial/1"), binding())

    assert (report["batch_max"], report["signature"]["kind"]) == (4, "json")
    assert "trial/1" not in {
        key for message in rig.gateway.messages for key, p in message.pools.items() if p.replicas
    }
    await rig.gateway.state("gone", "trial/1")
    assert rig.manager.replicas() == []


@pytest.mark.parametrize(
    ("rig", "stage", "reason"),
    [
        (Script(refuse_load="no such opset"), "load", "no such opset"),
        (Script(crash_at="load"), "start", "crashed"),
    ],
    indirect=["rig"],
)
async def test_a_trial_may_be_refused(rig: Rig, stage: str, reason: str) -> None:
    """A refused trial has the replica's reason, the stage for callers and the log for admins."""
    rig.gateway.hold(0)

    with pytest.raises(ModelRefused, match=reason) as caught:
        await rig.manager.trial(PoolSpec("trial/1"), binding())

    assert caught.value.detail == {"stage": stage}
    assert caught.value.admin_detail["log_tail"][0].startswith("fake replica")


@pytest.mark.parametrize("rig", [Script(hang_at="load")], indirect=True)
async def test_a_trial_has_an_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial above its time limit is refused, and its replica is ended."""
    monkeypatch.setattr(waiters, "TRIAL_S", 0.0)

    with pytest.raises(ModelRefused, match="had not ended after 0 s"):
        await rig.manager.trial(PoolSpec(KEY), binding())


@pytest.mark.parametrize("rig", [Script(hang_at="load")], indirect=True)
async def test_a_trial_ends_with_the_server(rig: Rig) -> None:
    """At a shutdown the wait for a trial fails, and its replica is ended."""
    rig.gateway.hold(0)
    async with asyncio.TaskGroup() as group:
        trial = group.create_task(refused(rig.manager))
        await rig.slept.get()
        await rig.manager.close()

    assert trial.result() == "the server is shutting down"


async def refused(manager: Manager) -> str:
    with pytest.raises(ShuttingDown) as caught:
        await manager.trial(PoolSpec("trial/1"), binding())
    return caught.value.message


async def test_what_an_earlier_manager_left_is_removed(
    settings: PoolSettings, tmp_path: Path
) -> None:
    """Folders without a live replica and stale model files are removed before anything starts."""
    rig = Rig(settings, tmp_path, BEHAVES)
    (settings.run_dir / "dead0001").mkdir()
    (settings.model_dir / "dead0001").mkdir()
    (settings.model_dir / "dead0002").mkdir()

    await rig.manager.start()
    await rig.manager.close()

    assert list(settings.run_dir.iterdir()) == list(settings.model_dir.iterdir()) == []


async def test_one_defect_does_not_stop_the_rest(rig: Rig) -> None:
    """A receiver that raises is reported, and later events are still handled."""

    def fail(_: bytes) -> None:
        raise RuntimeError("a receiver's defect")

    rig.gateway.hold(0)
    leave = rig.manager.subscribe(fail)
    with capture_logs() as logs:
        rig.define()
        leave()

    await rig.warm()
    assert "a command could not be done" in {line["event"] for line in logs}


@pytest.mark.parametrize("counter", ["counters.note", "_use.observe"])
async def test_a_defect_in_counting_keeps_nothing_from_being_done(
    rig: Rig, counter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool comes up although counting fails; the failures are counted."""

    def fail(_: object) -> None:
        raise RuntimeError("a counter's defect")

    owner, _, method = counter.rpartition(".")
    monkeypatch.setattr(getattr(rig.manager, owner), method, fail)

    await rig.warm()

    assert rig.manager.counters.counts().defects["metering"] > 0


async def test_a_defect_half_way_through_an_event_loses_no_command(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If handling an event fails half-way, the decided commands are carried out, the defect is
    counted, and later events are handled."""
    handle = rig.manager._machine.handle

    def broken(*args: Any) -> Any:
        handle(*args)
        raise RuntimeError("a defect after the decisions")

    monkeypatch.setattr(rig.manager._machine, "handle", broken)
    await rig.warm()

    assert rig.manager.counters.counts().defects["event"] > 0


class StartQueue(FakeDriver):
    """Keeps the records of what it starts."""

    def __init__(self) -> None:
        super().__init__()
        self.records: asyncio.Queue[ReplicaRecord] = asyncio.Queue()

    async def start(
        self,
        record: ReplicaRecord,
        run_dir: Path,
        log: Path,
        server: ServerContainer | None = None,
    ) -> None:
        await super().start(record, run_dir, log, server)
        self.records.put_nowait(record)


async def test_a_gpus_standby_is_started_for_its_kind(tmp_path: Path) -> None:
    """The configured number of standbys is started on each GPU, and none for CPU slots if none is
    configured."""
    devices = [*cpu_slots(1), Device("GPU-1", "cuda", 4_000)]
    with pool_settings(tick_s=0.01, gpu_standbys=1) as settings:
        driver = StartQueue()
        manager = Manager(settings, driver, devices, ModelFolder(tmp_path), Records())
        await manager.start()
        Gateway(manager).hold(0)

        record = await driver.records.get()

        assert (record.role, record.device_kind) == ("standby", "cuda")
        assert [one.devices for one in manager.replicas()] == [("GPU-1",)]
        await manager.close()


def test_replica_ids_skip_recorded_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids wrap around after 2**32 and skip every id that has a run folder."""
    monkeypatch.setattr(secrets, "randbits", lambda bits: 2**bits - 1)
    for recorded in ("00000000", "00000001"):
        (tmp_path / recorded).mkdir()

    new_id = new_ids(tmp_path)

    assert [new_id() for _ in range(3)] == ["ffffffff", "00000002", "00000003"]


async def test_what_replicas_have_of_devices_is_kept(rig: Rig) -> None:
    """Usage is recorded under the function's name from the launch on, before the replica's end."""
    warm = await rig.warm()

    rig.manager._use.flush()

    [device] = {one.device for one in rig.records.use_kept}
    assert (device,) == warm.replicas[0].devices
    assert {(one.name, one.number) for one in rig.records.use_kept} == {("digits", 1)}
    assert sum(one.waking_s for one in rig.records.use_kept) > 0.0
    assert rig.manager.busy(device) is None  # it has not been asked yet
    assert [rig.manager.busy(one.id) for one in rig.manager.devices() if one.id != device] == [0.0]


async def test_a_server_that_does_not_answer_is_told(rig: Rig) -> None:
    """By its pool, with the reason, and as long as it is listed."""
    await rig.warm()
    (replica,) = rig.manager.replicas()
    assert (rig.manager.trouble(KEY), rig.manager.trouble("default/no@1")) == ("", "")

    replica.trouble = "it refuses connections"

    assert rig.manager.trouble(KEY) == "it refuses connections"
    assert rig.manager.not_answering() == [(KEY, "it refuses connections")]


async def test_of_an_unknown_pool_nothing_is_seen(tmp_path: Path) -> None:
    """An unknown pool has no state, no forecast and no obstacle."""
    async with operating(tmp_path) as operator:
        manager = operator.manager

        assert manager.pool("default/nobody@1") is None
        assert manager.forecast("default/nobody@1") is AT_REST
        assert manager.blocked("default/nobody@1") == ""
        assert not manager.wakes_by_standby("default/nobody@1")
        assert manager.decisions("default/nobody@1") == []


async def test_decisions_are_told_as_they_are_made(tmp_path: Path) -> None:
    """Subscribers get the same decisions that are kept."""
    told: list[tuple[str, Decision]] = []
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")
        end = operator.manager.subscribe_decisions(lambda *one: told.append(one))
        await operator.manager.warm(KEY)
        end()
        operator.manager.note(KEY, "nobody listens")
        seen = operator.manager.forecast(KEY)

        assert [one for pool, one in told if pool == KEY] == operator.manager.decisions(KEY)[:-1]
        assert told != []
        assert seen.devices == tuple({one.first_device for one in operator.manager.replicas()})
