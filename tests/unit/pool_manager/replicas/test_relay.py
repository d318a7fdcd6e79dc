"""The path of what happens to replicas."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pool_manager.core import events
from pool_manager.driver import Exit
from pool_manager.image_names import IMAGE_DIGEST
from pool_manager.replicas import output, records
from pool_manager.replicas.relay import EVICTED_S, EventRelay
from pool_manager.replicas.run_folders import tail_lines
from pool_manager.settings import PoolSettings
from registry.errors import DriverError
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.link import VERSION
from runtime_image.contract.server import Network, ServerSpec
from tests.support.cluster import Node
from tests.support.fake_driver.driver import FakeDriver, Script
from tests.support.replicas import Stage, binding, pool_settings

ID = "aaaa0001"
RECORD = ReplicaRecord(
    id=ID,
    token="secret",
    role="serve",
    namespace="default",
    bound="default/digits@1",
    model_dir="",
    devices=("gpu2:cpu:0",),
    device_kind="cpu",
    engine="onnx",
    threads=1,
    orphan_s=60.0,
    memory_mib=0,
    launched_s=100.0,
    link=VERSION,
    phases={"place": 5.0},
    host="gpu2",
)


@pytest.fixture
def settings() -> Iterator[PoolSettings]:
    with pool_settings(memory_mib=100) as made:
        yield made


@pytest.fixture
async def stage(settings: PoolSettings, tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(settings, FakeDriver(), tmp_path)
    yield made
    await made.close()


async def test_a_lost_link_is_explained_by_the_exit(stage: Stage) -> None:
    """If link and process end together, the loss is reported once, by the exit and with the log."""
    await stage.ready(ID)
    control = stage.launcher.control(ID)
    assert control is not None

    control.drain(None)
    lost = await stage.next(events.Lost)
    stage.launcher.release(ID)

    assert lost.reason == "exited with code 0"
    assert lost.log_tail[-1] == "fake replica aaaa0001 exited with code 0"
    assert await stage.events.get() == events.Released(ID)


async def test_an_eviction_is_told_as_one(stage: Stage) -> None:
    """In the engine's words alone, once, also if the link ends with the process."""
    await stage.ready(ID)
    words = "was preempted: preempted by pod other/important-1"
    stage.driver.exits.notify(ID, Exit(words, is_eviction=True))
    stage.driver.exits.notify(ID, Exit("exited with code 0"))

    lost = await stage.next(events.Lost)
    stage.launcher.release(ID)

    assert (lost.reason, lost.cause, lost.refused_s) == (words, words, EVICTED_S)
    assert (lost.is_eviction, lost.is_its_fault, lost.log_tail) == (True, False, ())
    assert await stage.events.get() == events.Released(ID)


async def test_the_digest_of_a_trials_image_is_the_hosts_word(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a replica says of it does not count, and no other replica has one."""
    relay, digest = stage.launcher._relay, f"sha256:{'0' * 64}"
    said = events.Loaded(ID, 1, True, 0.0, {}, {"load_ms": 1.0, IMAGE_DIGEST: "sha256:own"})
    relay.records[ID] = replace(RECORD, host="local")
    relay.on_event(said)
    relay.on_event(replace(said, report={}))
    facts = replace(stage.host.facts, digest_of={ID: f"docker.io/app@{digest}"}.__getitem__)
    monkeypatch.setattr(stage.host, "facts", facts)
    relay.on_event(said)

    reports = [(await stage.next(events.Loaded)).report for _ in range(3)]

    assert reports == [
        {"load_ms": 1.0},
        {},
        {"load_ms": 1.0, IMAGE_DIGEST: f"docker.io/app@{digest}"},
    ]


async def test_an_end_is_told_without_reading_files_in_the_loop(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log tails are read outside the event loop, so that a slow disk does not delay calls."""
    readers: list[threading.Thread] = []

    def read(path: Path, count: int) -> tuple[str, ...]:
        readers.append(threading.current_thread())
        return tail_lines(path, count)

    monkeypatch.setattr(output, "tail_lines", read)
    await stage.ready(ID)
    control = stage.launcher.control(ID)
    assert control is not None
    control.drain(None)
    await stage.next(events.Lost)

    assert readers
    assert threading.main_thread() not in readers


async def test_a_refused_load_shows_the_log(settings: PoolSettings, tmp_path: Path) -> None:
    """A refused load is reported with the last log lines."""
    stage = Stage(settings, FakeDriver(Script(refuse_load="no such opset")), tmp_path)
    stage.launch(ID)

    lost = await stage.next(events.Lost)

    assert (lost.reason, lost.stage) == ("no such opset", "load")
    assert lost.log_tail == ("fake replica aaaa0001 starts for default/digits@1",)
    await stage.close()


@pytest.mark.parametrize("reason", ["std::bad_alloc", "MemoryError()", "Unable to allocate 9 GiB"])
async def test_a_load_that_lacks_memory_names_the_cap(
    settings: PoolSettings, tmp_path: Path, reason: str
) -> None:
    """A load that ran out of memory is reported with the cap, which the engine does not know."""
    stage = Stage(settings, FakeDriver(Script(refuse_load=reason)), tmp_path)
    stage.launch(ID)

    lost = await stage.next(events.Lost)

    assert lost.reason == f"{reason} (its memory cap is 100 MiB)"
    await stage.close()


@pytest.mark.parametrize(
    ("network", "reason", "advice"),
    [
        ("none", "[Errno -3] Temporary failure in name resolution", records.EGRESS_ADVICE),
        ("egress", "[Errno -3] Temporary failure in name resolution", ""),
        ("none", "no such opset", ""),
    ],
)
async def test_a_server_that_lacks_a_network_is_told_of_egress(
    settings: PoolSettings, tmp_path: Path, network: Network, reason: str, advice: str
) -> None:
    """Once, and not if it may reach what the host reaches."""
    stage = Stage(settings, FakeDriver(Script(refuse_load=reason)), tmp_path)
    stage.launch(ID, binding(ServerSpec("digits@1", ("serve",), network=network)))

    lost = await stage.next(events.Lost)

    assert lost.reason == reason + advice
    await stage.close()


@pytest.mark.parametrize(("measured", "mib"), [(300.0, 300.0), (None, 0.0), ("busy", 0.0)])
async def test_the_driver_measures_a_server_that_is_apart(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, measured: float | str | None, mib: float
) -> None:
    """Its sidecar does not see its memory, and says 0; a trial's report gets the figure, too."""

    async def used_mib(_id: str) -> float | None:
        if isinstance(measured, str):
            raise DriverError(measured)
        return measured

    monkeypatch.setattr(stage.driver.processes, "used_mib", used_mib)
    await stage.ready(ID, binding(ServerSpec("digits@1", (), is_apart=True)))
    said = events.Loaded(ID, 0, True, 0.0, {}, {"memory_mib": 0.0})

    for event in (said, replace(said, report={})):
        stage.launcher._relay.on_event(event)
        loaded = await stage.next(events.Loaded)

        assert loaded.memory_mib == mib
        assert loaded.report == ({"memory_mib": mib} if event.report else {})


@pytest.fixture
async def elsewhere(stage: Stage) -> EventRelay:
    """The relay with a replica on another host, launched at second 100 of its clock."""
    relay = stage.launcher._relay
    stage.fleet.add(Node(RECORD.host, stage.settings, stage.bundles))
    stage.fleet.adopt(RECORD)
    relay._clock, relay._emit = (lambda: 103.0), stage.events.put_nowait
    relay.begin(RECORD)
    return relay


@pytest.mark.parametrize(
    ("stated", "start_ms", "import_ms"),
    [
        ({"import": 1000.0, "start": 9.0}, 2000.0, 1000.0),
        ({"import": 1e9}, 0.0, 3000.0),
        ({}, 3e3, 0),
    ],
)
async def test_a_start_elsewhere_is_measured_here(
    elsewhere: EventRelay,
    stage: Stage,
    stated: dict[str, float],
    start_ms: float,
    import_ms: float,
) -> None:
    """Start and imports sum up to what has passed here; a second greeting changes nothing."""
    phases = {"place": 5.0, "start": start_ms, "import": import_ms}
    for clock_s in (103.0, 150.0):
        elsewhere._clock = lambda clock_s=clock_s: clock_s  # type: ignore[misc]
        elsewhere.on_event(events.Greeted(ID, stated))

        assert (await stage.next(events.Greeted)).phases == phases

    elsewhere.on_bind(ID)
    elsewhere._clock = lambda: 152.0
    elsewhere.on_event(events.Loaded(ID, 1, True, 0.0, {"load": 500.0, "bind": 7.0, "start": 8.0}))

    assert (await stage.next(events.Loaded)).phases == {**phases, "bind": 1500.0, "load": 500.0}


async def test_an_adopted_replica_elsewhere_states_its_phases(
    elsewhere: EventRelay, stage: Stage
) -> None:
    """A replica that had loaded under an earlier manager repeats what that one measured."""
    elsewhere.on_event(events.Greeted(ID, {"start": 1.0}, loaded=True))
    elsewhere.on_event(events.Loaded(ID, 1, True, 0.0, {"load": 4.0}))

    assert (await stage.next(events.Greeted)).phases == {"start": 1.0}
    assert (await stage.next(events.Loaded)).phases == {"load": 4.0}


async def test_a_replica_that_was_given_a_busy_gpu_is_no_failure(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is lost before it is bound, its device takes nothing for a while, and no function is at
    fault; what would have followed its HELLO does not."""
    relay = stage.launcher._relay
    relay._emit = stage.events.put_nowait
    monkeypatch.setattr(relay._occupancy, "why_refused", lambda event: f"{event.id} sees others")
    relay.on_event(events.Greeted(ID, {}))

    lost = await stage.next(events.Lost)

    assert (lost.reason, lost.cause) == (f"{ID} sees others", f"{ID} sees others")
    assert (lost.is_its_fault, lost.refused_s, lost.is_eviction) == (False, 30.0, False)
    assert stage.events.empty()


@pytest.mark.parametrize("is_its_fault", [True, False])
async def test_a_broken_host_link_is_not_the_functions_fault(
    elsewhere: EventRelay, stage: Stage, is_its_fault: bool
) -> None:
    """A lost link says whether the replica's host could be reached."""
    elsewhere.on_link_lost(ID, "did not answer 3 PINGs", is_its_fault=is_its_fault)

    lost = await stage.next(events.Lost)

    assert (lost.reason, lost.is_its_fault) == (
        "control link lost: did not answer 3 PINGs",
        is_its_fault,
    )
