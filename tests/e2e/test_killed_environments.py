"""Tests of kill -9 of the whole server while it makes an environment."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from environments.lock import read_lock
from environments.programs import Work
from environments.records import check_records
from environments.trees import remove_tree
from tests.support.doses import amount
from tests.support.package_index import PackageIndex, package_index
from tests.support.process_server import ServerProcess, server_process, wait_end

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NAMES = ("one", "two", "three")
MODULES = 200
HANDLER = "import one, two, three\n\ndef predict(n: int):\n    return one.V + two.V + three.V + n\n"
MOMENTS: tuple[tuple[str, int], ...] = (
    *(("ask /simple/", number) for number in (1, 2, 4)),
    *(("ask /files/", number) for number in (1, 2, 3, 4)),
    *(("phase environment load", number) for number in (1, 2)),
    *(("phase environment check", number) for number in (1, 3)),
    *(("phase environment compile", number) for number in (1, 2, 3, 4)),
    *(("file .build-*/about.json", number) for number in (1, 2)),
    ("file [0-9a-f]*/about.json", 1),
    ("phase verify", 1),
    ("phase switch", 1),
)
"""What is seen at the moment of a kill, for the n-th time: a request to the index, a phase of the
deploy, a file below the environments. In the order of a deploy, whose end counts for any."""


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    """An index with packages of many files."""
    with package_index() as index:
        index.add_installed("msgspec")
        code = b"x = [%s]\n" % b",".join(b"%d" % n for n in range(300))
        for name in NAMES:
            files = {f"{name}/m{n}.py": code for n in range(MODULES)}
            index.add(name, files={f"{name}/__init__.py": b"V = 1\n", **files})
        yield index


class Killing:
    """A server, what it is seen to do, and whether the moment has come."""

    def __init__(self, server: ServerProcess, index: PackageIndex) -> None:
        self.server = server
        self._index = index
        self.root = server.data / "environments"

    async def until(self, what: str, times: int, operation: str) -> None:
        """Return at a moment, or when the deploy has ended."""
        kind, _, pattern = what.partition(" ")
        come = threading.Event()
        goes_on = threading.Event()
        seen: list[str] = []

        def before(path: str) -> None:
            if kind == "ask" and path.startswith(pattern):
                seen.append(path)
                if len(seen) >= times:
                    come.set()
                    goes_on.wait(5)

        self._index.before = before
        async with self.server.session() as session:
            phase = ""
            while not come.is_set():
                place = f"/admin/v1/operations/{operation}"
                async with session.get(place) as answer:
                    found = await answer.json()
                if kind == "phase" and found["phase"] != phase:
                    phase = found["phase"]
                    seen += [phase] if phase.startswith(pattern) else []
                if kind == "file" and any(self.root.glob(pattern)):
                    seen.append(pattern)
                if len(seen) >= times or found["state"] != "running":
                    break
        goes_on.set()

    def kill(self) -> int:
        """Kill the server; return how many programs of its builds it had, which must end."""
        assert self.server.process is not None
        programs = [os.pidfd_open(pid) for pid in builders(self.server.process.pid)]
        self.server.kill()
        for one in programs:
            wait_end(one)
        return len(programs)

    async def ended(self, operation: str) -> str:
        """Return how the next server ends the deploy: done, or its error."""
        async with self.server.session() as session:
            while True:
                async with session.get(f"/admin/v1/operations/{operation}?wait=10") as answer:
                    found = await answer.json()
                if found["state"] != "running":
                    return str(found["error"] or found["state"])


def builders(pid: int) -> list[int]:
    """Return the children of a server that are not its replicas, which outlive it."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            found += [] if b"runtime_image" in words else [int(child)]
    return found


def check_environments(root: Path, folder: Path) -> int:
    """Compare each complete environment with its RECORD, also its bytecode; return their number."""
    complete = list(root.glob("[0-9a-f]*"))
    for one in complete:
        compiled = {path.name.partition(".")[0] for path in one.rglob("*.pyc")}
        sources = {path.stem for path in one.rglob("*.py")}
        assert compiled == sources
        plain = folder / "plain"
        shutil.copytree(one / "packages", plain, ignore=shutil.ignore_patterns("__pycache__"))
        check_records(plain, read_lock((one / "lock.json").read_bytes()), Work())
        remove_tree(plain)
    return len(complete)


def write_function(folder: Path) -> str:
    """Write the folder of a function; return its path."""
    path = folder / "f"
    path.mkdir()
    (path / "function.toml").write_text('schema = 1\nname = "f"\n[python]\n[sample]\nn = 1\n')
    (path / "handler.py").write_text(HANDLER)
    (path / "requirements.txt").write_text("\n".join(NAMES))
    return str(path)


async def test_a_server_that_is_killed_uses_nothing_half_made(
    tmp_path: Path, index: PackageIndex, record_property: Callable[[str, object], None]
) -> None:
    """At each moment: uv ends with the server, what has its final name is complete, the next server
    ends the deploy, calls are right, and nothing is left over."""
    config = {"FN_UV_CONFIG": str(index.config(tmp_path))}
    path, programs = write_function(tmp_path), 0
    with server_process(tmp_path / "data", "--cpu-slots", "2", environment=config) as server:
        killing = Killing(server, index)
        for what, times in MOMENTS[:: amount(5, 1)]:
            begun = server.fnctl_json("deploy", path, "--trust", "--no-wait")["id"]
            await killing.until(what, times, begun)
            programs += await asyncio.to_thread(killing.kill)
            index.before = lambda _: None
            check_environments(killing.root, tmp_path)
            await asyncio.to_thread(server.start)
            assert await killing.ended(begun) == "done", (what, times)
            assert check_environments(killing.root, tmp_path) == 1
            called = server.fnctl("invoke", "f", "-i", "n=4")
            assert called.stdout.split() == ["output", "7"], (what, called.stderr)
            again = server.fnctl_json("deploy", path, "--trust")
            assert again["state"] == "done", again
            assert server.fnctl("rm", "f", "--yes").returncode == 0
            assert server.fnctl("env", "rm", "--unused").returncode == 0
            left = {one.name for one in killing.root.iterdir()}
            assert {one for one in left if not one.startswith(".runner-")} <= {
                ".build.lock",
                ".cache.lock",
                ".cache",
            }, what
            remove_tree(killing.root / ".cache")
            (killing.root / ".cache").mkdir(mode=0o700)
    record_property("programs", programs)
    assert programs > 0
