"""Operations in the background: in order per name, a few at once, and their ends kept."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import structlog

from gateway.problems import document
from pool_manager.subscribers import Subscribers
from registry.errors import FnError, ShuttingDown, StoreUnavailable
from registry.model import Operation, OperationKind
from registry.store.operations import Operations
from registry.tasks import Tasks

log = structlog.get_logger()

AT_ONCE = 4
SWITCH = "switch"
"""The last phase: from here on store and memory change together, so it cannot be cancelled."""
END_RETRY_S = 1.0

Phase = Callable[[str], Awaitable[None]]
"""Tells whoever follows an operation which phase it is in now."""
Work = Callable[[Operation, Phase], Awaitable[dict[str, Any]]]
"""Does an operation; its result. Raises what it fails with."""
Undo = Callable[[Operation], Awaitable[None]]
"""Takes away what an operation left that was not done. May raise StoreUnavailable."""


class OperationRunner:
    """Runs operations. `wall` gives Unix seconds.

    An operation that was running when the server died is run again from its beginning: what it
    left half done, it finds again under its id.
    """

    def __init__(
        self,
        operations: Operations,
        work: dict[OperationKind, Work],
        undo: Undo,
        wall: Callable[[], float],
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`pause` is awaited between two tries to store an operation's end."""
        self._operations = operations
        self._work = work
        self._undo = undo
        self._wall = wall
        self._pause = pause
        self._tasks = Tasks("operations")
        self._running: dict[str, tuple[Operation, asyncio.Task[Any]]] = {}
        self._cancelled: set[str] = set()
        self._closing = False
        self._changed = asyncio.Condition()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._receivers = Subscribers[[Operation]]()
        # A name's lock lives as long as somebody holds it or waits for it.
        self._names: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def subscribe(self, receiver: Callable[[Operation], None]) -> Callable[[], None]:
        """Call `receiver` with each operation that began, changed its phase or ended, until the
        returned function is called."""
        return self._receivers.subscribe(receiver)

    async def resume(self) -> None:
        """Take up what an earlier server did not finish."""
        for operation in await self._operations.running():
            self._spawn(operation)

    async def stop_waiting(self, _app: object = None) -> None:
        """aiohttp's shutdown signal: who waits for an operation is answered now."""
        self._closing = True
        await self._tell()

    async def close(self) -> None:
        """Stop; what is running will be resumed by the next server."""
        await self._tasks.close()

    async def accept(self, kind: OperationKind, name: str, request: dict[str, Any]) -> Operation:
        """Store an operation and begin it. Raises Conflict where too many run already."""
        operation = Operation(
            id=secrets.token_hex(8),
            kind=kind,
            name=name,
            request=request,
            phase="upload" if kind == "deploy" else "queued",
            created_s=self._wall(),
        )
        await self._operations.put(operation)
        self._spawn(operation)
        self._receivers.notify(operation)
        # One turn, so that a cancellation finds it begun and not yet to begin.
        await asyncio.sleep(0)
        return operation

    def running(self) -> list[Operation]:
        """Those that have not ended, or whose end is not stored yet."""
        return [operation for operation, _ in self._running.values()]

    async def newest(self) -> list[Operation]:
        """The last operations as they are now, newest first."""
        stored = await self._operations.list()
        return [self._running[one.id][0] if one.id in self._running else one for one in stored]

    async def get(self, id: str) -> Operation:
        """An operation as it is now. Raises Unknown."""
        running = self._running.get(id)
        return running[0] if running else await self._operations.get(id)

    async def wait(self, id: str, phase: str, seconds: float) -> Operation:
        """Like `get`, after the phase has changed from `phase`, it has ended, or time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(
                    lambda: self._closing or not self._runs(id) or self._phase_of(id) != phase
                )
        return await self.get(id)

    async def cancel(self, id: str) -> Operation:
        """End a running operation, changing nothing.

        One that has ended stays as it is; one that already switches is done in a moment.
        """
        self.request_cancel(id)
        async with self._changed:
            await self._changed.wait_for(lambda: self._closing or not self._runs(id))
        return await self.get(id)

    def request_cancel(self, id: str) -> None:
        """As `cancel`, without waiting for its end."""
        is_free = self._runs(id) and self._phase_of(id) != SWITCH
        if is_free and id not in self._cancelled:
            self._cancelled.add(id)
            self._running[id][1].cancel()

    def lock(self, name: str) -> asyncio.Lock:
        """Held by whoever works on a name; operations wait for it in the order they came."""
        return self._names.setdefault(name, asyncio.Lock())

    def _runs(self, id: str) -> bool:
        return id in self._running and self._running[id][0].state == "running"

    def _phase_of(self, id: str) -> str:
        return self._running[id][0].phase

    def _spawn(self, operation: Operation) -> None:
        task = self._tasks.spawn(f"{operation.kind} {operation.id}", self._run(operation))
        self._running[operation.id] = (operation, task)

    async def _run(self, operation: Operation) -> None:
        try:
            # One name's operations wait for each other first, and hold one turn together.
            async with self.lock(operation.name), self._turns:
                changes = await self._outcome(operation)
        except asyncio.CancelledError:
            if operation.id not in self._cancelled:
                raise  # the server stops: the next one resumes it
            changes = {"state": "cancelled"}
        except ShuttingDown:
            return  # the next server resumes it
        await self._end(operation.id, changes)

    async def _outcome(self, operation: Operation) -> dict[str, Any]:
        async def phase(name: str) -> None:
            current, task = self._running[operation.id]
            now = replace(current, phase=name)
            self._running[operation.id] = (now, task)
            self._receivers.notify(now)
            await self._tell()

        try:
            return {"state": "done", "result": await self._work[operation.kind](operation, phase)}
        except ShuttingDown:
            raise
        except FnError as error:
            return {"state": "failed", "error": document(error, for_admin=True)}
        except Exception:
            log.exception("an operation failed", kind=operation.kind, id=operation.id)
            return {"state": "failed", "error": document(FnError("see the server's log"))}

    async def _end(self, id: str, changes: dict[str, Any]) -> None:
        """Keep the end until it is stored: a restart would otherwise do the operation again, over
        later ones."""
        operation, task = self._running[id]
        ended = replace(operation, ended_s=self._wall(), **changes)
        self._running[id] = (ended, task)
        self._cancelled.discard(id)
        while True:
            try:
                if ended.state != "done":
                    await self._undo(ended)
                await self._operations.update(ended)
                break
            except StoreUnavailable as error:
                log.error("an operation's end is not stored yet", id=id, reason=error.message)
                await self._tell()
                await self._pause(END_RETRY_S)
        del self._running[id]
        self._receivers.notify(ended)
        await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
