"""Usage of models by key and function: rows that add up. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

HOUR_S: Final = 3600
ROWS_MAX: Final = 10_000
"""Max rows that wait to be passed on or stored; about 4 MB."""
OTHERS: Final = "_others"
"""Key and function of the row that has what found no row. No name and no id begins so."""
IDLE: Final = "_idle"
"""Key and function of the time in which no function holds a device. No name and no id begins so."""
NUMBER_MAX: Final = 2**53
"""Max value of a number in one row; far more than an hour can have."""


class UsageRow(NamedTuple):
    """Usage of one function with one key, within the hour that begins at `bucket_s` (Unix seconds).

    `key_id` is "" without a key. `calls` of /v1 were sent to a server, and `tokens_in` and
    `tokens_out` are as it reported them; of these, `unknown` have no known number of tokens.
    `busy_ms` is the time of all calls, also outside /v1, from being sent until their end, in
    milliseconds.
    """

    key_id: str
    namespace: str
    name: str
    bucket_s: int
    tokens_in: int = 0
    tokens_out: int = 0
    calls: int = 0
    unknown: int = 0
    busy_ms: int = 0


_Owner = tuple[str, str, str, int]
_Numbers = tuple[int, int, int, int, int]


class UsageCounts:
    """Rows that wait, each the sum of its calls.

    With `rows_max` rows, calls that need a further row are added to one row of their namespace,
    whose key and function are OTHERS: nothing is lost, and memory stays bounded.
    """

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        self._rows_max = rows_max
        self._rows: dict[_Owner, _Numbers] = {}
        self._others: dict[str, _Owner] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: UsageRow) -> None:
        """Add a row's numbers."""
        owner, rows = row[:4], self._rows
        known = rows.get(owner)
        if known is None and len(rows) >= self._rows_max:
            other = (OTHERS, row.namespace, OTHERS, row.bucket_s)
            owner = self._others.setdefault(row.namespace, other)
            known = rows.get(owner)
        tokens_in, tokens_out, calls, unknown, busy_ms = known or (0, 0, 0, 0, 0)
        rows[owner] = (
            min(tokens_in + row.tokens_in, NUMBER_MAX),
            min(tokens_out + row.tokens_out, NUMBER_MAX),
            min(calls + row.calls, NUMBER_MAX),
            min(unknown + row.unknown, NUMBER_MAX),
            min(busy_ms + row.busy_ms, NUMBER_MAX),
        )

    def take(self) -> list[UsageRow]:
        """Return all rows, which do not wait any more."""
        rows, self._rows, self._others = self._rows, {}, {}
        return [UsageRow(*owner, *numbers) for owner, numbers in rows.items()]


def bucket_of(at_s: float) -> int:
    """Return the beginning of the hour at `at_s` (Unix seconds)."""
    return int(at_s) // HOUR_S * HOUR_S
