"""What every driver does, and what only real processes can."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pool_manager.core import events
from pool_manager.driver import Driver
from pool_manager.drivers.fake import BEHAVES, FakeDriver, Script
from pool_manager.drivers.process import ProcessDriver
from pool_manager.replica.folders import tail
from pool_manager.settings import PoolSettings
from registry.errors import DriverError
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.link import VERSION, Kind, NotStarted
from runtime_image.contract.model import InputRule, ModelSpec
from runtime_image.link.frames import pack
from tests.support import models
from tests.support.replicas import Stage, binding, pool_settings

ENDLESS = 100_000_000
"""Turns of the slow model, some twenty minutes: only being stopped ends it."""
JSON_RULES = {"x": InputRule("json")}
HANDLERS = {
    "dies.py": """
import os

def predict(inputs, ctx):
    os._exit(3)
""",
    "forks.py": """
import subprocess

def load(ctx):
    print(subprocess.Popen(["sleep", "1000"]).pid, flush=True)

def predict(inputs, ctx):
    return {}
""",
    "talks.py": """
def load(ctx):
    for line in range(20_000):
        print(line, "-" * 40, flush=True)

def predict(inputs, ctx):
    print("the last word", flush=True)
    return {}
""",
}

pytestmark = pytest.mark.slow


@pytest.fixture
def settings() -> Iterator[PoolSettings]:
    with pool_settings(log_bytes=64 * 1024) as made:
        yield made


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every model and handler that these tests load."""
    folder = tmp_path_factory.mktemp("bundle")
    models.add_one(folder)
    models.slow(folder, ENDLESS)
    models.big(folder, 100)
    for name, text in HANDLERS.items():
        (folder / name).write_text(text)
    return folder


def make(kind: str, settings: PoolSettings, script: Script) -> Driver:
    return FakeDriver(script) if kind == "fake" else ProcessDriver(settings.run_dir)


class Play:
    """The same scene for a fake driver, by its script, and for a real one, by its model."""

    def __init__(self, kind: str, settings: PoolSettings, bundle: Path) -> None:
        self._kind = kind
        self._settings = settings
        self._bundle = bundle
        self.stages: list[Stage] = []

    def stage(self, script: Script) -> Stage:
        stage = Stage(self._settings, make(self._kind, self._settings, script), self._bundle)
        self.stages.append(stage)
        return stage

    async def ready(
        self,
        id: str,
        script: Script = BEHAVES,
        **spec: Any,
    ) -> Stage:
        stage = self.stage(script)
        await stage.ready(id, binding(ModelSpec("digits@1", **(spec or {"model": "add_one.onnx"}))))
        return stage


@pytest.fixture(params=["fake", "process"])
async def play(
    request: pytest.FixtureRequest, settings: PoolSettings, bundle: Path
) -> AsyncIterator[Play]:
    made = Play(request.param, settings, bundle)
    yield made
    for stage in made.stages:
        await stage.close()


@pytest.fixture
async def processes(settings: PoolSettings, bundle: Path) -> AsyncIterator[Play]:
    made = Play("process", settings, bundle)
    yield made
    for stage in made.stages:
        await stage.close()


async def test_a_replica_comes_to_life(play: Play) -> None:
    """A started replica greets with the phases it went through, loads what it is bound to and
    says how many requests it takes."""
    stage = play.stage(BEHAVES)
    stage.launch("aaaa0001")

    greeted = await stage.next(events.Greeted)
    loaded = await stage.next(events.Loaded)

    assert (greeted.id, greeted.loaded) == ("aaaa0001", False)
    assert {"start", "import"} <= set(greeted.phases)
    assert {"start", "import", "bind", "load"} == set(loaded.phases)
    assert loaded.limit == 2
    assert loaded.memory_mib > 0


@pytest.mark.parametrize("role", ["serve", "trial"])
async def test_a_standby_comes_to_life(play: Play, role: str) -> None:
    """A replica without a model greets, and once it is given one it says the same as any other,
    without the phases that nobody waited for."""
    stage = play.stage(BEHAVES)
    greeted = await stage.standby("aaaa0001")

    stage.assign("aaaa0001", binding(ModelSpec("digits@1", model="add_one.onnx")), role=role)
    loaded = await stage.next(events.Loaded)

    assert greeted == events.Greeted("aaaa0001", {})
    assert {"place", "bind", "load"} == set(loaded.phases)
    assert loaded.phases["place"] == 1.5
    assert (loaded.limit, bool(loaded.report)) == ((2, False) if role == "serve" else (0, True))


async def test_a_standby_obeys_term(play: Play) -> None:
    """Without a model there is nothing to finish; one that has only just greeted may not have
    come to heed TERM itself."""
    stage = play.stage(BEHAVES)
    await stage.standby("aaaa0001")

    await stage.driver.terminate("aaaa0001")

    assert await stage.exit("aaaa0001") in ("exited with code 0", "was killed by SIGTERM")


async def test_limits_of_nobody_are_an_error(play: Play) -> None:
    """What does not run cannot be limited, and whoever asked is told."""
    stage = await play.ready("aaaa0001")
    record = stage.launcher.folders.read_records()["aaaa0001"]
    assert record is not None
    await stage.driver.limit(record)
    await stage.driver.terminate("aaaa0001")
    await stage.exit("aaaa0001")

    for gone in (record, a_record()):
        with pytest.raises(DriverError, match=f"cannot limit {gone.id}: it does not run"):
            await stage.driver.limit(gone)


async def test_a_request_is_answered(play: Play) -> None:
    """A gateway's link says what is served, and a request gets its answer."""
    stage = await play.ready("aaaa0001")
    link = await stage.link("aaaa0001")

    answer = await link.call(7)

    assert link.hello == {"revision": "digits@1", "limit": 2}
    assert Kind.RESPONSE is answer.kind
    assert b'"revision":' in answer.body
    assert (await stage.next(events.FirstRun)).ms >= 0
    await link.close()


async def test_an_idle_replica_drains(play: Play) -> None:
    """Asked to go while it has nothing to do, a replica says goodbye and exits by itself."""
    stage = await play.ready("aaaa0001")
    link = await stage.link("aaaa0001")

    control = stage.launcher.control("aaaa0001")
    assert control is not None
    control.drain(None)

    await link.next(Kind.GOAWAY)
    assert await stage.exit("aaaa0001") == "exited with code 0"
    assert stage.exits == [("aaaa0001", "exited with code 0")]
    await link.close()


async def test_a_busy_replica_is_not_idle(play: Play) -> None:
    """Asked to go if it has been idle, a replica with a running request refuses."""
    stage = await play.ready("aaaa0001", Script(hang_at="run"), model="slow.onnx")
    link = await stage.link("aaaa0001")
    link.request(1)
    await link.next(Kind.STARTED)

    control = stage.launcher.control("aaaa0001")
    assert control is not None
    control.drain(0.001)

    assert (await stage.next(events.NotIdle)).idle_s == 0
    await link.close()


async def test_termination_hands_back_what_waits(play: Play) -> None:
    """TERM ends a replica with nothing to do; a busy one first gives back what has not begun."""
    stage = await play.ready("aaaa0001", Script(hang_at="run"), model="slow.onnx")
    link = await stage.link("aaaa0001")
    link.request(1)
    await link.next(Kind.STARTED)
    link.request(2)
    # Answered only after request 2 has been read: TERM must not overtake it.
    link.send(pack(Kind.HELLO, aux=VERSION))
    await link.next(Kind.HELLO)

    await stage.driver.terminate("aaaa0001")

    handed_back = await link.next(Kind.GOAWAY), await link.next(Kind.NOT_STARTED)
    assert [handed_back[1].id, handed_back[1].aux] == [2, NotStarted.DRAINING]
    await link.close()


async def test_an_idle_replica_obeys_term(play: Play) -> None:
    """TERM makes a replica with nothing to do exit in good order."""
    stage = await play.ready("aaaa0001")

    await stage.driver.terminate("aaaa0001")

    assert await stage.exit("aaaa0001") == "exited with code 0"


async def test_a_crash_is_reported_once(play: Play) -> None:
    """A replica that dies under a request is reported once, and is on the list no more."""
    script = Script(crash_at="run")
    stage = await play.ready("aaaa0001", script, handler="dies.py", inputs=JSON_RULES)
    link = await stage.link("aaaa0001")
    link.request(1)

    await link.next(Kind.STARTED)
    await link.lost
    how = await stage.exit("aaaa0001")
    living = await stage.driver.list()
    await stage.release("aaaa0001")

    assert how in ("crashed", "exited with code 3")
    assert living == set()
    assert stage.exits == [("aaaa0001", how)]


async def test_release_leaves_nothing(play: Play) -> None:
    """Releasing a busy replica ends it, its links and its folders; doing it again is harmless."""
    stage = await play.ready("aaaa0001", Script(hang_at="run"), model="slow.onnx")
    link = await stage.link("aaaa0001")
    link.request(1)
    await link.next(Kind.STARTED)

    await stage.release("aaaa0001")
    await link.lost
    await stage.driver.release("aaaa0001")
    await stage.driver.terminate("aaaa0001")

    assert await stage.driver.list() == set()
    assert list(stage.settings.run_dir.iterdir()) == []
    assert list(stage.settings.model_dir.iterdir()) == []


async def test_the_list_names_who_lives(play: Play) -> None:
    """The list holds every replica that runs and no other."""
    stage = await play.ready("aaaa0001")
    await stage.ready("aaaa0002")

    both = await stage.driver.list()
    await stage.release("aaaa0001")

    assert both == {"aaaa0001", "aaaa0002"}
    assert await stage.driver.list() == {"aaaa0002"}


async def test_a_start_that_cannot_be_made_is_an_error(
    play: Play, settings: PoolSettings, tmp_path: Path
) -> None:
    """Where the log cannot be written the start fails with the reason, and nothing runs."""
    driver = play.stage(BEHAVES).driver

    with pytest.raises(DriverError, match="No such file or directory"):
        await driver.start(a_record(), tmp_path, tmp_path / "missing" / "log")

    assert await driver.list() == set()


async def test_a_log_keeps_its_bound(play: Play) -> None:
    """A log that has grown is cut to its tail, from the start of a line."""
    stage = await play.ready("aaaa0001")
    [log] = stage.launcher.folders.logs("digits")
    with log.open("ab") as file:
        file.write(b"0123456789\n" * 20_000)

    stage.launcher.bound_logs()

    kept = log.read_bytes()
    assert len(kept) <= stage.settings.log_bytes + 100
    assert kept.startswith(b"... earlier output was dropped ...\n0123456789\n")
    assert kept.endswith(b"\n0123456789\n")


async def test_a_broken_interpreter_is_an_error(settings: PoolSettings, tmp_path: Path) -> None:
    """A Python that does not exist makes the start fail with its path."""
    driver = ProcessDriver(settings.run_dir, python="/nonexistent/python")

    with pytest.raises(DriverError, match="/nonexistent/python"):
        await driver.start(a_record(), tmp_path, tmp_path / "log")


async def test_release_kills_the_whole_group(processes: Play) -> None:
    """A process that a handler started is gone with its replica."""
    stage = await processes.ready("aaaa0001", handler="forks.py", inputs=JSON_RULES)
    [log] = stage.launcher.folders.logs("digits")
    grandchild = int(log.read_text())
    assert runs(grandchild)

    await stage.release("aaaa0001")

    assert not runs(grandchild)


async def test_the_processes_of_a_replica_are_known(processes: Play) -> None:
    """Those it started itself, too; once it is released there are none."""
    stage = await processes.ready("aaaa0001", handler="forks.py", inputs=JSON_RULES)
    [log] = stage.launcher.folders.logs("digits")
    pids = await stage.driver.pids("aaaa0001")

    assert pids is not None
    assert int(log.read_text()) in pids
    assert len(pids) == 2
    await stage.release("aaaa0001")
    assert await stage.driver.pids("aaaa0001") == frozenset()


async def test_another_driver_adopts(processes: Play, settings: PoolSettings, bundle: Path) -> None:
    """A driver made later finds the replica that an earlier one left, reports its end and can
    release it; it goes on serving meanwhile."""
    stage = await processes.ready("aaaa0001")
    link = await stage.link("aaaa0001")
    await stage.driver.close()

    later = ProcessDriver(settings.run_dir)
    found = await later.list()
    answer = await link.call(1)
    await later.release("aaaa0001")
    await link.lost

    assert found == {"aaaa0001"}
    assert answer.kind is Kind.RESPONSE
    assert await later.list() == set()
    await later.close()


async def test_a_driver_finds_only_its_own(processes: Play, tmp_path: Path) -> None:
    """The replicas of another data directory are not adopted."""
    await processes.ready("aaaa0001")

    stranger = ProcessDriver(tmp_path)

    assert await stranger.list() == set()


async def test_a_model_over_the_memory_cap_is_refused(processes: Play) -> None:
    """A model that does not fit under the cap ends the load with a reason, never in a hang."""
    stage = processes.stage(BEHAVES)
    spec = ModelSpec("digits@1", model="big.onnx")

    stage.launch("aaaa0001", replace(binding(spec), memory_mib=160))

    assert (await stage.next(events.Lost)).reason != ""


async def test_a_standby_has_the_cap_of_its_function(processes: Play) -> None:
    """A model that does not fit under the cap is refused by a replica that was started without."""
    stage = processes.stage(BEHAVES)
    await stage.standby("aaaa0001")

    spec = ModelSpec("digits@1", model="big.onnx")
    stage.assign("aaaa0001", replace(binding(spec), memory_mib=100))

    assert "its memory cap is 100 MiB" in (await stage.next(events.Lost)).reason


async def test_a_standbys_output_moves_to_the_log(processes: Play) -> None:
    """What a handler prints is in the log of its function, wherever the process began."""
    stage = processes.stage(BEHAVES)
    await stage.standby("aaaa0001")

    spec = ModelSpec("digits@1", handler="talks.py", inputs=JSON_RULES)
    stage.assign("aaaa0001", binding(spec))
    await stage.next(events.Loaded)

    [log] = stage.launcher.folders.logs("digits")
    assert tail(log, 100).endswith(b"19999 " + b"-" * 40 + b"\n")


async def test_output_goes_to_the_log(processes: Play) -> None:
    """What a handler prints is kept up to the limit, and what it prints after the cut as well."""
    stage = await processes.ready("aaaa0001", handler="talks.py", inputs=JSON_RULES)
    link = await stage.link("aaaa0001")
    [log] = stage.launcher.folders.logs("digits")

    stage.launcher.bound_logs()
    bounded = log.stat().st_size
    await link.call(1)

    assert bounded <= stage.settings.log_bytes + 100
    assert tail(log, 100).endswith(b"19999 " + b"-" * 40 + b"\nthe last word\n")
    await link.close()


def runs(pid: int) -> bool:
    """Whether a process is there and more than the remains that its parent has to wait for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def a_record() -> ReplicaRecord:
    """Of a replica that is never to run."""
    return ReplicaRecord(
        "aaaa0009",
        "t",
        "serve",
        "default",
        "default/digits@1",
        "",
        "cpu:0",
        "cpu",
        "onnx",
        threads=1,
        orphan_s=1.0,
        memory_mib=0,
        launched_s=0.0,
    )
