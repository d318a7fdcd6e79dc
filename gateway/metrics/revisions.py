"""Numbers of each revision's requests, for the protocol's statistics.

They are kept like the counters of `/metrics`, in a store of their own: a question about a few
revisions reads only these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from gateway.metrics.counters import CounterStore, LocalStore
from gateway.replies import Receipt
from registry.catalog import Change
from registry.model.revisions import pool_key

REVISIONS_MAX: Final = 1000
"""Max revisions with numbers: those called first. All others have zeros."""
LABELS: Final = ("pool",)


class RevisionNumbers(NamedTuple):
    """Requests of a revision since the start.

    `success` and `fail` are requests, `rows` those of successful ones. Their times: `success_s`
    and `fail_s` in seconds from the head to the answer, `queue_ms` in milliseconds in gateway and
    replica, `input_us`, `infer_us` and `output_us` in microseconds. `last_s`: monotonic time of the
    last success.
    """

    success: float = 0.0
    rows: float = 0.0
    success_s: float = 0.0
    queue_ms: float = 0.0
    input_us: float = 0.0
    infer_us: float = 0.0
    output_us: float = 0.0
    last_s: float = 0.0
    fail: float = 0.0
    fail_s: float = 0.0


NAMES: Final = tuple(f"revision_{name}" for name in RevisionNumbers._fields)
"""Names of the numbers in the store; the label is the revision's key."""
LAST: Final = "revision_last_s"
"""The one that is a time."""
_Places = tuple[int, ...]


class RevisionCounts:
    """Counts the requests of one gateway process by revision. Event loop thread only.

    `is_deployed` returns whether a function of that namespace and name exists.
    """

    def __init__(
        self, is_deployed: Callable[[str, str], bool], store: CounterStore | None = None
    ) -> None:
        """`store` holds the numbers, by default in this process's memory."""
        self._is_deployed = is_deployed
        self._store = store or LocalStore()
        self._values = self._store.values
        self._places: dict[str, _Places] = {}
        self._pools: dict[tuple[str, str], list[str]] = {}

    def count_answer(self, pool: str, seconds: float, receipt: Receipt, now: float) -> None:
        """Count a replica's answer after `seconds`, at the monotonic time `now`."""
        places = self._places.get(pool) or self._bind(pool)
        if places is None:
            return
        success, rows, total, queue, decoded, ran, encoded, last, _, _ = places
        _, decode_us, wait_us, compute_us, encode_us, _, own_rows = receipt.meta
        values = self._values
        values[success] += 1.0
        values[rows] += own_rows
        values[total] += seconds
        values[queue] += receipt.queue_ms + wait_us / 1e3
        values[decoded] += decode_us
        values[ran] += compute_us
        values[encoded] += encode_us
        values[last] = now

    def count_failure(self, pool: str, seconds: float) -> None:
        """Count a request that got an error after `seconds`."""
        places = self._places.get(pool) or self._bind(pool)
        if places is not None:
            self._values[places[-2]] += 1.0
            self._values[places[-1]] += seconds

    def read(self) -> Mapping[str, RevisionNumbers]:
        """Return the numbers of every revision that was called, by its key."""
        values = self._values
        return {
            pool: RevisionNumbers(*[values[place] for place in places])
            for pool, places in self._places.items()
        }

    def on_change(self, change: Change) -> None:
        """Drop the numbers of removed revisions."""
        function = (change.namespace, change.name)
        called = self._pools.get(function)
        if called is None:
            return
        stay = {pool_key(*function, number) for number in change.revisions}
        for pool in [one for one in called if one not in stay]:
            called.remove(pool)
            for place in self._places.pop(pool):
                self._store.free(place)
        if not called:
            del self._pools[function]

    def _bind(self, pool: str) -> _Places | None:
        """Return the places of a revision that is called for the first time; None for one beyond
        the limit, and for a late answer of a removed function."""
        namespace, _, ref = pool.partition("/")
        function = (namespace, ref.partition("@")[0])
        if len(self._places) >= REVISIONS_MAX or not self._is_deployed(*function):
            return None
        places = tuple(self._store.allocate(name, LABELS, (pool,)) for name in NAMES)
        self._places[pool] = places
        self._pools.setdefault(function, []).append(pool)
        return places
