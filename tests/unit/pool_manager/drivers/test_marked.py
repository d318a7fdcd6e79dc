"""What servers leave behind outside of their group is found by its marker, and ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pool_manager.drivers import marked as module
from pool_manager.drivers.marked import await_ends, end_marked, hold, marked
from registry.errors import DriverError
from runtime_image.contract.server import MARKER

LIMIT_S = 20.0


class Processes:
    """Sleeping processes with chosen environments, in sessions of their own."""

    def __init__(self) -> None:
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, program: str = "", **environment: str) -> subprocess.Popen[bytes]:
        """Start Python with `program`; return once it runs."""
        code = f"{program}\nprint(flush=True); import signal; signal.pause()"
        one = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code],
            env=environment,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._all.append(one)
        assert one.stdout is not None
        one.stdout.readline()
        return one

    def close(self) -> None:
        for one in self._all:
            one.kill()
            one.wait()
            assert one.stdout is not None
            one.stdout.close()


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    made.close()


def test_processes_are_found_by_the_replica_in_their_marker(
    processes: Processes, tmp_path: Path
) -> None:
    """Marked processes are listed by replica id; unmarked ones and those of other data folders are
    not."""
    first = processes.start(**{MARKER: str(tmp_path / "a")})
    second = processes.start(**{MARKER: str(tmp_path / "a")})
    third = processes.start(**{MARKER: str(tmp_path / "b")})
    processes.start(**{MARKER: str(tmp_path / "elsewhere" / "a")})
    processes.start(**{f"X_{MARKER}": str(tmp_path / "a")})
    processes.start()

    assert marked(tmp_path) == {"a": {first.pid, second.pid}, "b": {third.pid}}


def test_this_process_is_never_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of ours that was itself started by a server function does not end itself."""
    monkeypatch.setattr(module, "_run_dir", lambda pid: tmp_path / "a")

    assert os.getpid() not in marked(tmp_path)["a"]


def test_only_the_named_replicas_end(processes: Processes, tmp_path: Path) -> None:
    """Processes of other replicas survive, and so do those of other data folders."""
    gone = processes.start(**{MARKER: str(tmp_path / "a")})
    kept = processes.start(**{MARKER: str(tmp_path / "b")})
    foreign = processes.start(**{MARKER: str(tmp_path / "elsewhere" / "a")})

    end_marked(tmp_path, {"a"}, LIMIT_S)

    assert gone.wait(LIMIT_S) < 0
    assert kept.poll() is None
    assert foreign.poll() is None


def test_a_process_that_ignores_term_and_left_its_session_ends(
    processes: Processes, tmp_path: Path
) -> None:
    """Neither a session of its own nor a handler for TERM keeps a process alive."""
    program = "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork()"
    processes.start(program, **{MARKER: str(tmp_path / "a")})
    assert len(marked(tmp_path)["a"]) == 2

    end_marked(tmp_path, {"a"}, LIMIT_S)

    assert marked(tmp_path) == {}


def test_a_survivor_is_an_error(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that survives for the whole time is named in the error."""
    one = processes.start(**{MARKER: str(tmp_path / "a")})
    monkeypatch.setattr(module, "_send_kill", lambda pid, fd: None)

    with pytest.raises(DriverError, match=rf"survive KILL: {one.pid}"):
        end_marked(tmp_path, {"a"}, 0.1)


def test_a_process_that_may_not_be_killed_is_an_error(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that changed its user is reported with its pid."""
    one = processes.start(**{MARKER: str(tmp_path / "a")})

    def refuse(fd: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(module.signal, "pidfd_send_signal", refuse)

    with pytest.raises(DriverError, match=rf"cannot end process {one.pid} of a server"):
        end_marked(tmp_path, {"a"}, LIMIT_S)


def test_a_reused_pid_is_not_killed(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process without the marker is spared although its pid was found with one before."""
    bystander = processes.start()
    found = iter([{"a": frozenset({bystander.pid})}, {}, {}])
    monkeypatch.setattr(module, "marked", lambda root: next(found))

    end_marked(tmp_path, {"a"}, LIMIT_S)

    assert bystander.poll() is None


def test_a_process_that_has_ended_meanwhile_is_no_error(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes may end by themselves between the search and the signal."""
    one = processes.start(**{MARKER: str(tmp_path / "a")})
    one.kill()
    one.wait()
    found = iter([{"a": frozenset({one.pid})}, {}, {}])
    monkeypatch.setattr(module, "marked", lambda root: next(found))

    end_marked(tmp_path, {"a"}, LIMIT_S)

    held = os.pidfd_open(os.getpid())
    try:
        monkeypatch.setattr(module.signal, "pidfd_send_signal", _nobody)
        module._send_kill(1, held)
    finally:
        os.close(held)


def _nobody(fd: int, number: int) -> None:
    raise ProcessLookupError


def test_a_process_that_executes_another_program_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One scan without a result proves nothing: the environment is empty during execve."""
    killed: list[set[int]] = []
    scans = iter([{}, {"a": frozenset({5})}, {}, {}])
    monkeypatch.setattr(module, "marked", lambda root: next(scans))
    monkeypatch.setattr(module, "_kill", lambda doomed: killed.append(set(doomed)))

    end_marked(tmp_path, {"a"}, LIMIT_S)

    assert killed == [{5}]
    assert next(scans, None) is None


def test_the_end_of_a_process_shows_on_a_pidfd_from_before(
    processes: Processes, tmp_path: Path
) -> None:
    """Held processes are waited for until they have ended, which an unreadable environment alone
    does not prove; one that does not end is an error."""
    one = processes.start(**{MARKER: str(tmp_path / "r1")})
    held = hold(tmp_path, "r1", 0)
    try:
        assert held.every == held.sure
        assert ([*held.every], hold(tmp_path, "r2", 0)) == ([one.pid], ({}, {}))
        with pytest.raises(DriverError, match="does not end"):
            await_ends(held.every.values(), 0.01)
        one.kill()
        await_ends(held.every.values(), LIMIT_S)
        assert Path(f"/proc/{one.pid}/stat").read_text().rpartition(") ")[2][0] == "Z"
    finally:
        held.close()


def test_processes_below_the_first_one_need_no_marker(processes: Processes, tmp_path: Path) -> None:
    """They are held and killed as long as the first process runs; a pid that belongs to another
    process by now is only waited for."""
    shell = "sleep 1000 & echo $!; wait"
    leader = subprocess.Popen(["/bin/sh", "-c", shell], stdout=subprocess.PIPE, text=True)
    assert leader.stdout is not None
    child = int(leader.stdout.readline())
    held = hold(tmp_path, "r1", leader.pid)
    try:
        assert [*held.sure] == [child]
        held._replace(sure={}).kill()
        with pytest.raises(DriverError, match="does not end"):
            await_ends(held.every.values(), 0.01)
        held.kill()
        await_ends(held.every.values(), LIMIT_S)
    finally:
        held.close()
        leader.wait()
        leader.stdout.close()
    assert hold(tmp_path, "r1", leader.pid) == ({}, {})
