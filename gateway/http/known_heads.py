"""Heads of requests to functions' servers that were admitted before.

Clients repeat the same head. While neither the catalog nor the keys change, everything that was
decided about it holds: who may call, which revision answers, and what the server gets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gateway.access import Access
from registry.catalog import Catalog

if TYPE_CHECKING:
    from gateway.proxy.plan import ExchangePlan
    from registry.catalog import Deployed

HEAD_MAX: Final = 2048
"""Max bytes of a head that is remembered."""
HEADS_MAX: Final = 512
"""Max heads. At the limit all are forgotten, and each is decided about once more."""
SEEN_MAX: Final = 4096
"""Max hashes of heads that were seen once: a head is remembered at its second arrival."""
PEERS_MAX: Final = 32
"""Max addresses of clients for which a head is kept as their requests forward it."""
VARYING: Final = b"\0"
"""Stands for the request's id. No parsed head has this character."""


class KnownHead:
    """What was decided about one head.

    `credential`, `applied`: as the journal of its exchanges needs them. `forward(peer)` returns the
    head for the server of a client with that address, with VARYING for the request's id.
    """

    __slots__ = ("_forward", "_forwarded", "applied", "credential", "deployed", "method", "plan")

    def __init__(
        self,
        plan: ExchangePlan,
        deployed: Deployed,
        credential: str | None,
        applied: str,
        forward: Callable[[bytes], bytes],
    ) -> None:
        self.plan = plan
        self.deployed = deployed
        self.credential = credential
        self.applied = applied
        self.method = plan.head.method.decode()
        self._forward = forward
        self._forwarded: dict[bytes, tuple[bytes, bytes]] = {}

    def request(self, peer: bytes, request_id: str) -> bytes:
        """Return the head for the server."""
        known = self._forwarded.get(peer)
        if known is None:
            before, _, after = self._forward(peer).partition(VARYING)
            if len(self._forwarded) >= PEERS_MAX:
                self._forwarded.clear()
            known = self._forwarded[peer] = (before, after)
        return b"".join((known[0], request_id.encode(), known[1]))


class KnownHeads:
    """The known heads of one process by their bytes."""

    def __init__(self, catalog: Catalog, access: Access) -> None:
        self._catalog = catalog
        self._access = access
        self._known: dict[bytes, KnownHead] = {}
        self._seen: set[int] = set()
        self._as_of = self._keys_as_of = -1

    def __len__(self) -> int:
        return len(self._known)

    def find(self, raw: bytes) -> KnownHead | None:
        """Return what is known of a head, None if that is nothing or outdated."""
        known = self._known.get(raw)
        if known is None or self._is_current():
            return known
        self._known.clear()
        return None

    def learn(self, raw: bytes, known: KnownHead) -> None:
        """Remember what was decided about a head, if it has arrived before."""
        if len(raw) > HEAD_MAX:
            return
        if not self._is_current():
            self._known.clear()
            self._as_of, self._keys_as_of = self._catalog.version, self._access.ring.version
        mark = hash(raw)
        if mark not in self._seen:
            if len(self._seen) >= SEEN_MAX:
                self._seen.clear()
            self._seen.add(mark)
            return
        if len(self._known) >= HEADS_MAX:
            self._known.clear()
        self._known[raw] = known

    def _is_current(self) -> bool:
        is_current = self._as_of == self._catalog.version
        return is_current and self._keys_as_of == self._access.ring.version
