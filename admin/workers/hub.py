"""Server's side of the protocol: the sessions of all gateways, and the state that they get.

`StateFeed` makes the messages about the server's state. `Hub` sends them to every gateway, whole to
one that comes, and asks gateways. `ServerAnswers` answers their questions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Final, TypeVar

import structlog

from admin.model_control import RETRY_S, warm_up
from admin.workers.messages import (
    Applied,
    Began,
    Down,
    Estimates,
    FunctionNow,
    Functions,
    Keys,
    ListConnections,
    LoadModel,
    Pools,
    Question,
    ReadStatistics,
    Report,
    State,
    UnloadModel,
    UpstreamKeysNow,
    Welcome,
)
from admin.workers.requests import Handlers
from admin.workers.session import Session
from admin.workers.stream import Stream
from gateway.http.connected import Connections, joined
from gateway.oip.statistics import RevisionStatistics
from gateway.ports import ModelStatistics
from pool_manager.manager import Manager
from registry.catalog import Catalog, Change, Deployed
from registry.errors import FnError, QueueFull
from registry.exchange import Expected
from registry.model.history import ColdStart
from registry.model.keys import Key
from registry.model.revisions import pool_key
from registry.openness import Openness
from registry.store.keys import KeyRing
from registry.tasks import Tasks
from registry.upstream_keys import UpstreamKey, UpstreamKeys

log = structlog.get_logger()
T = TypeVar("T")

TOGETHER: Final = 200
"""Max functions in one message when a gateway comes."""
SCHEMAS_MAX: Final = 8 * 2**20
"""Max characters of schemas of Python functions in such a message of more than one function."""
WAITING_MAX: Final = 10_000
"""Max clients of all gateways that wait for a model at once."""
TASKS_MAX: Final = 1_000_000


def pieces(
    functions: Iterable[FunctionNow], together: int = TOGETHER, schemas_max: int = SCHEMAS_MAX
) -> Iterator[list[FunctionNow]]:
    """Yield functions in lists of at most `together`, with at most `schemas_max` characters of
    schemas unless there is only one function."""
    piece: list[FunctionNow] = []
    length = 0
    for function in functions:
        said = (one.revision.interface for one in function.revisions)
        more = sum(len(one.schema) for one in said if one is not None)
        if piece and (len(piece) == together or length + more > schemas_max):
            yield piece
            piece, length = [], 0
        piece.append(function)
        length += more
    if piece:
        yield piece


class StateFeed:
    """Messages about functions, keys, openness and estimates. `expected` returns a pool's estimate.

    A change precedes everything that depends on it.
    """

    def __init__(
        self,
        catalog: Catalog,
        ring: KeyRing,
        upstream_keys: UpstreamKeys,
        expected: Callable[[str], Expected],
    ) -> None:
        self._catalog = catalog
        self._ring = ring
        self._upstream_keys = upstream_keys
        self._expected = expected

    def whole(self) -> Iterator[State]:
        """Yield messages with the whole state, for a gateway whose copy may be of any age. Keys
        come first: one that was removed meanwhile must not be accepted any longer."""
        yield Keys(list(self._ring.all()), [], self._ring.openness, is_whole=True)
        yield UpstreamKeysNow(list(self._upstream_keys.all()), [], is_whole=True)
        everything = [(one.function.namespace, one.function.name) for one in self._catalog.all()]
        yield Functions([], everything)
        for piece in pieces(self._now(*name) for name in everything):
            yield Functions(piece)
            yield from self._estimates(one for each in piece for one in each.revisions)

    def follow(self, send: Callable[[State], None]) -> Callable[[], None]:
        """Send each change from now on, until the returned function is called. Call it before
        others subscribe to the catalog: gateways must know a revision before its pool."""

        def on_change(change: Change) -> None:
            now = self._now(change.namespace, change.name)
            send(Functions([now]))
            for message in self._estimates(now.revisions):
                send(message)

        def on_key(key: Key, is_let_in: bool) -> None:
            let_in, removed = ([key], []) if is_let_in else ([], [key])
            send(Keys(let_in, removed, self._ring.openness))

        def on_decision(openness: Openness) -> None:
            send(Keys([], [], openness))

        def on_upstream_key(key: UpstreamKey, is_kept: bool) -> None:
            send(UpstreamKeysNow([key], []) if is_kept else UpstreamKeysNow([], [key]))

        stack = ExitStack()
        stack.callback(self._catalog.subscribe(on_change))
        stack.callback(self._ring.subscribe(on_key))
        stack.callback(self._ring.on_decision(on_decision))
        stack.callback(self._upstream_keys.subscribe(on_upstream_key))
        return stack.close

    def after(self, record: ColdStart) -> Estimates:
        """Return the new estimate of a pool after a measured cold start."""
        pool = pool_key(record.namespace, record.name, record.number)
        return Estimates({pool: self._expected(pool)})

    def _now(self, namespace: str, name: str) -> FunctionNow:
        return FunctionNow(namespace, name, list(self._catalog.revisions(name, namespace)))

    def _estimates(self, revisions: Iterable[Deployed]) -> Iterator[Estimates]:
        keys = [one.revision.key for one in revisions]
        if keys:
            yield Estimates({key: self._expected(key) for key in keys})


class Hub:
    """Sessions of all gateways, each by its name. Event loop thread only.

    `settled` returns when all gateways have applied a change. A gateway whose stream broke counts
    as one that has not: it is `apart` until it comes back, or is no more.
    """

    def __init__(self, state: Callable[[], Iterable[State]]) -> None:
        """`state` returns messages with the whole state."""
        self._state = state
        self._handlers: Handlers = {}
        self._sessions: dict[str, Session] = {}
        self._apart: set[str] = set()
        self._changed = asyncio.Event()
        self._tasks = Tasks("questions of gateways", TASKS_MAX)

    def answer(self, handlers: Handlers) -> None:
        """Answer the questions of gateways from now on."""
        self._handlers = handlers

    async def close(self) -> None:
        """End all pending answers."""
        await self._tasks.close()

    def session(self, stream: Stream, own: Handlers) -> Session:
        """Return the server's end of a gateway's new stream; `own` answer questions of this gateway
        alone."""
        return Session(stream, "server", "gateway", {**self._handlers, **own}, self._tasks)

    def add(self, gateway: str, session: Session, welcome: Welcome) -> None:
        """Send a gateway that has come the whole state, and then each change."""
        self._sessions[gateway] = session
        session.send(welcome)
        for message in self._state():
            session.send(message)
        session.send(Began())
        self._apart.discard(gateway)
        self._changed.set()

    def remove(self, gateway: str, *, comes_back: bool) -> None:
        """Forget the session of a gateway, if it has one."""
        self._sessions.pop(gateway, None)
        (self._apart.add if comes_back else self._apart.discard)(gateway)
        self._changed.set()

    def send_all(self, message: Down) -> None:
        """Send a message to every gateway."""
        for session in list(self._sessions.values()):
            session.send(message)

    def send_endpoints(self, endpoints: bytes) -> None:
        """Send the manager's Endpoints to every gateway."""
        self.send_all(Pools(endpoints))

    async def ask_all(self, question: Question[T]) -> dict[str, T]:
        """Return the answers of all gateways by name, without those that fail or take longer than
        `question.within_s`."""
        asked: dict[str, asyncio.Future[T]] = {}
        for name, session in list(self._sessions.items()):
            with contextlib.suppress(FnError):  # too many such questions are open
                asked[name] = session.requests.begin(question)
        if not asked:
            return {}
        try:
            await asyncio.wait(asked.values(), timeout=question.within_s)
        finally:
            for answer in asked.values():
                answer.cancel()
        return {name: answer.result() for name, answer in asked.items() if _has_result(answer)}

    async def connections(self, namespace: str, name: str) -> Connections:
        """Return the open exchanges of a function in all gateways."""
        return joined((await self.ask_all(ListConnections(namespace, name))).values())

    async def refresh(self) -> None:
        """Return when the demand of every gateway has been reported anew."""
        await self.ask_all(Report())

    async def settled(self) -> None:
        """Return when every gateway has applied every earlier change, or after a limited time."""
        reached: set[str] = set()
        waited_for = self._sessions.keys() | self._apart
        try:
            async with asyncio.timeout(Applied.answer_s):
                while True:
                    reached |= (await self.ask_all(Applied())).keys()
                    waited_for &= self._sessions.keys() | self._apart
                    if waited_for <= reached:
                        return
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.warning("workers are behind", workers=sorted(waited_for - reached))


def _has_result(answer: asyncio.Future[Any]) -> bool:
    return answer.done() and not answer.cancelled() and answer.exception() is None


class ServerAnswers:
    """Answers to the questions of gateways. Event loop thread only."""

    def __init__(self, catalog: Catalog, manager: Manager, statistics: ModelStatistics) -> None:
        self._catalog = catalog
        self._manager = manager
        self._statistics = statistics
        self._waiting = 0

    def handlers(self) -> Handlers:
        """Return the handler of each kind of question."""
        return {ReadStatistics: self._read, LoadModel: self._load, UnloadModel: self._unload}

    async def _read(self, asked: ReadStatistics) -> list[RevisionStatistics]:
        return await self._statistics.statistics(asked.pools)

    async def _load(self, asked: LoadModel) -> None:
        deployed = self._catalog.resolve(asked.ref, asked.namespace)
        if self._waiting >= WAITING_MAX:
            raise QueueFull(f"{self._waiting} requests wait for models", retry_after_s=RETRY_S)
        self._waiting += 1
        try:
            await warm_up(self._catalog, self._manager, deployed, asked.wait_s)
        finally:
            self._waiting -= 1

    def _unload(self, asked: UnloadModel) -> None:
        for one in self._catalog.revisions(asked.name, asked.namespace):
            self._manager.unload(one.revision.key)
