"""Heads of requests to functions' servers that were admitted before.

Clients repeat the same head. While neither the catalog nor the keys change, everything that was
decided about it holds: who may call, which revision answers, and what the server gets. The key is
all that these decisions read: the bytes of the head, and the client's address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.access import Access
from registry.catalog import Catalog

if TYPE_CHECKING:
    from gateway.proxy.plan import ExchangePlan
    from registry.catalog import Deployed

HEAD_MAX: Final = 2048
"""Max bytes of a head that is remembered."""
HEADS_MAX: Final = 256
"""Max heads, with answers 10 to 50 KiB each. At the limit all are forgotten, and each is decided
about once more."""
SEEN_MAX: Final = 4096
"""Max hashes of heads that were seen once: a head is remembered at its second arrival."""
VARYING: Final = b"\0"
"""Stands for the request's id. No parsed head has this character."""


class KnownHead(NamedTuple):
    """What was decided about one head from one address.

    `credential`, `applied`: as the journal of its exchanges needs them. `before` and `after`: the
    head for the server around the request's id.
    """

    plan: ExchangePlan
    deployed: Deployed
    credential: str | None
    applied: str
    method: str
    before: bytes
    after: bytes

    def request(self, request_id: str) -> bytes:
        """Return the head for the server."""
        return b"".join((self.before, request_id.encode(), self.after))


class KnownHeads:
    """The known heads of one process by the address of their client and their bytes."""

    def __init__(self, catalog: Catalog, access: Access) -> None:
        self._catalog = catalog
        self._access = access
        self._known: dict[tuple[bytes, bytes], KnownHead] = {}
        self._seen: set[int] = set()
        self._as_of = self._keys_as_of = -1

    def __len__(self) -> int:
        return len(self._known)

    def find(self, peer: bytes, raw: bytes) -> KnownHead | None:
        """Return what is known of a head, None if that is nothing or outdated."""
        known = self._known.get((peer, raw))
        if known is None or self._is_current():
            return known
        self._known.clear()
        return None

    def is_repeated(self, peer: bytes, raw: bytes) -> bool:
        """Return whether a head has arrived before and may be learned, and note its arrival."""
        if len(raw) > HEAD_MAX:
            return False
        mark = hash((peer, raw))
        if mark in self._seen:
            return True
        if len(self._seen) >= SEEN_MAX:
            self._seen.clear()
        self._seen.add(mark)
        return False

    def learn(self, peer: bytes, raw: bytes, known: KnownHead) -> None:
        """Remember what was just decided about a head."""
        if not self._is_current():
            self._known.clear()
            self._as_of, self._keys_as_of = self._catalog.version, self._access.ring.version
        if len(self._known) >= HEADS_MAX:
            self._known.clear()
        self._known[peer, raw] = known

    def _is_current(self) -> bool:
        is_current = self._as_of == self._catalog.version
        return is_current and self._keys_as_of == self._access.ring.version
