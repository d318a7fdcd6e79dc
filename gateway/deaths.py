"""Adds the cause of a replica's death to the errors of its calls.

A gateway process detects the broken link at once. The pool manager publishes how the process ended
a moment later.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from gateway.data_links import HeldCall
from gateway.server_links import ExchangeCall
from registry.errors import FnError, Poison, ReplicaDied, ReplicaHung
from registry.exchange import PoolEndpoints

CAUSE_TIMEOUT_S: Final = 1.0
"""Max seconds that an error waits for the cause."""
AnyCall = HeldCall | ExchangeCall


@dataclass(slots=True, eq=False)
class _Deferred:
    call: AnyCall
    error: FnError
    timer: asyncio.TimerHandle


class DeathCauses:
    """Holds back the errors of calls whose replica died, until the cause is known.

    After `timeout_s` seconds the error is sent without it. Event loop thread only.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float = CAUSE_TIMEOUT_S) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self._deferred: dict[str, list[_Deferred]] = {}

    def defer(self, call: AnyCall, error: FnError, endpoints: PoolEndpoints) -> None:
        """Answer `call` with `error` and the cause, as soon as the cause is known.

        `endpoints` have the causes known so far.
        """
        if call.link in endpoints.ended:
            call.done(_with_cause(error, call.link, endpoints))
            return
        timer = self._loop.call_later(self._timeout_s, self._expire, call)
        self._deferred.setdefault(call.link, []).append(_Deferred(call, error, timer))

    def on_causes(self, endpoints: PoolEndpoints) -> None:
        """Complete the errors of replicas whose cause of death the pool manager has published."""
        for replica in self._deferred.keys() & endpoints.ended.keys():
            for one in self._deferred.pop(replica):
                one.timer.cancel()
                one.call.done(_with_cause(one.error, replica, endpoints))

    def cancel(self, call: AnyCall) -> FnError | None:
        """Discard the error of a call whose client has disconnected, and return it, if any."""
        several = self._deferred.get(call.link, [])
        one = next((each for each in several if each.call is call), None)
        if one is None:
            return None
        one.timer.cancel()
        several.remove(one)
        if not several:
            del self._deferred[call.link]
        return one.error

    def close(self) -> None:
        """Answer every deferred call, without a cause."""
        for call in [one.call for several in self._deferred.values() for one in several]:
            self._expire(call)

    def _expire(self, call: AnyCall) -> None:
        if (error := self.cancel(call)) is not None:
            call.done(error)


def _with_cause(error: FnError, replica: str, endpoints: PoolEndpoints) -> FnError:
    """Return the error with the cause of death. One that was replaced because it did not answer did
    not die of the request: the error says so by its type."""
    cause, kind = endpoints.ended[replica], type(error)
    if kind is ReplicaDied and replica in endpoints.hung:
        kind = ReplicaHung
    return kind(
        f"{error.message}: {'the last one' if isinstance(error, Poison) else 'it'} {cause}",
        retry_after_s=error.retry_after_s,
        detail=error.detail,
        admin_detail=error.admin_detail,
    )
