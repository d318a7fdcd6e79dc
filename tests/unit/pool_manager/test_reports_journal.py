"""Reasons, states and receipts of pools."""

from __future__ import annotations

from pool_manager.core.commands import RecordColdStart
from pool_manager.reports import Decision, Journal
from registry.exchange import PoolEndpoints
from registry.model.devices import DeviceModel, Use
from registry.model.history import ColdStart, StateInterval
from tests.support.replicas import KEY, binding


class Records:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.kept: list[ColdStart | StateInterval] = []

    def cold_start(self, record: ColdStart) -> None:
        self.kept.append(record)

    def state_interval(self, record: StateInterval) -> None:
        self.kept.append(record)

    def use(self, record: Use) -> None:
        """Ignore the record."""

    def device_model(self, record: DeviceModel) -> None:
        """Ignore the record."""


class Rig:
    """A journal with a clock set by the test."""

    def __init__(self, kept: int = 2) -> None:
        self.now = 1000.0
        self.records = Records()
        self.journal = Journal(self.records, lambda: self.now, kept)

    def look(self, state: str, reason: str, now: float) -> None:
        self.now = now
        self.journal.state(KEY, PoolEndpoints([], state, reason), binding())


def test_the_newest_decisions_are_kept() -> None:
    """Each pool keeps its newest decisions, oldest first, with their times."""
    rig = Rig(kept=2)
    for text in ("first", "second", "third"):
        rig.journal.note(KEY, text)
    rig.journal.note("default/other@1", "elsewhere")

    assert rig.journal.decisions(KEY) == [Decision(1000.0, "second"), Decision(1000.0, "third")]
    assert rig.journal.decisions("default/none@1") == []


def test_an_interval_ends_with_its_state() -> None:
    """A state is recorded when another follows; a new reason for the same state does not count."""
    rig = Rig()

    rig.look("cold", "no calls", 1000.0)
    rig.look("cold", "no more calls", 1005.0)
    rig.look("waking", "1 held", 1010.0)

    assert rig.records.kept == [
        StateInterval("default", "digits", 1, "cold", "no calls", 1000.0, 1010.0)
    ]
    assert rig.journal.since_s(KEY) == 1010.0


def test_a_pool_without_a_state_has_it_since_now() -> None:
    """A pool without a recorded state has had it since now."""
    assert Rig().journal.since_s(KEY) == 1000.0


def test_a_forgotten_pool_begins_anew() -> None:
    """Decisions of a removed pool are not shown for a later one of the same name."""
    rig = Rig()
    rig.look("cold", "no calls", 1000.0)
    rig.journal.note(KEY, "text")

    rig.journal.forget(KEY)
    rig.look("waking", "1 held", 1010.0)

    assert rig.records.kept == []
    assert rig.journal.decisions(KEY) == []


def test_a_receipt_is_kept() -> None:
    """A cold start is recorded with its device kind, phases and outcome."""
    rig = Rig()
    done = RecordColdStart(KEY, "aaaa0001", ("cpu:0",), 12.34567, {"load": 10.0}, "ready")

    rig.journal.cold_start(done, binding(), "cpu")

    assert rig.records.kept == [
        ColdStart(
            "default",
            "digits",
            1,
            "aaaa0001",
            "cpu",
            1000.0,
            12.346,
            {"load": 10.0},
            "ready",
            devices=("cpu:0",),
        )
    ]
