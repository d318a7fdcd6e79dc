"""Faults of the API server, set by tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.kubernetes.errors import Refused


@dataclass
class Fault:
    """What happens to the next requests of some kind."""

    verb: str
    """get, list, watch, create, delete, patch, log, or "" for all."""
    plural: str
    """Such as pods, "" for all."""
    times: int
    refusal: Refused | None = None
    wait_s: float = 0.0
    raw: bytes | None = None
    """Answered with 200 in place of an object."""
    is_broken: bool = False
    """The connection ends without an answer."""
    is_after: bool = False
    """The request takes effect before it fails."""


@dataclass
class Faults:
    """Those that are pending."""

    pending: list[Fault] = field(default_factory=list)
    are_watches_stalled: bool = False
    """Watches are open and bring nothing, not even bookmarks."""
    between: Callable[[str], None] | None = None
    """Called once with the plural after a list has been answered, before its watch comes."""
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when watches no longer stall."""

    def refuse(
        self,
        code: int,
        reason: str = "",
        message: str = "",
        *,
        verb: str = "",
        plural: str = "",
        times: int = 1,
        retry_after_s: int | None = None,
        is_after: bool = False,
    ) -> Fault:
        """Answer the next requests with a `Status`; `is_after`: they have taken effect though."""
        headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
        refusal = Refused(code, reason, message or f"a fault: {code}", headers=headers)
        return self._add(Fault(verb, plural, times, refusal, is_after=is_after))

    def delay(self, wait_s: float, *, verb: str = "", plural: str = "", times: int = 1) -> Fault:
        """Answer the next requests later."""
        return self._add(Fault(verb, plural, times, wait_s=wait_s))

    def answer(self, raw: bytes, *, verb: str = "", plural: str = "", times: int = 1) -> Fault:
        """Answer the next requests with these bytes."""
        return self._add(Fault(verb, plural, times, raw=raw))

    def break_off(
        self, *, verb: str = "", plural: str = "", times: int = 1, is_after: bool = False
    ) -> Fault:
        """End the connections of the next requests; `is_after`: they have taken effect though."""
        return self._add(Fault(verb, plural, times, is_broken=True, is_after=is_after))

    def _add(self, fault: Fault) -> Fault:
        self.pending.append(fault)
        return fault

    def take(self, verb: str, plural: str) -> Fault | None:
        """Return the fault of a request, if it has one, and count it."""
        for fault in self.pending:
            if fault.verb in ("", verb) and fault.plural in ("", plural):
                fault.times -= 1
                if fault.times <= 0:
                    self.pending.remove(fault)
                return fault
        return None

    def stall(self) -> None:
        """Let watches stay open and bring nothing from now on."""
        self.are_watches_stalled = True
        self.moved.clear()

    def move(self) -> None:
        """Let watches go on, with what they have missed."""
        self.are_watches_stalled = False
        self.moved.set()
