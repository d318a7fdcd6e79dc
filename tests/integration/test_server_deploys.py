"""Tests of deploys of server functions with real processes: what a trial verifies and refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pool_manager.core import eviction, starts
from tests.support.nouns import sha256
from tests.support.process_server import server_process
from tests.support.server import ROOM_MIB, Answer, ServingServer, serving

APP = b"""
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

closed = threading.Event()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.body = self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def do_GET(self):
        if self.path == "/open":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"open")
            closed.wait()
            return
        if self.path == "/close":
            closed.set()
        content = getattr(self, "body", self.path.encode())
        self.send_response({"/missing": 404, "/loading": 503}.get(self.path, 200))
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


print("the app begins", flush=True)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
FILES = {"app.py": APP, "question.txt": b"why?"}
LARGE = FILES | {"app.py": b"kept = b'x' * (700 << 20)\n" + APP}
"""The same with so much memory that ROOM_MIB is enough for one of them."""
COMMAND = 'schema = 1\n[server]\ncommand = "python3 app.py ${PORT}"\n'


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServingServer]:
    """A server over real processes."""
    async with serving(tmp_path, standbys=0) as server:
        yield server


async def deploy(
    server: ServingServer, manifest: str = COMMAND, files: Mapping[str, bytes] = FILES
) -> Answer:
    return await server.try_deploy(files, name="web", manifest=manifest)


async def refusal(server: ServingServer, manifest: str) -> dict[str, Any]:
    """Return the error of a deploy that its trial refuses; nothing is left of it."""
    operation = (await deploy(server, manifest)).json()
    assert (operation["state"], operation["phase"]) == ("failed", "verify"), operation
    assert (await server.admin("GET", "/functions")).json()["items"] == []
    await server.until_pools(lambda: not server.bound())
    error: dict[str, Any] = operation["error"]
    return error


async def test_a_server_that_needs_a_network_is_told_of_egress(server: ServingServer) -> None:
    """The trial's reason has the remedy, once; the log has what the program said."""
    app = b"import socket; socket.create_connection(('192.0.2.1', 80))"

    operation = (await deploy(server, files={"app.py": app})).json()

    error = operation["error"]
    assert error["detail"].count('network = "egress"') == 1
    assert "Network is unreachable" in " ".join(error["log_tail"])


async def test_a_server_is_tried_with_its_samples(server: ServingServer) -> None:
    """The trial starts the command, sends the samples and reports start, memory and answers."""
    samples = """
        [[sample]]
        path = "/a?b=c"
        [[sample]]
        method = "POST"
        body = "@question.txt"
        [[sample]]
        path = "/missing"
        status = 404
    """

    operation = (await deploy(server, COMMAND + 'ready = "/up"\n' + samples)).json()

    assert operation["state"] == "done", operation
    result = operation["result"]
    shown = [
        (one["method"], one["path"], one["status"], one["body"])
        for one in result["sample"]["requests"]
    ]
    assert shown == [
        ("GET", "/a?b=c", 200, "/a?b=c"),
        ("POST", "/", 200, "why?"),
        ("GET", "/missing", 404, "/missing"),
    ]
    profile = result["profile"]
    assert (profile["engine"], profile["profiled"]) == ("server", True)
    assert profile["load_ms"] > 0
    assert profile["memory_mib"] > 1
    said = {"ready": "/up", "network": "none", "wait_s": 55.0}
    assert result["server"] == {**said, "host": "auto", "found_host": "client"}
    function = await server.function("web")
    assert (function["signature"]["kind"], function["state"]) == ("http", "cold")


async def test_an_equal_server_is_not_tried_again(server: ServingServer) -> None:
    """Other limits of held calls make neither a revision nor a trial; another variable does."""
    await deploy(server)

    again = (await deploy(server, COMMAND + "[limits]\nwait_s = 7\n")).json()["result"]
    other = (await deploy(server, COMMAND + '[server.env]\nA = "1"\n')).json()["result"]

    assert (again["revision"], again["changed"]) == ("web@1", ["limits.wait_s"])
    assert (other["revision"], other["created"]) == ("web@2", True)


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ('ready = "/loading"\nstart_s = 1\n', "503"),
        ('ready = "/up"\n[sample]\npath = "/missing"\n', "GET /missing: expected a status below"),
        ('ready = "/up"\n[sample]\nstatus = 201\n', "GET /: expected status 201, got 200"),
    ],
)
async def test_a_server_that_answers_wrongly_is_refused(
    server: ServingServer, rest: str, reason: str
) -> None:
    """A server that is never ready, or answers a sample in another way, is refused with what was
    expected, what it got, and the last lines of its log."""
    error = await refusal(server, COMMAND + rest)

    assert error["code"] == "server_refused"
    assert error["stage"] == ("sample" if "sample" in rest else "start")
    assert reason in error["detail"]
    assert any('"GET /' in line for line in error["log_tail"])  # the app logs each request


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("python3 -c pass ${PORT}", "exited with code 0"),
        ("python3 -c 'raise SystemExit(\\\"no model\\\")' ${PORT}", "exited with code 1"),
        ("python3 app.py 8123", "8123"),
        ("/no/such/program ${PORT}", "/no/such/program"),
    ],
)
async def test_a_server_that_does_not_start_is_refused(
    server: ServingServer, command: str, reason: str
) -> None:
    """A command that ends, cannot be run or listens elsewhere is refused with the reason."""
    text = f'schema = 1\n[server]\ncommand = "{command}"\nport = 8000\nstart_s = 2\n'

    error = await refusal(server, text)

    assert (error["code"], error["stage"]) == ("server_refused", "start")
    assert reason in error["detail"]
    assert error["detail"].count("before it was ready") <= 1
    if "no model" in command:
        assert any("no model" in line for line in error["log_tail"])


async def test_a_trial_at_a_path_that_does_not_exist_ends(
    server: ServingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before `start_s`, as the program does nothing else, although it logs each request; the
    error says what was met and names the option."""
    monkeypatch.setattr(starts, "NO_PROGRESS_S", 6.0)

    operation = (await deploy(server, COMMAND + 'ready = "/missing"\n')).json()

    error = operation["error"]
    assert error["code"] == "server_refused"
    assert "GET /missing was answered with 404 for" in error["detail"]
    assert "--ready PATH" in error["detail"]
    assert any('"GET /missing' in line for line in error["log_tail"])


SLOW = b"""
import sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

loaded = threading.Event()


def load():
    for _ in range(24):
        with open("/dev/zero", "rb", buffering=0) as source:
            source.read(200_000)
        time.sleep(0.5)
    loaded.set()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if loaded.is_set() else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()


threading.Thread(target=load).start()
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


async def test_a_trial_that_reads_goes_on(
    server: ServingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may answer 404 while it loads, for twice as long as one that does nothing."""
    monkeypatch.setattr(starts, "NO_PROGRESS_S", 6.0)

    operation = (await deploy(server, COMMAND + 'ready = "/up"\n', {"app.py": SLOW})).json()

    assert operation["state"] == "done", operation


async def test_a_changed_server_takes_over(server: ServingServer) -> None:
    """A warm server stays warm: its next revision is ready before it gets the traffic."""
    await deploy(server)
    outcome = await server.server.manager.warm("default/web@1")
    assert outcome.outcome == "ready", outcome

    result = (await deploy(server, COMMAND + 'ready = "/up"\n')).json()["result"]

    assert (result["revision"], result["switch"]) == ("web@2", "warm before traffic moved")
    await server.until_shown("web", state="warm", revision="web@2")


@pytest.mark.parametrize("now", [False, True])
async def test_full_memory_waits_for_open_exchanges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, now: bool
) -> None:
    """Where both revisions do not fit, the old one serves until its last exchange ends; with `now`
    the traffic moves at once, and calls are held until then."""
    monkeypatch.setattr(eviction, "RESIDENCY_S", 1.0)
    async with serving(tmp_path, standbys=0, host_memory_mib=ROOM_MIB) as server:
        await deploy(server, files=LARGE)
        address = urlsplit(server.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(f"GET /fn/web/open HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        files = [
            {"path": path, "size": len(content), "sha256": sha256(content)}
            for path, content in LARGE.items()
        ]
        # A rule of paths makes a revision, but needs no trial.
        manifest = COMMAND + 'deny = ["/x"]\n'
        request = {"files": files, "manifest": manifest, "trust": True, "now": now}

        operation = (await server.admin("POST", "/functions/web/revisions", request)).json()
        if not now:
            while operation["phase"] != "drain":
                path = f"/operations/{operation['id']}?wait=60&phase={operation['phase']}"
                operation = (await server.admin("GET", path)).json()
                assert operation["state"] == "running", operation["result"]["switch"]
            assert (await server.function("web"))["revision"] == "web@1"
            assert (await server.request("GET", "/fn/web/close")).status == 200
        result = (await server.ended(operation)).json()["result"]

        how = "makes room at once" if now else "had no open exchange left and makes room"
        assert result["switch"] == f"no room for both: web@1 {how}, calls are held"
        if now:
            assert (await server.request("GET", "/fn/web@1/close")).status == 200
        await server.until_shown("web", state="warm", revision="web@2")
        writer.close()


def test_a_folder_is_deployed_and_called_from_the_command_line(tmp_path: Path) -> None:
    """fnctl deploys a folder with --command, and prints what the server answers."""
    folder = tmp_path / "web"
    folder.mkdir()
    for path, content in FILES.items():
        (folder / path).write_bytes(content)

    with server_process(tmp_path / "data", "--driver", "process") as server:
        command = ("--command", "python3 app.py ${PORT}", "--ready", "/up", "--trust")
        deployed = server.fnctl("deploy", str(folder), *command)
        answers = [
            server.fnctl("invoke", "web", *args)
            for args in ((), ("--path", "/x?y=1"), ("-d", "why?"), ("--path", "/missing"))
        ]

    assert deployed.returncode == 0, deployed.stderr
    assert deployed.stderr.endswith(f"  or: curl {server.url}/fn/web/\n")
    assert [(one.returncode, one.stdout) for one in answers] == [
        (0, "/"),
        (0, "/x?y=1"),
        (0, "why?"),
        (1, "/missing"),
    ]
