"""Which trace a request belongs to (W3C Trace Context). Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_KNOWN: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_LATER: Final = re.compile(
    r"(?!00|ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
    r"(?:-[\x21-\x7e]{0,200})?"
)
"""A later version may say more; what is known of it stands where version 00 has it."""
_SAMPLED: Final = 1
_RANDOM: Final = 2


class Trace(NamedTuple):
    """A request that is traced; ids in lower-case hex. `parent_id` is "" where the trace begins
    here. `flags` as they are told to the replica."""

    trace_id: str
    span_id: str
    parent_id: str
    flags: int

    @property
    def traceparent(self) -> str:
        """What whoever works for this request is told."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def read(text: str) -> str:
    """The header `traceparent` unchanged, "" where the standard has it ignored."""
    return text if _KNOWN.fullmatch(text) or _LATER.fullmatch(text) else ""


def trace_id(traceparent: str) -> str:
    """The trace that a header names which `read` let through; "" for ""."""
    return traceparent[3:35]


def is_sampled(traceparent: str) -> bool:
    """Whether whoever sent this header records the trace."""
    return bool(int(traceparent[53:55], 16) & _SAMPLED)


def begun(trace_id: str, span_id: str) -> Trace:
    """A trace that begins here."""
    return Trace(trace_id, span_id, "", _SAMPLED)


def continued(traceparent: str, span_id: str) -> Trace:
    """The sender's trace, goes on with a span of ours."""
    flags = int(traceparent[53:55], 16) & _RANDOM | _SAMPLED
    return Trace(trace_id(traceparent), span_id, traceparent[36:52], flags)
