"""Probes of a server: what each kind of answer counts as."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from runtime_image.contract.health import Ready
from runtime_image.replica.loop import Loop
from runtime_image.server.connecting import REFUSED, Server
from runtime_image.server.probe import HEAD_MAX, Probe
from runtime_image.server.readiness import Answer

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Answering:
    """A server that answers each connection with the same bytes, and closes it."""

    def __init__(self, answer: bytes, *, closes: bool = True) -> None:
        self._answer = answer
        self._closes = closes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.request = b""
        self.server = Server(self._listener.getsockname()[1], None, is_shared=False)
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Answering:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            sock, _ = self._listener.accept()
            with sock:
                self.request = sock.recv(4096)
                sock.sendall(self._answer)
                if not self._closes:
                    sock.recv(1)


def probe(server: Server, limit_s: float = 5.0, *, body_max: int = 0) -> Answer:
    """Probe a server; return what that showed."""
    loop, answers = Loop(time.monotonic), list[Answer]()

    def answered(answer: Answer) -> None:
        answers.append(answer)
        loop.stop()

    Probe(loop, server, "/up", answered, limit_s, body_max=body_max)
    assert not answers, "an answer before the constructor has returned"
    loop.run()
    loop.close()
    (answer,) = answers
    return answer


@pytest.mark.parametrize(
    ("sent", "health", "said"),
    [
        (OK, Ready.RIGHT, "200 OK"),
        (CONTINUE + OK, Ready.RIGHT, "200 OK"),
        (b"HTTP/1.1 404 Not Found\r\n", Ready.RIGHT, "404 Not Found"),
        (b"HTTP/1.1 503 Busy\r\n\r\n", Ready.FAILING, "503 Busy"),
        (b"", Ready.FAILING, "closed without an answer"),
        (b"HTTP/1.1 20", Ready.FAILING, "closed without an answer"),
        (CONTINUE, Ready.FAILING, "closed without an answer"),
        (CONTINUE * (HEAD_MAX // len(CONTINUE) + 1), Ready.FAILING, "no final status within"),
        (b"SSH-2.0-OpenSSH\r\n", Ready.FAILING, "expected HTTP/1.1"),
    ],
)
def test_a_status_is_read_and_no_more(sent: bytes, health: Ready, said: str) -> None:
    """It says whether a server works that was ready before."""
    with Answering(sent) as web:
        answer = probe(web.server)

        assert answer.health is health
        assert said in answer.text
        assert answer.whole == b""
        assert web.request.startswith(b"GET /up HTTP/1.1\r\n")


@pytest.mark.parametrize("sent", [b"", CONTINUE], ids=["nothing", "interim"])
def test_a_server_that_says_nothing_is_silent(sent: bytes) -> None:
    """Interim answers are none."""
    with Answering(sent, closes=False) as web:
        answer = probe(web.server, 0.1)

        assert (answer.status, answer.health) == (0, Ready.SILENT)


def test_a_whole_answer_has_an_end() -> None:
    """It is asked for in HTTP/1.0, so that the end of the connection is its end."""
    with Answering(OK + b"steps 1\n") as web:
        assert probe(web.server, body_max=100).whole == OK + b"steps 1\n"
        assert web.request.startswith(b"GET /up HTTP/1.0\r\n")
    with Answering(OK + bytes(200)) as web:
        answer = probe(web.server, body_max=100)
        assert (answer.status, answer.whole) == (0, b"")
    with Answering(OK, closes=False) as web:
        answer = probe(web.server, 0.1, body_max=100)
        assert (answer.status, answer.whole) == (0, b"")


def test_every_loopback_address_is_tried() -> None:
    """The one that answers is used from then on."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        server = Server(listener.getsockname()[1], None, is_shared=False)

        def answer() -> None:
            sock, _ = listener.accept()
            sock.sendall(OK)
            sock.close()

        thread = threading.Thread(target=answer)
        thread.start()
        assert probe(server).status == 200
        thread.join()
    assert server.host == "::1"
    assert probe(server).lack is Ready.REFUSED


def test_a_unix_socket_refuses_at_once(tmp_path: Path) -> None:
    """The answer comes from the loop all the same."""
    answer = probe(Server(0, tmp_path / "none", is_shared=False))

    assert (answer.health, answer.text) == (Ready.REFUSED, REFUSED)


def test_a_closed_probe_says_nothing() -> None:
    """Wherever it is."""
    loop = Loop(time.monotonic)
    with Answering(OK) as web:
        one = Probe(loop, web.server, "/", lambda _: pytest.fail("it was closed"), 0.05)
        one.close()
        loop.after(0.1, loop.stop)
        loop.run()
    loop.close()
