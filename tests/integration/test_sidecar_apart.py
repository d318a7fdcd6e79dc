"""Tests of a real sidecar process whose server somebody else starts and ends."""

from __future__ import annotations

import http.server
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from runtime_image.contract.link import Kind, NotStarted
from runtime_image.contract.samples import SampleRequest
from runtime_image.contract.server import ServerSpec
from runtime_image.server.process_tree import descendants
from tests.support.sidecar_process import Sidecar, ask, sidecar


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers hello, or with a stream that does not end."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        if self.path == "/stream":
            self.end_headers()
            self.wfile.write(b"begun")
            self.rfile.read()
            return
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""


class Server(http.server.ThreadingHTTPServer):
    """Answers in threads that may be left behind."""

    daemon_threads = True
    block_on_close = False


@contextmanager
def serving() -> Iterator[int]:
    """Run the server; yield its port."""
    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def apart(port: int, **changes: Any) -> ServerSpec:
    """Return the specification of a server that listens on a port already."""
    return ServerSpec("web@1", (), port=port, is_apart=True, **{"start_s": 30.0, **changes})


@pytest.fixture
def web() -> Iterator[Sidecar]:
    """A sidecar whose server is ready."""
    with serving() as port, sidecar(apart(port, concurrency=2)) as started:
        started.ready()
        yield started


def test_a_server_elsewhere_is_probed_and_reached(web: Sidecar) -> None:
    """The sidecar starts no process, and hands connections out."""
    one = web.gateway()

    assert one.greeting == {"revision": "web@1", "limit": 2}
    assert ask(one.open(1)) == b"hello"
    assert web.expect(Kind.FIRST_RUN).aux == 0
    assert descendants(web.process.pid) == []
    assert not (web.run_dir / "server").exists()


def test_a_sidecar_listens_on_nothing(web: Sidecar) -> None:
    """The server shares its network: neither a port nor a name of the sidecar may be there."""
    own = {path.readlink() for path in Path(f"/proc/{web.process.pid}/fd").iterdir()}
    inodes = {str(link)[8:-1] for link in own if str(link).startswith("socket:[")}
    listening = {row[6]: row[7:] for row in rows("unix") if row[3] == "00010000"}

    names = [listening[inode] for inode in inodes & listening.keys()]
    assert names == [[str(web.run_dir / "data.sock")]]  # the host's, in the host's network
    assert not inodes & {row[9] for row in rows("tcp") if row[3] == "0A"}


def rows(table: str) -> list[list[str]]:
    """Return the rows of a table of sockets (proc_net(5))."""
    return [line.split() for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]


def test_a_drained_sidecar_exits(web: Sidecar) -> None:
    """With code 0, once nothing is open; whoever started the server ends it."""
    web.control.send(Kind.DRAIN)

    assert web.exit_code() == 0


def test_term_shuts_what_is_open_and_exits(web: Sidecar) -> None:
    """At once: the server's grace is not the sidecar's to give."""
    one = web.gateway()
    sock = one.open(1)
    ask(sock, "/stream", to_end=False)

    os.kill(web.process.pid, signal.SIGTERM)

    assert web.exit_code() == 0
    with suppress(ConnectionResetError):  # where the server had bytes left to send
        while sock.recv(1000):
            pass


def test_a_lost_gateways_exchanges_are_shut(web: Sidecar) -> None:
    """By the duplicates that the sidecar keeps."""
    one = web.gateway()
    sock = one.open(1)
    ask(sock, "/stream", to_end=False)

    one.close()

    while sock.recv(1000):
        pass


def test_a_server_that_has_ended_refuses() -> None:
    """The sidecar stays: the driver reports the end."""
    with ExitStack() as stack:
        server = stack.enter_context(ExitStack())
        started = stack.enter_context(sidecar(apart(server.enter_context(serving()))))
        started.ready()
        server.close()

        one = started.gateway()
        one.link.send(Kind.OPEN, 1)

        assert one.link.next(Kind.NOT_STARTED).aux == NotStarted.REFUSED
        assert started.process.poll() is None


def test_a_server_that_does_not_come_is_given_up() -> None:
    """The reason has what was expected."""
    with serving() as port:
        pass
    with sidecar(apart(port, start_s=1.0)) as started:
        failure = started.failed()

    assert failure["stage"] == "start"
    assert failure["reason"].startswith("not ready within 1 s; expected a status from 200 to 499")


def test_a_trial_runs_samples() -> None:
    """As with a server of its own; the memory is its driver's to measure."""
    with serving() as port:
        spec = apart(port, samples=(SampleRequest("/a"),))
        with sidecar(spec, role="trial") as started:
            report = started.ready()["report"]

    assert report["memory_mib"] == 0
    assert report["note"] == ""
    assert [one["status"] for one in report["sample_outputs"]["requests"]] == [200]


def test_a_server_that_others_reach_is_noted() -> None:
    """On the engine's network; what listens on the loopback interface only is not meant."""
    with serving() as port, socket.create_server(("0.0.0.0", 0)) as wide:
        wide_port = wide.getsockname()[1]
        with sidecar(apart(port, network="egress"), role="trial") as started:
            report = started.ready()["report"]

    assert "local users and other containers can reach the server at" in report["note"]
    assert f"0.0.0.0:{wide_port}" in report["note"] or "more" in report["note"]
    assert f"127.0.0.1:{port}" not in report["note"]
