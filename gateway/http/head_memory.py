"""Memory of the heads that clients repeat: of calls, parsed, and of exchanges, decided about.

All of it depends on the catalog, and what was decided on its caller, too. Of a request to /v1, its
head has one entry, and each model that such requests name in their bodies another one.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from gateway.admission.calls import NOT_CORRELATED, Correlation
from gateway.http.known_heads import HEAD_MAX, CutHead, KnownHead, cut_head
from gateway.http.plain_heads import PlainHead, parse_plain_head, split_correlation

if TYPE_CHECKING:
    from gateway.admission.callers import Callers, KeyProbe
    from gateway.http.models.request import ModelHead
    from registry.catalog import Catalog

Known: TypeAlias = "KnownHead | ModelHead"
"""What is remembered of an exchange."""

MEMORY_MAX: Final = 1024
"""Max heads of calls. At the limit all heads are forgotten, and each is read once more."""
KNOWN_WEIGHT: Final = 4
"""A head of an exchange counts as so many: it has 10 to 50 KiB with its answers."""
SEEN_MAX: Final = 4096
"""Max hashes of heads that were seen once: of an exchange, a head is remembered at its second
arrival."""


class KnownRequest(NamedTuple):
    """A request whose head is known, and what differs in it."""

    known: Known
    cut: CutHead


class HeadMemory:
    """The heads of one process. Event loop thread only."""

    def __init__(self, catalog: Catalog, callers: Callers) -> None:
        self._catalog = catalog
        self._callers = callers
        self._as_of = catalog.version
        self._plain: dict[bytes, PlainHead] = {}
        self._known: dict[tuple[bytes, Hashable], tuple[Known, int | None]] = {}
        """By the client's address and the bytes, for a model with its name: what was decided, and
        the version of the callers if it depends on it."""
        self._seen: set[int] = set()

    def __len__(self) -> int:
        return len(self._plain) + KNOWN_WEIGHT * len(self._known)

    def find(self, peer: bytes, raw: bytes) -> PlainHead | KnownRequest | None:
        """Return what is known of a head, which ends with its empty line: of a call, or of an
        exchange from one address. None for all others."""
        if self._as_of != self._catalog.version:
            self._forget()
        plain = self._plain.get(raw)
        if plain is not None:
            return plain
        if self._known and len(raw) <= HEAD_MAX and (cut := cut_head(raw)) is not None:
            known = self.recall(peer, cut.key)
            if known is not None:
                return KnownRequest(known, cut)
        parted = split_correlation(raw)
        if parted is None:
            return None
        common, correlation = parted
        plain = self._plain.get(common) or self._learn_plain(common)
        if plain is None or correlation is NOT_CORRELATED:
            return plain
        return PlainHead(plain.head, plain.length, plain.key, correlation)

    def recall(self, peer: bytes, key: Hashable) -> Known | None:
        """Return what was learned with the same arguments, None if it is nothing or holds no
        more."""
        if self._as_of != self._catalog.version:
            self._forget()
        found = self._known.get((peer, key))
        if found is None:
            return None
        known, keys_as_of = found
        if known.caller.is_live and keys_as_of in (None, self._callers.version):
            return known
        del self._known[peer, key]
        return None

    def _learn_plain(self, raw: bytes) -> PlainHead | None:
        """Parse the head of a call. A function's server reads its requests by itself."""
        plain = parse_plain_head(raw)
        if plain is None:
            return None
        if plain.head.version is None and self._catalog.find_server(plain.head.ref) is not None:
            return None
        self._make_room(1)
        self._plain[raw] = plain
        return plain

    def repeated(self, peer: bytes, raw: bytes, who: Correlation) -> CutHead | None:
        """Return a head of an exchange like which another one has arrived before, and note its
        arrival.

        None also for a head that may not be learned: it is long, or has ids that are not cut out.
        `who`: its ids.
        """
        cut = cut_head(raw) if len(raw) <= HEAD_MAX else None
        if cut is None or cut.who != who:
            return None
        mark = hash((peer, cut.key))
        if mark in self._seen:
            return cut
        if len(self._seen) >= SEEN_MAX:
            self._seen.clear()
        self._seen.add(mark)
        return None

    def learn(self, peer: bytes, key: Hashable, known: Known, probe: KeyProbe) -> None:
        """Remember what was just decided about a head. `key`: of the `CutHead`, for a model with
        its name. `probe` was asked which of its texts are keys: with others than the caller's own,
        it depends on all changes of keys."""
        if self._as_of != self._catalog.version:
            self._forget()
        self._make_room(KNOWN_WEIGHT)
        depends = bool(probe.found - {known.caller})
        self._known[peer, key] = known, self._callers.version if depends else None

    def _make_room(self, weight: int) -> None:
        if len(self) + weight > MEMORY_MAX:
            self._forget()

    def _forget(self) -> None:
        """Forget all heads."""
        self._as_of = self._catalog.version
        self._plain.clear()
        self._known.clear()
