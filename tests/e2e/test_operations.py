"""Operations seen from several terminals: one deploys, others list, watch and cancel."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.own_engine import await_condition
from tests.support.process_server import FNCTL, ServerProcess, server_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

APP = """
import http.server, os, sys, time

while not os.path.exists(sys.argv[2]):
    time.sleep(0.1)

class App(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), App).serve_forever()
"""
"""A server whose start hangs until there is a file."""
WAIT_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the function `hung`."""
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "function.toml").write_text(f"""schema = 1
name = "hung"
[server]
command = ["python3", "app.py", "${{PORT}}", "{tmp_path}/go"]
network = "egress"
""")
    return tmp_path


def terminal(server: ServerProcess, *words: str) -> subprocess.Popen[str]:
    """Run fnctl as in a terminal of its own."""
    command = [FNCTL, *words, "--url", server.url, "--data", str(server.data)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(running: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return exit code and output of a terminal, once it ends."""
    out, err = running.communicate(timeout=WAIT_S)
    return running.returncode, out, err


def verb(server: ServerProcess, *words: str) -> tuple[int, str, str]:
    return ended(terminal(server, *words))


def running_operation(server: ServerProcess) -> dict[str, Any]:
    """Return the operation in its trial, once there is one."""
    found: list[dict[str, Any]] = []

    def is_tried() -> bool:
        _, out, _ = verb(server, "operation", "ls", "hung", "--json")
        items = json.loads(out)["items"]
        found[:] = [one for one in items if one["state"] == "running"]
        return bool(found) and found[0]["phase"].startswith("verify")

    await_condition(is_tried, "no trial runs")
    return found[0]


def test_a_deploy_that_hangs_is_watched_and_cancelled_elsewhere(
    server: ServerProcess, folder: Path
) -> None:
    """Each terminal says what has happened; nothing is deployed. why tells of the deploy while it
    runs and after its end."""
    first = terminal(server, "deploy", str(folder), "--trust")
    id = running_operation(server)["id"]
    second = terminal(server, "operation", "watch", id)
    _, running, way = verb(server, "why", "hung")
    assert second.stderr is not None
    head = second.stderr.readline()  # it watches now

    code, out, _ = verb(server, "operation", "cancel", id)

    assert head.startswith("deploy of hung, started ")
    assert (code, out) == (0, "deploy of hung is cancelled: nothing changed\n")
    for watched in (first, second):
        code, out, err = ended(watched)
        assert (code, out) == (1, "")
        assert "Cancelled: another command or a page has cancelled it; nothing changed" in err
    # It tells what the probes meet once they have met it for ten seconds.
    assert re.match("not deployed: its deploy is running: (verify|waiting for GET /: )", running)
    assert f"fnctl operation cancel {id}" in way
    assert verb(server, "why", "hung")[1].startswith("not deployed: its deploy was cancelled\n")
    code, out, err = verb(server, "operation", "cancel", id)
    assert (code, out) == (0, "deploy of hung is cancelled: nothing changed\n")
    assert verb(server, "show", "hung")[0] == 1


def test_a_watcher_sees_the_end_of_the_deploy(server: ServerProcess, folder: Path) -> None:
    """It has the summary of the command that deployed, without the call of its sample; the end
    cannot be cancelled."""
    first = terminal(server, "deploy", str(folder), "--trust")
    id = running_operation(server)["id"]
    second = terminal(server, "operation", "watch", id)
    assert second.stderr is not None
    second.stderr.readline()
    (folder / "go").touch()

    assert ended(second)[:2] == ended(first)[:2]
    code, out, _ = verb(server, "operation", "watch", id)
    assert code == 0
    assert out.startswith("hung@1 deployed (2 files, ")
    code, _, err = verb(server, "operation", "cancel", id)
    assert (code, err) == (1, "error: Conflict: the deploy of hung had ended before: it is done\n")
    code, _, err = verb(server, "operation", "watch", "no/such id")
    assert (code, err.splitlines()) == (
        1,
        [
            "error: Not found: no operation 'no/such id'",
            "next: list the operations: fnctl operation ls --all",
        ],
    )
