"""Tests of the greeting: nothing is sent to a socket that has not proven to be the replica's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import gateway.hosts.greeting as greetings
from gateway.delivery import Delivery
from gateway.hosts.greeting import Greeting
from runtime_image.contract.link import Kind
from runtime_image.link.frames import LinkError, pack
from tests.support.peers import Client
from tests.support.remote_peers import GREETING, RemotePeer, UnixHosts, published_afar

WHOLE = b"".join(pack(Kind.WELCOME, body=GREETING.encode()))
OTHER = b"".join(pack(Kind.WELCOME, body=b"0" * len(GREETING)))


class Impostor:
    """A socket that is not the replica's. `received`: what was sent to it, by connection."""

    def __init__(self, said: Callable[[], bytes]) -> None:
        self.said = said
        self.received: list[bytes] = []
        self.sent = 0
        self.ended: asyncio.Queue[None] = asyncio.Queue(100)
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def at(self, path: Path) -> Any:
        """Listen at `path` while the block runs."""
        server = await asyncio.start_unix_server(self._serve, path)
        try:
            yield self
        finally:
            server.close()
            await server.wait_closed()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        speaking = asyncio.ensure_future(self._speak(writer))
        try:
            self.received.append(await reader.read())
        except ConnectionError:
            self.received.append(b"")
        finally:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)
            writer.close()
            self.ended.put_nowait(None)

    async def _speak(self, writer: asyncio.StreamWriter) -> None:
        while data := self.said():
            writer.write(data)
            await writer.drain()
            self.sent += len(data)


def once(data: bytes) -> Callable[[], bytes]:
    """Return what says `data`, and then nothing more."""
    rest = [data]
    return lambda: rest.pop() if rest else b""


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(OTHER, id="the greeting of another replica"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 100, id="an HTTP server"),
        pytest.param(b"".join(pack(Kind.HELLO, body=GREETING.encode())), id="another kind"),
        pytest.param(b"".join(pack(Kind.WELCOME, body=b"7")), id="a shorter one"),
        pytest.param(
            b"".join(pack(Kind.WELCOME, body=GREETING.encode(), meta=b"x")), id="one with meta"
        ),
        pytest.param(b"\xff\xff\xff\x0f" + WHOLE[4:16], id="the head of a large one"),
    ],
)
async def test_nothing_is_sent_to_an_impostor(
    delivery: Delivery, hosts: UnixHosts, tmp_path: Path, said: bytes
) -> None:
    """The replica's path leads to another socket: the channel is closed, not a byte is sent."""
    peer = RemotePeer(tmp_path / "r1")
    async with Impostor(once(said)).at(peer.path) as impostor:
        with capture_logs() as logs:
            delivery.receive_endpoints(published_afar(peer.endpoint()))
            await asyncio.wait_for(impostor.ended.get(), 60)
        delivery.receive_endpoints(published_afar())

    assert impostor.received[0] == b""
    assert any("greet" in each.get("reason", "") for each in logs)


async def test_a_flood_is_not_read(delivery: Delivery, tmp_path: Path) -> None:
    """A socket that sends without end costs the length of a greeting, and the kernel's buffers."""
    peer = RemotePeer(tmp_path / "r1")
    async with Impostor(lambda: b"\0" * 65536).at(peer.path) as impostor:
        delivery.receive_endpoints(published_afar(peer.endpoint()))
        await asyncio.wait_for(impostor.ended.get(), 60)
        delivery.receive_endpoints(published_afar())

    assert impostor.sent < 2**20


async def test_a_silent_socket_is_left(
    delivery: Delivery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a greeting, and then nothing: the channel is closed after a limit."""
    monkeypatch.setattr(greetings, "GREETING_S", 0.1)
    peer = RemotePeer(tmp_path / "r1")
    async with Impostor(once(WHOLE[:40])).at(peer.path) as impostor:
        delivery.receive_endpoints(published_afar(peer.endpoint()))
        await asyncio.wait_for(impostor.ended.get(), 60)
        delivery.receive_endpoints(published_afar())

    assert impostor.received[0] == b""


async def test_the_true_replica_is_found_when_it_is_back(
    delivery: Delivery, client: Client, tmp_path: Path
) -> None:
    """Attempts go on while the replica is listed."""
    peer = RemotePeer(tmp_path / "r1")
    async with Impostor(once(OTHER)).at(peer.path) as impostor:
        delivery.receive_endpoints(published_afar(peer.endpoint()))
        await asyncio.wait_for(impostor.ended.get(), 60)
    peer.path.unlink(missing_ok=True)

    async with peer.listening():
        calls, _ = await peer.pair()
        delivery.submit(client.call())
        calls.answer((await calls.next(Kind.REQUEST)).id)
        await client.outcomes.get()
        delivery.receive_endpoints(published_afar())


async def test_an_endpoint_without_a_greeting_is_never_dialled(
    delivery: Delivery, hosts: UnixHosts, peer: RemotePeer
) -> None:
    """There is nothing to compare with."""
    with capture_logs() as logs:
        delivery.receive_endpoints(published_afar(peer.endpoint(greeting="")))
        await asyncio.wait_for(logged(logs, "greeting"), 60)
    delivery.receive_endpoints(published_afar())

    assert hosts.calls.dials == 0
    assert {each["log_level"] for each in logs} == {"info"}


async def logged(logs: Sequence[object], text: str) -> None:
    """Wait for a log line with `text`."""
    while not any(text in str(each) for each in logs):  # noqa: ASYNC110 - logs have no event
        await asyncio.sleep(0)


@pytest.mark.parametrize("size", [1, 7, 79, 80])
def test_a_greeting_may_arrive_in_any_pieces(size: int) -> None:
    """Nothing after it is read."""
    greeting = Greeting(GREETING)
    data = WHOLE + b"more"
    pieces = [data[at : at + size] for at in range(0, len(data), size)]

    rest = b"".join(map(greeting.feed, pieces))

    assert greeting.is_complete
    assert rest == b"more"


def test_the_buffer_has_room_for_the_greeting_only() -> None:
    """A frame of a gigabyte that is announced takes no memory."""
    assert len(Greeting(GREETING).buffer()) == len(WHOLE)


def test_a_wrong_last_byte_is_refused() -> None:
    """The whole text is compared."""
    with pytest.raises(LinkError, match="not that of the replica"):
        Greeting(GREETING).feed(WHOLE[:-1] + b"\0")
