"""The kept prefix: the first bytes of a request's body, until they need not be sent again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from gateway.proxy import retries

if TYPE_CHECKING:
    from gateway.http.reservations import BodyBudget, BodyReservation
    from gateway.proxy.framing import Data
    from registry.errors import FnError

OnEvicted: TypeAlias = "Callable[[FnError], None]"
KEPT_MAX: Final = 1024 * 1024
"""Max bytes of a kept prefix. While a request is held, reading its body stops there."""


def may_resend(method: bytes, retry: retries.Retry, sends: int, is_reused: bool) -> bool:
    """Return whether `retries.decide` may send a request again that was sent `sends` times."""
    if sends >= retries.SENDS_MAX or retry == "never":
        return False
    return is_reused or retry == "always" or method in retries.IDEMPOTENT


class KeptPrefix:
    """The body's bytes so far, counted in `memory`.

    Bytes of a body that is still arriving may be evicted for other requests: `on_evicted` is then
    called, and the prefix is empty. `settle` ends that.
    """

    __slots__ = (
        "_charged",
        "_memory",
        "_reservation",
        "is_lost",
        "is_whole",
        "pieces",
        "size",
    )

    def __init__(self, memory: BodyBudget) -> None:
        self._memory = memory
        self._reservation: BodyReservation | None = None
        self._charged = 0
        self.pieces: list[Data] = []
        self.size = 0
        self.is_whole = True
        """Whether every byte of the body so far is kept."""
        self.is_lost = False
        """Whether bytes were dropped for their size or for the memory they take."""

    @property
    def is_full(self) -> bool:
        """Whether the prefix has its maximal size."""
        return self.size >= KEPT_MAX

    def add(self, data: Data, on_evicted: OnEvicted, *, is_sent: bool) -> None:
        """Keep more bytes. Raises BodyEvicted; the prefix is then dropped.

        `is_sent`: the request was sent already. It is then not worth more than KEPT_MAX bytes, and
        dropped.
        """
        if is_sent and self.size + len(data) > KEPT_MAX:
            self.is_lost = True
            self.drop()
            return
        if self._reservation is None:
            self._reservation = self._memory.open(partial(self._evicted, on_evicted))
        try:
            self._reservation.grow(len(data))
        except Exception:
            self.is_lost = True
            self.drop()
            raise
        self.pieces.append(data)
        self.size += len(data)

    def add_whole(self, pieces: Sequence[Data], size: int, on_evicted: OnEvicted) -> None:
        """Keep a complete body of `size` bytes, as its first bytes. Raises BodyEvicted."""
        if self._memory.try_charge(size):
            self._charged = self.size = size
            self.pieces += pieces
        else:
            for piece in pieces:
                self.add(piece, on_evicted, is_sent=False)
            self.settle()

    def settle(self) -> None:
        """Keep the bytes until `drop`: the body is complete, or no more of it is read."""
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None
            count = self.size - self._charged
            self._memory.charge(count)  # it fits: just released
            self._charged += count

    def drop(self) -> None:
        """Forget all bytes; idempotent. The request cannot be sent again from here."""
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None
        if self._charged:
            self._memory.refund(self._charged)
            self._charged = 0
        self.pieces = []
        self.size = 0
        self.is_whole = False

    def _evicted(self, on_evicted: OnEvicted, error: FnError) -> None:
        self._reservation = None
        self.is_lost = True
        self.drop()
        on_evicted(error)
