"""Servers that are ready and do not work any more, under a whole `fnctl serve`."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.own_engine import await_condition
from tests.support.process_server import ServerProcess, server_process

pytestmark = pytest.mark.slow
APP = """
import http.server, os, sys, threading, time

class App(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        if self.path == "/hang" and not os.path.exists(sys.argv[2]):
            time.sleep(600)
        if self.path == "/refuse":
            open(sys.argv[2], "w").close()
            threading.Thread(target=server.stop_listening, daemon=True).start()
        if self.path == "/close":
            server.closes = True
        elif server.closes:
            self.close_connection = True
            return
        body = str(os.getpid()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

class Server(http.server.ThreadingHTTPServer):
    closes = False
    daemon_threads = True

    def stop_listening(self):
        self.shutdown()
        self.socket.close()

Server(("127.0.0.1", int(sys.argv[1])), App).serve_forever()
time.sleep(600)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("data")) as running:
        yield running


def deploy(server: ServerProcess, folder: Path, name: str, first_byte_s: int) -> None:
    """Deploy the app; it answers with its pid, which differs in each start's environment."""
    (folder / "app.py").write_text(APP)
    (folder / "function.toml").write_text(f"""schema = 1
name = "{name}"
[server]
command = ["python3", "app.py", "${{PORT}}", "{folder}/refused"]
network = "egress"
ready = "/ready"
[limits]
first_byte_s = {first_byte_s}
""")
    server.fnctl_json("deploy", str(folder), "--trust")


def call(server: ServerProcess, method: str, path: str) -> tuple[int, bytes]:
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=120)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def metric(server: ServerProcess, name: str, function: str) -> list[str]:
    """Return the lines of a metric for one function."""
    lines = call(server, "GET", "/metrics")[1].decode().splitlines()
    mark = f'function="{function}"'
    return [line for line in lines if line.startswith(f"{name}{{") and mark in line]


def replaced(server: ServerProcess, function: str) -> str:
    """Return why servers of the function were replaced."""
    lines = metric(server, "fngate_replicas_replaced_total", function)
    return " ".join(line for line in lines if not line.endswith(" 0.0"))


def has_open(server: ServerProcess, function: str, count: int) -> bool:
    lines = metric(server, "fngate_exchanges_open", function)
    return any(line.endswith(f" {count}.0") for line in lines)


def test_calls_of_a_server_that_stopped_listening(server: ServerProcess, tmp_path: Path) -> None:
    """New calls wait for the next server. Of the open ones, GET is sent to it again, and POST is
    told that its server hung."""
    deploy(server, tmp_path, "refuses", first_byte_s=60)
    answers: dict[str, tuple[int, bytes]] = {}

    def ask(method: str) -> None:
        answers[method] = call(server, method, "/fn/refuses/hang")

    assert call(server, "GET", "/fn/refuses/x")[0] == 200
    await_condition(lambda: has_open(server, "refuses", 0), "a call is open")
    asking = [threading.Thread(target=ask, args=(one,)) for one in ("GET", "POST")]
    for one in asking:
        one.start()
    await_condition(lambda: has_open(server, "refuses", 2), "two calls are not open")
    _, before = call(server, "GET", "/fn/refuses/refuse")

    def is_next() -> bool:
        # The listener is closed within half a second.
        status, after = call(server, "GET", "/fn/refuses/y")
        assert status == 200
        return after != before

    await_condition(is_next, "the server is not replaced")
    for one in asking:
        one.join(120)
    assert answers["GET"][0] == 200
    status, body = answers["POST"]
    assert (status, json.loads(body)["code"]) == (502, "replica_hung")
    assert "it refuses connections" in json.loads(body)["detail"]
    assert 'reason="refused"' in replaced(server, "refuses")
    assert "was replaced: it is not answering" in server.fnctl("why", "refuses").stdout


def test_a_server_that_closes_every_connection_is_replaced(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Until then callers get 502 with what their call met."""
    deploy(server, tmp_path, "closes", first_byte_s=60)
    assert call(server, "GET", "/fn/closes/close")[0] == 200
    seen: list[int] = []

    def answers() -> bool:
        seen.append(call(server, "POST", "/fn/closes/x")[0])
        return seen[-1] == 200

    await_condition(answers, "the server is not replaced")

    assert set(seen) <= {502, 200}
    assert 'reason="failing"' in replaced(server, "closes")


def test_a_stopped_server_is_replaced(server: ServerProcess, tmp_path: Path) -> None:
    """SIGSTOP: the kernel accepts its connections, and nothing answers or computes."""
    deploy(server, tmp_path, "stops", first_byte_s=2)
    _, pid = call(server, "GET", "/fn/stops/x")
    os.kill(int(pid), signal.SIGSTOP)

    await_condition(
        lambda: call(server, "GET", "/fn/stops/x")[0] == 200, "the server is not replaced"
    )

    assert 'reason="unready"' in replaced(server, "stops")
