"""The fast session made beside the quick one, with real models and a time that the test passes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from runtime_image.contract.errors import LoadError
from runtime_image.engines.base import Stopped
from runtime_image.engines.onnx import OnnxEngine
from runtime_image.engines.upgrade import NICENESS, REST_S, Improvement
from tests.support import models, prepared

X = np.arange(8, dtype=np.float32).reshape(2, 4)
WAIT_S = 60.0

OUT_OF_MEMORY = """
import resource, sys
from pathlib import Path
import numpy as np
from runtime_image.engines.base import Stopped
from runtime_image.engines.upgrade import Improvement
from runtime_image.engines.onnx import OnnxEngine

folder, said = Path(sys.argv[1]), []
load = lambda prepack, before=None: OnnxEngine(
    folder / "quick.onnx", device_kind="cpu", threads=1,
    optimise=False, prepack=prepack, before_work=before,
)
engine = load(False)
feed = {"x": np.ones((1, 4), np.float32)}
before = engine.run(feed, engine.ticket())["y"]
improvement = Improvement(
    engine, lambda before: load(True, before), 1,
    pause=lambda s: None, free=lambda cap: 1e6, say=said.append,
)
[line] = [l for l in Path("/proc/self/status").read_text().splitlines() if "VmData" in l]
# Room for the two threads' stacks, and for no more than half of the weights.
limit = int(line.split()[1]) * 1024 + 2 * 2**23 + 10 * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
improvement._work(0)
after = engine.run(feed, engine.ticket())["y"]
print(np.array_equal(before, after), engine.session, improvement.abandon(), said)
"""


class Scene:
    """An engine, what improves it, and a pause that lasts until the test lets it end."""

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
        self.improvement = Improvement(
            self.engine,
            build or self.build,
            100,
            pause=self._pause,
            free=lambda cap_mib: self.free_mib,
            say=self._say,
        )

    def build(self, before_work: Callable[[], None]) -> OnnxEngine:
        return load(self._better, before_work)

    def rest_over(self) -> None:
        """Let one pause begin and end."""
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
    """The better session serves once the rest is over, and that is said once."""
    scene.improvement.begin(0)
    before = scene.y()
    scene.rest_over()

    assert scene.told.wait(WAIT_S)
    assert (before, scene.y()) == (1, 2)
    assert scene.said == ["the fast session serves from now on"]
    assert scene.pauses == [REST_S]
    assert not scene.improvement.abandon()


def test_the_first_run_is_not_disturbed(tmp_path: Path) -> None:
    """While the first run goes on nothing is built; it may last longer than the rest."""
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

    improvement = Improvement(
        slow, build, 1, pause=scene._pause, free=lambda cap: 1000.0, say=scene._say
    )
    runner.start()
    while not slow.is_running:
        pass
    improvement.begin(0)
    scene.rest_over()
    assert scene.paused.acquire(timeout=WAIT_S)
    built_during_run = list(built)
    slow.stop(ticket)
    runner.join()
    scene.go_on.release()

    assert scene.told.wait(WAIT_S)
    assert built_during_run == []
    assert built == [True]
    assert scene.pauses == [REST_S, REST_S]


@pytest.mark.parametrize("room", [0, 163.0])
def test_there_must_be_room_for_both(scene: Scene, room: float) -> None:
    """Without memory for both sessions and the runs meanwhile nothing is built."""
    scene.free_mib = room
    scene.improvement.begin(500)
    scene.rest_over()

    assert scene.told.wait(WAIT_S)
    assert scene.said == [
        "the quick session goes on serving: the fast one needs 100 MiB beside it and 64 spare,"
        f" {room:.0f} are free"
    ]
    assert scene.y() == 1


def test_a_failed_build_changes_nothing(tmp_path: Path) -> None:
    """Whatever is raised, the quick session serves on, and the reason is said in one line."""

    def build(before_work: Callable[[], None]) -> OnnxEngine:
        raise ZeroDivisionError("surprise")

    scene = Scene(tmp_path, build)
    scene.improvement.begin(0)
    scene.rest_over()

    assert scene.told.wait(WAIT_S)
    assert scene.said == ["the quick session goes on serving: surprise"]
    assert scene.y() == 1
    assert not scene.improvement.abandon()


def test_the_build_steps_back(tmp_path: Path) -> None:
    """The building thread has a lower priority than the one it works for."""
    seen: list[int] = []

    def build(before_work: Callable[[], None]) -> OnnxEngine:
        before_work()
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        raise LoadError("seen")

    scene = Scene(tmp_path, build)
    scene.improvement.begin(0)
    scene.rest_over()

    assert scene.told.wait(WAIT_S)
    assert seen == [max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0))]


def test_what_is_abandoned_does_not_begin(scene: Scene) -> None:
    """A replica that goes during the rest can go in an orderly way: nothing will be built."""
    scene.improvement.begin(0)
    was_building = scene.improvement.abandon()
    scene.rest_over()
    _join("improvement")

    assert not was_building
    assert scene.said == []
    assert scene.y() == 1


def test_a_build_that_goes_on_is_told(tmp_path: Path) -> None:
    """A replica that goes during the build learns that it must not wait for it."""
    began, end = threading.Event(), threading.Event()

    def build(before_work: Callable[[], None]) -> OnnxEngine:
        began.set()
        end.wait(WAIT_S)
        raise LoadError("too late")

    scene = Scene(tmp_path, build)
    scene.improvement.begin(0)
    scene.rest_over()
    assert began.wait(WAIT_S)

    assert scene.improvement.abandon()
    end.set()
    assert scene.told.wait(WAIT_S)


@pytest.mark.slow
def test_memory_may_run_out(tmp_path: Path) -> None:
    """Where the estimate was wrong and the kernel gives no more, the quick session serves on."""
    prepared.prepare(prepared.layers(tmp_path))

    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert "bad_alloc" in done.stderr  # ONNX Runtime's own line
    assert done.stdout.startswith("True original False ['the quick session goes on serving: ")
    assert "bad_alloc" in done.stdout
    assert done.returncode == 0


def _join(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(WAIT_S)
