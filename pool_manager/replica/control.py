"""The manager's end of one replica's control link."""

from __future__ import annotations

import asyncio
import errno
import hmac
import socket
from collections.abc import Callable

import structlog

from pool_manager.core import events
from pool_manager.replica import statements
from registry.tasks import Tasks
from runtime_image.contract.control import BindRequest
from runtime_image.contract.link import CONTROL_MAX, Kind
from runtime_image.link.binding import pack_bind
from runtime_image.link.frames import Frame, LinkError, pack
from runtime_image.link.reception import read_hello, welcome
from runtime_image.link.stream import FrameStream

log = structlog.get_logger()

HELLO_S = 5.0
PINGS_MISSED_MAX = 3
DESCRIPTORS_AGAIN_S = 1.0
"""Between two tries to accept a greeting when no descriptor is free."""

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
        self._pings = 0
        self._drains = 0
        self.on_pong: Callable[[int], None] = lambda _busy_ms: None
        """Told with each PONG for how many milliseconds the model has run, modulo 2**32."""
        self._has_loaded = False
        self._has_run = False
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
                try:
                    return self._listener.accept()[0]
                except (BlockingIOError, ConnectionAbortedError):
                    continue
                except OSError as error:
                    if error.errno not in (errno.EMFILE, errno.ENFILE):
                        raise
                    # The replica stays in the queue of the listener until a descriptor is free.
                    log.warning("no descriptor for a replica", replica=self.id, reason=str(error))
                    await asyncio.sleep(DESCRIPTORS_AGAIN_S)
                    came.set()
        finally:
            loop.remove_reader(self._listener)

    async def _greet(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        hello = await read_hello(sock, HELLO_S)
        if not hmac.compare_digest(hello["token"].encode("utf-8", "replace"), self._token.encode()):
            raise LinkError("wrong token")
        loaded = statements.loaded(self.id, dict(hello["loaded"])) if "loaded" in hello else None
        welcome(sock, None if loaded else self._data_listener)
        _, self._stream = await asyncio.get_running_loop().create_unix_connection(
            lambda: FrameStream(self._on_frame, self._lost, f"control {self.id}", CONTROL_MAX),
            sock=sock,
        )
        # The token has been used: nobody else may greet as this replica.
        self._close_listeners()
        phases = statements.numbers(hello["phases"])
        self._feed(events.Greeted(self.id, phases, loaded is not None))
        if loaded is not None:
            self._tell_loaded(loaded)

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
        # First it says for how long its model has run: it may be gone before the next PING.
        self._ask()
        self._drains += 1
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
        self._ask()

    def _ask(self) -> None:
        if self._stream is not None:
            self._pings += 1
            self._stream.send(pack(Kind.PING))

    def _lost(self, reason: str) -> None:
        if not self._closed:
            self._closed = True
            self._on_lost(reason)

    def _on_frame(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.PONG:
                self._expect(self._pings > 0, frame)
                self._pings -= 1
                self._missed = 0
                self.on_pong(frame.aux)
            case Kind.LOADED:
                self._tell_loaded(statements.loaded(self.id, statements.read(frame)))
            case Kind.LOAD_FAILED:
                self._expect(not self._has_loaded, frame)
                self._has_loaded = True
                self._feed(statements.load_failed(self.id, statements.read(frame)))
            case Kind.NOT_IDLE:
                self._expect(self._drains > 0, frame)
                self._drains -= 1
                self._feed(events.NotIdle(self.id, frame.aux / 1e3))
            case Kind.FIRST_RUN:
                self._expect(not self._has_run, frame)
                self._has_run = True
                self._feed(events.FirstRun(self.id, frame.aux / 1e3))
            case _:
                raise LinkError(f"unexpected {frame.kind.name} on a control link")

    def _tell_loaded(self, loaded: events.Loaded) -> None:
        if self._has_loaded:
            raise LinkError("LOADED that nobody asked for")
        self._has_loaded = True
        self._feed(loaded)

    @staticmethod
    def _expect(is_due: bool, frame: Frame) -> None:
        """Whatever is said costs work, some of it disk: only what is due is heard."""
        if not is_due:
            raise LinkError(f"{frame.kind.name} that nobody asked for")
