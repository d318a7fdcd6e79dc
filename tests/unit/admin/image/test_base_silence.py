"""A registry that says nothing, by an engine that only pretends to pull."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker import APIClient

from admin.image import containers
from admin.image.context import ImageError

UNKNOWN = b"HTTP/1.1 404 Not Found\r\nContent-Length: 27\r\n\r\n" + b'{"message":"No such image"}'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PULLING = b'15\r\n{"status":"Pulling"}\n\r\n'
DONE = b"0\r\n\r\n"


class Engine(socketserver.ThreadingUnixStreamServer):
    """Has no image, and answers a pull with `pulled`; then it is silent until its client leaves."""

    daemon_threads = False
    pulled = b""


class Handler(socketserver.BaseRequestHandler):
    """One connection of a client."""

    server: Engine

    def handle(self) -> None:
        """Answer until the client leaves."""
        while request := self.request.recv(65_536):
            if request.startswith(b"GET"):
                self.request.sendall(UNKNOWN)
            elif request.startswith(b"POST"):
                self.request.sendall(self.server.pulled)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[[bytes], APIClient]]:
    """Makes a client of an engine that says these bytes of a pull."""
    server = Engine(str(tmp_path / "engine.sock"), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    client = APIClient(base_url=f"unix://{tmp_path}/engine.sock", version="1.44")

    def made(pulled: bytes) -> APIClient:
        server.pulled = pulled
        return client

    yield made
    client.close()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("said", [b"", CHUNKED, CHUNKED + PULLING])
def test_a_silent_registry_ends_the_build(
    engine: Callable[[bytes], APIClient], said: bytes
) -> None:
    """Whether it never answers or falls silent in the middle, the error names the image and how
    long nothing came."""
    with pytest.raises(ImageError, match=r"x:1 is not .*: nothing was heard of it for 0\.1 s"):
        containers.pull_base(engine(said), "x:1", lambda _text: None, silence_s=0.1)


def test_a_pull_that_ends_is_no_silence(engine: Callable[[bytes], APIClient]) -> None:
    """Afterwards the client waits for the engine as it did before."""
    client = engine(CHUNKED + PULLING + DONE)

    containers.pull_base(client, "x:1", lambda _text: None, silence_s=30.0)

    assert "send" not in vars(client)
