"""The calls ModelInfer and ModelStreamInfer.

Both read their messages by themselves, once `CallAdmission` has admitted their callers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

import grpc

from gateway.grpc.answer import in_stream, stream_error
from gateway.grpc.call_admission import AdmittedCall, CallAdmission, CallClass
from gateway.grpc.calls import Calls, InferCall
from gateway.grpc.codes import Failure, abort, failure
from gateway.grpc.metadata import CallHead, read_metadata
from gateway.revocation import cut_revoked
from gateway.waits import shutting_down
from registry.errors import FnError
from registry.tasks import Tasks

IN_FLIGHT_MAX: Final = 64
"""Max requests of one stream whose answers are not sent yet; at the limit nothing more is read."""
UNSENT_MAX: Final = 8 * 2**20
"""Bytes of one stream's unsent answers at which nothing more is read."""

Context = Any
"""`grpc.aio.ServicerContext` of messages that are bytes."""


class Inferences:
    """Handlers of both calls."""

    def __init__(self, calls: Calls, admission: CallAdmission, tasks: Tasks) -> None:
        self._calls = calls
        self._admission = admission
        self._tasks = tasks
        self._streams: set[Stream] = set()
        cut_revoked(calls.invoker.access.ring, lambda: self._streams)
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """Let streams end: what they have read is answered, and nothing more is read."""
        for stream in self._streams:
            stream.stop()

    async def infer(self, _messages: object, context: Context) -> bytes:
        """Answer one ModelInferRequest."""
        caller = read_metadata(context.invocation_metadata())
        answered: asyncio.Future[None] = self._loop.create_future()

        def done(_call: InferCall) -> None:
            # If the client left in this turn of the loop, the future is cancelled first.
            if not answered.done():
                answered.set_result(None)

        call = InferCall(self._calls, caller, done)
        try:
            with self._admission.admit(CallClass.INFERENCE, caller, "invoke", context) as admitted:
                data = await admitted.read_one("ModelInferRequest")
                call.start(data, context.time_remaining())
                if call.result is None:
                    await answered
                result = call.result
                if isinstance(result, list):
                    context.set_trailing_metadata(call.metadata)
                    return admitted.answer(b"".join(result))
        except asyncio.CancelledError:
            call.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - error boundary: `refuse` hides internals
            call.refuse(error)
        assert isinstance(call.result, Failure)
        return await abort(context, call.result)

    async def stream(self, _messages: object, context: Context) -> None:
        """Answer the requests of one stream."""
        caller = read_metadata(context.invocation_metadata())
        try:
            admitted = self._admission.admit(CallClass.STREAM, caller, "invoke", context)
        except FnError as error:
            await abort(context, failure(error))
        stream = Stream(self._calls, caller, admitted, context)
        self._streams.add(stream)
        try:
            with admitted:
                await stream.run(self._tasks)
        finally:
            self._streams.discard(stream)


class Stream:
    """One stream: a task of its own reads, the caller of `run` writes.

    Answers are sent in the order in which the calls end. A call counts as in flight until its
    answer is sent, so a client that reads nothing stops its own requests.
    """

    def __init__(
        self, calls: Calls, caller: CallHead, admitted: AdmittedCall, context: Context
    ) -> None:
        self._calls = calls
        self._caller = caller
        self._admitted = admitted
        self._context = context
        self._in_flight: set[InferCall] = set()
        self._unsent: deque[bytes | Failure] = deque()
        self._unsent_bytes = admitted.open_unsent()
        self._is_writing = False
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_read = False
        self._end: FnError | None = None
        self._is_stopping = False

    @property
    def key_id(self) -> str:
        """Id of the caller's key, "" without one."""
        return self._admitted.key_id

    def stop(self) -> None:
        """Read nothing more."""
        self._is_stopping = True
        self._changed.set()

    def fail(self, error: FnError) -> None:
        """End the stream with an error, or by a reset if its client does not take an answer; calls
        in flight are cancelled."""
        if self._is_writing:
            self._unsent_bytes.cut()
            return
        self._unsent.clear()
        self._unsent.append(failure(error))
        self._changed.set()

    async def run(self, tasks: Tasks) -> None:
        """Serve the stream until it ends."""
        reader = tasks.spawn("stream", self._read())
        try:
            await self._write()
        finally:
            reader.cancel()
            self._unsent_bytes.close()
            for call in self._in_flight:
                call.cancel()
            self._in_flight.clear()

    async def _read(self) -> None:
        while True:
            await self._has_room.wait()
            try:
                data = await self._admitted.read()
            except FnError as error:
                self._end = error
                break
            if data is None or self._is_stopping:
                break
            call = InferCall(self._calls, self._caller, self._on_done)
            self._in_flight.add(call)
            call.start(data, self._context.time_remaining())
            self._limit()
        self._is_read = True
        self._changed.set()

    def _on_done(self, call: InferCall) -> None:
        self._in_flight.discard(call)
        result = call.result
        if not isinstance(result, Failure):
            message = b"".join(in_stream(result or []))
        elif self._caller.ends_stream:
            self._unsent.append(result)
            self._changed.set()
            return
        else:
            message = stream_error(result.text, call.id)
        self._unsent.append(message)
        self._unsent_bytes.add(len(message))
        self._changed.set()

    def _limit(self) -> None:
        is_full = len(self._in_flight) + len(self._unsent) >= IN_FLIGHT_MAX
        if is_full or self._unsent_bytes.bytes >= UNSENT_MAX:
            self._has_room.clear()
        else:
            self._has_room.set()

    async def _write(self) -> None:
        while True:
            while self._unsent:
                message = self._unsent[0]
                if isinstance(message, Failure):
                    await abort(self._context, message)
                    return
                self._is_writing = True
                try:
                    await self._context.write(message)
                except grpc.aio.BaseError:
                    return  # the client is gone
                self._is_writing = False
                self._unsent.popleft()
                self._unsent_bytes.taken(len(message))
                self._limit()
            if not self._in_flight:
                if self._is_stopping:
                    self._end = shutting_down()
                if self._end is not None:
                    await abort(self._context, failure(self._end))
                if self._is_read:
                    return
            self._changed.clear()
            await self._changed.wait()
