"""Loading and unloading of models with several gateway processes, which ask the supervisor."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Final

import structlog

from admin.workers.messages import AskLoad, AskUnload, LeaveLoad, LoadEnded, encode
from gateway.ports import ModelControl
from registry import errors
from registry.catalog import Catalog, Deployed
from registry.errors import FnError, QueueFull, SupervisorAway
from registry.tasks import Tasks

log = structlog.get_logger()

WAITING_MAX: Final = 2000
"""Max clients of one gateway process that wait for a model at once."""
TASKS_MAX: Final = 1_000_000
RETRY_S: Final = 1.0
GRACE_S: Final = 5.0
"""Seconds beyond a client's wait after which the supervisor counts as away."""
_CLASSES: Final = {
    kind.code: kind
    for kind in (
        errors.FunctionFailing,
        errors.NoRoom,
        errors.QueueFull,
        errors.ShuttingDown,
        errors.UnknownFunction,
        errors.UnknownRevision,
    )
}


class RemoteModels(ModelControl):
    """`ModelControl` of a gateway process. Event loop thread only."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        """`send` takes encoded messages to the supervisor."""
        self._send = send
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[LoadEnded]] = {}
        self._is_lost = False

    async def load(self, deployed: Deployed, wait_s: float) -> None:
        """Implement `ModelControl.load`."""
        self._check_supervisor()
        if len(self._waiting) >= WAITING_MAX:
            raise QueueFull(f"{WAITING_MAX} requests wait for models", retry_after_s=RETRY_S)
        revision, number = deployed.revision, next(self._numbers)
        answer: asyncio.Future[LoadEnded] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._send(encode(AskLoad(number, revision.namespace, revision.ref, wait_s)))
        try:
            async with asyncio.timeout(wait_s + GRACE_S):
                ended = await answer
        except TimeoutError:
            raise _away() from None
        finally:
            if self._waiting.pop(number, None) is not None and not self._is_lost:
                self._send(encode(LeaveLoad(number)))
        if ended.code:
            raise _error_of(ended)

    async def unload(self, deployed: Deployed) -> None:
        """Implement `ModelControl.unload`."""
        self._check_supervisor()
        function = deployed.function
        self._send(encode(AskUnload(function.namespace, function.name)))

    def on_ended(self, message: LoadEnded) -> None:
        """Answer the client that waits; it may have left."""
        answer = self._waiting.pop(message.number, None)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def on_lost(self) -> None:
        """Fail all waits, and later requests at once: the supervisor is gone."""
        self._is_lost = True
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(_away())

    def _check_supervisor(self) -> None:
        if self._is_lost:
            raise _away()


class ModelRequests:
    """Requests of all gateway processes for `models`. Event loop thread only."""

    def __init__(self, catalog: Catalog, models: ModelControl) -> None:
        self._catalog = catalog
        self._models = models
        self._sends: dict[str, Callable[[bytes], None]] = {}
        self._loads: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._tasks = Tasks("loads", TASKS_MAX)

    def add_worker(self, worker: str, send: Callable[[bytes], None]) -> None:
        """Accept requests of a started process; `send` takes the encoded answers."""
        self._sends[worker] = send

    def remove_worker(self, worker: str) -> None:
        """End the waits of a process that has ended."""
        self._sends.pop(worker, None)
        for key in [one for one in self._loads if one[0] == worker]:
            self._loads.pop(key).cancel()

    def on_request(self, worker: str, message: AskLoad | LeaveLoad | AskUnload) -> None:
        """Begin or end a wait, or unload."""
        if isinstance(message, AskLoad):
            key = (worker, message.number)
            self._loads[key] = self._tasks.spawn("load", self._load(worker, message))
            self._loads[key].add_done_callback(lambda _task: self._loads.pop(key, None))
        elif isinstance(message, LeaveLoad):
            load = self._loads.pop((worker, message.number), None)
            if load is not None:
                load.cancel()
        else:
            self._tasks.spawn("unload", self._unload(message))

    async def close(self) -> None:
        """End all waits."""
        await self._tasks.close()

    async def _load(self, worker: str, asked: AskLoad) -> None:
        ended = LoadEnded(asked.number)
        try:
            deployed = self._catalog.resolve(asked.ref, asked.namespace)
            await self._models.load(deployed, asked.wait_s)
        except FnError as error:
            said = (error.message, error.retry_after_s, error.detail, error.admin_detail)
            ended = LoadEnded(asked.number, error.code, *said)
        except Exception:  # error boundary: the client must have an answer
            log.exception("a model could not be loaded", ref=asked.ref)
            ended = LoadEnded(asked.number, FnError.code, "see the server's log")
        send = self._sends.get(worker)
        if send is not None:
            send(encode(ended))

    async def _unload(self, asked: AskUnload) -> None:
        deployed = self._catalog.find(asked.name, asked.namespace)
        if deployed is not None:
            await self._models.unload(deployed)


def _away() -> SupervisorAway:
    text = "the process that loads models does not answer; calls of functions may still work"
    return SupervisorAway(text, retry_after_s=RETRY_S)


def _error_of(ended: LoadEnded) -> FnError:
    kind = _CLASSES.get(ended.code, FnError)
    return kind(
        ended.message,
        retry_after_s=ended.retry_after_s,
        detail=ended.detail,
        admin_detail=ended.admin_detail,
    )
