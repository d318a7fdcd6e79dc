"""What goes wrong with requests: alike errors counted together, the last ones kept per function."""

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
"""Kinds of errors told apart between two takes; of further ones only the metrics know."""
ALIKE_S: Final = 1.0
"""Alike errors are one for so long, whichever gateway process they come from."""
KEPT_MAX: Final = 50
"""Errors kept per function."""
FUNCTIONS_MAX: Final = 1000
"""Functions whose errors are kept: those with the latest."""
DETAIL_MAX: Final = 500
"""Characters."""

Kind = tuple[str, str, str, str]


class Failure(msgspec.Struct, array_like=True):
    """Requests of one function and revision ("digits@3") that ended with the same `code`: how many,
    and of the first one when that was (Unix seconds), the text, replica and request id, "" where
    there is none."""

    namespace: str
    function: str
    revision: str
    code: str
    at_s: float
    detail: str
    replica: str
    request_id: str
    count: int = 1


class FailureCount:
    """Counts what is not yet taken: a storm of errors costs a look-up each. `wall` gives Unix
    seconds."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._pending: dict[Kind, Failure] = {}

    def count(self, asked: Deployed, error: FnError, call: Call | None, request_id: str) -> None:
        """A request for `asked` was answered with `error`; `call` had been accepted, and may have
        followed its function's traffic. Its client's own mistakes are nobody else's business."""
        if not is_worth_keeping(error):
            return
        name, revision = asked.function.name, asked.revision.ref
        if call is not None:
            revision = call.pool.partition("/")[2]
        kind = (asked.function.namespace, name, revision, error.code)
        known = self._pending.get(kind)
        if known is not None:
            known.count += 1
        elif len(self._pending) < PENDING_MAX:
            detail = error.message[:DETAIL_MAX].encode("utf-8", "replace").decode()
            replica = call.link if call is not None and call.sends else ""
            self._pending[kind] = Failure(*kind, self._wall(), detail, replica, request_id)

    def drain(self) -> list[Failure]:
        """What was counted since the last time; to be called every second."""
        if not self._pending:
            return []
        taken, self._pending = self._pending, {}
        return list(taken.values())


class RecentFailures:
    """The last errors of each function, of all gateway processes."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], deque[Failure]] = {}
        self.on_added: Callable[[list[Failure]], None] = lambda _several: None
        """Told what is added, at most once a second from each gateway process."""

    def add(self, failures: Iterable[Failure]) -> None:
        """What was counted since the last time, anywhere."""
        fresh = list(failures)
        if not fresh:
            return
        for failure in fresh:
            # At the end of the order: whose errors are oldest is forgotten first.
            key = (failure.namespace, failure.function)
            kept = self._kept.pop(key, None) or deque[Failure](maxlen=KEPT_MAX)
            self._kept[key] = kept
            _keep(kept, failure)
            if len(self._kept) > FUNCTIONS_MAX:
                del self._kept[next(iter(self._kept))]
        try:
            self.on_added(fresh)
        except Exception:  # who listens badly must not cost the one who tells
            log.exception("errors could not be told")

    def of(self, namespace: str, name: str) -> list[Failure]:
        """The last errors of a function, the newest first."""
        kept = self._kept.get((namespace, name), ())
        return sorted(kept, key=lambda one: one.at_s, reverse=True)

    def forget(self, namespace: str, name: str) -> None:
        """The function is gone."""
        self._kept.pop((namespace, name), None)


def _keep(kept: deque[Failure], failure: Failure) -> None:
    for known in reversed(kept):
        # To both sides: a clock that was put back must not hide what comes now.
        if abs(known.at_s - failure.at_s) > ALIKE_S:
            break
        if (known.revision, known.code) == (failure.revision, failure.code):
            known.count += failure.count
            return
    # A copy, for what was told stays as it was told.
    kept.append(msgspec.structs.replace(failure))
