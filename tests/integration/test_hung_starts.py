"""Starts that hang after their callers have left, under a whole `fnctl serve` with one slot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from tests.support import sick_server
from tests.support.own_engine import await_condition
from tests.support.process_server import ServerProcess, server_process

pytestmark = pytest.mark.slow
WAIT_S = 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with one slot, on which one function starts well, and the other only in its trial:
    its later starts wait for ever, as for a lock."""
    folder = tmp_path_factory.mktemp("hung")
    with server_process(folder / "data", "--cpu-slots", "1") as running:
        for name in ("good", "hung"):
            options = ("--hangs-after", str(folder / "mark")) if name == "hung" else ()
            limits = f"wait_s = {WAIT_S}" if name == "hung" else ""
            path = sick_server.bundle(folder, name, *options, limits=limits)
            running.fnctl_json("deploy", str(path), "--trust")
        yield running


def call(server: ServerProcess, name: str) -> tuple[int, dict[str, str], str]:
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=120)
    connection.request("POST", f"/fn/{name}/work")
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def state(server: ServerProcess, name: str) -> str:
    (row,) = [one for one in server.fnctl_json("ls")["items"] if one["name"] == name]
    return str(row["state"])


def test_another_function_gets_the_device_of_a_hung_start(server: ServerProcess) -> None:
    """Its caller is told after the wait budget. When nobody waits for it, and it takes far longer
    than the trial did, a call of another function gets the device within its own budget."""
    status, headers, body = call(server, "hung")
    assert (status, json.loads(body)["code"]) == (503, "wait_budget_over"), body
    assert int(headers["Retry-After"]) > 0
    assert state(server, "hung") == "waking"

    status, _, body = call(server, "good")

    assert status == 200, body
    assert state(server, "hung") == "cold"
    assert "ended: evicted for default/good@1" in server.fnctl("why", "hung").stdout


def test_a_hung_start_is_ended_by_sleep(server: ServerProcess) -> None:
    """`fnctl sleep` ends it at once, and the device is free."""
    server.fnctl("sleep", "good")
    assert call(server, "hung")[0] == 503
    assert state(server, "hung") == "waking"

    done = server.fnctl("sleep", "hung")

    assert done.returncode == 0, done.stderr
    await_condition(lambda: state(server, "hung") == "cold", "its start goes on")
    assert call(server, "good")[0] == 200
