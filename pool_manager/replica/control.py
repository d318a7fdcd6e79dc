"""The manager's end of one replica's control link."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import socket
from collections.abc import Callable
from typing import Any

import structlog

from pool_manager.core import events
from registry.tasks import Tasks
from runtime_image.contract.control import PHASES, BindRequest
from runtime_image.contract.link import Kind
from runtime_image.link.binding import pack_bind
from runtime_image.link.frames import Frame, LinkError, pack
from runtime_image.link.reception import read_hello, welcome
from runtime_image.link.stream import FrameStream

log = structlog.get_logger()

HELLO_S = 5.0
PINGS_MISSED_MAX = 3

Feed = Callable[[events.Event], None]


class Control:
    """Accepts one greeting with the right token, then turns frames into events.

    `on_lost(reason)` is called when the link ends or three PINGs went unanswered.
    """

    def __init__(
        self,
        id: str,
        token: str,
        listener: socket.socket,
        data_listener: socket.socket | None,
        feed: Feed,
        on_lost: Callable[[str], None],
    ) -> None:
        self.id = id
        self._token = token
        self._listener = listener
        self._data_listener = data_listener
        self._feed = feed
        self._on_lost = on_lost
        self._stream: FrameStream | None = None
        self._missed = 0
        self._closed = False

    def open(self, tasks: Tasks, ping_s: float) -> None:
        """Wait for the replica's greeting in the background, then ping it."""
        self._task = tasks.spawn(f"control {self.id}", self._run(ping_s))

    async def _run(self, ping_s: float) -> None:
        loop = asyncio.get_running_loop()
        while self._stream is None:
            sock = await self._accept(loop)
            try:
                await self._greet(sock)
            except (LinkError, OSError) as error:
                sock.close()
                log.warning("a greeting was refused", replica=self.id, reason=str(error))
            except asyncio.CancelledError:
                sock.close()
                raise
        while not self._closed:
            await asyncio.sleep(ping_s)
            self._ping()

    async def _accept(self, loop: asyncio.AbstractEventLoop) -> socket.socket:
        """Not `loop.sock_accept`: cancelled in the wrong turn, it loses what it has accepted."""
        came = asyncio.Event()
        loop.add_reader(self._listener, came.set)
        try:
            while True:
                await came.wait()
                came.clear()
                with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
                    return self._listener.accept()[0]
        finally:
            loop.remove_reader(self._listener)

    async def _greet(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        hello = await read_hello(sock, HELLO_S)
        if not hmac.compare_digest(hello["token"].encode("utf-8", "replace"), self._token.encode()):
            raise LinkError("wrong token")
        loaded = _loaded(self.id, dict(hello["loaded"])) if "loaded" in hello else None
        welcome(sock, None if loaded else self._data_listener)
        _, self._stream = await asyncio.get_running_loop().create_unix_connection(
            lambda: FrameStream(self._on_frame, self._lost, f"control {self.id}"), sock=sock
        )
        # The token has been used: nobody else may greet as this replica.
        self._close_listeners()
        phases = _numbers(hello["phases"])
        self._feed(events.Greeted(self.id, phases, loaded is not None))
        if loaded is not None:
            self._feed(loaded)

    @property
    def is_greeted(self) -> bool:
        """Whether the replica has greeted, so that it can be told something."""
        return self._stream is not None

    @property
    def is_answering(self) -> bool:
        """Whether the PING before the last one was answered; the last may be on its way."""
        return self._missed <= 1

    def bind(self, request: BindRequest) -> None:
        """Say which model to load, and as what."""
        self._send(pack_bind(request))

    def drain(self, if_idle_s: float | None) -> None:
        """Ask the replica to go; with `if_idle_s` it may refuse."""
        self._send(pack(Kind.DRAIN, aux=max(0, round((if_idle_s or 0.0) * 1e3))))

    def close(self) -> None:
        """End the link without a word to the owner."""
        self._closed = True
        self._task.cancel()
        # Not before the task lets go of them: their numbers may be given to other sockets at
        # once, which it would then take out of the loop.
        self._task.add_done_callback(lambda _task: self._close_listeners())
        if self._stream is not None:
            self._stream.abort("closed")

    def _close_listeners(self) -> None:
        self._listener.close()
        if self._data_listener is not None:
            self._data_listener.close()
            self._data_listener = None

    def _send(self, frame: list[bytes | bytearray | memoryview]) -> None:
        if self._stream is not None:
            self._stream.send(frame)

    def _ping(self) -> None:
        if self._missed >= PINGS_MISSED_MAX:
            self._lost(f"did not answer {self._missed} PINGs")
            return
        self._missed += 1
        self._send(pack(Kind.PING))

    def _lost(self, reason: str) -> None:
        if not self._closed:
            self._closed = True
            self._on_lost(reason)

    def _on_frame(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.PONG:
                self._missed = 0
            case Kind.LOADED:
                self._feed(_loaded(self.id, _json(frame)))
            case Kind.LOAD_FAILED:
                data = _json(frame)
                reason, stage = str(data.get("reason", "")), str(data.get("stage", ""))
                self._feed(events.Lost(self.id, reason[:4000], stage=stage[:20]))
            case Kind.NOT_IDLE:
                self._feed(events.NotIdle(self.id, frame.aux / 1e3))
            case Kind.FIRST_RUN:
                self._feed(events.FirstRun(self.id, frame.aux / 1e3))
            case _:
                raise LinkError(f"unexpected {frame.kind.name} on a control link")


def _json(frame: Frame) -> dict[str, Any]:
    try:
        data = json.loads(frame.body)
    except ValueError as error:
        raise LinkError(f"malformed {frame.kind.name}: {error}") from error
    if not isinstance(data, dict):
        raise LinkError(f"malformed {frame.kind.name}: not an object")
    return data


def _loaded(id: str, data: dict[str, Any]) -> events.Loaded:
    """Everything from a replica is checked: it may run foreign code."""
    limit, memory = data.get("limit"), data.get("memory_mib")
    if not isinstance(limit, int) or not 0 <= limit <= 65536:
        raise LinkError(f"malformed LOADED: limit {limit!r}")
    if not isinstance(memory, int | float):
        raise LinkError(f"malformed LOADED: memory_mib {memory!r}")
    report = data.get("report") or {}
    return events.Loaded(
        id,
        limit,
        bool(data.get("marks_started", True)),
        float(memory),
        _numbers(data.get("phases", {})),
        report if isinstance(report, dict) else {},
    )


def _numbers(data: Any) -> dict[str, float]:
    """Phases in milliseconds: numbers by known, short names."""
    if not isinstance(data, dict):
        return {}
    return {
        name: round(float(data[name]), 3)
        for name in PHASES
        if isinstance(data.get(name), int | float)
    }
