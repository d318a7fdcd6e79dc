"""Heads of answers that were sent before: a server repeats the same head. Pure.

A template is a client's head without the two values that differ in each answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.proxy.answering import URLS, Answering, forward_answer
from gateway.proxy.fields import Fields
from gateway.proxy.framing import BodyKind

if TYPE_CHECKING:
    from gateway.proxy.framing import Framing
    from gateway.proxy.response_head import ResponseHead

VARYING: Final = b"\0"
"""Stands for a value that differs in each answer. No parsed head has this character."""
HEAD_MAX: Final = 2048
"""Max bytes of a server's head that is remembered."""
KNOWN_MAX: Final = 4
"""Max heads that are remembered for one plan. Most servers have one per second, for its Date."""
_READ: Final[tuple[bytes, ...]] = (b"content-type", b"content-encoding")
"""Fields that the records of answers, and filters, read."""


class AnswerTemplate(NamedTuple):
    """What the client gets of a server's head, around the two varying values.

    `head`: the server's, whose fields but the content's type and coding are forgotten: they take
    more memory than all the rest. `size`: bytes of the body, -1 unless the head says them.
    `keep_alive` and `is_dechunked` are those of `gateway.proxy.answering.ClientAnswer`.
    """

    head: ResponseHead
    size: int
    before: bytes
    between: bytes
    after: bytes
    keep_alive: bool
    is_dechunked: bool

    def fill(self, timing: bytes, request_id: bytes) -> bytes:
        """Return the client's head with the values of Server-Timing and X-Request-Id."""
        return b"".join((self.before, timing, self.between, request_id, self.after))


def make_template(given: Answering, head: ResponseHead, framing: Framing) -> AnswerTemplate:
    """Return the template of an answer that the client gets with `framing`.

    Two fields in `given.added` have the value VARYING, for Server-Timing and then for X-Request-Id.
    """
    answer = forward_answer(head._replace(framing=framing), given)
    before, between, after = answer.head.split(VARYING)
    read = {name: value for name in _READ if (value := head.fields.values.get(name)) is not None}
    head = head._replace(fields=Fields((), (), read))
    kind, length = head.framing
    size = length if kind in (BodyKind.NONE, BodyKind.LENGTH) else -1
    return AnswerTemplate(
        head, size, before, between, after, answer.keep_alive, answer.is_dechunked
    )


def is_repeatable(head: ResponseHead) -> bool:
    """Return whether the template of an answer holds for the same head of every replica.

    The meaning of a URL depends on the port of the server that sends it.
    """
    return URLS.isdisjoint(head.fields.values)


class KnownAnswers:
    """Templates of the answers to the requests of one plan, by the bytes of the server's head."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, AnswerTemplate] = {}

    def find(self, raw: bytes) -> AnswerTemplate | None:
        """Return the template for a server's head, None if it is not known."""
        return self._known.get(raw)

    def learn(self, raw: bytes, template: AnswerTemplate) -> None:
        """Remember the template of a final answer, unless its head is large."""
        if len(raw) > HEAD_MAX:
            return
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[raw] = template
