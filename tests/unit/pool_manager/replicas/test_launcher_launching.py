"""Starts and releases of single replicas."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pool_manager.core import events
from pool_manager.core.commands import Launch
from pool_manager.core.start_queue import Rank, StartPriority
from pool_manager.gpus.absent import NoGpus
from pool_manager.ports import Binding, GpuView, ServerContainer
from pool_manager.read_ahead import ReadAhead
from pool_manager.replicas.run_folders import STANDBY_LOGS
from pool_manager.settings import PoolSettings
from registry.errors import BadBundle, DriverError, PlacementRefused
from registry.model.bundles import Bundle, BundleFile
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.server import ENGINE, ServerSpec
from tests.support.cluster import Node
from tests.support.fake_driver.driver import FakeDriver, Script
from tests.support.operator import until
from tests.support.replicas import KEY, ModelFolder, Stage, binding, pool_settings
from tests.support.scenes import a_record

ID = "aaaa0001"


@pytest.fixture
def settings() -> Iterator[PoolSettings]:
    with pool_settings(threads_per_slot=3, orphan_s=7.0, memory_mib=100) as made:
        yield made


@pytest.fixture
async def stage(settings: PoolSettings, tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(settings, FakeDriver(), tmp_path)
    yield made
    await made.close()


class GatedBundles:
    """Bundles that are delivered when the test allows it; `asked` lists the targets in order."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.gate = asyncio.Semaphore(0)

    async def materialise(self, bundle: Bundle, target: Path, prepared: object = ()) -> None:
        self.asked.put_nowait(target.name)
        await self.gate.acquire()


class Caps:
    """The records that a driver was asked to limit, and whether they were on disk by then."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.seen: list[tuple[ReplicaRecord, bool]] = []

    async def limit(self, record: ReplicaRecord) -> None:
        records = self._stage.launcher.folders.read_records()
        self.seen.append((record, records[record.id] == record))


class BadBundles:
    """Bundles that never come."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def materialise(self, bundle: Bundle, target: Path, prepared: object = ()) -> None:
        raise self.error


async def test_a_start_is_recorded(stage: Stage) -> None:
    """The record has everything that the replica needs, with the settings of this server."""
    await stage.ready(ID)
    record = stage.launcher.folders.read_records()[ID]

    assert record is not None
    assert len(record.token) == 64
    assert (record.bound, record.role, record.namespace) == (KEY, "serve", "default")
    assert record.model_dir == str(stage.settings.model_dir / ID)
    assert (record.devices, record.device_kind, record.engine) == (("cpu:0",), "cpu", "onnx")
    assert (record.threads, record.orphan_s, record.memory_mib) == (3, 7.0, 100)
    assert record.launched_s > 0


async def test_a_function_may_have_a_cap_of_its_own(stage: Stage) -> None:
    """A function's cap overrides the server's; without a model the engine is Python."""
    bound = binding(ModelSpec("digits@1", handler="handler.py"), memory_mib=64)
    await stage.ready(ID, bound)
    record = stage.launcher.folders.read_records()[ID]

    assert record is not None
    assert (record.memory_mib, record.engine) == (64, "python")


async def test_a_start_on_several_gpus_is_recorded(tmp_path: Path) -> None:
    """The record has all of them, in their order, and a cap with room for a process on each."""
    bound = binding(ModelSpec("digits@1", handler="handler.py"))
    found = []
    with pool_settings(caps_all=True) as settings:
        stage = Stage(settings, FakeDriver(), tmp_path)
        for id, gpus in ((ID, ("GPU-b",)), ("aaaa0002", ("GPU-b", "GPU-a", "GPU-c"))):
            stage.launch(id, bound, gpus=gpus)
            await stage.next(events.Loaded, id)
            found.append(stage.launcher.folders.read_records()[id])
        await stage.close()

    one, several = found
    assert one is not None
    assert several is not None
    assert (several.devices, several.device_kind) == (("GPU-b", "GPU-a", "GPU-c"), "cuda")
    assert several.memory_mib == 3 * one.memory_mib


async def test_a_standby_is_bound_to_nothing(stage: Stage) -> None:
    """A standby's record has no function, device and cap; its output goes to a standby log."""
    greeted = await stage.standby(ID)
    record = stage.launcher.folders.read_records()[ID]

    assert greeted == events.Greeted(ID, {})
    assert record is not None
    assert (record.role, record.bound, record.namespace, record.devices) == ("standby", "", "", ())
    assert (record.engine, record.memory_mib, record.threads) == ("onnx", 0, 3)
    assert [path.stem for path in stage.launcher.folders.logs(STANDBY_LOGS)] == [ID]
    assert list(stage.launcher.folders.model_dir(ID).iterdir()) == []


@pytest.mark.parametrize("role", ["serve", "trial"])
async def test_a_standby_is_given_its_model(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """The order is: files, record, limits, message; the log becomes the function's."""
    (tmp_path / "handler.py").touch()
    caps = Caps(stage)
    monkeypatch.setattr(stage.driver, "limit", caps.limit)
    await stage.standby(ID)

    bound = binding(ModelSpec("digits@1", handler="handler.py"), memory_mib=64)
    stage.assign(ID, bound, role=role)
    loaded = await stage.next(events.Loaded, ID)

    [(record, was_written)] = caps.seen
    assert was_written
    assert (record.role, record.bound, record.namespace) == (role, KEY, "default")
    assert (record.devices, record.device_kind, record.engine) == (("cpu:0",), "cpu", "python")
    assert (record.memory_mib, list(record.phases)) == (64, ["place"])
    assert record.phases["place"] >= 1.5
    assert loaded.phases == {**record.phases, "bind": 0.0, "load": 0.0}
    assert bool(loaded.report) == (role == "trial")
    assert (stage.launcher.folders.model_dir(ID) / "handler.py").exists()
    assert stage.launcher.folders.logs(STANDBY_LOGS) == []
    [log] = stage.launcher.folders.logs("digits")
    assert log.read_text() == f"fake replica {ID} starts as a standby\n"


async def test_an_assigned_standby_writes_to_the_functions_log(stage: Stage) -> None:
    """After the assignment the moved log explains the standby's end, and its cap is the
    function's."""
    await stage.standby(ID)
    stage.assign(ID)
    await stage.next(events.Loaded, ID)

    stage.launcher.terminate(ID)
    lost = await stage.next(events.Lost, ID)

    assert lost.log_tail == (
        f"fake replica {ID} starts as a standby",
        f"fake replica {ID} may have 100 MiB",
        f"fake replica {ID} exited with code 0",
    )


async def test_an_assigned_standby_makes_room_among_the_logs(stage: Stage) -> None:
    """A moved log counts as the function's: the oldest one above the limit is removed."""
    folder = stage.settings.log_dir / "digits"
    folder.mkdir()
    for number in range(stage.settings.logs_kept):
        path = folder / f"bbbb{number:04x}.log"
        path.touch()
        os.utime(path, (number, number))
    await stage.standby(ID)

    stage.assign(ID)
    await stage.next(events.Loaded, ID)
    for task in list(stage.launcher._work.get(ID, ())):
        await task
    kept = [path.stem for path in stage.launcher.folders.logs("digits")]

    assert len(kept) == stage.settings.logs_kept
    assert (kept[0], kept[-1]) == ("bbbb0001", ID)


@pytest.mark.parametrize("error", [BadBundle("a blob is missing"), OSError(28, "disk full")])
async def test_a_standby_whose_files_cannot_come_is_told(stage: Stage, error: Exception) -> None:
    """A standby whose files cannot be linked is lost with the reason; its record still has no
    model."""
    await stage.standby(ID)
    stage.bundles = BadBundles(error)

    with capture_logs() as logs:
        stage.assign(ID)
        lost = await stage.next(events.Lost)
    record = stage.launcher.folders.read_records()[ID]

    assert lost == events.Lost(ID, str(error))
    assert record is not None
    assert record.bound == ""
    assert [line["replica"] for line in logs] == [ID]


async def test_a_standby_that_cannot_be_limited_is_told(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby that cannot be limited is lost: no model is loaded without its limits."""

    async def fail(record: ReplicaRecord) -> None:
        raise DriverError("no such limit")

    await stage.standby(ID)
    monkeypatch.setattr(stage.driver, "limit", fail)

    with capture_logs():
        stage.assign(ID)
        lost = await stage.next(events.Lost)
    await stage.release(ID)

    assert lost.reason == "no such limit"
    assert list(stage.settings.model_dir.iterdir()) == []


@pytest.mark.parametrize("who", ["nobody", "bound", "starting"])
async def test_only_a_standby_can_be_assigned(stage: Stage, who: str) -> None:
    """Assigning any other replica is a loss with the reason, and no file is linked for it."""
    if who == "bound":
        await stage.ready(ID)
    elif who == "starting":
        stage.driver._script = Script(hang_at="start")  # type: ignore[attr-defined]  # a FakeDriver
        stage.launcher.launch(Launch(ID, "", (), "standby", {}), None, "cpu")
    stage.bundles = GatedBundles()

    with capture_logs():
        stage.assign(ID)
        lost = await stage.next(events.Lost, ID)

    assert (
        lost.reason
        == {
            "nobody": f"expected a connected standby, got {ID}, which is not connected",
            "bound": f"expected a standby, got {ID}, which is bound to {KEY}",
            "starting": f"expected a connected standby, got {ID}, which is not connected",
        }[who]
    )


async def test_a_standby_that_hangs_is_given_nothing(stage: Stage) -> None:
    """A hanging standby is lost at once and without fault, before the third missed PING."""
    await stage.standby(ID)
    control = stage.launcher.control(ID)
    assert control is not None
    control._missed = 2

    stage.assign(ID)

    lost = await stage.next(events.Lost)
    assert lost == events.Lost(ID, "the standby hangs", is_its_fault=False)
    assert list(stage.launcher.folders.model_dir(ID).iterdir()) == []


async def test_a_standby_may_greet_before_its_driver_knows_that_it_runs(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby that connects before its start has returned gets its model afterwards."""
    start, gate, known = stage.driver.start, asyncio.Event(), []

    async def slow_start(record: ReplicaRecord, run_dir: Path, log: Path, _: None) -> None:
        await start(record, run_dir, log)
        await gate.wait()
        known.append(record.id)

    async def limit(record: ReplicaRecord) -> None:
        if record.id not in known:
            raise DriverError("it does not run")

    monkeypatch.setattr(stage.driver, "start", slow_start)
    monkeypatch.setattr(stage.driver, "limit", limit)
    await stage.standby(ID)
    stage.assign(ID)
    for _ in range(5):
        await asyncio.sleep(0)
    gate.set()

    assert (await stage.next(events.Loaded, ID)).id == ID


async def test_a_release_outruns_no_assignment(stage: Stage) -> None:
    """A standby released while its files are linked leaves none of them behind."""
    await stage.standby(ID)
    bundles = stage.bundles = GatedBundles()
    stage.assign(ID)
    await bundles.asked.get()

    stage.launcher.release(ID)
    for _ in range(5):
        await asyncio.sleep(0)
    is_waiting = ID in stage.launcher.folders.read_records()
    (stage.launcher.folders.model_dir(ID) / "model.onnx").touch()
    bundles.gate.release()
    await stage.released(ID)

    assert is_waiting
    assert stage.launcher.folders.read_records() == {}
    assert list(stage.settings.model_dir.iterdir()) == []
    assert await stage.driver.list() == set()
    assert stage.launcher._work == {}


async def test_an_adopted_standby_is_a_standby(stage: Stage) -> None:
    """An adopted standby is emptied of files of an unfinished assignment, and can be assigned."""
    await stage.standby(ID)
    launcher = stage.launcher
    record = launcher.folders.read_records()[ID]
    assert record is not None
    (launcher.folders.model_dir(ID) / "model.onnx").touch()
    before = launcher.folders.model_dir(ID).stat().st_ino

    launcher._close_control(ID)
    launcher.adopt(record, "")

    assert list(launcher.folders.model_dir(ID).iterdir()) == []
    assert launcher.folders.model_dir(ID).stat().st_ino == before
    assert launcher.output.logs[ID] == stage.settings.log_dir / STANDBY_LOGS / f"{ID}.log"


async def test_an_adopted_replica_has_its_log(stage: Stage) -> None:
    """An adopted replica's log is moved if the earlier manager ended before it did so."""
    await stage.standby(ID)
    launcher = stage.launcher
    record = launcher.folders.read_records()[ID]
    assert record is not None

    launcher._close_control(ID)
    launcher.adopt(replace(record, bound=KEY, role="serve"), "digits")

    assert [path.stem for path in launcher.folders.logs("digits")] == [ID]
    assert launcher.folders.logs(STANDBY_LOGS) == []


@pytest.mark.parametrize("error", [BadBundle("a blob is missing"), OSError(28, "disk full")])
async def test_a_bundle_that_cannot_come_is_told(stage: Stage, error: Exception) -> None:
    """If the bundle cannot be linked, the replica is lost with the reason, and can be released."""
    stage.bundles = BadBundles(error)

    with capture_logs() as logs:
        stage.launch(ID)
        lost = await stage.next(events.Lost)

    assert lost == events.Lost(ID, str(error))
    assert [line["replica"] for line in logs] == [ID]


@pytest.mark.parametrize(("number", "is_its_fault"), [(errno.ENOENT, True), (errno.EMFILE, False)])
async def test_a_launch_that_fails_is_told(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, number: int, *, is_its_fault: bool
) -> None:
    """A driver's error ends the start and removes its files; the function is not at fault if the
    server has no free descriptor."""

    async def fail(*_: object) -> None:
        raise DriverError("no interpreter") from OSError(number, "x")

    monkeypatch.setattr(stage.driver, "start", fail)

    with capture_logs():
        stage.launch(ID)
        lost = await stage.next(events.Lost)
    await stage.release(ID)

    assert (lost.reason, lost.is_its_fault) == ("no interpreter", is_its_fault)
    assert not lost.is_lasting
    assert stage.launcher.folders.read_records() == {}


class Kept:
    """Secrets by name."""

    def __init__(self, **values: str) -> None:
        self._values = values

    async def values(self, names: Collection[str]) -> dict[str, str]:
        """Return the values of these names."""
        return {name: self._values[name] for name in names}


def image_binding(**secrets: str) -> Binding:
    """Return the binding of a server that is an image."""
    container = ServerContainer("sha256:1", env={"A": "1"})
    return binding(ServerSpec("digits@1", (), is_apart=True), container=container, secrets=secrets)


async def test_the_driver_alone_gets_the_values_of_secrets(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read at the start, by variable, and are neither in the record nor in the binding."""
    started: list[ServerContainer | None] = []
    start = stage.driver.start

    async def note_start(
        record: ReplicaRecord, run_dir: Path, log: Path, server: ServerContainer | None
    ) -> None:
        started.append(server)
        await start(record, run_dir, log, server)

    monkeypatch.setattr(stage.driver, "start", note_start)
    stage.launcher._secrets = Kept(hf="s3cret")
    bound = image_binding(TOKEN="hf")

    await stage.ready(ID, bound)

    [server] = started
    assert server is not None
    assert (server.env, server.secrets) == ({"A": "1"}, {"TOKEN": "s3cret"})
    assert "s3cret" not in repr(server) + repr(bound)
    files = [path.read_text() for path in stage.settings.run_dir.glob("*/replica.json*")]
    assert files
    assert "s3cret" not in "".join(files)
    assert "has a server of the image sha256:1" in stage.launcher.output.logs[ID].read_text()


async def test_an_error_names_no_secret(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if the engine quotes one."""

    async def fail(*_: object) -> None:
        raise DriverError("invalid variable TOKEN=s3cret-and-more, s3cret")

    monkeypatch.setattr(stage.driver, "start", fail)
    stage.launcher._secrets = Kept(hf="s3cret", long="s3cret-and-more")

    with capture_logs() as logs:
        stage.launch(ID, image_binding(TOKEN="long", OTHER="hf"))
        lost = await stage.next(events.Lost)

    assert lost.reason == "invalid variable TOKEN=***, ***"
    assert "s3cret" not in str(logs)


@pytest.mark.parametrize("secrets", [{}, {"TOKEN": "hf"}])
async def test_a_refused_place_is_no_failure(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, secrets: dict[str, str]
) -> None:
    """The loss has the engine's words, without the values of secrets, and for how long its devices
    take nothing."""

    async def refuse(*_: object) -> None:
        raise PlacementRefused("exceeded quota: s3cret pods", refused_s=45.0)

    monkeypatch.setattr(stage.driver, "start", refuse)
    stage.launcher._secrets = Kept(hf="s3cret")

    with capture_logs():
        stage.launch(ID, image_binding(**secrets))
        lost = await stage.next(events.Lost)
    await stage.release(ID)

    words = "exceeded quota: *** pods" if secrets else "exceeded quota: s3cret pods"
    assert (lost.reason, lost.cause, lost.refused_s) == (words, words, 45.0)
    assert (lost.is_its_fault, lost.is_lasting, lost.is_eviction) == (False, False, False)


async def test_a_missing_secret_is_named(stage: Stage) -> None:
    """The start is lost, and nothing runs."""
    with capture_logs():
        stage.launch(ID, image_binding(TOKEN="hf"))
        lost = await stage.next(events.Lost)

    assert (lost.reason, lost.is_lasting) == ("no secret hf", True)
    assert await stage.driver.list() == set()


async def test_two_starts_of_one_id_cannot_be(stage: Stage) -> None:
    """A second start with the same id is lost, and the first one continues."""
    await stage.ready(ID)

    with capture_logs():
        stage.launch(ID)
        lost = await stage.next(events.Lost)

    assert "File exists" in lost.reason
    assert await stage.driver.list() == {ID}


async def test_a_release_outruns_no_start(stage: Stage) -> None:
    """A replica released while its files are linked is never started after its release."""
    bundles = stage.bundles = GatedBundles()
    stage.launch(ID)
    await bundles.asked.get()

    stage.launcher.release(ID)
    bundles.gate.release()
    await stage.released(ID)

    assert await stage.driver.list() == set()
    assert stage.launcher.folders.read_records() == {}
    assert stage.launcher.control(ID) is None


class ReadingList(ReadAhead):
    """Keeps who was to be read, and who was not any more."""

    def __init__(self) -> None:
        super().__init__(0)
        self.begun: list[tuple[str, Path]] = []
        self.cancelled: list[str] = []

    def begin(self, id: str, folder: Path, spec: ModelSpec) -> None:
        self.begun.append((id, folder))

    def cancel(self, id: str) -> None:
        self.cancelled.append(id)


async def test_a_model_is_read_ahead(stage: Stage) -> None:
    """Models of serving replicas and standbys are read ahead until they are loaded or gone; trials
    are not, since their files were just written."""
    await stage.host.files.read_ahead.close()
    reading = stage.host.files.read_ahead = ReadingList()
    await stage.standby("aaaa0001")
    stage.assign("aaaa0001")
    await stage.next(events.Loaded)
    await stage.ready("aaaa0002")
    loaded = list(reading.cancelled)
    await stage.ready("aaaa0003", role="trial")
    await stage.release("aaaa0003")

    folder = stage.launcher.folders.model_dir
    assert reading.begun == [(id, folder(id)) for id in ("aaaa0001", "aaaa0002")]
    assert {"aaaa0001", "aaaa0002"} <= set(loaded)
    assert reading.cancelled[-1] == "aaaa0003"


async def test_a_servers_files_are_not_read_ahead(stage: Stage) -> None:
    """Which files a server reads is unknown, so none is read for it; its record names the
    engine."""
    await stage.host.files.read_ahead.close()
    reading = stage.host.files.read_ahead = ReadingList()
    await stage.ready("aaaa0001", binding(ServerSpec("digits@1", ("serve",))))

    record = stage.launcher.folders.read_records()["aaaa0001"]

    assert reading.begun == []
    assert record is not None
    assert record.engine == ENGINE


@pytest.fixture
async def narrow(settings: PoolSettings, tmp_path: Path) -> AsyncIterator[Stage]:
    """A rig with one start at a time, and files that are delivered when the test allows it."""
    made = Stage(replace(settings, starts_at_once=1), FakeDriver(), tmp_path)
    yield made
    await made.close()


async def test_starts_at_once_are_bounded(settings: PoolSettings, tmp_path: Path) -> None:
    """A start above the limit waits until another one has loaded its model."""
    stage = Stage(replace(settings, starts_at_once=2), FakeDriver(), tmp_path)
    bundles = stage.bundles = GatedBundles()
    ids = ["aaaa0001", "aaaa0002", "aaaa0003"]
    for id in ids:
        stage.launch(id)

    first = [await bundles.asked.get(), await bundles.asked.get()]
    for _ in range(5):
        await asyncio.sleep(0)
    waits = bundles.asked.empty()
    bundles.gate.release()
    loaded = await stage.next(events.Loaded)
    third = await bundles.asked.get()
    for _ in range(2):
        bundles.gate.release()
    for _ in range(2):
        await stage.next(events.Loaded)

    assert first == ids[:2]
    assert waits
    assert loaded.id in first
    assert third == ids[2]
    await stage.close()


async def test_starts_come_in_the_order_of_the_manager(
    settings: PoolSettings, tmp_path: Path
) -> None:
    """Starts follow the manager's priorities, even if others were queued earlier."""
    urgency = {"aaaa0001": Rank.FLOOR, "aaaa0002": Rank.FLOOR, "aaaa0003": Rank.WAITER}
    narrow = replace(settings, starts_at_once=1)
    stage = Stage(narrow, FakeDriver(), tmp_path, turn=lambda id: StartPriority(urgency[id], 0.0))
    for id in urgency:
        stage.launch(id)

    loaded = [(await stage.next(events.Loaded)).id for _ in urgency]
    await stage.close()

    assert loaded == ["aaaa0001", "aaaa0003", "aaaa0002"]


async def test_a_standby_takes_its_turn_twice(narrow: Stage) -> None:
    """A standby passes the queue for its import and for its load, and holds no place in between."""
    await narrow.standby("aaaa0001")
    await narrow.standby("aaaa0002")
    bundles = narrow.bundles = GatedBundles()
    for id in ("aaaa0001", "aaaa0002"):
        narrow.assign(id)

    first = await bundles.asked.get()
    for _ in range(5):
        await asyncio.sleep(0)
    waits = bundles.asked.empty()
    bundles.gate.release()
    await narrow.next(events.Loaded, first)
    second = await bundles.asked.get()
    bundles.gate.release()
    loaded = await narrow.next(events.Loaded, second)

    assert waits
    assert [first, second] == ["aaaa0001", "aaaa0002"]
    assert loaded.phases["place"] > 1.5


async def test_a_start_that_fails_makes_way(narrow: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed start frees its place when the manager releases it."""

    async def fail(*_: object) -> None:
        raise DriverError("no more processes")

    with monkeypatch.context() as broken:
        broken.setattr(narrow.driver, "start", fail)
        narrow.launch("aaaa0001")
        await narrow.next(events.Lost)
    narrow.launch("aaaa0002")
    narrow.launcher.release("aaaa0001")

    assert (await narrow.next(events.Loaded)).id == "aaaa0002"


async def test_a_release_takes_a_start_out_of_the_line(narrow: Stage) -> None:
    """A release cancels a queued start, which never begins, and is reported like any other."""
    bundles = narrow.bundles = GatedBundles()
    narrow.launch("aaaa0001")
    await bundles.asked.get()
    narrow.launch("aaaa0002")

    narrow.launcher.release("aaaa0002")
    await narrow.released("aaaa0002")
    narrow.forget("aaaa0002")
    bundles.gate.release()
    await narrow.next(events.Loaded, "aaaa0001")

    assert bundles.asked.empty()
    assert list(narrow.launcher.folders.read_records()) == ["aaaa0001"]


@pytest.fixture
async def node(stage: Stage) -> AsyncIterator[Node]:
    """Another host of the stage, on which one start goes on at a time."""
    made = Node("node1", stage.settings, stage.bundles, starts_at_once=1)
    stage.fleet.add(made)
    yield made
    await made.replicas.close()


ELSEWHERE = Launch(ID, KEY, ("node1/cpu:0",), "serve", {"place": 0.0}, "node1")


async def test_a_start_that_leaves_the_queue_of_a_host_never_begins(
    stage: Stage, node: Node
) -> None:
    """Each host has its own line, in which a start stands once its files are there."""
    await stage.launcher._gate(node).enter("aaaa0002")
    stage.launcher.launch(ELSEWHERE, binding(), "cpu")
    await node.files.sent.wait()
    await asyncio.sleep(0)

    stage.launcher.release(ID)
    await stage.released(ID)

    assert node.replicas.started == []


async def test_a_replica_of_a_host_is_sealed_before_it_is_bound(stage: Stage, node: Node) -> None:
    """Foreign code runs in it from then on. Its host is in its record, and gateways find it by the
    host's transport."""
    stage.expect(ID, binding())
    stage.launcher.launch(ELSEWHERE, binding(), "cpu")
    await stage.next(events.Loaded, ID)
    record = stage.launcher.folders.read_records()[ID]

    assert record is not None
    assert (record.host, node.replicas.started, node.transport.sealed) == ("node1", [ID], [ID])
    assert record.phases["place"] > 0.0
    assert stage.launcher.located(ID) == node.transport.located(record)
    await stage.release(ID)
    stage.forget(ID)
    assert node.files.removed == [ID]
    assert stage.fleet.records("node1") == {}


async def test_a_start_on_a_host_that_is_away_is_not_the_functions_fault(
    stage: Stage, node: Node
) -> None:
    """Nor is one on a host that was removed meanwhile."""
    node.transport.set_up(is_up=False)
    for reason in ("host node1 is not up: the cable is cut", "host node1 was removed"):
        stage.launcher.launch(ELSEWHERE, binding(), "cpu")
        assert await stage.next(events.Lost, ID) == events.Lost(ID, reason, is_its_fault=False)
        stage.fleet.remove("node1")


async def test_an_adopted_replica_is_limited_by_its_host_as_that_is_by_then(
    stage: Stage, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another login a host has a successor, which takes the connections over."""
    successor = Node("node1", stage.settings, stage.bundles, is_up=False)
    limited: asyncio.Queue[str] = asyncio.Queue()

    async def limit(record: ReplicaRecord) -> None:
        limited.put_nowait(record.id)

    monkeypatch.setattr(successor.replicas, "limit", limit)
    monkeypatch.setattr(node.transport, "wait_up", successor.transport.wait_up)
    node.transport.set_up(is_up=False)
    record = node.complete(replace(a_record(), id=ID, bound=KEY, role="serve"))
    stage.launcher.folders.record(record)
    stage.launcher.adopt(record, "digits")
    await asyncio.sleep(0)  # it waits for its host
    stage.fleet.add(successor)
    successor.transport.set_up(is_up=True)

    assert await limited.get() == ID
    assert stage.events.empty()
    stage.launcher.abandon(ID)
    await until(lambda: ID not in stage.launcher._relay.records)
    await successor.replicas.close()


async def test_what_is_given_up_with_its_host_is_on_no_gpu(on_gpu: Stage) -> None:
    """Its processes are no reason for the memory that others hold there."""
    await on_gpu.ready(ID)
    launcher = on_gpu.launcher
    assert launcher._occupancy.covers(ID)

    launcher.abandon(ID)
    await until(lambda: ID not in launcher._relay.records)

    assert not launcher._occupancy.covers(ID)


async def test_a_release_that_fails_is_told(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed release is reported, keeps the folders, and can be retried."""
    await stage.ready(ID)

    async def survive(id: str) -> None:
        raise DriverError("survives KILL")

    with monkeypatch.context() as unkillable, capture_logs():
        unkillable.setattr(stage.driver, "release", survive)
        stage.launcher.release(ID)
        failed = await stage.next(events.NotReleased)
    kept = set(stage.launcher.folders.read_records())
    await stage.release(ID)

    assert failed == events.NotReleased(ID, "survives KILL")
    assert kept == {ID}
    assert stage.launcher.folders.read_records() == {}


async def test_a_release_that_goes_on_is_joined(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release requested again while it is in progress calls the driver once."""
    await stage.ready(ID)
    gate, asked, release = asyncio.Event(), [], stage.driver.release

    async def slow(id: str) -> None:
        asked.append(id)
        await gate.wait()
        await release(id)

    monkeypatch.setattr(stage.driver, "release", slow)
    for _ in range(3):
        stage.launcher.release(ID)
        await asyncio.sleep(0)
    gate.set()
    await stage.released(ID)

    assert asked == [ID]


async def test_a_release_with_a_defect_is_told(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any exception in a release is reported as NotReleased, so that it is retried."""
    await stage.ready(ID)

    async def odd(id: str) -> None:
        raise KeyError(id)

    with monkeypatch.context() as broken, capture_logs():
        broken.setattr(stage.driver, "release", odd)
        stage.launcher.release(ID)
        failed = await stage.next(events.NotReleased)
    await stage.release(ID)

    assert failed == events.NotReleased(ID, repr(ID))


async def test_termination_reaches_the_driver(stage: Stage) -> None:
    """`terminate` sends TERM to the replica."""
    await stage.ready(ID)

    stage.launcher.terminate(ID)

    assert await stage.exit(ID) == "exited with code 0"


class OneGpu(NoGpus):
    """A device that is a GPU, on which each replica takes 640 MiB; `left` is what remains."""

    left = ""

    def view(self, device: str) -> GpuView | None:
        return GpuView(None, "0", None, None, None, None, 0.0) if device == "cpu:0" else None

    async def taken_mib(
        self, device: str, pids: frozenset[int] | None, before_mib: float | None, *, is_alone: bool
    ) -> float | None:
        return 640.0

    async def prove_free(
        self, device: str, pids: frozenset[int] | None, others_mib: Callable[[], float]
    ) -> None:
        if self.left:
            raise DriverError(self.left)


@pytest.fixture
def gpu() -> OneGpu:
    return OneGpu()


@pytest.fixture
async def on_gpu(settings: PoolSettings, gpu: OneGpu, tmp_path: Path) -> AsyncIterator[Stage]:
    """Replicas are launched on a GPU."""
    made = Stage(settings, FakeDriver(), tmp_path, gpu)
    yield made
    await made.close()


@pytest.mark.parametrize("role", ["serve", "trial"])
async def test_a_replica_on_a_gpu_is_measured_there(on_gpu: Stage, role: str) -> None:
    """A replica on a GPU is charged the measured memory, and a trial's report contains it."""
    loaded = await on_gpu.ready(ID, role=role)

    assert loaded.memory_mib == 640.0
    assert loaded.report.get("memory_mib", 640.0) == 640.0
    assert ("memory_mib" in loaded.report) == (role == "trial")


async def test_a_standby_is_measured_where_it_got_its_model(on_gpu: Stage) -> None:
    """A standby without a device is measured on the one that it was assigned to."""
    await on_gpu.standby(ID)
    on_gpu.assign(ID)

    assert (await on_gpu.next(events.Loaded, ID)).memory_mib == 640.0


async def test_a_gpu_that_is_not_given_back_keeps_its_replica(on_gpu: Stage, gpu: OneGpu) -> None:
    """A replica whose GPU memory is not freed keeps its device, though no process is left; the next
    try may succeed."""
    await on_gpu.ready(ID)
    gpu.left = "GPU-a still shows pid 7"
    on_gpu.launcher.release(ID)
    with capture_logs():
        while not isinstance(failed := await on_gpu.events.get(), events.NotReleased):
            pass  # how it ended is told, too
    assert failed == events.NotReleased(ID, "GPU-a still shows pid 7")
    assert set(on_gpu.launcher.folders.read_records()) == {ID}

    gpu.left = ""
    await on_gpu.release(ID)

    assert on_gpu.launcher.folders.read_records() == {}


async def test_files_added_to_a_replica_that_is_released_are_removed(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release does not wait for them, and its folder does not come back for ever."""
    await stage.ready(ID)
    folder = stage.launcher.folders.model_dir(ID)
    linked, released = asyncio.Event(), asyncio.Event()

    class Late(ModelFolder):
        async def add(self, files: Collection[BundleFile], target: Path) -> None:
            linked.set()
            await released.wait()
            await asyncio.to_thread(target.mkdir)

    stage.bundles = Late(tmp_path)
    adding = asyncio.ensure_future(stage.launcher.add_files(ID, ()))
    await linked.wait()
    stage.launcher.release(ID)
    while not isinstance(await stage.events.get(), events.Released):
        pass
    released.set()
    await adding

    assert not folder.exists()
