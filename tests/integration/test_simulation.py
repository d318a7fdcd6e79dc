"""Tests of the simulator: it runs the real machine and dispatcher, answers every call and is
deterministic."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from random import Random
from typing import Any

import pytest

from benchmarks import simulate
from benchmarks.simulation.arrivals import ARRIVALS, DAY_S
from benchmarks.simulation.functions import population
from benchmarks.simulation.policies import POLICIES
from benchmarks.simulation.report import play
from benchmarks.simulation.settings import Settings
from benchmarks.simulation.world import World
from pool_manager.core import events, eviction

SMALL = Settings(functions=5, devices=2, hours=1 / 6, rate=0.5, load_s=1.0, idle_s=30.0)
REAL = ("decisions", "real_s", "ticks_skipped", "settings")
"""Figures that differ between two equal runs, or that identify a run."""


def played(settings: Settings) -> dict[str, Any]:
    return {name: value for name, value in play(settings).items() if name not in REAL}


class Watched(World):
    """Simulated world that checks the invariants after every event; `told` has the functions whose
    calls were reported to the manager."""

    def __init__(self, settings: Settings) -> None:
        self.told: set[str] = set()
        super().__init__(settings)

    def _handle(self, event: events.Event) -> None:
        super()._handle(event)
        taken = [device for r in self.machine.replicas() for device in r.devices]
        assert len(taken) == len(set(taken)), "two replicas on one exclusive device"
        if not isinstance(event, events.DemandReported):
            return
        demand, dispatcher = event.demand, self.callers.dispatcher
        self.told |= set(demand.called)
        if demand.full:
            assert demand.revisions == dispatcher.loads(self.clock.now)
            assert not dispatcher.take_called()
        else:
            for key, load in demand.revisions.items():
                assert load == dispatcher.load(key, self.clock.now)


@pytest.mark.slow
@pytest.mark.parametrize("arrivals", ARRIVALS)
def test_every_request_is_answered(arrivals: str) -> None:
    """At the end of the day every call was answered once, and none waits."""
    world = Watched(replace(SMALL, arrivals=arrivals)).run()
    figures = world.figures

    assert figures.requests > 50
    assert world.told == set(figures.gaps_s)
    assert figures.requests == figures.answered == len(figures.waits_s)
    assert (figures.expired, figures.refused, figures.failed) == (0, 0, 0)
    assert world.callers.dispatcher.is_idle
    assert figures.busy_s <= figures.ready_s
    assert 0 < figures.loading_s < figures.moving_s
    assert figures.ready_s + figures.moving_s <= SMALL.devices * (SMALL.horizon_s + SMALL.end_s)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_one_seed_is_one_day(policy: str) -> None:
    """The same settings give the same figures, and the product's own eviction rule is restored
    afterwards."""
    rule = vars(eviction)["eviction_cost"]

    first, second = (played(replace(SMALL, policy=policy)) for _ in range(2))

    assert first == second
    assert vars(eviction)["eviction_cost"] is rule


@pytest.mark.slow
def test_policies_meet_the_same_callers() -> None:
    """All policies get the same calls; another seed gives others."""
    requests = {played(replace(SMALL, policy=policy))["requests"] for policy in POLICIES}

    assert len(requests) == 1
    assert played(replace(SMALL, seed=2))["requests"] not in requests


@pytest.mark.slow
def test_skipped_seconds_change_nothing() -> None:
    """A run that skips idle seconds has the figures of one that plays each second."""
    quiet = replace(SMALL, rate=0.02, idle_s=20.5)

    skipped, whole = play(quiet), play(replace(quiet, skip=False))

    assert skipped["ticks_skipped"] > 100
    assert whole["ticks_skipped"] == 0
    assert {n: v for n, v in skipped.items() if n not in REAL} == {
        n: v for n, v in whole.items() if n not in REAL
    }


@pytest.mark.slow
def test_keep_alive_never_evicts() -> None:
    """Under fixed keep-alive only the timer stops replicas, while other policies evict on the same
    day."""
    assert played(SMALL)["evictions"] > 0
    assert played(replace(SMALL, policy="keepalive"))["evictions"] == 0


@pytest.mark.slow
def test_busy_functions_take_turns() -> None:
    """Of five busy functions on two devices, none is idle longer than all others' turns
    together."""
    settings = replace(SMALL, closed=4, max=1, zipf=0.0, wait_s=3600.0)
    world = World(settings)
    kinds = world.functions.values()
    turns_s = (eviction.RESIDENCY_S + 4 * f.service_s + settings.start_s + f.load_s for f in kinds)
    longest_s = max(turns_s)

    gaps_s = world.run().figures.gaps_s

    assert sorted(gaps_s) == sorted(world.functions)
    assert world.figures.swaps > 10
    assert max(gaps_s.values()) <= len(gaps_s) * (longest_s + eviction.PREEMPT_AFTER_S)


@pytest.mark.slow
def test_a_stay_keeps_pausing_callers_from_evicting_each_other() -> None:
    """A minimum residency lets callers that pause get more answers with less loading."""
    pausing = replace(SMALL, functions=3, closed=2, think_s=1.0, zipf=0.0, spread=0.0, load_s=5.0)

    stay, none = (played(replace(pausing, max=1, policy=name)) for name in ("fngate", "no-stay"))

    assert stay["answered"] > 1.3 * none["answered"]
    assert stay["loading_share"] < 0.8 * none["loading_share"]


def test_pauses_are_as_long_as_asked_for() -> None:
    """Pauses have the mean of the settings; without one there are none."""
    function = population(SMALL)[0]

    pauses_s = [function.draw_pause_s(0.5) for _ in range(2000)]

    assert min(pauses_s) > 0
    assert sum(pauses_s) / 2000 == pytest.approx(0.5, rel=0.1)
    assert function.draw_pause_s(0.0) == 0.0


def test_functions_without_spread_are_alike() -> None:
    """With no spread every function has the median's load time, run time and memory."""
    alike = population(replace(SMALL, spread=0.0))

    kinds = {(f.service_s, f.load_s, f.memory_mib) for f in alike}
    assert kinds == {(SMALL.service_s, SMALL.load_s, SMALL.memory_mib)}


@pytest.mark.parametrize(
    "senseless",
    [
        ["--think-s", "1"],
        ["--think-s", "-1", "--closed", "2"],
        ["--closed", "1", "--policy", "foresight"],
    ],
)
def test_impossible_options_are_refused(
    senseless: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Impossible combinations of options are errors that name the option, and nothing is
    simulated."""
    with pytest.raises(SystemExit) as ended:
        simulate.main(senseless)

    out = capsys.readouterr()
    assert ended.value.code == 2
    assert senseless[0 if "--think-s" in senseless else 2] in out.err
    assert not out.out


@pytest.mark.slow
def test_standbys_shorten_starts() -> None:
    """With a standby for CPU slots the same callers wait less."""
    cold = replace(SMALL, device_kind="cpu", devices=8, start_s=5.0)

    assert played(replace(cold, standbys=1))["wait_mean_s"] < played(cold)["wait_mean_s"]


@pytest.mark.parametrize("kind", ARRIVALS)
def test_arrivals_rise_at_about_the_rate(kind: str) -> None:
    """Over many functions and a day the number of calls is about the rate's, and they are in
    order."""
    count = 0
    for seed in range(40):
        calls = list(takewhile(lambda when_s: when_s < DAY_S, ARRIVALS[kind](0.002, Random(seed))))
        assert calls == sorted(calls)
        count += len(calls)

    expected = 40 * 0.002 * DAY_S
    assert 0.75 * expected < count < 1.25 * expected


def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The command simulates every combination and prints a row for each policy and kind of
    arrivals."""
    few = ["--functions", "3", "--devices", "1", "--hours", "0.05", "--closed", "1"]

    simulate.main([*few, "--policy", "lru", "--policy", "fngate", "--seed", "1", "--seed", "2"])

    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| poisson")]
    assert [row.split(" | ")[1] for row in rows] == ["lru", "fngate"]
