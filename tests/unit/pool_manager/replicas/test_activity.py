"""What the servers of starting replicas have done, as read from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pool_manager.replicas.activity import count_lines, used
from pool_manager.replicas.logs import PIECE

TICKS = os.sysconf("SC_CLK_TCK")
SIDECAR = b"python\0-I\0-m\0runtime_image\0/run/a\0"


def process(
    root: Path,
    pid: int,
    command: bytes,
    *,
    ticks: int = 0,
    io_bytes: int = 0,
    states: str = "S",
) -> None:
    """Write what /proc has of a process, with a thread in each of these states."""
    folder = root / str(pid)
    folder.mkdir()
    (folder / "cmdline").write_bytes(command)
    fields = ["S", *["0"] * 10, str(ticks), str(ticks), *["0"] * 30]
    (folder / "stat").write_text(f"{pid} (a) b) {' '.join(fields)}")
    (folder / "io").write_text(f"rchar: {io_bytes}\nwchar: {io_bytes}\nsyscr: 9\n")
    for number, state in enumerate(states):
        (folder / "task" / str(number)).mkdir(parents=True)
        (folder / "task" / str(number) / "stat").write_text(f"1 (a) {state} {' '.join(fields[1:])}")


def test_the_processes_of_a_server_add_up(tmp_path: Path) -> None:
    """Without the sidecar and its reaper, and without those that have ended."""
    process(tmp_path, 10, SIDECAR, ticks=500, io_bytes=500, states="R")
    process(tmp_path, 11, b"python3\0app.py\0", ticks=TICKS, io_bytes=7)
    process(tmp_path, 12, b"worker\0", ticks=TICKS, io_bytes=1)

    assert used([10, 11, 12, 13], tmp_path) == ((4.0, False, False), 16)


@pytest.mark.parametrize(
    ("states", "is_waiting"), [("S", False), ("SSR", True), ("SD", True), ("TZ", False)]
)
def test_a_thread_that_waits_for_the_cpu_or_a_disk_is_seen(
    tmp_path: Path, states: str, is_waiting: bool
) -> None:
    """Whichever it is; the sidecar's own do not count."""
    process(tmp_path, 10, SIDECAR, states="RD")
    process(tmp_path, 11, b"python3\0app.py\0", states=states)

    assert used([10, 11], tmp_path) == ((0.0, is_waiting, False), 0)


def test_pids_of_another_machine_are_not_read(tmp_path: Path) -> None:
    """Without a sidecar among them they are those of strangers."""
    process(tmp_path, 11, b"python3\0app.py\0", ticks=TICKS, io_bytes=7)

    assert used([11], tmp_path) is None


@pytest.fixture
def sidecar() -> Iterator[int]:
    """The pid of a process whose command line is a sidecar's; it waits for its input."""
    program = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, "-m", "runtime_image", "/run/a"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        started.stdout.readline()  # `Popen` may return before the command line can be read
        yield started.pid
        started.stdin.close()


def test_this_process_has_used_something(sidecar: int) -> None:
    """The fields are those of a real /proc."""
    before = used([os.getpid(), sidecar])
    data = bytes(1 << 20)
    with Path(os.devnull).open("wb") as sink:
        sink.write(data)

    after = used([os.getpid(), sidecar])

    assert before is not None
    assert after is not None
    assert before[0].cpu_s >= 0.0
    assert before[0].is_waiting, "this thread runs"
    assert before[1] is not None
    assert after[1] is not None
    assert after[1] - before[1] >= len(data)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_bytes_of_others_are_unknown(sidecar: int) -> None:
    """Those of init, whose CPU time everybody may read."""
    found = used([1, sidecar])

    assert found is not None
    assert found[1] is None


LOG = b"""fngate: GET /up: 404 Not Found
127.0.0.1 - "GET /up HTTP/1.1" 404 -
loads weights
{"path":"/up","status":404}
GET /upper is another path
GET /a/up is another path
"""


def test_lines_about_the_probe_do_not_count(tmp_path: Path) -> None:
    """Many servers log each request. The last line counts once it is whole."""
    log = tmp_path / "log"
    log.write_bytes(LOG + b"half")

    place, lines = count_lines(log, 0, "/up")

    assert (place, lines) == (len(LOG), 3)
    log.write_bytes(LOG + b"half a line\n")
    assert count_lines(log, place, "/up") == (len(LOG) + 12, 1)


def test_a_line_without_an_end_is_not_read_for_ever(tmp_path: Path) -> None:
    """It counts piece by piece."""
    log = tmp_path / "log"
    log.write_bytes(b"x" * (2 * PIECE))

    assert count_lines(log, 0, "/up") == (PIECE, 1)
    assert count_lines(log, PIECE, "/up") == (2 * PIECE, 1)
    assert count_lines(log, 2 * PIECE, "/up") == (2 * PIECE, 0)
