"""The simulator plays machine and dispatcher as they are, loses nobody and repeats itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from random import Random
from typing import Any

import pytest

from benchmarks import simulate
from benchmarks.simulation.arrivals import ARRIVALS, DAY_S
from benchmarks.simulation.policies import POLICIES
from benchmarks.simulation.report import play
from benchmarks.simulation.settings import Settings
from benchmarks.simulation.world import END_S, World
from pool_manager.core import events, room

SMALL = Settings(functions=5, devices=2, hours=1 / 6, rate=0.5, load_s=1.0, idle_s=30.0)
REAL = ("decisions", "real_s", "ticks_skipped", "settings")
"""What is not the same in two runs, or tells them apart."""


def played(settings: Settings) -> dict[str, Any]:
    return {name: value for name, value in play(settings).items() if name not in REAL}


class Watched(World):
    """A world in which every event is followed by a look at what must always hold."""

    def _handle(self, event: events.Event) -> None:
        super()._handle(event)
        taken = [r.device for r in self.machine.replicas() if r.device]
        assert len(taken) == len(set(taken)), "two replicas on one exclusive device"
        if isinstance(event, events.DemandCame) and event.demand.full:
            held = self.callers.dispatcher.loads(self.clock.now)
            assert event.demand.revisions == held


@pytest.mark.slow
@pytest.mark.parametrize("arrivals", ARRIVALS)
def test_every_request_is_answered(arrivals: str) -> None:
    """At the end of the day nobody waits: every caller was answered once, none in vain."""
    world = Watched(replace(SMALL, arrivals=arrivals)).run()
    figures = world.figures

    assert figures.requests > 50
    assert figures.requests == figures.answered == len(figures.waits_s)
    assert (figures.expired, figures.refused, figures.failed) == (0, 0, 0)
    assert world.callers.dispatcher.is_idle
    assert figures.busy_s <= figures.ready_s
    assert figures.ready_s + figures.moving_s <= SMALL.devices * (SMALL.horizon_s + END_S)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_one_seed_is_one_day(policy: str) -> None:
    """The same settings have the same figures, and leave the product's rule as it was."""
    rule = vars(room)["cost"]

    first, second = (played(replace(SMALL, policy=policy)) for _ in range(2))

    assert first == second
    assert vars(room)["cost"] is rule


@pytest.mark.slow
def test_policies_meet_the_same_callers() -> None:
    """Whoever is evicted, as many requests come; another seed is another day."""
    requests = {played(replace(SMALL, policy=policy))["requests"] for policy in POLICIES}

    assert len(requests) == 1
    assert played(replace(SMALL, seed=2))["requests"] not in requests


@pytest.mark.slow
def test_skipped_seconds_change_nothing() -> None:
    """A day on which silence is jumped over is the day on which every second is played."""
    quiet = replace(SMALL, rate=0.02, idle_s=20.5)

    skipped, whole = play(quiet), play(replace(quiet, skip=False))

    assert skipped["ticks_skipped"] > 100
    assert whole["ticks_skipped"] == 0
    assert {n: v for n, v in skipped.items() if n not in REAL} == {
        n: v for n, v in whole.items() if n not in REAL
    }


@pytest.mark.slow
def test_keeping_alive_evicts_nobody() -> None:
    """Under fixed keep-alive only the timer ends a replica; others evict on the same day."""
    assert played(SMALL)["evictions"] > 0
    assert played(replace(SMALL, policy="keepalive"))["evictions"] == 0


@pytest.mark.slow
def test_busy_functions_take_turns() -> None:
    """Five functions that are always called share two devices: none is left out for longer than
    all others take together."""
    settings = replace(SMALL, closed=4, max=1, zipf=0.0, wait_s=3600.0)
    world = World(settings)
    kinds = world.functions.values()
    longest_s = max(room.RESIDENCY_S + 4 * f.service_s + settings.start_s + f.load_s for f in kinds)

    gaps_s = world.run().figures.gaps_s

    assert sorted(gaps_s) == sorted(world.functions)
    assert world.figures.swaps > 10
    assert max(gaps_s.values()) <= len(gaps_s) * (longest_s + room.SWAP_AFTER_S)


@pytest.mark.slow
def test_standbys_shorten_starts() -> None:
    """With a standby for CPU slots the same callers wait less."""
    cold = replace(SMALL, device_kind="cpu", devices=8, start_s=5.0)

    assert played(replace(cold, standbys=1))["wait_mean_s"] < played(cold)["wait_mean_s"]


@pytest.mark.parametrize("kind", ARRIVALS)
def test_arrivals_rise_at_about_the_rate(kind: str) -> None:
    """Over many functions and a whole day as many calls come as were asked for, in order."""
    count = 0
    for seed in range(40):
        calls = list(takewhile(lambda when_s: when_s < DAY_S, ARRIVALS[kind](0.002, Random(seed))))
        assert calls == sorted(calls)
        count += len(calls)

    expected = 40 * 0.002 * DAY_S
    assert 0.75 * expected < count < 1.25 * expected


def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The command plays every combination and prints one row per policy and kind of arrivals."""
    few = ["--functions", "3", "--devices", "1", "--hours", "0.05", "--closed", "1"]

    simulate.main([*few, "--policy", "lru", "--policy", "fngate", "--seed", "1", "--seed", "2"])

    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| poisson")]
    assert [row.split(" | ")[1] for row in rows] == ["lru", "fngate"]
