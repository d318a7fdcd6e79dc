"""Runs of revisions, summed over their replicas."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from pool_manager import runs
from pool_manager.core.state import State
from pool_manager.runs import SHOWN_MAX, TOTAL_MAX, RunReports, RunTotals
from runtime_image.contract.link import RUN_NUMBER_MAX, RUN_SIZES_MAX
from runtime_image.link.run_counts import RunCount

POOL = "default/digits@1"


def totals() -> RunTotals:
    """Return totals that know POOL."""
    made = RunTotals()
    made.define(POOL)
    return made


def test_runs_of_replicas_add_up() -> None:
    """Reports of several replicas are one revision's numbers, by rising rows."""
    made = totals()
    made.add(POOL, [RunCount(4, 1, 2, 3, 4)])
    made.add(POOL, [RunCount(1, 1, 1, 1, 1), RunCount(4, 10, 20, 30, 40)])
    made.define(POOL)  # its settings change
    assert made.runs(POOL) == [RunCount(1, 1, 1, 1, 1), RunCount(4, 11, 22, 33, 44)]
    assert made.shown() == {POOL: 12}


def test_a_removed_revision_takes_its_numbers_along() -> None:
    """A late report of one of its replicas leaves nothing behind; a new one begins at zero."""
    made = totals()
    made.add(POOL, [RunCount(1, 1, 1, 1, 1)])
    made.forget(POOL)
    made.add(POOL, [RunCount(1, 1, 1, 1, 1)])
    made.add("", [RunCount(1, 1, 1, 1, 1)])
    assert (made.runs(POOL), made.shown()) == ([], {})
    made.define(POOL)
    assert made.runs(POOL) == []


def test_replicas_cannot_fill_the_memory() -> None:
    """Many replicas with different sizes, or the largest numbers, stay within the limits."""
    made = totals()
    for rows in range(1, 3 * RUN_SIZES_MAX):
        made.add(POOL, [RunCount(rows, *[RUN_NUMBER_MAX] * 4)] * 20)
    found = made.runs(POOL)
    assert len(found) == RUN_SIZES_MAX + 1
    assert found[0] == RunCount(0, *[min(20 * (2 * RUN_SIZES_MAX - 1) * 2**53, TOTAL_MAX)] * 4)
    assert max(max(one) for one in found) <= TOTAL_MAX


def test_the_metric_has_a_limit() -> None:
    """Those that ran first keep their number; the place of a removed one is free again."""
    made = RunTotals()
    for number in range(SHOWN_MAX + 2):
        made.define(f"default/f@{number}")
        made.add(f"default/f@{number}", [RunCount(1, 1, 1, 1, 1)])
    assert len(made.shown()) == SHOWN_MAX
    made.forget("default/f@0")
    made.add(f"default/f@{SHOWN_MAX}", [RunCount(1, 1, 1, 1, 1)])
    assert made.shown()[f"default/f@{SHOWN_MAX}"] == 1


@dataclass
class Asked:
    """A control link that counts questions; `answers` are the numbers of answered ones."""

    is_greeted: bool = True
    asked: int = 0
    answered: int = 0

    def ask(self) -> int:
        self.asked += 1
        return self.asked

    def has_answered(self, number: int) -> bool:
        return self.answered >= number


@dataclass
class Listed:
    id: str
    pool: str = POOL
    state: State = State.READY


@dataclass
class House:
    """Reports of replicas with their control links."""

    controls: dict[str, Asked]
    listed: list[Listed] = field(default_factory=list)

    def reports(self) -> RunReports:
        found: Any = self.listed or [Listed(id) for id in self.controls]
        made = RunReports(lambda: found, lambda id: cast("Any", self.controls.get(id)))
        made.totals.define(POOL)
        return made


async def test_every_replica_is_waited_for() -> None:
    """Fresh numbers are there when the last replica's answer has come."""
    house = House({"a": Asked(), "b": Asked()})
    reports = house.reports()
    refresh = asyncio.ensure_future(reports.refresh([POOL]))
    await asyncio.sleep(0)
    for id in ("a", "b"):
        assert not refresh.done()
        house.controls[id].answered = 1
        reports.on_pong(POOL, [RunCount(1, 1, 1, 1, 1)])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await refresh
    assert reports.totals.runs(POOL) == [RunCount(1, 2, 2, 2, 2)]


async def test_several_callers_wait_at_once() -> None:
    """Each caller asks for itself: an answer to an earlier question may be too old."""
    house = House({"a": Asked()})
    reports = house.reports()
    first = asyncio.ensure_future(reports.refresh([POOL]))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(reports.refresh([POOL]))
    await asyncio.sleep(0)
    house.controls["a"].answered = 1
    reports.on_pong(POOL, [])
    await first
    assert not second.done()
    house.controls["a"].answered = 2
    reports.on_pong(POOL, [])
    await second


async def test_only_serving_replicas_of_the_revision_are_asked() -> None:
    """Replicas of other revisions, starting ones, and those whose release has begun are not."""
    controls = {id: Asked() for id in ("mine", "other", "loading", "strange")}
    controls["strange"].is_greeted = False
    listed = [
        Listed("mine"),
        Listed("other", "default/other@1"),
        Listed("loading", state=State.LOADING),
        Listed("strange"),
        Listed("gone"),
    ]
    controls["mine"].answered = 1
    await House(controls, listed).reports().refresh([POOL])
    assert {id: one.asked for id, one in controls.items()} == {
        "mine": 1,
        "other": 0,
        "loading": 0,
        "strange": 0,
    }


async def test_a_mute_replica_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the limit its last report has to do."""
    monkeypatch.setattr(runs, "FRESH_S", 0.0)
    house = House({"a": Asked()})
    await house.reports().refresh([POOL])
    assert house.controls["a"].asked == 1
