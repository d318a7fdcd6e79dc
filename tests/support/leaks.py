"""Leak check: a test fails if it leaves tasks, threads, processes or open descriptors behind.

`tests/conftest.py` registers the public names for every test below `tests/`. A test that must leave
something process-wide behind declares it with a reason:

    def test_engine(leaks: Leaks) -> None:
        leaks.exclude("docker.sock", reason="the client's pool lives as long as the session")

Not detected: grandchildren whose parent died, daemon threads, and tasks of loops wider than one
function. Resources of session- and module-wide fixtures exist before the first snapshot.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import os
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

TURNS = 10
"""Loop turns that tasks get to finish after the test and its fixtures."""
GRACE_S = 5.0
"""Max seconds to wait for a thread that is about to end."""
CLOSING_S = 1.0
"""Max seconds to wait for descriptors that a library's own thread is about to close, as gRPC's do
behind the end of a channel."""
_WALL = 0x40000000
"""Children of every kind. Source: __WALL of linux/wait.h; `os` lacks it."""
LIBRARY_FILES = ("/dev/nvidia", "/dev/urandom", "/dev/random", "/var/lib/libuuid/")
"""Files that libraries open once per process."""


class Leaks:
    """What one test left behind, relative to a snapshot before it."""

    def __init__(self) -> None:
        self._threads = frozenset(threading.enumerate())
        self._processes = processes()
        self._descriptors = descriptors()
        self._tasks: list[str] = []
        self._excluded: list[str] = []

    def exclude(self, text: str, *, reason: str) -> None:
        """Accept leftovers whose description contains `text`; `reason` documents why."""
        if not text or not reason:
            raise ValueError(f"expected a text and a reason, got {text!r} and {reason!r}")
        self._excluded.append(text)

    def found(self) -> list[str]:
        """Return one line per leftover, without the excluded ones."""
        lines = [*self._tasks, *self._left_threads(), *self._left_processes()]
        lines += self._left_descriptors()
        return [line for line in lines if not any(text in line for text in self._excluded)]

    async def end_tasks(self) -> None:
        """Let the running loop's tasks finish; record and cancel the rest."""
        for _ in range(TURNS):
            if not _other_tasks():
                return
            await asyncio.sleep(0)
        for task in _other_tasks():
            self._tasks.append(f"task {task!r}")
            task.cancel()

    def _left_threads(self) -> list[str]:
        new = [
            thread
            for thread in threading.enumerate()
            if thread not in self._threads and not thread.daemon
        ]
        for thread in new:
            thread.join(GRACE_S)
        return [f"thread {thread.name}" for thread in new if thread.is_alive()]

    def _left_processes(self) -> list[str]:
        new = processes().items() - self._processes.items()
        return [f"process {pid}: {command}" for pid, command in sorted(new)]

    def _left_descriptors(self) -> list[str]:
        if descriptors() - self._descriptors:
            # An open file in a reference cycle is garbage; Python reports it as a ResourceWarning.
            gc.collect()
        deadline = time.monotonic() + CLOSING_S
        while new := self._described(descriptors() - self._descriptors):
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        return new

    def _described(self, new: set[tuple[int, str]]) -> list[str]:
        lines = [f"descriptor {number}: {target}" for number, target in sorted(new)]
        return [line for line in lines if not any(text in line for text in self._excluded)]


def processes() -> dict[int, str]:
    """Return the children of this process, zombies included: pid and command name."""
    # Most tests have none. To read the state of every process of the machine costs milliseconds.
    if not _has_children():
        return {}
    children = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            text = Path(f"/proc/{name}/stat").read_text(errors="replace")
        except OSError:  # the process has ended
            continue
        # Source: proc(5), /proc/pid/stat: pid (comm) state ppid; comm may hold parentheses.
        command, _, rest = text.partition("(")[2].rpartition(")")
        if int(rest.split()[1]) == os.getpid():
            children[int(name)] = command
    return children


def _has_children() -> bool:
    """Whether this process has children, zombies and those without a SIGCHLD included; none is
    reaped. Source: waitid(2)."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _WALL)
    except ChildProcessError:
        return False
    return True


def descriptors() -> set[tuple[int, str]]:
    """Return the open descriptors of this process and their targets in /proc."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 - "pipe:[7]" is no path
        except OSError:  # the descriptor of this listing
            continue
        if not target.startswith(LIBRARY_FILES):
            found.add((int(number), target.removesuffix(" (deleted)")))
    return found


@pytest.fixture(autouse=True)
def leaks() -> Iterator[Leaks]:
    """Snapshot before everything else of a test, checked after it."""
    _warm()
    before = Leaks()
    yield before
    if lines := before.found():
        pytest.fail("the test left behind:\n  " + "\n  ".join(lines), pytrace=False)


@pytest.fixture
async def end_of_tasks(leaks: Leaks) -> AsyncIterator[None]:
    """Check for tasks after all other async fixtures and before the loop closes.

    Closing the loop cancels every task silently, so a later check would see none.
    """
    yield
    await leaks.end_tasks()


@pytest.fixture(autouse=True)
def tasks_of_an_async_test(request: pytest.FixtureRequest, leaks: Leaks) -> None:
    """Activate `end_of_tasks` for an async test that has no async fixture."""
    test = request.function
    # A property test is a plain function around the coroutine function that it runs.
    inner = getattr(getattr(test, "hypothesis", None), "inner_test", test)
    if inspect.iscoroutinefunction(inner):
        request.getfixturevalue("end_of_tasks")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Set up `end_of_tasks` before the first async fixture: the first set up is the last torn
    down."""
    test_wide = fixturedef.scope == "function" and fixturedef.argname != "end_of_tasks"
    if test_wide and _is_async(fixturedef.func):
        request.getfixturevalue("end_of_tasks")
    return (yield)


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _other_tasks() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


@functools.cache
def _warm() -> None:
    """Create the pipe that libuv opens with its first loop and keeps for the whole process."""
    uvloop.new_event_loop().close()
