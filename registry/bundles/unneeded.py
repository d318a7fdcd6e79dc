"""Blobs that no revision needs, counted for the keys that uploaded them. No I/O of its own.

What is uploaded is needed once a revision with it is stored. Until then it belongs to a key, and a
key may hold no more of it than stays free for others: else the one that came first could keep every
other one from deploying.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from registry.errors import StoreUnavailable
from registry.shares import Shares

CLAIMS_S: Final = 24 * 3600.0
"""Seconds for which claims keep a blob that no revision needs, from its upload on."""
FILES_MAX: Final = 20_000
"""Max blobs that no revision needs, shared by keys as in `Shares`: small ones cost more than their
bytes."""
RETRY_S: Final = 60.0


@dataclass(slots=True)
class Arrival:
    """A blob of `size` bytes that is being uploaded; `received` of them are written already."""

    size: int
    received: int = 0


@dataclass(frozen=True, slots=True)
class _Blob:
    party: str
    size: int
    since_s: float


class UnneededBlobs:
    """The blobs of one store that no revision needs, as far as uploads and claims since the start
    show them. `free()` returns the bytes that uploads may fill. Event loop thread only."""

    def __init__(self, free: Callable[[], int], most: int = FILES_MAX) -> None:
        """`most` bounds their number."""
        self._free = free
        self._blobs: dict[str, _Blob] = {}
        self._arrivals: dict[int, Arrival] = {}
        self._files = Shares("uploaded files are needed by no function", most)
        self._bytes: Counter[str] = Counter()
        self._needed: Collection[str] = frozenset()

    def held(self, party: str) -> int:
        """Return the bytes of a key, with those that it is uploading."""
        return self._bytes[party]

    def settle(self, needed: Collection[str], has: Callable[[str], bool]) -> None:
        """Forget the blobs that are `needed` now, and those that the store no longer `has`."""
        self._needed = needed
        gone = [one for one in self._blobs if one in needed or not has(one)]
        for sha256 in gone:
            self._forget(sha256)

    def may_claim(self, party: str, sha256: str, size: int, now: float) -> bool:
        """Return whether a claim may keep a stored blob. One that nobody has yet is the key's."""
        if sha256 in self._needed:
            return True
        if sha256 not in self._blobs:
            self._count(party, size)
            self._blobs[sha256] = _Blob(party, size, now)
        return now - self._blobs[sha256].since_s < CLAIMS_S

    @contextmanager
    def arriving(
        self, party: str, sha256: str, size: int, now: float, *, is_bounded: bool
    ) -> Iterator[Arrival]:
        """Count a blob that is received within the block, and afterwards as the key's.

        Raises QueueFull or StoreUnavailable if the key would have more files than others may, or
        more bytes than stay free, unless it is not bounded.
        """
        if is_bounded:
            self._check(party, size)
        arrival = Arrival(size)
        self._arrivals[id(arrival)] = arrival
        self._count(party, size)
        try:
            yield arrival
        except BaseException:
            self._discount(party, size)
            raise
        finally:
            del self._arrivals[id(arrival)]
        if sha256 in self._needed:
            self._discount(party, size)
            return
        if sha256 in self._blobs:
            self._forget(sha256)
        self._blobs[sha256] = _Blob(party, size, now)

    def _count(self, party: str, size: int) -> None:
        self._files.hold(party)
        self._bytes[party] += size

    def _discount(self, party: str, size: int) -> None:
        self._files.give_back(party)
        self._bytes[party] -= size
        if not self._files.taken(party):
            del self._bytes[party]

    def _forget(self, sha256: str) -> None:
        blob = self._blobs.pop(sha256)
        self._discount(blob.party, blob.size)

    def _check(self, party: str, size: int) -> None:
        self._files.check(party)
        coming = sum(one.size - one.received for one in self._arrivals.values())
        free, own = self._free() - coming, self.held(party)
        if own + size <= free - size:
            return
        raise StoreUnavailable(
            f"expected a file of at most {max(0, free - own) // 2} bytes, got {size}: files that"
            f" no function needs may be no more bytes of a key, now {own}, than stay free for"
            f" others, now {max(0, free)}; deploy what was uploaded, wait an hour until unneeded"
            " files go, or use a key with the scope admin",
            retry_after_s=RETRY_S,
        )
