"""A real sidecar reads how a real server fares: its exchanges, its probes, its counter."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runtime_image.contract.health import LEARNT_SECONDS, Ready
from runtime_image.contract.link import Flag, Kind
from runtime_image.link.frames import pack
from runtime_image.server.process_tree import descendants
from tests.support.sidecar_process import PATIENCE_S, Gateway, Sidecar, ask, sidecar, tiny

pytestmark = pytest.mark.slow
QUICK = "import runtime_image.server.health as it\nit.ANSWER_S, it.AGAIN_S = 0.5, 0.1\n"
"""A sidecar with short waits between probes."""


@contextmanager
def watched(*options: str, **changes: object) -> Iterator[tuple[Sidecar, Gateway]]:
    """Run a server whose readiness is `/quick`, with a manager that asks for readings."""
    with sidecar(tiny(*options, ready="/quick", **changes), preamble=QUICK) as web:
        web.ready()
        web.watch()
        gateway = web.gateway()
        yield web, gateway


def unanswered(gateway: Gateway, id: int) -> None:
    """Tell the sidecar of an exchange without an answer."""
    gateway.link.sock.sendall(b"".join(pack(Kind.UNANSWERED, id, flags=Flag.OPTIONAL)))


def call(gateway: Gateway, id: int, path: str) -> None:
    """Send a request and read its answer; the connection ends."""
    sock = gateway.open(id)
    ask(sock, path)
    gateway.end(id)
    sock.close()


def first_use(web: Sidecar) -> None:
    web.expect(Kind.FIRST_RUN)


def test_a_reading_follows_each_exchange() -> None:
    """Its bytes are counted by the kernel, also those of an exchange between two readings; a
    request alone is no progress, nor is the beginning of an answer before its end."""
    with watched() as (web, gateway):
        sock = gateway.open(1)
        first_use(web)
        sock.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        begun = web.health(lambda it: it["open"] == 1)
        assert (begun["given"], begun["ready"], begun["is_traced"]) == (0, "", False)
        still = web.health(lambda it: it["moved"] == begun["moved"])
        assert still["open"] == 1
        gateway.end(1)
        sock.close()

        ended = web.health(lambda it: it["open"] == 0)

        assert ended["given"] > 0


def test_unread_bytes_are_seen() -> None:
    """Bytes of the server that a gateway does not read are no silence of the server."""
    with watched() as (web, gateway):
        sock = gateway.open(1)
        first_use(web)
        sock.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        assert web.health(lambda it: it["unread"])["open"] == 1
        while b"begun" not in sock.recv(4096):
            pass
        assert not web.health(lambda it: not it["unread"])["unread"]


@pytest.mark.parametrize(
    ("way", "ready"),
    [("/fail", Ready.FAILING), ("/close", Ready.FAILING), ("/hang", Ready.SILENT)],
)
def test_a_call_without_an_answer_has_the_server_probed(way: str, ready: Ready) -> None:
    """Again and again while it goes wrong, and only then."""
    with watched() as (web, gateway):
        if way != "/hang":
            call(gateway, 1, way)
        else:
            sock = gateway.open(1)
            sock.sendall(b"GET /hang HTTP/1.1\r\nHost: x\r\n\r\n")
        first_use(web)
        unanswered(gateway, 1)

        third = web.health(lambda it: it["probes"] == 3)

        assert third["ready"] == ready
        assert third["said"]


def test_a_right_answer_ends_the_probes() -> None:
    """A healthy server is probed once after a failed call."""
    with watched() as (web, gateway):
        sock = gateway.open(1)
        first_use(web)
        unanswered(gateway, 1)
        assert web.health(lambda it: it["probes"] == 1)["ready"] == Ready.RIGHT

        assert [web.health(lambda _: True)["probes"] for _ in range(3)] == [1, 1, 1]
        sock.close()


def test_a_server_that_stopped_listening_refuses_probes() -> None:
    """The sidecar's own connection for an exchange is refused: no gateway has to tell."""
    with watched() as (web, gateway):
        call(gateway, 1, "/refuse")
        first_use(web)
        number = 2
        while not is_refused(gateway, number):
            number += 1

        assert web.health(lambda it: it["probes"] == 3)["ready"] == Ready.REFUSED


def test_a_stopped_server_is_silent_and_idle_until_it_goes_on() -> None:
    """SIGSTOP: connections are accepted by the kernel, nothing is answered, nothing computes."""
    with watched() as (web, gateway):
        call(gateway, 1, "/x")
        first_use(web)
        pid = server_pid(web)
        os.kill(pid, signal.SIGSTOP)
        unanswered(gateway, 1)

        third = web.health(lambda it: it["probes"] >= 3 and it["cpu"] is not None)
        assert (third["ready"], third["cpu"]) == (Ready.SILENT, 0.0)
        os.kill(pid, signal.SIGCONT)
        assert web.health(lambda it: it["ready"] == Ready.RIGHT)["ready"] == Ready.RIGHT


def is_refused(gateway: Gateway, id: int) -> bool:
    """Request a connection; return whether the server refused it."""
    gateway.link.send(Kind.OPEN, id)
    ready, _, _ = select.select([gateway.side, gateway.link.sock], [], [], 60.0)
    if gateway.link.sock in ready:
        gateway.link.next(Kind.NOT_STARTED)
        return True
    gateway.take(id).close()
    gateway.end(id)
    return False


def server_pid(web: Sidecar) -> int:
    """Return the pid of the server: the process below the sidecar that runs `server.py`."""
    for process in descendants(web.process.pid):
        if b"server.py" in Path(f"/proc/{process.pid}/cmdline").read_bytes():
            return process.pid
    raise AssertionError("no server")


def test_a_manager_of_an_earlier_release_gets_no_readings() -> None:
    """It would count frames that it does not know, and end the link."""
    with sidecar(tiny(), preamble=QUICK) as web:
        web.ready()
        gateway = web.gateway()
        sock = gateway.open(1)
        first_use(web)
        unanswered(gateway, 1)
        for _ in range(3):
            web.control.sock.sendall(b"".join(pack(Kind.PING)))
            web.expect(Kind.PONG)
        sock.shutdown(socket.SHUT_RDWR)


def test_the_next_manager_hears_what_was_learnt() -> None:
    """Before anything was, only for how long the server is ready; then the last that was sent."""
    with watched() as (web, _gateway):
        web.restart_manager()
        assert "learnt" not in web.hello["loaded"]
        for known in (3, 60):
            body = LEARNT_SECONDS.pack(1.5, 7.0)
            frame = pack(Kind.LEARNT, flags=Flag.OPTIONAL, aux=known, body=body)
            web.control.sock.sendall(b"".join(frame))
        web.watch()

        web.restart_manager()

        said = web.hello["loaded"]
        assert said["learnt"] == {"known": 60, "usual_s": 1.5, "longest_s": 7.0}
        assert 0.0 < said["ready_for_s"] < PATIENCE_S


def test_a_malformed_word_of_what_was_learnt_ends_the_link() -> None:
    """The sidecar greets anew, and serves on."""
    with watched() as (web, gateway):
        web.control.sock.sendall(b"".join(pack(Kind.LEARNT, flags=Flag.OPTIONAL, body=b"x")))

        with web.control.sock:
            web.control = web.greet()

        assert "learnt" not in web.hello["loaded"]
        call(gateway, 1, "/x")
