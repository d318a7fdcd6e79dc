"""Heads of requests to functions' servers that were admitted before. Pure.

Clients repeat the same head, except for its query, the length of the body, and the ids that
correlate a request. While its caller lives and the catalog stays, everything that was decided about
it holds: who may call, which revision answers, and what the server gets. The key is all that these
decisions read: the other bytes of the head, and the client's address.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.admission.callers import Caller
from gateway.admission.calls import NOT_CORRELATED, Correlation
from gateway.observing import records
from gateway.proxy.forwarding import Forwarding, forward_request
from gateway.proxy.framing import BodyKind, Framing
from registry.key_form import KEY

if TYPE_CHECKING:
    from gateway.proxy.plan import ExchangePlan
    from registry.catalog import Deployed

HEAD_MAX: Final = 2048
"""Max bytes of a head that is known, all of it: less than what a request may have."""
VARYING: Final = b"\0"
"""Stands for the query and the ids of a request. No parsed head has this character."""
# The characters that `gateway.proxy.request_head` accepts; not of a head that it would refuse.
_QUERY: Final = re.compile(
    rb"[A-Z]{1,32} /fn/[\x21\x22\x24-\x3e\x40-\x5b\x5d-\x7e]*"
    rb"(\?[\x21\x22\x24-\x5b\x5d-\x7e]*) HTTP/1\.[01]\r\n"
)
# Other spellings than these are rare, and take longer to look for.
_CUT: Final = re.compile(
    rb"\r\n(?:[Cc]ontent-[Ll]ength: ?([1-9][0-9]{0,8})"
    rb"|[Xx]-[Rr]equest-[Ii][Dd]: ?(?![^\r]*" + KEY + rb")([A-Za-z0-9._-]{1,128})"
    rb"|[Tt]raceparent: ?(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}))(?=\r\n)"
)
_LENGTH, _REQUEST_ID, _TRACEPARENT = 1, 2, 3
_IS_CUT: Final = b"-"
_END: Final = b"%d\r\n\r\n"


class CutHead(NamedTuple):
    """A head without what differs between requests that are treated alike.

    `key`: the other bytes, and whether a length was cut out. `query`: with its question mark, b""
    for none. `length`: the value of Content-Length, 0 if it was not cut out. `who`: the ids that
    were cut out, each with its line.

    Two heads with the same key are both valid or both not: a valid one has one Content-Length, so
    the line from which a number was cut is the same in both. No head ends like the key of one from
    which it was cut, so a field without a value is something else.
    """

    key: bytes
    query: bytes
    length: int
    who: Correlation


def cut_head(raw: bytes) -> CutHead | None:
    """Cut a head, which ends with its empty line. Takes no notice of whether it is valid.

    None if something that would be cut out is repeated.
    """
    query, length, at = b"", 0, 0
    pieces: list[bytes] = []
    ids: dict[int, str] = {}
    if b"?" in raw and (found := _QUERY.match(raw)):
        query, at = found[1], found.end(1)
        pieces.append(raw[: found.start(1)])
    for found in _CUT.finditer(raw, at):
        kind = found.lastindex or 0
        if kind == _LENGTH:
            if length:
                return None
            length = int(found[_LENGTH])
            pieces.append(raw[at : found.start(_LENGTH)])
        else:
            if kind in ids:
                return None
            ids[kind] = found[kind].decode()
            pieces.append(raw[at : found.start()])
        at = found.end()
    pieces.append(raw[at:])
    if length:
        pieces.append(_IS_CUT)
    who = NOT_CORRELATED
    if ids:
        traceparent = records.parse_traceparent(ids.get(_TRACEPARENT, ""))
        if not traceparent and _TRACEPARENT in ids:
            return None
        who = Correlation(ids.get(_REQUEST_ID, ""), traceparent)
    return CutHead(b"".join(pieces), query, length, who)


class KnownHead(NamedTuple):
    """What was decided about one head from one address.

    `caller`, `applied`, `added`: as the journal of its exchanges needs them. `before`,
    `between` and `after`: the head for the server around the query and the ids. Its end is the
    value of Content-Length where that was cut out.
    """

    plan: ExchangePlan
    deployed: Deployed
    caller: Caller
    applied: str
    added: tuple[tuple[str, str], ...]
    method: str
    before: bytes
    between: bytes
    after: bytes

    def framing(self, cut: CutHead) -> Framing:
        """Return the framing of the body of a request with this head."""
        return Framing(BodyKind.LENGTH, cut.length) if cut.length else self.plan.head.framing

    def request(self, cut: CutHead, request_id: str) -> bytes:
        """Return the head for the server."""
        ids = request_id
        if cut.who.traceparent:
            ids = f"{ids}\r\ntraceparent: {cut.who.traceparent}"
        end = _END % cut.length if cut.length else b""
        return b"".join((self.before, cut.query, self.between, ids.encode(), self.after, end))


def make_known_head(
    plan: ExchangePlan,
    deployed: Deployed,
    decided: tuple[Caller, str, tuple[tuple[str, str], ...]],
    forwarding: Forwarding,
    cut: CutHead,
) -> KnownHead:
    """Return what was decided about a head.

    `decided`: its caller, the value of Preference-Applied, and further headers of answers.
    """
    target = forwarding.target.removesuffix(cut.query) + VARYING
    given = forwarding._replace(target=target, request_id=VARYING, traceparent=VARYING)
    before, between, line, after = forward_request(plan.head, given).split(VARYING)
    assert line == b"\r\ntraceparent: ", "the trace follows the id"
    if cut.length:
        end = _END % cut.length
        assert after.endswith(b" " + end), "the framing is the last field"
        after = after[: -len(end)]
    return KnownHead(plan, deployed, *decided, plan.head.method.decode(), before, between, after)
