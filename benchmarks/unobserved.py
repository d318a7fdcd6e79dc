"""fnctl for a server that counts nothing: the reference for the cost of observing.

No setting turns counting off, because no user needs it. This module replaces the few functions that
count a request by functions that do nothing.
"""

from __future__ import annotations

from typing import Any

from admin.cli.main import main
from gateway.metrics.ledger import Ledger
from gateway.metrics.requests import Metrics
from gateway.metrics.revisions import RevisionCounts
from gateway.observing.errors import FailureCount

COUNTING = {
    Metrics: ("count_answer", "count_reply", "count_sends", "count_cold_start"),
    RevisionCounts: ("count_answer", "count_failure"),
    Ledger: ("accept", "end"),
    FailureCount: ("count",),
}


def nothing(*_arguments: Any, **_named: Any) -> None:
    """Do nothing instead of counting."""


if __name__ == "__main__":
    for owner, names in COUNTING.items():
        for name in names:
            setattr(owner, name, nothing)
    main()
