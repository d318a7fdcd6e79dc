"""Parameters of a request that the gateway itself follows: `timeout` and `priority`. Pure.

Source: Triton's "Schedule policy extension". All other parameters are the replica's.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from gateway.dispatch.call import Priority
from gateway.replies import Body
from runtime_image.codecs import parameters

WHOLE_MAX: Final = 4 * 1024
"""Bytes. Of a longer JSON part, only both ends are searched: the search delays other calls, and
clients write parameters first or last."""
END_MAX: Final = 2 * 1024
"""Bytes of one end of a long JSON part."""
_WORDS: Final = (b'"timeout"', b'"priority"')
_KEY: Final = b'"parameters"'
_OBJECT: Final = rb'"parameters"\s*+:\s*+(\{[^{}]*+\})'
# Only members with plain text may stand before it. Possessive quantifiers prevent backtracking.
_FIRST: Final = re.compile(rb'\s*+\{\s*+(?:"[a-z_]++"\s*+:\s*+"[^"\\]*+"\s*+,\s*+)*+' + _OBJECT)
_LAST: Final = re.compile(_OBJECT + rb"\s*+\}\s*+")
_US_PER_S: Final = 1e6


class Scheduling(NamedTuple):
    """What a request says about its place in the queue, None where it says nothing.

    `wait_s`: the longest time in the queue. It shortens the function's own budget only.
    """

    wait_s: float | None
    priority: Priority | None


UNSCHEDULED: Final = Scheduling(None, None)


class _Body(msgspec.Struct, gc=False):
    parameters: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_body: Final = msgspec.json.Decoder(_Body)


def requested_scheduling(body: Body, json_length: int) -> Scheduling:
    """Return what the parameters in a request's body say; `json_length` is -1 if all of it is JSON.

    Most bodies have neither word: that is all that is found out about them. Raises RequestError
    (BAD_INPUT) for parameters that a replica would refuse. Of a body that is no JSON nothing is
    said here: the replica explains it.
    """
    end = len(body) if json_length < 0 else min(json_length, len(body))
    raw: msgspec.Raw | bytes | None
    if end <= WHOLE_MAX:
        raw = _in_whole(bytes(body[:end]))
    else:
        raw = _in_end(bytes(body[end - END_MAX : end])) or _in_start(bytes(body[:END_MAX]))
    return UNSCHEDULED if raw is None else _scheduling(parameters.read(raw))


def _scheduling(given: parameters.Parameters) -> Scheduling:
    wait_s = given.timeout / _US_PER_S if given.timeout else None
    if not given.priority:
        return Scheduling(wait_s, None)
    if given.priority == 1:
        return Scheduling(wait_s, Priority.HIGH)
    return Scheduling(wait_s, Priority.NORMAL if given.priority == 2 else Priority.LOW)


def _has_words(text: bytes) -> bool:
    # `in` takes twice as long: it tries an integer first.
    return text.find(_WORDS[0]) >= 0 or text.find(_WORDS[1]) >= 0


def _in_whole(text: bytes) -> msgspec.Raw | None:
    if not _has_words(text):
        return None
    try:
        raw = _body.decode(text).parameters
    except (ValueError, RecursionError):
        return None
    return None if isinstance(raw, msgspec.UnsetType) else raw


def _in_start(text: bytes) -> bytes | None:
    found = _FIRST.match(text) if _has_words(text) else None
    return None if found is None else found[1]


def _in_end(text: bytes) -> bytes | None:
    if not _has_words(text):
        return None
    found = _LAST.fullmatch(text, max(0, text.rfind(_KEY)))
    return None if found is None else found[1]
