"""Session upgrades with real models and a manual clock, and their memory limits."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from runtime_image.contract.errors import LoadError
from runtime_image.engines import upgrade
from runtime_image.engines.base import Stopped
from runtime_image.engines.onnx import OnnxEngine
from runtime_image.engines.upgrade import (
    DELAY_S,
    NICENESS,
    SessionUpgrade,
    free_mib,
    resident_mib,
    room_mib,
)
from tests.support import models, prepared

X = np.arange(8, dtype=np.float32).reshape(2, 4)
WAIT_S = 60.0

OUT_OF_MEMORY = """
import resource, sys
from pathlib import Path
import numpy as np
from runtime_image.engines.base import Stopped
from runtime_image.engines.upgrade import SessionUpgrade
from runtime_image.engines.onnx import OnnxEngine

folder, said = Path(sys.argv[1]), []
load = lambda prepack, before=None: OnnxEngine(
    folder / "quick.onnx", device_kind="cpu", threads=1,
    optimise=False, prepack=prepack, before_work=before,
)
engine = load(False)
feed = {"x": np.ones((1, 4), np.float32)}
before = engine.run(feed, engine.ticket())["y"]
upgrade = SessionUpgrade(
    engine, lambda before: load(True, before), 1,
    pause=lambda s: None, free=lambda cap: 1e6, write=said.append,
)
[line] = [l for l in Path("/proc/self/status").read_text().splitlines() if "VmData" in l]
# Room for the two threads' stacks, and for no more than half of the weights.
limit = int(line.split()[1]) * 1024 + 2 * 2**23 + 10 * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
upgrade._work(0)
after = engine.run(feed, engine.ticket())["y"]
print(np.array_equal(before, after), engine.session, upgrade.abandon(), said)
"""


class Scene:
    """An engine, its upgrade, and a pause that the test ends."""

    def __init__(self, folder: Path, build: Callable[..., OnnxEngine] | None = None) -> None:
        (folder / "better").mkdir()
        self.engine = load(models.affine(folder, offset=1))
        self._better = models.affine(folder / "better", offset=2)
        self.pauses: list[float] = []
        self.said: list[str] = []
        self.told = threading.Event()
        self.go_on = threading.Semaphore(0)
        self.paused = threading.Semaphore(0)
        self.free_mib = 1000.0
        self.upgrade = SessionUpgrade(
            self.engine,
            build or self.build,
            100,
            pause=self._pause,
            free=lambda cap_mib: self.free_mib,
            write=self._say,
        )

    def build(self, before_work: Callable[[], None]) -> OnnxEngine:
        return load(self._better, before_work)

    def rest_over(self) -> None:
        """Let one pause start and end."""
        assert self.paused.acquire(timeout=WAIT_S)
        self.go_on.release()

    def y(self) -> float:
        return float(self.engine.run({"x": X}, self.engine.ticket())["y"][0, 0])

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.paused.release()
        assert self.go_on.acquire(timeout=WAIT_S)

    def _say(self, text: str) -> None:
        self.said.append(text)
        self.told.set()


def load(path: Path, before_work: Callable[[], None] | None = None) -> OnnxEngine:
    return OnnxEngine(path, device_kind="cpu", threads=1, before_work=before_work)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    for _ in range(10):
        made.go_on.release()


def test_the_engine_improves_after_a_rest(scene: Scene) -> None:
    """After a pause the better session takes over; this is reported once."""
    scene.upgrade.start(0)
    before = scene.y()
    scene.rest_over()

    assert scene.told.wait(WAIT_S)
    assert (before, scene.y()) == (1, 2)
    assert scene.said == ["now serving with the fast session"]
    assert scene.pauses == [DELAY_S]
    assert not scene.upgrade.abandon()


def test_the_first_run_is_not_disturbed(tmp_path: Path) -> None:
    """Nothing is built during the first run, even if that outlasts the pause."""
    scene = Scene(tmp_path)
    slow = load(models.slow(tmp_path, loops=100_000_000))
    ticket = slow.ticket()

    def run() -> None:
        with contextlib.suppress(Stopped):
            slow.run({"x": X}, ticket)

    runner = threading.Thread(target=run, daemon=True)
    built: list[bool] = []

    def build(before_work: Callable[[], None]) -> OnnxEngine:
        built.append(slow.has_run)
        raise LoadError("not wanted")

    upgrade = SessionUpgrade(
        slow, build, 1, pause=scene._pause, free=lambda cap: 1000.0, write=scene._say
    )
    runner.start()
    while not slow.is_running:
        pass
    upgrade.start(0)
    scene.rest_over()
    assert scene.paused.acquire(timeout=WAIT_S)
    built_during_run = list(built)
    slow.stop(ticket)
    runner.join()
    scene.go_on.release()

    assert scene.told.wait(WAIT_S)
    assert built_during_run == []
    assert built == [True]
    assert scene.pauses == [DELAY_S, DELAY_S]


@pytest.mark.parametrize("room", [0, 163.0])
def test_there_must_be_room_for_both(scene: Scene, room: float) -> None:
    """Nothing is built without memory for both sessions and concurrent runs."""
    scene.free_mib = room
    scene.upgrade.start(500)
    scene.rest_over()

    assert scene.told.wait(WAIT_S)
    assert scene.said == [
        "still serving with the quick session: the fast session needs 100 MiB and 64 MiB spare,"
        f" {room:.0f} MiB are free"
    ]
    assert scene.y() == 1


def test_a_failed_build_changes_nothing(tmp_path: Path) -> None:
    """On any exception the quick session keeps serving, and the reason is logged in one line."""

    def build(before_work: Callable[[], None]) -> OnnxEngine:
        raise ZeroDivisionError("surprise")

    scene = Scene(tmp_path, build)
    scene.upgrade.start(0)
    scene.rest_over()

    assert scene.told.wait(WAIT_S)
    assert scene.said == ["still serving with the quick session: surprise"]
    assert scene.y() == 1
    assert not scene.upgrade.abandon()


def test_the_build_steps_back(tmp_path: Path) -> None:
    """The building thread has a lower priority than the serving thread."""
    seen: list[int] = []

    def build(before_work: Callable[[], None]) -> OnnxEngine:
        before_work()
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        raise LoadError("seen")

    scene = Scene(tmp_path, build)
    scene.upgrade.start(0)
    scene.rest_over()

    assert scene.told.wait(WAIT_S)
    assert seen == [max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0))]


def test_an_abandoned_upgrade_does_not_start(scene: Scene) -> None:
    """An upgrade abandoned during the pause never starts, so the replica can exit cleanly."""
    scene.upgrade.start(0)
    was_building = scene.upgrade.abandon()
    scene.rest_over()
    _join("upgrade")

    assert not was_building
    assert scene.said == []
    assert scene.y() == 1


def test_a_running_build_is_reported(tmp_path: Path) -> None:
    """An upgrade abandoned during the build reports it, so that the replica does not wait."""
    began, end = threading.Event(), threading.Event()

    def build(before_work: Callable[[], None]) -> OnnxEngine:
        began.set()
        end.wait(WAIT_S)
        raise LoadError("too late")

    scene = Scene(tmp_path, build)
    scene.upgrade.start(0)
    scene.rest_over()
    assert began.wait(WAIT_S)

    assert scene.upgrade.abandon()
    end.set()
    assert scene.told.wait(WAIT_S)


@pytest.mark.slow
def test_memory_may_run_out(tmp_path: Path) -> None:
    """If memory runs out during the build, the quick session keeps serving."""
    prepared.prepare(prepared.layers(tmp_path))

    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert "bad_alloc" in done.stderr  # ONNX Runtime's own line
    assert done.stdout.startswith("True original False ['still serving with the quick session: ")
    assert "bad_alloc" in done.stdout
    assert done.returncode == 0


def _join(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(WAIT_S)


STATUS = "Name:\treplica\nVmRSS:\t  102400 kB\nVmData:\t  307200 kB\nThreads:\t3\n"
HOST = "MemTotal:  4096000 kB\nMemAvailable:  1024000 kB\nHugePages_Total: 0\n"


@pytest.mark.parametrize(
    ("cap_mib", "data_mib", "room"),
    [
        (0, None, 1000),  # only the host limits it
        (400, None, 300),  # the cap minus all resident memory
        (0, 500, 200),  # the limit minus all private writable memory
        (400, 350, 50),  # the smallest counts
        (50, None, 0),  # already exceeded
    ],
)
def test_the_narrowest_bound_counts(cap_mib: int, data_mib: float | None, room: float) -> None:
    """Room is the minimum left under the cap, under the limit and on the host."""
    assert room_mib(STATUS, HOST, cap_mib, data_mib) == room


def test_unknown_sizes_leave_no_room() -> None:
    """Unknown process sizes or an unknown host size count as no room."""
    assert room_mib("", HOST, 400, None) == 0
    assert room_mib("", HOST, 0, 400) == 0
    assert room_mib(STATUS, "", 0, None) == 0


def test_this_process_has_room() -> None:
    """The kernel's figures are parsed, and a cap lowers the result."""
    assert free_mib(0) > 0
    assert free_mib(1) == 0


def test_the_kernels_limit_is_asked() -> None:
    """A kernel limit on private memory applies even if the record sets no cap."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    private_mib = private()

    resource.setrlimit(resource.RLIMIT_DATA, (int(private_mib + 64) * upgrade.MIB, hard))
    try:
        bounded = free_mib(0)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    assert 0 <= bounded <= 64


def private() -> float:
    """Return this process's writable private mappings in MiB."""
    [line] = [line for line in upgrade.STATUS.read_text().splitlines() if "VmData" in line]
    return int(line.split()[1]) / 1024


def test_memory_is_this_processs_own() -> None:
    """Resident memory is in MiB and includes a fresh allocation."""
    held = b"\x01" * (64 * 2**20)

    assert resident_mib() > len(held) / 2**20
