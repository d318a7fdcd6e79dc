"""Servers of models whose calls stand still, under a whole `fnctl serve` with short limits: their
golden samples decide."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from runtime_image.server.process_tree import descendants
from tests.support import chat_server
from tests.support.own_engine import await_condition
from tests.support.process_server import ServerProcess, server_process

pytestmark = pytest.mark.slow
PROGRAM = """
import pool_manager.core.health.liveness as it
it.LIMIT_MIN_S, it.UNLEARNT_S, it.NEW_FACTOR = 2.0, 2.0, 1.0
import admin.cli.main
admin.cli.main.main()
"""
"""A server that suspects a silence of 2 s."""
LEARNT = """
import pool_manager.core.health.liveness as it
import pool_manager.core.replacement as other
it.LIMIT_MIN_S, it.UNLEARNT_S, it.KNOWN_MIN, other.LEARNT_S = 2.0, 1e4, 3, 0.5
it.NEW_S = 3.0
import admin.cli.main
admin.cli.main.main()
"""
"""A server that suspects a silence of 2 s once it has learnt from three, else one of hours."""
CHECKS = 'fngate_golden_samples_total{function="%s",namespace="default",verdict="%s"}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data = tmp_path_factory.mktemp("data")
    with server_process(data, program=(sys.executable, "-c", PROGRAM)) as running:
        yield running


def metrics(server: ServerProcess) -> str:
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    connection.request("GET", "/metrics", headers=server.headers)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def stop_processes(server: ServerProcess, mark: str) -> None:
    """Stop the processes of a server whose command has the word `mark`."""
    for sidecar in server.replica_processes().values():
        for one in descendants(sidecar):
            if mark.encode() in Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0"):
                os.kill(one.pid, signal.SIGSTOP)


class Stream:
    """A stream at /v1 that stands still after two tokens."""

    def __init__(
        self, server: ServerProcess, model: str, orders: str = "[hang=2] [tokens=8]"
    ) -> None:
        self._connection = HTTPConnection(urlsplit(server.url).netloc, timeout=120)
        asked = {
            "model": model,
            "stream": True,
            "messages": [{"role": "user", "content": orders}],
        }
        headers = {"Content-Type": "application/json", **server.headers}
        self._connection.request("POST", "/v1/chat/completions", json.dumps(asked), headers)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200
        self.begun = self._answer.read1()
        self.rest = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(IncompleteRead):  # it is cut after `max_s`
            while data := self._answer.read1():
                self.rest += data

    def end(self) -> None:
        self._reader.join(120)
        self._connection.close()


def test_a_server_that_answers_its_sample_is_left_alone(
    server: ServerProcess, tmp_path: Path
) -> None:
    """One call of it stands still for long; it is asked twice, and serves on."""
    chat_server.deploy(server, tmp_path, "slow", limits="max_s = 12")
    stream = Stream(server, "slow")

    await_condition(lambda: f"{CHECKS % ('slow', 'right')} 2.0" in metrics(server), "not asked")

    assert 'fngate_replicas_replaced_total{function="slow"' not in metrics(server)
    assert "not answering" not in server.fnctl("why", "slow").stdout
    stream.end()


def test_a_server_that_does_not_answer_its_sample_is_replaced(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Its process is stopped. The stream that had begun ends with an error event."""
    mark = str(tmp_path / "counts")
    chat_server.deploy(server, tmp_path, "hung", "--counts", mark)
    stream = Stream(server, "hung")
    stop_processes(server, mark)

    stream.end()

    last = stream.rest.rstrip().rpartition(b"data: ")[2]
    assert json.loads(last)["error"]["code"] == "replica_hung"
    replaced = 'fngate_replicas_replaced_total{function="hung",namespace="default",reason='
    assert f'{replaced}"hung_idle"}} 1.0' in metrics(server)
    assert CHECKS % ("hung", "no_answer") in metrics(server)
    why = server.fnctl("why", "hung").stdout
    assert "its golden sample is not answered" in why
    assert "no counter" not in why


def test_limits_are_learnt_once(tmp_path: Path) -> None:
    """A manager that is killed has learnt from the moves of a stream. The next one adopts the
    server, and replaces it at the limit of the first one when it hangs."""
    patient = {"FN_STANDBYS": "0", "FN_ORPHAN_S": "600"}
    program = (sys.executable, "-c", LEARNT)
    with server_process(tmp_path / "data", environment=patient, program=program) as server:
        mark = str(tmp_path / "counts")
        chat_server.deploy(server, tmp_path, "kept", "--counts", mark)
        Stream(server, "kept", "[tokens=12] [rate=1.5]").end()
        replicas = server.replica_processes()
        server.kill()
        server.start()
        stream = Stream(server, "kept")
        assert server.replica_processes() == replicas

        stop_processes(server, mark)

        stream.end()
        replaced = 'fngate_replicas_replaced_total{function="kept",namespace="default",reason='
        assert f'{replaced}"hung_idle"}} 1.0' in metrics(server)
