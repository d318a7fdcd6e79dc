"""Room for trials: who makes it, who does not, and what is told of the wait."""

from __future__ import annotations

from typing import Any

import pytest

from pool_manager.core import events
from pool_manager.core.commands import Command, Drain, EndTrial, Launch, Quiesce
from pool_manager.core.state import PoolSpec
from pool_manager.core.trial_room import CALLED_S, HOLDERS_MAX, STAGE, name_of
from tests.support.play import Play, cpus, launched

A, B = "default/a@1", "default/b@1"
TRIAL = "default/a@trial-1"
WAIT_S = 60


def trial(key: str = TRIAL, **spec: Any) -> PoolSpec:
    return PoolSpec(key, role="trial", trial_wait_s=float(WAIT_S), **spec)


def busy(*specs: PoolSpec, devices: int = 1) -> Play:
    """Every function has a ready replica that answers a call."""
    play = Play(*specs, devices=devices)
    names = {spec.key[len("default/")]: 1 for spec in specs}
    play.run(**names)
    play.ready(*(f"r{number}" for number in range(1, len(specs) + 1)))
    play.run(**names)
    return play


def ends(commands: list[Command]) -> list[EndTrial]:
    return [one for one in commands if isinstance(one, EndTrial)]


def test_calls_now_and_then_keep_a_function() -> None:
    """Each call ends before the next report. A trial never finds it idle for long enough, and none
    of the calls is refused or waits."""
    play = busy(PoolSpec(B))
    play.on(events.PoolDefined(trial()))
    seen: list[Command] = []
    for _ in range(WAIT_S // 5):
        seen += play.run(4.0, b=1) + play.run(1.0)

    assert [type(one) for one in seen if not isinstance(one, EndTrial)] == []
    assert play.shown("b") == "warm"


def test_a_function_that_is_not_called_makes_room_at_once() -> None:
    """Ten seconds after its last call; its replica may still refuse."""
    play = busy(PoolSpec(B))
    play.run()
    assert play.on(events.PoolDefined(trial())) == []

    assert play.tick(CALLED_S - 1.0) == []
    assert play.tick(1.0) == [Drain("r1", 0.001)]
    assert launched(play.lose("r1", "exit 0")) == [("r2", "d0")]


def test_a_wait_without_an_end_in_sight_ends() -> None:
    """With who has the device, since when, and the option that takes it."""
    play = busy(PoolSpec(B))
    play.on(events.PoolDefined(trial()))

    assert play.seconds(WAIT_S - 1, b=1) == []
    (end,) = ends(play.seconds(2, b=1))

    assert (end.key, end.stage) == (TRIAL, STAGE)
    assert "no device had room for the trial for 60 s: d0 is held by b@1 for 60 s" in end.reason
    assert "called 0 s ago; --evict takes" in end.reason
    assert TRIAL not in play.machine.pools
    assert play.shown("b") == "warm"


@pytest.mark.parametrize("least", [0, 1])
def test_at_the_end_the_trials_own_function_makes_room(least: int) -> None:
    """It is busy on the only device: with or without `min`, the deploy replaces it."""
    play = busy(PoolSpec(A, min=least))
    play.on(events.PoolDefined(trial()))

    assert play.seconds(WAIT_S - 1, a=1) == []
    assert play.seconds(1, a=1) == [Drain("r1", None)]
    assert launched(play.lose("r1", "exit 0")) == [("r2", "d0")]
    assert play.replica("r2").pool == TRIAL
    play.on(events.Greeted("r2", {}))
    (end,) = ends(play.on(events.Loaded("r2", 2, True, 80.0, {}, {"load_ms": 5.0})))
    assert end.report["made_room"] == "a@1 made room for the trial after 60 s, its calls were held"


def test_a_busy_server_makes_room_softly() -> None:
    """Its open streams end first, and the wait does not end meanwhile."""
    play = busy(PoolSpec(A, is_server=True, drain_s=500.0))
    play.on(events.PoolDefined(trial(is_server=True)))

    commands = play.seconds(WAIT_S + 100, a=1)

    assert commands == [Quiesce("r1")]
    told = str(play.machine.pools[TRIAL].awaited(play.now))
    assert told.startswith("waiting for room for ")
    assert " s: waits for default/a@1 to make room on d0: open streams" in told


def test_another_function_makes_room_at_the_end_only_for_its_own_trial() -> None:
    """Of two busy functions on two devices the trial's own one goes."""
    play = busy(PoolSpec(A), PoolSpec(B), devices=2)
    play.on(events.PoolDefined(trial()))

    assert play.seconds(WAIT_S, a=1, b=1) == [Drain("r1", None)]


def test_what_a_trial_waits_for_is_told() -> None:
    """After some seconds, with who has the devices; a few of them are named."""
    count = HOLDERS_MAX + 2
    names = "bcdefghi"[:count]
    play = busy(*(PoolSpec(f"default/{name}@1") for name in names), devices=count)
    everybody = dict.fromkeys(names, 1)
    play.on(events.PoolDefined(trial()))
    pool = play.machine.pools[TRIAL]

    play.seconds(5, **everybody)
    assert pool.awaited(play.now) is None
    play.seconds(7, **everybody)

    told = str(pool.awaited(play.now))
    assert told.startswith("waiting for room for 10 s: no free device (6 in use): d0 is held by")
    assert told.endswith("; and 2 more")


def test_callers_are_told_of_a_trial_that_has_the_device() -> None:
    """Without its name; functions that could not have the device are not."""
    play = Play(trial(), PoolSpec(B), PoolSpec("default/c@1", device_kind="cpu"), devices=1)
    play.demand()
    play.demand(b=1, c=1)

    text = "no free device (1 in use); on 1 the trial of a deploy runs, which ends by itself"
    assert play.reason("b") == text
    assert "trial" not in play.reason("c")


def test_free_devices_are_held_by_nobody() -> None:
    """Where only memory is short, those who have it are named."""
    play = Play(PoolSpec(B), devices=cpus(2, 2000.0))
    play.run(b=1)
    play.ready("r1")
    play.run(b=1)

    play.on(events.PoolDefined(trial(memory_mib=1700.0)))

    blocked = play.machine.pools[TRIAL].blocked
    assert blocked == "needs 1700 MiB, 1664 are free: d0 is held by b@1"


def test_trials_have_names_for_people() -> None:
    """And revisions are those that people write."""
    assert name_of("default/web@3") == "web@3"
    assert name_of("default/web@trial-0af") == "a trial of web"


def test_a_free_device_is_taken_at_once() -> None:
    """Whatever others do."""
    play = busy(PoolSpec(B), devices=2)

    assert [type(one) for one in play.on(events.PoolDefined(trial()))] == [Launch]
