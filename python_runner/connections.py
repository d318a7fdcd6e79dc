"""HTTP/1.1 on asyncio: connections that read one request after the other and write its answer."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import msgspec

from python_runner.heads import HEAD_END, HEAD_MAX, BadHttp, Body, Head, read_head
from runtime_image.contract import problems

CONNECTIONS_MAX: Final = 512
PIPELINED_MAX: Final = 64 * 1024
"""Max bytes that are read ahead of an answer."""
READ_MAX: Final = 256 * 1024
"""Max bytes of one read. All connections read into the same buffer: asyncio would allocate, and
return to the kernel, as many bytes for each read."""
JOINED_MAX: Final = 4096
"""Max bytes of a chunk that is joined with its frame, to be sent in one call."""
READ_S: Final = 60.0
"""Seconds without a byte in the middle of a request."""
LINGER_S: Final = 2.0
"""Seconds in which a refused client's bytes are dropped."""
OK: Final = 200
_EAGER: Final = sys.version_info >= (3, 12)
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"


class Request(msgspec.Struct, frozen=True, gc=False):
    """One request with its whole body."""

    head: Head
    body: bytes


Application = Callable[[Request, "Connection"], Coroutine[Any, Any, None] | None]
"""Answers a request on its connection: by the coroutine that it returns, which is cancelled when
the client leaves, or by itself; then it calls `finish`, or sets `leaving` and calls it later."""
Refusal = Callable[[BadHttp], tuple[int, Mapping[str, str], bytes]]
"""Returns status, fields and body of the answer to what is no request."""


class Server:
    """All connections of a process. `drained` is set when none is left after `drain`, and nothing
    that cleans up behind one."""

    def __init__(self, answer: Application, refuse: Refusal, body_max: int) -> None:
        self.answer = answer
        self.refuse = refuse
        self.body_max = body_max
        self.connections: set[Connection] = set()
        self.buffer = memoryview(bytearray(READ_MAX))
        self.is_draining = False
        self.drained = asyncio.Event()
        self._listener: asyncio.Server | None = None

    async def listen(self, address: str) -> None:
        """Listen on a path, or on "127.0.0.1:PORT". Raises OSError."""
        loop = asyncio.get_running_loop()
        if "/" in address:
            self._listener = await loop.create_unix_server(
                lambda: Connection(self), address, backlog=CONNECTIONS_MAX
            )
        else:
            host, _, port = address.rpartition(":")
            self._listener = await loop.create_server(
                lambda: Connection(self), host, int(port), backlog=CONNECTIONS_MAX
            )

    def admits(self) -> bool:
        """Whether there is room for one more connection; if not, an idle one makes it."""
        if len(self.connections) < CONNECTIONS_MAX:
            return True
        idle = next((one for one in self.connections if one.is_idle), None)
        if idle is None:
            return False
        idle.close()
        return True

    def drain(self) -> None:
        """Accept nothing more, and end each connection behind its present answer."""
        self.is_draining = True
        if self._listener is not None:
            self._listener.close()
        for one in [*self.connections]:
            if one.is_idle:
                one.close()
        self.forget(None)

    def forget(self, connection: Connection | None) -> None:
        """Take a connection out that has ended."""
        self.connections.discard(connection)
        if self.is_draining and not self.connections:
            self.drained.set()


class Connection(asyncio.BufferedProtocol):
    """One connection. An answer is `send`, or `begin`, `write`, and `end` or `cut`; then `finish`,
    which the end of the coroutine implies."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # connection_made
        self._buffer = bytearray()
        self._head: Head | None = None
        self._body: Body | None = None
        self._is_busy = False
        self._has_turn = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_s = 0.0
        self._keeps = True
        self._is_chunked = False
        self._has_body = True
        self._is_refused = False
        self._room: asyncio.Future[None] | None = None
        self._is_full = False
        self.is_gone = False
        self._is_lost = False
        self.leaving: Callable[[], bool] | None = None
        """Called if the client leaves before `finish`; returns whether nothing goes on, and so
        `finish` is not called."""
        self.told: Callable[[], object] | None = None
        """Called once, when the answer is finished or the client has left."""
        self.status = 0
        """Status of the last answer that has begun."""

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return not self._is_busy and not self._buffer and self._head is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection in, or refuse it (asyncio)."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # Nothing waits in this process: a value is written when the one before it has left.
        transport.set_write_buffer_limits(high=0)
        if not self._server.admits():
            text = f"expected at most {CONNECTIONS_MAX} connections, got one more"
            self._refuse(BadHttp(problems.TOO_MANY_CONNECTIONS, text))
            self.close()
            return
        self._server.connections.add(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """End what is under way (asyncio). The connection is over when that has cleaned up."""
        self._left()
        if self._task is not None:
            self._task.add_done_callback(lambda _: self._server.forget(self))
        elif self._is_busy:
            self._is_lost = True  # a job runs, and calls `finish`
        else:
            self._server.forget(self)

    def eof_received(self) -> bool:
        """A client that has closed its half has left: what a gateway's connection says, too."""
        self._left()
        return False

    def _left(self) -> None:
        if self.is_gone:
            return  # a second cancellation would end the cleaning up after the first one
        self.is_gone = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        if self.leaving is not None and self.leaving():
            self._is_busy = False
        self._tell()
        self.resume_writing()

    def pause_writing(self) -> None:
        """The kernel takes no more for now (asyncio)."""
        self._is_full = True

    def resume_writing(self) -> None:
        """All written bytes have left (asyncio)."""
        self._is_full = False
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None
        if not self._is_busy:
            self._go_on()

    def get_buffer(self, _size: int) -> memoryview:
        """Return where the next bytes are read to (asyncio)."""
        return self._server.buffer

    def buffer_updated(self, size: int) -> None:
        """Read on (asyncio)."""
        if self._is_refused:
            return
        self._buffer += self._server.buffer[:size]
        self._advance()
        if len(self._buffer) > PIPELINED_MAX:
            self._pace()

    def _advance(self) -> None:
        """Begin to answer the next request if it is here as a whole, and its turn."""
        if self._is_busy or self._is_full or self.is_gone or self._is_refused:
            return
        try:
            request = self._read()
        except BadHttp as error:
            self._refuse(error)
            return
        if request is not None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self.serve(request)
        elif not self.is_idle:
            self._heard_s = self._loop.time()
            if self._timer is None:
                self._timer = self._loop.call_later(READ_S, self._wait_on)

    def serve(self, request: Request) -> None:
        """Begin to answer a request, or begin anew with one whose answer has not begun."""
        head = request.head
        self._is_busy = True
        self._keeps = head.keeps
        self._is_chunked = not head.is_old
        self._has_body = head.method != "HEAD"
        self.leaving = None
        serving = self._server.answer(request, self)
        if serving is not None:
            self.answer_by(serving)

    def answer_by(
        self, serving: Coroutine[Any, Any, None], over: Callable[[], object] | None = None
    ) -> None:
        """Answer the present request by a coroutine, and finish. `over` is called at its end."""
        task = self._begin(self._finish_behind(serving))
        self._task = None if task.done() else task
        if over is not None:
            task.add_done_callback(lambda _: over())

    def _begin(self, serving: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin to answer, at once if Python can (3.12)."""
        if _EAGER:
            return asyncio.Task(serving, loop=self._loop, eager_start=True)  # type: ignore[call-arg]
        return self._loop.create_task(serving)

    def _read(self) -> Request | None:
        """Return the next request, None if it is not here yet. Raises BadHttp."""
        if self._head is None:
            end = self._buffer.find(HEAD_END, 0, HEAD_MAX)
            if end < 0:
                if len(self._buffer) >= HEAD_MAX:
                    text = f"expected a head of at most {HEAD_MAX} bytes, got more"
                    raise BadHttp(problems.HEAD_TOO_LARGE, text)
                return None
            head = read_head(bytes(self._buffer[:end]))
            del self._buffer[: end + len(HEAD_END)]
            if head.length == len(self._buffer) and head.length <= self._server.body_max:
                body = bytes(self._buffer)
                self._buffer.clear()
                return Request(head, body)
            self._body = Body(head.length, self._server.body_max)
            self._head = head
            if head.continues and head.length != 0 and not self._buffer:
                self._transport.write(_CONTINUE)
        assert self._body is not None
        if not self._body.take(self._buffer):
            return None
        request = Request(self._head, bytes(self._body.data))
        self._head = self._body = None
        return request

    def _wait_on(self) -> None:
        """End a request that stopped in its middle."""
        left_s = self._heard_s + READ_S - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._wait_on)
        else:
            text = f"expected the rest of the request within {READ_S:g} s"
            self._refuse(BadHttp(problems.BODY_TIMEOUT, text))

    def _refuse(self, error: BadHttp) -> None:
        """Answer what is no request, and read nothing more as one.

        What still comes is dropped for a while: closed at once, the kernel would tell the client of
        a reset, and it might never read the answer.
        """
        self._keeps = False
        self._has_body = self._is_refused = True
        self.send(*self._server.refuse(error))
        self._buffer.clear()
        self._head = None
        self._transport.write_eof()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(LINGER_S, self.close)

    def close(self) -> None:
        """Close when what was written has left."""
        self._transport.close()

    async def _finish_behind(self, serving: Coroutine[Any, Any, None]) -> None:
        try:
            await serving
        except BaseException:
            self.close()
            raise
        finally:
            self.finish()

    def finish(self) -> None:
        """End the answer. It is the next request's turn."""
        self._is_busy = False
        self._task = self.leaving = None
        if self._is_lost:
            self._server.forget(self)
        if self.told is not None:
            self._tell()
        if not self._keeps or self._server.is_draining:
            self.close()
        elif self._buffer:
            self._go_on()

    def _tell(self) -> None:
        told, self.told = self.told, None
        if told is not None:
            told()

    def _go_on(self) -> None:
        """Answer the next request in a turn of its own: a client may send thousands at once."""
        if self._buffer and not self._has_turn:
            self._has_turn = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._has_turn = False
        self._advance()
        self._pace()

    def _pace(self) -> None:
        """Read ahead of an answer no further than `PIPELINED_MAX`."""
        waits = self._is_busy or self._is_full or self._has_turn
        if waits and len(self._buffer) > PIPELINED_MAX:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def answer(self, status: int, fields: Mapping[str, str], body: bytes) -> None:
        """Write a whole answer, and finish."""
        if not self.is_gone:
            self.send(status, fields, body)
        self.finish()

    def send(self, status: int, fields: Mapping[str, str], body: bytes) -> None:
        """Write a whole answer."""
        head = self._answer_head(status, fields, f"content-length: {len(body)}\r\n")
        self._transport.write(head + body if self._has_body else head)

    def begin(self, fields: Mapping[str, str], first: bytes) -> None:
        """Write head and first part of an answer that grows. An old client's ends with the
        connection."""
        self._keeps = self._keeps and self._is_chunked
        framing = "transfer-encoding: chunked\r\n" if self._is_chunked else ""
        head = self._answer_head(OK, fields, framing)
        if not self._is_chunked or len(first) > JOINED_MAX:
            self._transport.write(head)
            self.write(first)
        else:
            self._transport.write(b"%b%x\r\n%b\r\n" % (head, len(first), first) if first else head)

    def write(self, data: bytes) -> None:
        """Write a part of an answer. The caller awaits `room` before it makes the next part."""
        if not data:
            return
        if not self._is_chunked:
            self._transport.write(data)
        elif len(data) <= JOINED_MAX:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            self._transport.write(b"%x\r\n" % len(data))
            self._transport.write(data)
            self._transport.write(b"\r\n")

    async def room(self) -> None:
        """Return when the kernel has taken all that was written, or the client has left."""
        if self._is_full and not self.is_gone:
            self._room = self._loop.create_future()
            await self._room

    def end(self) -> None:
        """End an answer that grew."""
        if self._is_chunked:
            self._transport.write(_LAST_CHUNK)

    def cut(self) -> None:
        """Close the connection in the middle of an answer, so that nobody takes it for whole."""
        self._keeps = False
        self.close()

    def _answer_head(self, status: int, fields: Mapping[str, str], framing: str) -> bytes:
        self.status = status
        self._keeps = self._keeps and not self._server.is_draining
        reason = "OK" if status == OK else ""
        lines = "".join([f"{name}: {value}\r\n" for name, value in fields.items()])
        closing = "" if self._keeps else "connection: close\r\n"
        return f"HTTP/1.1 {status} {reason}\r\n{lines}{framing}{closing}\r\n".encode("latin-1")
