"""Background operations: ordered per function name, limited concurrency, stored results."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
import structlog

from admin.deploy.turns import Turns
from admin.documents.deploys import OperationResult
from gateway.admission.callers import NOBODY, Caller
from gateway.problems import document
from pool_manager.subscribers import Subscribers
from registry.errors import FnError, ShuttingDown, StoreUnavailable
from registry.model.operations import Operation, OperationKind
from registry.shares import Shares
from registry.store.operations import RUNNING_MAX, Operations
from registry.tasks import Tasks

log = structlog.get_logger()

AT_ONCE: Final = 8
"""Max operations that run at once; those of one key alone are half of them."""
SWITCH = "switch"
"""Last phase: store and memory change together from here on, so it cannot be cancelled."""
END_RETRY_S = 1.0

Phase = Callable[[str], Awaitable[None]]
"""Publishes the current phase of an operation to its followers."""
Work = Callable[[Operation, Phase], Awaitable[OperationResult]]
"""Runs an operation and returns its result, or raises the error that it fails with."""
Undo = Callable[[Operation], Awaitable[None]]
"""Removes what an unfinished operation left behind. May raise StoreUnavailable."""


class OperationRunner:
    """Runs operations in background tasks. `wall` returns Unix seconds.

    An operation that was running when the server died runs again from its beginning, and finds its
    half-finished work under its id.
    """

    def __init__(
        self,
        operations: Operations,
        work: dict[OperationKind, Work],
        undo: Undo,
        wall: Callable[[], float],
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`pause` is awaited between two attempts to store an operation's end."""
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
        self._turns = Turns("operations run", AT_ONCE)
        self._accepted = Shares("operations run or wait", RUNNING_MAX)
        self._aside: set[str] = set()
        """Ids of the operations that have given their turn to others."""
        self._receivers = Subscribers[[Operation]]()
        # Weak values: a name's turns live as long as a task has one or waits for it.
        self._names: WeakValueDictionary[str, Turns] = WeakValueDictionary()

    def subscribe(self, receiver: Callable[[Operation], None]) -> Callable[[], None]:
        """Call `receiver` for each operation that begins, changes its phase or ends, until the
        returned function is called."""
        return self._receivers.subscribe(receiver)

    async def resume(self) -> None:
        """Start the operations again that an earlier server did not finish."""
        for operation in await self._operations.running():
            self._accepted.hold(operation.party)
            self._spawn(operation)

    def begin_waiting(self) -> None:
        """Let requests wait again, those of a gateway that replaces one which has ended."""
        self._closing = False

    async def stop_waiting(self, _app: object = None) -> None:
        """Answer all requests that wait for an operation (handler of aiohttp's shutdown signal)."""
        self._closing = True
        await self._tell()

    async def close(self) -> None:
        """Stop. The next server resumes operations that are running."""
        await self._tasks.close()

    async def accept(
        self, kind: OperationKind, name: str, request: dict[str, Any], caller: Caller = NOBODY
    ) -> Operation:
        """Store an operation of a caller and start it. Raises QueueFull if too many are running, or
        too many of that caller."""
        operation = Operation(
            id=secrets.token_hex(8),
            kind=kind,
            name=name,
            request=request,
            scopes=caller.scopes,
            phase="upload" if kind == "deploy" else "queued",
            created_s=self._wall(),
            party=caller.id,
        )
        self._accepted.take(caller.id)
        try:
            await self._operations.put(operation)
        except BaseException:
            self._accepted.give_back(caller.id)
            raise
        self._spawn(operation)
        self._receivers.notify(operation)
        # Let the task start: a cancellation must reach its `try`, not a task that never ran.
        await asyncio.sleep(0)
        return operation

    def running(self) -> list[Operation]:
        """Return the operations that have not ended, or whose end is not stored yet."""
        return [operation for operation, _ in self._running.values()]

    async def newest(self) -> list[Operation]:
        """Return the latest operations in their current state, newest first."""
        stored = await self._operations.list()
        return [self._running[one.id][0] if one.id in self._running else one for one in stored]

    async def undone(self, name: str) -> Operation | None:
        """Return the latest operation of a name if it runs or has not been done; else None. It
        tells about a function whose first deploy runs or has failed."""
        last = next((one for one in await self.newest() if one.name == name), None)
        return last if last is not None and last.state != "done" else None

    async def get(self, id: str) -> Operation:
        """Return the current state of an operation. Raises Unknown."""
        running = self._running.get(id)
        return running[0] if running else await self._operations.get(id)

    async def wait(self, id: str, phase: str, seconds: float) -> Operation:
        """Return as `get`, once the phase is not `phase`, the operation ended or time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(
                    lambda: self._closing or not self._runs(id) or self._phase_of(id) != phase
                )
        return await self.get(id)

    async def cancel(self, id: str) -> Operation:
        """Cancel a running operation, without any change, and wait for its end.

        An operation that ended stays as it is; one in its phase `switch` completes in a moment.
        """
        self.request_cancel(id)
        async with self._changed:
            await self._changed.wait_for(lambda: self._closing or not self._runs(id))
        return await self.get(id)

    def request_cancel(self, id: str) -> None:
        """Request a cancellation as `cancel` does, without waiting for the end."""
        is_free = self._runs(id) and self._phase_of(id) != SWITCH
        if is_free and id not in self._cancelled:
            self._cancelled.add(id)
            self._running[id][1].cancel()

    def work_on(self, name: str, party: str = "") -> AbstractAsyncContextManager[None]:
        """Return a block that works on a name alone. Those of a key get in in order of arrival,
        keys in turn."""
        return self._names.setdefault(name, Turns("operations of a name run", 1)).turn(party)

    def _runs(self, id: str) -> bool:
        return id in self._running and self._running[id][0].state == "running"

    def _phase_of(self, id: str) -> str:
        return self._running[id][0].phase

    def _spawn(self, operation: Operation) -> None:
        task = self._tasks.spawn(f"{operation.kind} {operation.id}", self._run(operation))
        self._running[operation.id] = (operation, task)

    async def _run(self, operation: Operation) -> None:
        try:
            # Wait for the name first, so that operations of one name occupy a single slot.
            on_name = self.work_on(operation.name, operation.party)
            async with on_name, self._turn(operation):
                changes = await self._outcome(operation)
        except asyncio.CancelledError:
            if operation.id not in self._cancelled:
                raise  # the server is stopping: the next one resumes the operation
            changes = {"state": "cancelled"}
        except ShuttingDown:
            return  # the next server resumes it
        await self._end(operation.id, changes)

    @asynccontextmanager
    async def _turn(self, operation: Operation) -> AsyncIterator[None]:
        await self._turns.take(operation.party)
        try:
            yield
        finally:
            if operation.id in self._aside:
                self._aside.discard(operation.id)
            else:
                self._turns.give_back(operation.party)

    @asynccontextmanager
    async def aside(self, id: str) -> AsyncIterator[None]:
        """Let other operations have the turn of this one within the block, which waits for what is
        far away, perhaps for hours. After the block it has a turn again."""
        party = self._running[id][0].party
        self._aside.add(id)
        self._turns.give_back(party)
        yield
        # Not after an error: the operation ends without a turn.
        await self._turns.take(party)
        self._aside.discard(id)

    async def _outcome(self, operation: Operation) -> dict[str, Any]:
        async def phase(name: str) -> None:
            current, task = self._running[operation.id]
            now = replace(current, phase=name)
            self._running[operation.id] = (now, task)
            self._receivers.notify(now)
            await self._tell()

        try:
            result = await self._work[operation.kind](operation, phase)
            return {"state": "done", "result": msgspec.to_builtins(result, str_keys=True)}
        except ShuttingDown:
            raise
        except FnError as error:
            return {"state": "failed", "error": _stored(error, for_admin=True)}
        except Exception:
            log.exception("an operation failed", kind=operation.kind, id=operation.id)
            return {"state": "failed", "error": _stored(FnError("see the server's log"))}

    async def _end(self, id: str, changes: dict[str, Any]) -> None:
        """Store the end, however often that takes: after a restart, an operation without a stored
        end would run again and overwrite later ones."""
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
        self._accepted.give_back(ended.party)
        self._receivers.notify(ended)
        await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _stored(error: FnError, *, for_admin: bool = False) -> dict[str, Any]:
    """Return the problem document of an error as JSON data."""
    data: dict[str, Any] = msgspec.to_builtins(document(error, for_admin=for_admin))
    return data
