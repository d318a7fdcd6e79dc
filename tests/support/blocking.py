"""Blocking test ends of a replica's links, and a replica loop in a thread."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from runtime_image.contract.link import VERSION, Flag, Kind
from runtime_image.link.frames import Frame, FrameReader, pack
from runtime_image.link.meta import RequestMeta, pack_request
from runtime_image.replica.loop import Loop
from runtime_image.replica.worker import Worker

ROW = b'{"inputs": {"x": [[1, 2, 3, 4]]}}'


class BlockingLink:
    """Frames over a blocking socket. `next` blocks until a frame arrives."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self.sock = sock
        self._reader = FrameReader()
        self._frames: list[Frame] = []

    def send(self, kind: Kind, id: int = 0, body: bytes = b"", **fields: Any) -> None:
        """Send one frame."""
        self.sock.sendall(b"".join(pack(kind, id, body, **fields)))

    def request(self, *ids: int, body: bytes = ROW, alone: bool = False) -> None:
        """Send one request per id in a single write, with a timeout of one minute."""
        meta = pack_request(RequestMeta("application/json", "", -1, ""))
        flags = Flag.ALONE if alone else 0
        frames = [pack(Kind.REQUEST, id, body, meta=meta, flags=flags, aux=60_000) for id in ids]
        self.sock.sendall(b"".join(piece for frame in frames for piece in frame))

    def hello(self) -> dict[str, Any]:
        """Send a gateway's HELLO; return the replica's. The replica has then read all earlier
        frames."""
        self.send(Kind.HELLO, aux=VERSION)
        answer: dict[str, Any] = json.loads(self.next(Kind.HELLO).body)
        return answer

    def next(self, kind: Kind | None = None) -> Frame:
        """Return the next frame; `kind` asserts its kind. Raises EOFError at the end."""
        while not self._frames:
            count = self.sock.recv_into(self._reader.buffer())
            if not count:
                raise EOFError("the link has ended")
            self._frames = self._reader.received(count)
        frame = self._frames.pop(0)
        assert kind in (None, frame.kind), frame
        return frame

    def answer(self) -> Frame:
        """Return the next frame other than STARTED, which may overtake answers of another batch."""
        while (frame := self.next()).kind is Kind.STARTED:
            pass
        return frame

    def last(self) -> None:
        """Read to the end of the stream; always raises EOFError."""
        while True:
            self.next()

    def close(self) -> None:
        """Close the link."""
        self.sock.close()


@contextmanager
def turning(loop: Loop, worker: Worker | None = None) -> Iterator[None]:
    """Run `loop` in a thread until the block ends, then close it. Errors of the loop are raised
    here.

    The block's end waits until `worker` is idle, because the worker posts to the loop.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            loop.run()
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="replica loop")
    thread.start()
    try:
        yield
    finally:
        loop.post(loop.stop)
        thread.join()
        if worker is not None:
            idle = threading.Event()
            worker.submit(idle.set)
            assert idle.wait(30)
        loop.close()
    if errors:
        raise errors[0]


def in_loop(loop: Loop, action: Callable[[], Any]) -> Any:
    """Run `action` in the loop's thread and return its result."""
    done = threading.Event()
    results: list[Any] = []

    def act() -> None:
        results.append(action())
        done.set()

    loop.post(act)
    assert done.wait(30)
    return results[0]
