"""What becomes of a call, as its client's side sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from gateway.dispatch.call import Call
from gateway.slabs.slab import Slot
from registry.errors import FnError
from runtime_image.contract.errors import RequestError
from runtime_image.link.meta import AnswerMeta


class Delivered(NamedTuple):
    """A replica's answer, and what is known of that replica. `up_s`: connected since (monotonic).

    `json_length` is 0 unless the answer is binary with a JSON head. `is_first`: of the replica's
    first run.
    """

    meta: AnswerMeta
    json_length: int
    body: bytes | bytearray
    is_first: bool
    replica: str
    device: str
    up_s: float
    phases: dict[str, float]


Outcome = Delivered | RequestError | FnError


@dataclass(slots=True, eq=False)
class HeldCall(Call):
    """A call with whoever waits for it. `done` is called once, unless the client left first.

    `slot`: where its body lies in shared memory; whoever made the call drops that reference when
    it is over.
    """

    done: Callable[[Outcome], None] = lambda _outcome: None
    slot: Slot | None = None
