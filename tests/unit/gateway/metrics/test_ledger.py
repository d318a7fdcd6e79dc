"""Tests of the ledger of requests."""

from __future__ import annotations

from gateway.metrics.counters import LocalStore
from gateway.metrics.ledger import ACCEPTED, ENDINGS, UNKNOWN_POOL, Balance, Ledger, total


class RecordingStore(LocalStore):
    """Store that records the names of allocated counters, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def allocate(self, name: str, labelnames: object, labelvalues: object) -> int:
        """Record the name and allocate as LocalStore does."""
        self.names.append(name)
        return super().allocate(name, (), ())


def test_a_ledger_balances() -> None:
    """Each accepted request has ended, is held or is in flight."""
    ledger = Ledger(LocalStore())
    for _ in range(5):
        ledger.accept()
    ledger.end("completed")
    ledger.end("expired")
    now = ledger.balance({"a": 1}, {"a": 1, "b": 1})

    assert now.accepted == 5
    assert (now.ended["completed"], now.ended["expired"], now.ended["failed"]) == (1, 1, 0)
    assert set(now.ended) == set(ENDINGS)
    assert now.missing == 0


def test_a_request_that_is_lost_is_missing() -> None:
    """The parts are counted separately, so that their sum reveals a lost request."""
    assert Balance(3, {"completed": 1}, {"a": 1}, {}).missing == 1
    assert Balance(1, {"completed": 1, "cancelled": 1}).missing == -1


def test_open_requests_of_a_dead_process_are_aborted() -> None:
    """Requests that a dead process held or had in flight count as aborted."""
    dead = Balance(5, {"completed": 2, "aborted": 0}, {"a": 2}, {"a": 1}).aborted()

    assert dead == Balance(5, {"completed": 2, "aborted": 3})
    assert dead.missing == 0


def test_open_requests_of_a_silent_process_are_in_flight() -> None:
    """Without a report from the process its open requests count as in flight in an unknown pool."""
    silent = Balance(5, {"completed": 2}).unheard()

    assert silent.in_flight == {UNKNOWN_POOL: 3}
    assert silent.missing == 0
    assert Balance(2, {"completed": 2}).unheard().in_flight == {}


def test_balances_add_up() -> None:
    """Balances are added per pool and per ending."""
    first = Balance(3, {"completed": 1}, {"a": 1}, {"a": 1})
    second = Balance(2, {"completed": 1, "failed": 1}, {}, {})

    assert total([first, second]) == Balance(5, {"completed": 2, "failed": 1}, {"a": 1}, {"a": 1})
    assert total([]) == Balance()


def test_the_accepted_counter_is_read_last() -> None:
    """Counters read in order of allocation never show more ended requests than accepted ones."""
    store = RecordingStore()
    Ledger(store)

    assert len(store.names) == Ledger.NUMBERS
    assert store.names[-1] == ACCEPTED
