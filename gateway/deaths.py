"""Tells callers how the replica died that ran their request.

A gateway sees the link break; how the process ended the pool manager learns, a moment later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.data_links import HeldCall
from registry.errors import FnError, Poison

CAUSE_TIMEOUT_S = 1.0
"""How long an error waits for the pool manager's word."""


@dataclass(slots=True, eq=False)
class _Deferred:
    call: HeldCall
    error: FnError
    timer: asyncio.TimerHandle


class DeathCauses:
    """Holds back the errors of calls whose replica died until its cause is known.

    For the loop's thread alone. Each call has its error after CAUSE_S at the latest.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, cause_s: float = CAUSE_TIMEOUT_S) -> None:
        self._loop = loop
        self._cause_s = cause_s
        self._waiting: dict[str, list[_Deferred]] = {}

    def defer(self, call: HeldCall, error: FnError, known: Mapping[str, str]) -> None:
        """Answer `call` with `error` and how the replica at `call.link` died; `known` are the
        causes told so far, by replica."""
        cause = known.get(call.link)
        if cause is not None:
            call.done(_with(error, cause))
            return
        timer = self._loop.call_later(self._cause_s, self._expire, call)
        self._waiting.setdefault(call.link, []).append(_Deferred(call, error, timer))

    def on_causes(self, causes: Mapping[str, str]) -> None:
        """The pool manager has told how these replicas died."""
        for replica in self._waiting.keys() & causes.keys():
            for one in self._waiting.pop(replica):
                one.timer.cancel()
                one.call.done(_with(one.error, causes[replica]))

    def cancel(self, call: HeldCall) -> None:
        """The client of a call is gone."""
        self._pop(call)

    def close(self) -> None:
        """Answer every call with what is known."""
        for call in [one.call for waiting in self._waiting.values() for one in waiting]:
            self._expire(call)

    def _expire(self, call: HeldCall) -> None:
        if one := self._pop(call):
            call.done(one.error)

    def _pop(self, call: HeldCall) -> _Deferred | None:
        waiting = self._waiting.get(call.link, [])
        one = next((each for each in waiting if each.call is call), None)
        if one is not None:
            one.timer.cancel()
            waiting.remove(one)
            if not waiting:
                del self._waiting[call.link]
        return one


def _with(error: FnError, cause: str) -> FnError:
    return type(error)(
        f"{error.message}: {'the last one' if isinstance(error, Poison) else 'it'} {cause}",
        retry_after_s=error.retry_after_s,
        detail=error.detail,
        admin_detail=error.admin_detail,
    )
