"""The one way in of every RPC: who calls, its place among others, its messages and its answers.

A handler admits its RPC before it reads anything, reads through what it got, and passes the bytes
of its answers through it. The checks are those of REST: `gateway.admission` decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from enum import Enum, auto
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple

from gateway.admission.callers import ANY
from gateway.admission.credentials import Realm
from gateway.dispatch.held import HeldBytes
from gateway.grpc.connection_cut import cut_connection
from gateway.grpc.message_reader import MessageReader
from gateway.grpc.metadata import CallHead
from gateway.http.context import Invoker
from gateway.http.reservations import BodyBudget
from gateway.settings import GatewaySettings
from gateway.unsent import UnsentAnswer, UnsentAnswers
from registry.errors import BadRequest
from registry.model.keys import Need
from registry.shares import Shares

UNASKED: Final = 16 * 1024
"""Bytes of a message that a client may send before it is read (HTTP/2's initial window)."""
CALL_BYTES: Final = 64 * 1024
"""Held memory per call at once: 4,096 by default. What all of them send unasked is a quarter."""
STREAM_ROOMS: Final = 2
"""Streams at once take at most this part (1/N) of the memory for held bodies, as each has room for
a message at any time: 8 by default."""
CONTROL_MAX: Final = 64 * 1024
"""Max bytes of a message that is no inference, as of the same request over REST."""
UNCOUNTED: Final = 16 * 1024
"""Bytes of an answer that is not counted: all of them together are a quarter of the held memory."""
CONTROLS: Final = 256
CHECKS: Final = 64
WATCHES: Final = 64
REFLECTIONS: Final = 16
CHECK_READ_S: Final = 5.0
REFLECTION_IDLE_S: Final = 30.0
"""Seconds after which a stream of reflection without a request is ended."""
STREAM_IDLE_S: Final = 300.0
"""Seconds after which a stream of inferences without a request is ended."""
PATIENCE_S: Final = 2.0
"""Seconds that a read waits for room before the slowest other one is ended."""
OWN_PATIENCE_S: Final = 0.25
"""The same for health and reflection, whose messages come with their heads."""

AnyKey = Literal["any"]
"""Any key, or none while the server is open: the need of what tells nothing about a model."""


class CallClass(Enum):
    """Classes of RPCs, each with places of its own."""

    INFERENCE = auto()
    STREAM = auto()
    CONTROL = auto()
    CHECK = auto()
    WATCH = auto()
    REFLECTION = auto()


class ClassRules(NamedTuple):
    """Limits of the RPCs of one class."""

    shares: Shares
    reader: MessageReader
    most: int
    """Max bytes of a message."""
    read_s: float
    """Seconds for a message."""


class AdmittedCall:
    """An RPC that was admitted; leaving its context gives its place back."""

    __slots__ = ("_answers", "_context", "_party", "_rules")

    def __init__(self, rules: ClassRules, answers: UnsentAnswers, party: str, context: Any) -> None:
        """`answers`: the count of answers that clients have not taken."""
        self._rules = rules
        self._answers = answers
        self._party = party
        self._context = context

    @property
    def key_id(self) -> str:
        """Id of the caller's key, "" without one."""
        return self._party

    def read(self) -> Coroutine[Any, Any, bytes | None]:
        """Return the next message, None if the client sends no more. Raises FnError."""
        rules = self._rules
        return rules.reader.read(self._context, self._party, rules.most, rules.read_s)

    async def read_one(self, name: str) -> bytes:
        """Return the only message of a call, of the type `name`. Raises FnError."""
        data = await self.read()
        if data is None:
            raise BadRequest(f"expected a message {name}, got none")
        return data

    def answer(self, data: bytes) -> bytes:
        """Return the bytes of a call's only answer, which gRPC gets now: none get there another
        way. Large ones are counted until the RPC has ended, and cut as over HTTP."""
        if len(data) > UNCOUNTED:
            unsent = self.open_unsent()
            unsent.add(len(data))
            self._context.add_done_callback(lambda _: unsent.close())
        return data

    def open_unsent(self) -> UnsentAnswer:
        """Return the count of what the client has not taken; a cut ends its connection."""
        loop, peer = asyncio.get_running_loop(), self._context.peer()
        cut = partial(loop.run_in_executor, None, cut_connection, peer)
        return UnsentAnswer(self._answers, cut)

    def __enter__(self) -> AdmittedCall:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._rules.shares.give_back(self._party)


class CallAdmission:
    """Admits the RPCs of one process. Event loop thread only."""

    def __init__(self, invoker: Invoker) -> None:
        settings = invoker.settings
        self._access = invoker.access
        room, read_s = message_max(settings), settings.body_read_s
        self._answers = invoker.body_budget.answers
        callers = MessageReader(invoker.body_budget, room, PATIENCE_S)
        health, reflection = _own_reader(room), _own_reader(room)
        self._readers = (callers, health, reflection)
        calls = Shares("calls are open", calls_max(settings))
        streams = Shares("streams are open", streams_max(settings))
        controls = Shares("calls other than inferences are open", CONTROLS)
        checks, watches = Shares("checks are open", CHECKS), Shares("watches are open", WATCHES)
        reflections = Shares("streams of reflection are open", REFLECTIONS)
        self._rules = {
            CallClass.INFERENCE: ClassRules(calls, callers, room, read_s),
            CallClass.STREAM: ClassRules(streams, callers, room, STREAM_IDLE_S),
            CallClass.CONTROL: ClassRules(controls, callers, CONTROL_MAX, read_s),
            CallClass.CHECK: ClassRules(checks, health, CONTROL_MAX, CHECK_READ_S),
            CallClass.WATCH: ClassRules(watches, health, CONTROL_MAX, CHECK_READ_S),
            CallClass.REFLECTION: ClassRules(
                reflections, reflection, CONTROL_MAX, REFLECTION_IDLE_S
            ),
        }

    def close(self) -> None:
        """End what waits for time."""
        for one in self._readers:
            one.close()

    def admit(
        self, call_class: CallClass, caller: CallHead, need: Need | AnyKey, context: Any
    ) -> AdmittedCall:
        """Admit an RPC of a caller. Raises NoKey, WrongScope, and QueueFull.

        `need`: the scope of the same request over REST. Which function it is for, the message says:
        a key for any one function may send it.
        """
        party = self._access.identify(caller.credential, Realm.CALLS)
        if need != "any":
            party.require(need, ANY)
        return self._enter(call_class, party.id, context)

    def admit_anyone(self, call_class: CallClass, context: Any) -> AdmittedCall:
        """Admit an RPC that needs no key, of a party by its address. Raises QueueFull."""
        return self._enter(call_class, context.peer().rpartition(":")[0], context)

    def _enter(self, call_class: CallClass, party: str, context: Any) -> AdmittedCall:
        rules = self._rules[call_class]
        rules.shares.take(party)
        return AdmittedCall(rules, self._answers, party, context)


def message_max(settings: GatewaySettings) -> int:
    """Return the max bytes of one message."""
    return min(settings.grpc_message_max, settings.held_bytes_max // 4)


def calls_max(settings: GatewaySettings) -> int:
    """Return the max inferences at once."""
    return max(2, settings.held_bytes_max // CALL_BYTES)


def streams_max(settings: GatewaySettings) -> int:
    """Return the max open streams."""
    return settings.held_bytes_max // STREAM_ROOMS // message_max(settings)


def rpcs_max(settings: GatewaySettings) -> int:
    """Return the max RPCs that gRPC may have at once: twice those that are admitted, for those
    whose refusals are not sent yet."""
    others = CONTROLS + CHECKS + WATCHES + REFLECTIONS
    return 2 * (calls_max(settings) + streams_max(settings) + others)


def _own_reader(room: int) -> MessageReader:
    """Return a reader whose reads no other caller's bytes delay."""
    return MessageReader(BodyBudget(HeldBytes(room), monotonic), room, OWN_PATIENCE_S)
