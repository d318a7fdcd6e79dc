"""Tests of `fnctl serve` from start to end, in a process of its own."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from admin.serve import EXIT_REFUSED
from tests.support.fake_driver.opening import PROGRAM
from tests.support.process_server import ServerProcess

SERVE = """
import sys
from pathlib import Path
from admin.serve import serve
from admin.settings import Settings
from tests.support.fake_driver.opening import drivers_of
sys.exit(serve(Settings(data=Path(sys.argv[1]), port=int(sys.argv[2]), listen=sys.argv[3]),
               drivers_of()))
"""


def refused(data: Path, port: int = 0, listen: str = "127.0.0.1") -> tuple[int, str]:
    """Return exit code and last line of a server that cannot start."""
    command = [sys.executable, "-c", SERVE, str(data), str(port), listen]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return ended.returncode, ended.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_signal_ends_it_in_order(tmp_path: Path) -> None:
    """After Ctrl-C the server says that it stops, stops, and exits with 0."""
    server = ServerProcess(tmp_path, program=PROGRAM)
    server.start()
    assert server.process is not None
    limits = Path(f"/proc/{server.process.pid}/limits").read_text()
    [soft, hard] = re.findall(r"^Max open files +(\d+) +(\d+)", limits, re.MULTILINE)[0]

    code = server.stop()

    assert code == 0
    assert soft == hard
    events = "".join(server.log)
    assert events.index('"serving"') < events.index("stopping") < events.index('"stopped"')


@pytest.mark.slow
def test_a_server_that_may_not_start_says_why(tmp_path: Path) -> None:
    """Wrong settings and a taken port are one line without a traceback, and exit code 1."""
    code, text = refused(tmp_path, listen="0.0.0.0")
    assert (code, text.startswith("fnctl serve: --listen 0.0.0.0 accepts calls")) == (1, True)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, text = refused(tmp_path, taken.getsockname()[1])
    assert code == 1
    assert text.startswith("fnctl serve: ")
    assert "address already in use" in text
    assert text.strip().endswith("choose another port with --port or FN_PORT")


def test_a_refused_start_leaves_the_collector_on(tmp_path: Path) -> None:
    """After a failed start the garbage collector, off during a start, is on again."""
    # In a process of its own, since a start changes log and limits of the whole process.
    program = SERVE.replace("sys.exit(", "code = (") + "import gc\nprint(code, gc.isenabled())"
    command = [sys.executable, "-c", program, str(tmp_path), "0", "0.0.0.0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    assert ended.stdout == f"{EXIT_REFUSED} True\n"
