"""The asyncio end of a link."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from structlog.testing import capture_logs

from runtime_image.contract.link import HEADER, Kind
from runtime_image.link import stream as streams
from runtime_image.link.frames import Frame, LinkError, pack
from runtime_image.link.stream import FrameStream, Greeting, adopt, connect


class End:
    """A stream over one end of a socket pair; the other end is a plain socket."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.receive: Callable[[Frame], None] = self.frames.put_nowait

    async def open(self) -> None:
        ours, self.other = socket.socketpair()
        self.other.setblocking(False)
        _, self.stream = await asyncio.get_running_loop().create_unix_connection(
            lambda: FrameStream(lambda frame: self.receive(frame), self.lost.set_result, "test"),
            sock=ours,
        )

    async def write(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.other, data)

    async def read(self, count: int) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.other, count)

    async def close(self) -> None:
        self.stream.abort("the test is over")
        await asyncio.wait([self.lost])
        self.other.close()


@pytest.fixture
async def end() -> AsyncIterator[End]:
    made = End()
    await made.open()
    yield made
    await made.close()


async def test_a_turns_frames_leave_in_one_write(end: End) -> None:
    """All frames sent in one turn of the loop arrive in one read."""
    for id in range(10):
        end.stream.send(pack(Kind.CANCEL, id))

    data = await end.read(65536)

    assert len(data) == 10 * HEADER.size


async def test_frames_are_delivered(end: End) -> None:
    """Each frame is passed to the receiver, in order."""
    await end.write(b"".join([*pack(Kind.PING), *pack(Kind.RESPONSE, 3, b"x" * 100_000)]))

    got = [await end.frames.get(), await end.frames.get()]

    assert [(frame.kind, len(frame.body)) for frame in got] == [
        (Kind.PING, 0),
        (Kind.RESPONSE, 100_000),
    ]


async def test_one_receivers_error_is_not_the_links_end(end: End) -> None:
    """An exception in a callback is logged, and later frames are still delivered."""

    def fail_once(frame: Frame) -> None:
        end.receive = end.frames.put_nowait
        raise RuntimeError("one client's error")

    end.receive = fail_once

    with capture_logs() as logs:
        await end.write(b"".join([*pack(Kind.RESPONSE, 1), *pack(Kind.RESPONSE, 2)]))
        frame = await end.frames.get()

    assert frame.id == 2
    assert [line["event"] for line in logs] == ["a frame's receiver failed"]


async def test_a_broken_protocol_ends_the_link(end: End) -> None:
    """Bytes that are not a frame close the link with a reason."""
    with capture_logs():
        await end.write(HEADER.pack(0, 0, 99, 0, 0, 0))
        reason = await end.lost

    assert reason == "unknown frame kind 99"
    assert not end.stream.is_open


async def test_a_receiver_may_end_the_link(end: End) -> None:
    """A LinkError raised by the receiver closes the link as the peer's fault."""

    def refuse(frame: Frame) -> None:
        raise LinkError("not expected here")

    end.receive = refuse

    with capture_logs():
        await end.write(b"".join(pack(Kind.PING)))

        assert await end.lost == "not expected here"


async def test_the_end_of_the_peer_is_reported_once(end: End) -> None:
    """The owner is notified of the loss once, and later sends are dropped silently."""
    end.other.close()
    reason = await end.lost
    end.stream.send(pack(Kind.PING))
    end.stream.flush()

    assert reason == "closed by the other side"
    assert not end.stream.is_open


async def test_a_peer_that_does_not_read_is_dropped(
    end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link whose peer leaves too much unread is closed, so that memory stays bounded."""
    monkeypatch.setattr(streams, "WRITE_BUFFER_MAX", 1000)
    end.stream.send(pack(Kind.REQUEST, 1, bytes(2_000_000)))
    end.stream.flush()

    end.stream.send(pack(Kind.PING))

    assert await end.lost == "the other side reads too slowly"


async def test_a_path_without_a_listener_is_an_error(tmp_path: Path) -> None:
    """Connecting to a path without a listener raises OSError."""
    with pytest.raises(OSError, match="No such file"):
        await connect(FrameStream(lambda _: None, lambda _: None, "test"), str(tmp_path / "none"))


async def test_a_stream_is_opened_by_path(tmp_path: Path) -> None:
    """Frames reach the listener at the path."""
    came: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set_result(await reader.readexactly(HEADER.size))
        writer.close()
        await writer.wait_closed()

    path = str(tmp_path / "s")
    async with await asyncio.start_unix_server(serve, path):
        stream = FrameStream(lambda _: None, lost.set_result, "test")
        await connect(stream, path)
        stream.send(pack(Kind.PING, aux=7))

        assert await came == b"".join(pack(Kind.PING, aux=7))
        await lost


async def test_a_greeting_goes_before_everything_else(tmp_path: Path) -> None:
    """The greeting's descriptors arrive before all frames; an asyncio transport could not pass
    them."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        stream = FrameStream(lambda _: None, lost.set_result, "test")
        await connect(stream, str(path), Greeting(pack(Kind.HELLO), [listener.fileno()]))
        stream.send(pack(Kind.CANCEL, 5))
        stream.flush()
        accepted, _ = listener.accept()
        data, [descriptor], _, _ = socket.recv_fds(accepted, HEADER.size, 1)
        rest = accepted.recv(100)
        same = os.path.samestat(os.fstat(descriptor), os.fstat(listener.fileno()))
        os.close(descriptor)
        stream.abort("over")
        await lost
        accepted.close()

    assert (data, same) == (b"".join(pack(Kind.HELLO)), True)
    assert rest == b"".join(pack(Kind.CANCEL, 5))


async def test_an_unreachable_listener_is_an_error_at_once(tmp_path: Path) -> None:
    """A missing socket or a full backlog raises at once; nothing blocks and nothing stays open."""
    stream = FrameStream(lambda _: None, lambda _: None, "test")
    with pytest.raises(OSError, match="No such file"):
        await connect(stream, str(tmp_path / "s"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(0)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(str(tmp_path / "s"))
            with pytest.raises(BlockingIOError):
                await connect(stream, str(tmp_path / "s"))


class GivenUp(asyncio.Protocol):
    """A protocol that is not wanted any more when it gets its transport."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_socket_that_is_given_up_is_closed_once(
    run: Callable[[Coroutine[Any, Any, None]], None], *, is_cancelled: bool
) -> None:
    """A number that is free again may be that of another file in the next turn of the loop."""

    async def play() -> None:
        sock, other = socket.socketpair()
        sock.setblocking(False)
        adopting = asyncio.ensure_future(adopt(sock, GivenUp()))
        del sock
        await asyncio.sleep(0)
        if is_cancelled:
            adopting.cancel()
        await asyncio.wait({adopting})
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
        del adopting
        gc.collect()
        for file in files:
            os.close(file)
        await asyncio.get_running_loop().run_in_executor(None, other.recv, 1)
        other.close()

    run(play())
