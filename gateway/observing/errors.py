"""Failed requests: counted by kind in each gateway process, the most recent kept per function."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
import structlog

from gateway.dispatch.call import Call
from gateway.problems import is_worth_keeping
from registry.catalog import Deployed
from registry.errors import FnError

log = structlog.get_logger()

PENDING_MAX: Final = 1000
"""Max kinds of errors between two drains; further kinds are counted in the metrics only."""
ALIKE_S: Final = 1.0
"""Seconds within which errors of one kind are merged, over all gateway processes."""
KEPT_MAX: Final = 50
"""Max errors kept per function."""
FUNCTIONS_MAX: Final = 1000
"""Max functions whose errors are kept: those that failed last."""
DETAIL_MAX: Final = 500
"""Max characters of an error's text."""

Kind = tuple[str, str, str, str]
"""Namespace, function, revision, code."""


class Failure(msgspec.Struct, array_like=True):
    """Requests of one function and revision ("digits@3") that ended with the same `code`.

    `at_s` (Unix seconds), `detail`, `replica` and `request_id` are those of the first such request;
    "" for a missing one.
    """

    namespace: str
    function: str
    revision: str
    code: str
    at_s: float
    detail: str
    replica: str
    request_id: str
    count: int = 1


Receiver = Callable[[list[Failure]], None]


class FailureCount:
    """Failures of this process since the last `drain`; O(1) per error.

    `wall` returns Unix seconds.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._pending: dict[Kind, Failure] = {}

    def count(self, asked: Deployed, error: FnError, call: Call | None, request_id: str) -> None:
        """Count a request for `asked` that failed with `error`, unless the client is at fault.

        `call`, if it was accepted, may have followed its function's traffic.
        """
        if is_worth_keeping(error):
            self._count(asked, (error.code, error.message), call, request_id)

    def count_answer(
        self, asked: Deployed, status: int, call: Call | None, request_id: str
    ) -> None:
        """Count an answer of a function's server with a status of 500 or more. It is the server's
        own, so it is shown, and is no reason to replace the server."""
        said = f"answered_{status}", f"the function's server answered with {status}"
        self._count(asked, said, call, request_id)

    def _count(
        self, asked: Deployed, said: tuple[str, str], call: Call | None, request_id: str
    ) -> None:
        """Count a request that ended with what is `said`, a code and a text."""
        code, text = said
        name, revision = asked.function.name, asked.revision.ref
        if call is not None:
            revision = call.pool.partition("/")[2]
        kind = (asked.function.namespace, name, revision, code)
        known = self._pending.get(kind)
        if known is not None:
            known.count += 1
        elif len(self._pending) < PENDING_MAX:
            detail = text[:DETAIL_MAX].encode("utf-8", "replace").decode()
            replica = call.link if call is not None and call.sends else ""
            self._pending[kind] = Failure(*kind, self._wall(), detail, replica, request_id)

    def drain(self) -> list[Failure]:
        """Return the failures since the last call; to be called every second."""
        if not self._pending:
            return []
        taken, self._pending = self._pending, {}
        return list(taken.values())


class RecentFailures:
    """The most recent errors of each function, over all gateway processes."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], deque[Failure]] = {}
        self._receivers: list[Receiver] = []

    def subscribe(self, receiver: Receiver) -> Callable[[], None]:
        """Call `receiver` with added failures, at most once a second per gateway process.

        Returns a function that ends the subscription.
        """
        self._receivers.append(receiver)
        return lambda: self._receivers.remove(receiver)

    def add(self, failures: Iterable[Failure]) -> None:
        """Add the failures that a gateway process has counted."""
        fresh = list(failures)
        if not fresh:
            return
        for failure in fresh:
            # Moved to the end: the function whose last failure is oldest is dropped first.
            key = (failure.namespace, failure.function)
            kept = self._kept.pop(key, None) or deque[Failure](maxlen=KEPT_MAX)
            self._kept[key] = kept
            _merge(kept, failure)
            if len(self._kept) > FUNCTIONS_MAX:
                del self._kept[next(iter(self._kept))]
        for receiver in self._receivers:
            try:
                receiver(fresh)
            except Exception:  # a receiver's defect must not affect the reporting process
                log.exception("errors could not be told")

    def of(self, namespace: str, name: str) -> list[Failure]:
        """Return the most recent errors of a function, the newest first."""
        kept = self._kept.get((namespace, name), ())
        return sorted(kept, key=lambda one: one.at_s, reverse=True)

    def forget(self, namespace: str, name: str) -> None:
        """Drop the errors of a removed function."""
        self._kept.pop((namespace, name), None)


def _merge(kept: deque[Failure], failure: Failure) -> None:
    for known in reversed(kept):
        # Absolute: a clock that was set back must not hide new failures.
        if abs(known.at_s - failure.at_s) > ALIKE_S:
            break
        if (known.revision, known.code) == (failure.revision, failure.code):
            known.count += failure.count
            return
    # A copy: receivers hold the original, which must not change.
    kept.append(msgspec.structs.replace(failure))
