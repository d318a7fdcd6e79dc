"""fnctl of a server that counts nothing: what observing is held against.

No setting turns counting off, because nobody would want it. Here the few functions that a request
calls to be counted do nothing; all else is as it is.
"""

from __future__ import annotations

from typing import Any

from admin.cli.main import main
from gateway.metrics.ledger import Ledger
from gateway.metrics.requests import Metrics
from gateway.observing.errors import FailureCount

COUNTING = {
    Metrics: ("count_answer", "count_reply", "count_sends", "count_cold_start"),
    Ledger: ("accept", "end"),
    FailureCount: ("count",),
}


def nothing(*_arguments: Any, **_named: Any) -> None:
    """Not counted."""


if __name__ == "__main__":
    for owner, names in COUNTING.items():
        for name in names:
            setattr(owner, name, nothing)
    main()
