"""One inference over gRPC, from its message to its answer or its failure.

A message becomes the body that an HTTP client would have sent, and an `Invocation` runs it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from gateway import statuses
from gateway.admission.calls import REQUEST_ID, Head
from gateway.admission.credentials import Credential
from gateway.cold_checks.cold_check import IN_LOOP_MAX
from gateway.grpc.answer import Answers
from gateway.grpc.codes import Failure, failure
from gateway.grpc.metadata import CallHead
from gateway.grpc.request import Packed, Read, read, read_parts
from gateway.grpc.wire import NotPlain, Split, split
from gateway.http.context import Invoker
from gateway.http.invocation import Invocation
from gateway.replies import Body, Reply
from registry.errors import BadRequest, BodyTooLarge, FnError, QueueFull, UnknownModel

KNOWN_MAX: Final = 1024
"""Max heads of requests that are remembered; at the limit all are forgotten."""
KNOWN_BYTES_MAX: Final = 1024
"""Max bytes of a head that is remembered."""
WAITING_MAX: Final = 64
"""Max messages that wait for the thread."""
VERSION_MAX: Final = 80
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,255}")
_JSON_LENGTH: Final = "Inference-Header-Content-Length"
_SENT: Final = {"Fn-Revision": "fn-revision", "Server-Timing": "server-timing"}
"""Headers of answers that calls have as metadata."""

Metadata = tuple[tuple[str, str], ...]
OnRead = Callable[[Read], None]


class Prepared(NamedTuple):
    """A head that was read. `key` identifies it in the cache of admissions; `json` is the JSON part
    of the body."""

    head: Head
    key: object
    json: bytes


class Calls:
    """What all inferences of one process share. Event loop thread only."""

    def __init__(self, invoker: Invoker) -> None:
        self.invoker = invoker
        self.answers = Answers()
        self._known: dict[tuple[bytes, Credential, tuple[int, ...]], Prepared] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grpc")
        self._waiting = 0

    def close(self) -> None:
        """Stop the thread after the current message."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def find(self, parts: Split, credential: Credential) -> Prepared | None:
        """Return what was prepared for the same head with tensors of the same sizes."""
        return self._known.get((parts.head, credential, tuple(map(len, parts.raw))))

    def learn(self, parts: Split, credential: Credential, made: Prepared) -> None:
        """Remember a head. Typed contents belong to it and differ each time: not those."""
        if not parts.raw or len(parts.head) > KNOWN_BYTES_MAX:
            return
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[parts.head, credential, tuple(map(len, parts.raw))] = made

    def read_in_thread(self, data: bytes, on_read: OnRead) -> asyncio.Future[Read]:
        """Read a message that would take long. `on_read` is called in the event loop, unless the
        returned future was cancelled. Raises QueueFull if too many wait."""
        if self._waiting >= WAITING_MAX:
            raise QueueFull(f"{self._waiting} large messages are being read", retry_after_s=1)
        self.invoker.body_budget.charge(len(data))
        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._thread, read, data)
        future.add_done_callback(lambda done: self._on_done(done, len(data), on_read))
        return future

    def _on_done(self, future: asyncio.Future[Read], size: int, on_read: OnRead) -> None:
        self._waiting -= 1
        self.invoker.body_budget.refund(size)
        if not future.cancelled():
            on_read(future.result())


class InferCall:
    """One inference. `done` is called exactly once, at once or later, unless `cancel` comes before.

    Then `result` has the pieces of the ModelInferResponse, or the failure, and `metadata` what is
    sent behind an answer. `id` is the request's own id.
    """

    __slots__ = (
        "_caller",
        "_calls",
        "_done",
        "_invocation",
        "_reading",
        "_wait_s",
        "id",
        "metadata",
        "result",
    )

    def __init__(self, calls: Calls, caller: CallHead, done: Callable[[InferCall], None]) -> None:
        self._calls = calls
        self._caller = caller
        self._done = done
        self._invocation: Invocation | None = None
        self._reading: asyncio.Future[Read] | None = None
        self._wait_s: float | None = None
        self.id = b""
        self.metadata: Metadata = ()
        self.result: list[Body] | Failure | None = None

    def start(self, data: bytes, wait_s: float | None) -> None:
        """Begin the call with its message. `wait_s`: seconds until the client's deadline."""
        self._wait_s = wait_s
        calls, credential = self._calls, self._caller.credential
        try:
            parts = split(data)
            is_large = len(parts.head) > IN_LOOP_MAX
        except NotPlain:
            parts, is_large = None, len(data) > IN_LOOP_MAX
        except FnError as error:
            self.refuse(error)
            return
        if is_large:
            self._read_in_thread(data)
            return
        if parts is None:
            self._on_read(read(data))
            return
        known = calls.find(parts, credential)
        if known is not None:
            self.id = parts.id
            self._run(known, Packed(known.json, parts.raw))
            return
        made = self._on_read(read_parts(parts))
        if made is not None:
            calls.learn(parts, credential, made)

    def refuse(self, error: Exception) -> None:
        """End a call that names no model with an error, which is recorded as for every other."""
        self._invoke(_head("", "", self._caller.credential)).fail(error)

    def cancel(self) -> None:
        """End the call without a result: its client has left, or its deadline has passed."""
        if self._reading is not None:
            self._reading.cancel()
        if self._invocation is not None:
            self._invocation.cancel()

    def _read_in_thread(self, data: bytes) -> None:
        try:
            self._reading = self._calls.read_in_thread(data, self._on_read_later)
        except FnError as error:
            self.refuse(error)

    def _on_read_later(self, found: Read) -> None:
        self._reading = None
        self._on_read(found)

    def _on_read(self, found: Read) -> Prepared | None:
        """Run a request that was read; return what can be remembered of it."""
        self.id = found.id
        packed, credential = found.packed, self._caller.credential
        if not _NAME.fullmatch(found.model) or len(found.version) > VERSION_MAX:
            is_unread = not found.model and not isinstance(packed, Packed)
            self.refuse(packed if is_unread else _no_model(found))  # type: ignore[arg-type]
            return None
        if isinstance(packed, Packed):
            length = str(len(packed.json))
            head = _head(found.model, found.version, credential, length)
            made = Prepared(head, head, packed.json)
            self._run(made, packed)
            return made
        head = _head(found.model, found.version, credential)
        invocation = self._invoke(head)
        try:
            # A caller who may not call the model learns no more about the request than that.
            invocation.admit(head)
        except Exception as error:  # noqa: BLE001 - error boundary: `fail` hides internals
            invocation.fail(error)
        else:
            invocation.fail(packed)
        return None

    def _invoke(self, head: Head) -> Invocation:
        correlation = self._caller.correlation
        made = Invocation(self._calls.invoker, head, self._replied, correlation, self._shape)
        self._invocation = made
        return made

    def _run(self, made: Prepared, packed: Packed) -> None:
        invocation = self._invoke(made.head)
        json, tensors = packed
        body: Body = b""
        try:
            body_max = invocation.admit(made.key)
            length = len(json) + sum(map(len, tensors))
            if length > body_max:
                raise BodyTooLarge(f"expected a body of at most {body_max} bytes, got {length}")
            if self._wait_s is not None:
                invocation.shorten_wait(self._wait_s)
            view = invocation.buffer(length)
            if view is None:
                body = b"".join((json, *tensors))
            else:
                _fill(view, json, tensors)
        except Exception as error:  # noqa: BLE001 - error boundary: `fail` hides internals
            invocation.fail(error)
        else:
            invocation.run(body)

    def _shape(self, error: FnError, *, for_admin: bool = False) -> Reply:
        """Return the reply of an error, which is read by counters and records only."""
        self.result = failure(error, for_admin=for_admin)
        return Reply(statuses.STATUS[type(error)], (), b"")

    def _replied(self, reply: Reply) -> None:
        request_id = self._invocation.request_id if self._invocation is not None else ""
        sent = [(REQUEST_ID.lower(), request_id)]
        if isinstance(self.result, Failure):
            self.result = self.result._replace(metadata=(*self.result.metadata, *sent))
        else:
            length = 0
            for name, value in reply.fields:
                if name == _JSON_LENGTH:
                    length = int(value)
                elif name in _SENT:
                    sent.append((_SENT[name], value))
            self.metadata = tuple(sent)
            try:
                self.result = self._calls.answers.make(reply.body, length, self.id)
            except FnError as error:
                self.result = failure(error)
        self._done(self)


def _head(model: str, version: str, credential: Credential, json_length: str | None = None) -> Head:
    # No browser is the client, so there are no Host and no Origin.
    return Head(model, None, None, None, credential, None, None, json_length, None, None, version)


def _no_model(found: Read) -> FnError:
    if not found.model:
        return BadRequest("model_name: expected the name of a model, got none")
    if _NAME.fullmatch(found.model):
        return UnknownModel(f"model_version: expected digits, got {found.version[:100]!r}")
    expected = "model_name: expected 1 to 255 letters, digits, dots, hyphens and underscores"
    return UnknownModel(f"{expected}, got {found.model[:100]!r}")


def _fill(view: memoryview, json: bytes, tensors: Sequence[Body]) -> None:
    at = len(json)
    view[:at] = json
    for tensor in tensors:
        view[at : at + len(tensor)] = tensor
        at += len(tensor)
