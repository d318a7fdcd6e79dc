"""Calls to the engine's API."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

import pytest

from pool_manager.drivers.docker import engine as engine_module
from pool_manager.drivers.docker.containers import Start, begin
from pool_manager.drivers.docker.engine import Engine, Times
from registry.errors import DriverError, EngineDown

pytestmark = [
    pytest.mark.usefixtures("forgotten_sockets"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

INFO = {"asked": "info", "Id": "c1"}
SHORT = Times(call_s=0.1, start_s=0.1, close_s=0.1)
LONG = Times(call_s=60, start_s=60, close_s=0.1)


class Answering(ThreadingMixIn, UnixStreamServer):
    """As an engine that knows one version of its API, `version`; others are refused.

    A request for /info is answered when `gate` is open. Closing the server waits for its threads:
    one that found its client gone would still be writing its traceback when the test is over.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, Handler)
        self.version = "1.41"
        self.gate = threading.Event()
        self.gate.set()
        self.asked: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Answering

    def address_string(self) -> str:
        return ""

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        _, spoken, *rest = self.path.split("/")
        if spoken == "version":
            self._answer(200, {"ApiVersion": self.server.version})
        elif spoken != f"v{self.server.version}":
            own = self.server.version
            said = f"client version is too new. Maximum supported API version is {own}"
            self._answer(
                400, {"message": said.replace("version is", f"version {spoken[1:]} is", 1)}
            )
        else:
            self.server.gate.wait(10)
            self._answer(200, {"asked": rest[0], "Id": "c1"})

    do_POST = do_GET

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def answering(path: Path) -> Iterator[Answering]:
    with Answering(str(path / "d.sock")) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.gate.set()
            server.shutdown()
            thread.join()


@contextmanager
def opened(path: Path, times: Times = LONG, starts_at_once: int = 1) -> Iterator[Engine]:
    engine = Engine(f"unix://{path}/d.sock", starts_at_once, times)
    try:
        yield engine
    finally:
        engine.close()


async def test_calls_and_starts_are_answered(tmp_path: Path) -> None:
    """Calls and starts use the newest version that the engine knows."""
    with answering(tmp_path) as server, opened(tmp_path) as engine:
        assert await engine.call("ask", lambda client: client.info()) == INFO
        assert await engine.start("ask", lambda client: client.info()) == INFO

    assert server.asked == ["/version", "/version", "/v1.41/info", "/v1.41/info"]


async def test_an_engine_of_another_version(tmp_path: Path) -> None:
    """A client of another API version reconnects after the engine was updated or downgraded."""
    with answering(tmp_path) as server, opened(tmp_path) as engine:
        server.version = "1.40"

        again = await engine.call("ask", lambda client: client.info())
        # The error is translated already where it is made.
        started = await engine.start("start a container", lambda client: begin(client, A_START))

    assert again == INFO
    assert started.container == "c1"
    assert server.asked[-1] == "/v1.40/containers/c1/start"


async def test_threads_that_meet_a_change_of_version_share_one_new_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that notice the change share one new client; the old one is closed once by its last
    user."""
    made: list[Any] = []
    closed: list[Any] = []
    connect = engine_module.connect

    def counted(*args: Any) -> Any:
        client = connect(*args)
        made.append(client)
        close = client.close

        def note_close() -> None:
            closed.append(client)
            close()

        monkeypatch.setattr(client, "close", note_close)
        return client

    monkeypatch.setattr(engine_module, "connect", counted)
    threads = 4
    meeting = threading.Barrier(threads)

    def work(client: Any) -> Any:
        """All have the old client at once, and none is done with it when the first asks again."""
        if client is old:
            meeting.wait(10)
            try:
                return client.info()
            finally:
                in_use.append(client not in closed)
        return client.info()

    in_use: list[bool] = []
    with answering(tmp_path) as server, opened(tmp_path, Times(), threads) as engine:
        _, old = made
        server.version = "1.40"
        asked = [asyncio.ensure_future(engine.start("ask", work)) for _ in range(threads)]
        assert [await one for one in asked] == [INFO] * threads
        assert in_use == [True] * threads
        assert len(made) == 3
        assert closed == [old]

    assert sorted(map(id, closed)) == sorted(map(id, made))


A_START = Start("a", {"HostConfig": {}}, None, "", ())


async def test_nothing_quick_waits_for_starts(tmp_path: Path) -> None:
    """Starts do not occupy the threads of quick calls."""
    with answering(tmp_path) as server, opened(tmp_path, Times()) as engine:
        server.gate.clear()
        waiting = [asyncio.ensure_future(engine.start("ask", lambda c: c.info())) for _ in "12"]
        assert await engine.call("ask", lambda client: client._version) == "1.41"
        assert not any(one.done() for one in waiting)
        server.gate.set()
        assert [await one for one in waiting] == [INFO] * 2


async def test_what_was_cancelled_before_it_began_is_never_done(tmp_path: Path) -> None:
    """A call cancelled before it began is never made."""
    done: list[str] = []
    with answering(tmp_path) as server, opened(tmp_path, Times()) as engine:
        server.gate.clear()
        first = asyncio.ensure_future(engine.start("ask", lambda client: client.info()))
        second = asyncio.ensure_future(engine.start("ask", lambda _client: done.append("second")))
        await asyncio.sleep(0)
        second.cancel()
        server.gate.set()
        await first
        await engine.start("ask", lambda _client: done.append("third"))

    assert done == ["third"]


async def test_an_engine_that_hangs(tmp_path: Path) -> None:
    """A call to an engine that hangs ends in time, and `close` does not wait for it."""
    with answering(tmp_path) as server, opened(tmp_path, Times(call_s=1, close_s=0.1)) as engine:
        server.gate.clear()
        with pytest.raises(EngineDown, match="cannot ask: the engine gave no answer in time"):
            await engine.call("ask", lambda client: client.info())
        stuck = asyncio.ensure_future(engine.start("ask", lambda client: client.info()))
        await asyncio.sleep(0)
        engine.close()
        assert not stuck.done()
        server.gate.set()
        stuck.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stuck


async def test_a_closed_engine(tmp_path: Path) -> None:
    """A closed engine accepts no calls."""
    with answering(tmp_path), opened(tmp_path) as engine:
        engine.close()

        with pytest.raises(DriverError, match="cannot ask: the driver is closed"):
            await engine.call("ask", lambda client: client.info())


async def test_a_defect_is_the_callers(tmp_path: Path) -> None:
    """An exception in our own code is raised unchanged, and the thread continues."""
    with answering(tmp_path), opened(tmp_path) as engine:
        for _ in range(20):
            with pytest.raises(ZeroDivisionError):
                await engine.call("ask", lambda _client: 1 / 0)


def test_no_engine(tmp_path: Path) -> None:
    """The error names the socket and the command that starts an engine."""
    with pytest.raises(EngineDown) as failed:
        Engine(f"unix://{tmp_path}/d.sock", 1, SHORT)

    assert failed.value.message.startswith(f"cannot reach the engine at unix://{tmp_path}/d.sock: ")
    assert "sudo systemctl start docker" in failed.value.message


def test_an_engine_that_hangs_from_the_start(tmp_path: Path) -> None:
    """Connecting to an engine that accepts the connection but does not answer fails in time."""
    with socket.socket(socket.AF_UNIX) as hangs:
        hangs.bind(f"{tmp_path}/d.sock")
        hangs.listen()
        with pytest.raises(EngineDown, match="cannot reach the engine"):
            Engine(f"unix://{tmp_path}/d.sock", 1, SHORT)
