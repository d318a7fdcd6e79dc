"""Process groups: which are replicas, and that signals meet no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pool_manager.drivers import process_groups
from pool_manager.drivers.process_groups import ProcessGroup

MODULE = "runtime_image"
WAITS = "import sys; print(flush=True); sys.stdin.read()"
FORKS = "import os, sys; print(os.fork(), flush=True); sys.stdin.read()"
ORPHANS = """\
import os, sys
print(os.fork(), flush=True)
os.getpid() == os.getsid(0) or sys.stdin.read()
sys.exit(3)
"""
NOBODY = 65534
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Processes that look like the replica `aaaa0001` and end with the test."""
    made: list[subprocess.Popen[bytes]] = []

    def begin(code: str = WAITS, **options: Any) -> subprocess.Popen[bytes]:
        program = options.pop("program", sys.executable)
        words = [program, "-c", code, "-m", MODULE, str(tmp_path / "aaaa0001")]
        settings = {"start_new_session": True, **options}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        made.append(subprocess.Popen(words, **pipes, **settings))
        made[-1].stdout.readline()  # type: ignore[union-attr]  # it is a pipe
        return made[-1]

    yield begin
    for process in made:
        process.kill()
        process.communicate()


def found(root: Path) -> dict[str, int]:
    """Replicas and their pids; nothing is kept open."""
    seen = process_groups.find(root, MODULE)
    for group in seen.values():
        group.close()
    return {id: group.pid for id, group in seen.items()}


def test_a_replica_is_known_by_its_command_line(start: Start, tmp_path: Path) -> None:
    """A replica is found by its command line, not by its parent; in another folder it belongs to
    another server."""
    process = start()

    assert found(tmp_path) == {"aaaa0001": process.pid}
    assert found(tmp_path / "other") == {}


def test_children_are_no_replicas(start: Start, tmp_path: Path) -> None:
    """Children with the same command line, forked or started by a shell, are not replicas."""
    process = start(FORKS)
    start(start_new_session=False)

    assert found(tmp_path) == {"aaaa0001": process.pid}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_a_process_of_another_user_is_no_replica(start: Start, tmp_path: Path) -> None:
    """A process of another user is not adopted, whatever its command line: it could not be
    ended."""
    start("echo; read line", program="/bin/sh", user=NOBODY, group=NOBODY)

    assert found(tmp_path) == {}


def test_a_process_whose_user_is_another_is_no_replica(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same where this process is not root."""
    start()
    monkeypatch.setattr(os, "getuid", lambda: NOBODY)

    assert found(tmp_path) == {}


@pytest.fixture(params=["by pidfd", "by number"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """This kernel's way, and that of kernels before 6.9."""
    if request.param == "by number":
        monkeypatch.setattr(process_groups, "_pidfds_name_groups", lambda: False)
    return str(request.param)


@pytest.mark.usefixtures("how")
@pytest.mark.parametrize("is_child", [True, False])
def test_an_orphan_is_ended_with_its_group(start: Start, *, is_child: bool) -> None:
    """If the leader has ended and its child still runs, KILL ends the child."""
    process = start(ORPHANS)
    group = ProcessGroup(process.pid, os.pidfd_open(process.pid), process if is_child else None)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    if not is_child:
        process.wait()

    assert group.exit_code() == (3 if is_child else None)
    assert group.is_running()
    assert group.signal(signal.SIGKILL)
    while group.is_running():
        pass
    group.reap()
    group.close()


@pytest.mark.usefixtures("how")
def test_a_number_that_was_given_out_again_is_not_signalled(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reused pid is not signalled, and the group counts as ended."""
    gone, stranger = start("print()"), start()
    group = ProcessGroup(gone.pid, os.pidfd_open(gone.pid), None)
    gone.wait()
    group.pid = stranger.pid  # as if the kernel had come round to the number

    assert not group.signal(signal.SIGKILL)
    assert stranger.poll() is None
    group.close()
