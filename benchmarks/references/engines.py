"""Processes that run `engine.py`, and their tasks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.models.subjects import Subject
from runtime_image.contract.model import SessionPlan

SCRIPT = Path(__file__).parent / "engine.py"
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "ORT_DISABLE_TELEMETRY": "1"}
WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Task:
    """A session of a file, and its runs; see `engine.py`."""

    model: str
    dtype: str
    shape: tuple[int, ...]
    optimise: bool = True
    prepack: bool = True
    threads: int = 1
    rows: int = 1
    seconds: float = 0.0

    def to_json(self) -> str:
        """Encode the task as one line."""
        return json.dumps(asdict(self))


def task(subject: Subject, folder: Path | None = None, plan: SessionPlan | None = None) -> Task:
    """Return the task for a subject's model, or for the file of a plan in `folder`."""
    if folder is None or plan is None:
        return Task(str(subject.model), subject.dtype, subject.shape)
    path = str(folder / plan.file)
    return Task(path, subject.dtype, subject.shape, plan.optimise, plan.prepack)


def whole_process_ms(one: Task) -> float:
    """Return the time from the start of a new process to the end of its first run, with imports."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-I", str(SCRIPT), one.to_json()],
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
        text=True,
    )
    assert process.stdout is not None
    json.loads(process.stdout.readline())
    taken_ms = (time.monotonic() - began) * 1e3
    process.communicate(timeout=WAIT_S)
    return taken_ms


class EngineProcess:
    """A process that has imported everything and waits for tasks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=ENVIRONMENT,
            text=True,
        )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def do(self, one: Task) -> dict[str, float]:
        """Do a task and return its figures. Raises RuntimeError if the process ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(one.to_json() + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the reference process ended with {self._process.wait(WAIT_S)}")
        return {name: float(value) for name, value in json.loads(line).items()}

    def end(self) -> None:
        """Close the standard input and wait for the end of the process."""
        self._process.communicate(timeout=WAIT_S)


def fresh_ms(small: Task, one: Task) -> float:
    """Return load and first run in a process that has only run a small model, like a standby. After
    a large model was freed, the allocator could reuse its memory."""
    with engine_process(small) as process:
        return process.do(one)["ms"]


@contextmanager
def engine_process(first: Task) -> Iterator[EngineProcess]:
    """Run a process that has already created and run a session of `first`: the first session of a
    process sets up state that all later ones share."""
    process = EngineProcess()
    try:
        process.do(first)
        yield process
    finally:
        process.end()
