"""Bodies that killed a replica while running alone, refused for a while."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

REFUSED_S = 60.0
KEPT_MAX = 1000


class PoisonList:
    """Digests of bodies per pool. Costs nothing while it is empty."""

    def __init__(self) -> None:
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def add(self, pool: str, body: bytes | bytearray | memoryview, now: float) -> None:
        """Refuse this body for a minute."""
        digest = _digest(pool, body)
        self._until[digest] = now + REFUSED_S
        self._until.move_to_end(digest)
        if len(self._until) > KEPT_MAX:
            self._until.popitem(last=False)

    def seconds_left(self, pool: str, body: bytes | bytearray | memoryview, now: float) -> float:
        """How long this body is still refused; 0 if it is not."""
        if not self._until:
            return 0.0
        return max(0.0, self._until.get(_digest(pool, body), 0.0) - now)

    def sweep(self, now: float) -> None:
        """Forget what is over."""
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)


def _digest(pool: str, body: bytes | bytearray | memoryview) -> bytes:
    return blake2b(
        body, digest_size=16, key=blake2b(pool.encode(), digest_size=16).digest()
    ).digest()
