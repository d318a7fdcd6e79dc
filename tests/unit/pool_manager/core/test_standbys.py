"""Replicas without a model: kept ready, given one, replaced."""

from __future__ import annotations

import pytest

from pool_manager.core import events
from pool_manager.core.cluster import GPU_STANDBY_MIB, STANDBY_KEY
from pool_manager.core.commands import Assign, Command, Launch, RecordColdStart, Release
from pool_manager.core.ledger import Charge
from pool_manager.core.pool import PAUSE_S
from pool_manager.core.state import Device, PoolSpec
from pool_manager.core.supply import REFILL_AFTER_S
from tests.support.play import Play, assigned, cpus, launched

A, B = "default/a@1", "default/b@1"
GPU, GPU2 = Device("gpu", "cuda", 10_000), Device("gpu2", "cuda", 10_000)


def standbys(commands: list[Command]) -> list[str]:
    """Standbys that are started."""
    return [c.id for c in commands if isinstance(c, Launch) and c.role == "standby"]


def opened(*specs: PoolSpec, count: int = 1, devices: list[Device] | int = 2) -> Play:
    """A host whose first standby is r1, already waiting for a model."""
    play = Play(*specs, devices=devices, standbys=count)
    play.demand()
    play.tick()
    play.on(events.Greeted("r1", {"start": 3.0}))
    return play


def test_standbys_are_started_one_after_the_other() -> None:
    """Standbys are started one at a time, up to the configured number."""
    play = Play(standbys=2)

    assert standbys(play.demand()) == ["r1"]
    assert standbys(play.tick()) == ["r2"]
    assert play.tick(10.0) == []


def test_a_standby_is_given_a_model() -> None:
    """An assigned standby becomes the pool's replica by one Assign command, without a new HELLO."""
    play = opened(PoolSpec(A))

    assert play.demand(a=1) == [Assign("r1", A, ("d0",), "serve", {"place": 0.0})]
    assert play.state("r1") == "loading"
    assert play.machine.cluster.standbys() == []


def test_one_that_is_still_starting_is_told_when_it_greets() -> None:
    """A starting standby gets its model after HELLO; its import from the assignment on is a phase
    of the cold start."""
    play = Play(PoolSpec(A), standbys=1)
    play.demand()
    assert play.demand(1.0, a=1) == []
    assert play.replica("r1").pool == A

    (told,) = play.on(events.Greeted("r1", {"start": 9.0}), 0.5)

    assert told == Assign("r1", A, ("d0",), "serve", {"place": 0.0, "import": 500.0})


def test_a_standby_is_for_the_cpu() -> None:
    """A function on a GPU does not use a standby for the CPU."""
    play = opened(PoolSpec(A, device_kind="cuda"), devices=[*cpus(1), GPU])

    assert launched(play.demand(a=1)) == [("r2", "gpu")]
    assert [one.id for one in play.machine.cluster.standbys()] == ["r1"]


def test_a_host_without_cpu_slots_keeps_none() -> None:
    """A host without CPU slots starts no standbys for them."""
    play = Play(devices=[GPU], standbys=1)

    assert play.demand() + play.tick(10.0) == []


def test_a_used_one_is_replaced_when_nobody_wakes_up() -> None:
    """A used standby is replaced after the cold start, which has the CPU for itself."""
    play = opened(PoolSpec(A))
    play.demand(a=1)
    assert play.tick() == []
    play.on(events.Loaded("r1", 4, True, 80.0, {}))

    assert standbys(play.tick(0.1)) == ["r2"]


def test_a_used_one_is_replaced_after_a_while_in_any_case() -> None:
    """A long cold start delays the replacement of a standby for a limited time only."""
    play = opened(PoolSpec(A))
    play.demand(a=1)
    assert play.tick() == []

    assert play.tick(REFILL_AFTER_S - 0.1) == []
    assert standbys(play.tick(0.1)) == ["r2"]


def test_a_standby_needs_its_memory() -> None:
    """No standby is started while the bank has no room for it."""
    play = Play(PoolSpec(A, memory_mib=1_700), devices=cpus(2, 2_000), standbys=1)
    play.demand(a=1)
    assert standbys(play.tick(10.0)) == []

    play.lose("r1")
    play.on(events.PoolRemoved(A))
    assert standbys(play.tick(1.0)) == ["r2"]


def test_the_engine_must_be_there_for_a_standby() -> None:
    """No standby is started while the engine is away."""
    play = Play(standbys=1)
    play.on(events.EngineLost("no answer"))

    assert play.demand() + play.tick(10.0) == []
    assert standbys(play.on(events.EngineBack(frozenset()))) == ["r1"]


def test_a_standby_that_fails_backs_off() -> None:
    """A standby that never connects counts as a failed start; the next one waits for the
    back-off."""
    play = Play(standbys=1)
    play.demand()
    play.lose("r1")

    assert play.machine.pools[STANDBY_KEY].failures == 1
    assert standbys(play.tick(0.5)) == []
    assert standbys(play.tick(0.5)) == ["r2"]


def test_a_standby_that_has_greeted_fails_no_more() -> None:
    """The end of a connected standby is not a failure, but delays the next start."""
    play = opened()
    play.lose("r1")

    assert play.machine.pools[STANDBY_KEY].failures == 0
    assert standbys(play.tick(0.5)) == []
    assert standbys(play.tick(PAUSE_S)) == ["r2"]


def test_found_standbys_are_used_and_too_many_go() -> None:
    """Standbys of an earlier manager are adopted; those above the configured number are stopped."""
    play = Play(standbys=1, is_open=False)
    for id in ("old1", "old2"):
        play.on(events.Found(id, "", (), "standby"))

    assert play.on(events.ReplicasListed()) == []
    assert play.demand() == [Release("old2", "surplus standby")]


def test_a_host_that_keeps_none_lets_found_ones_go() -> None:
    """Standbys of an earlier manager are stopped on a host without standbys."""
    play = Play(is_open=False)

    assert play.on(events.Found("old", "", (), "standby")) == [
        Release("old", "the pool was removed")
    ]


def test_standbys_go_with_the_server() -> None:
    """A shutdown stops the standbys."""
    play = opened()

    assert play.on(events.Shutdown()) == [Release("r1", "the server is shutting down")]


def test_standbys_are_nobodys_to_see() -> None:
    """Standbys are not published."""
    play = opened()
    play.lose("r1")
    play.tick(5.0)

    assert play.published == []


@pytest.mark.parametrize("role", ["serve", "trial"])
def test_a_standby_serves_deploys_as_well(role: str) -> None:
    """A trial may start from a standby."""
    play = opened()

    commands = play.on(events.PoolDefined(PoolSpec(A, min=1, role=role)))  # type: ignore[arg-type]

    assert assigned(commands) == [("r1", A)]


def test_a_spent_standby_is_replaced_when_it_has_served() -> None:
    """A used standby is replaced after the first answer, without waiting for the next Tick."""
    play = Play(PoolSpec(A), standbys=1)
    play.tick(5.0)
    play.on(events.Greeted("r1", {}))
    play.demand(a=1)
    play.on(events.Loaded("r1", 4, True, 80.0, {"load": 5.0}))

    assert play.on(events.FirstRun("r1", 1.0))[-1] == Launch("r2", "", (), "standby", {})


def on_gpus(*specs: PoolSpec, count: int = 1, devices: list[Device] | None = None) -> Play:
    """A host with as many standbys as there are to be on each GPU, waiting for a model."""
    play = Play(*specs, devices=devices or [GPU, GPU2, *cpus(1)], gpu_standbys=count)
    play.demand()
    for _ in range(count):
        play.tick()
    for one in play.machine.replicas():
        play.on(events.Greeted(one.id, {"start": 3.0}))
    return play


def test_each_gpu_has_standbys_of_its_own() -> None:
    """A GPU's standbys are started on it and are charged its memory but no share."""
    play = Play(devices=[GPU, GPU2, *cpus(1)], gpu_standbys=1)

    assert play.demand() == [
        Launch("r1", "", ("gpu",), "standby", {}),
        Launch("r2", "", ("gpu2",), "standby", {}),
    ]
    assert play.tick(10.0) == []
    ledger = play.machine.cluster.ledger
    assert ledger.charge_of("r1") == Charge((), ("gpu",), 0.0, GPU_STANDBY_MIB)
    assert ledger.free_share("gpu") == 1.0


def test_a_gpus_standby_is_for_that_gpu() -> None:
    """A function uses the standby of its device, not that of another one."""
    play = on_gpus(PoolSpec(A), PoolSpec(B, device_kind="cpu"))

    assert assigned(play.demand(a=1)) == [("r1", A)]
    assert play.replica("r1").devices == ("gpu",)
    assert play.state("r2") == "standby"
    assert launched(play.demand(a=1, b=1)) == [("r3", "d0")]


def test_a_gpu_without_a_standby_gets_no_other_ones() -> None:
    """A standby on another GPU is not used: its device context is there."""
    play = on_gpus(PoolSpec(A))
    play.lose("r1")

    commands = play.demand(a=1)

    assert (launched(commands), assigned(commands)) == ([("r3", "gpu")], [])
    assert play.state("r2") == "standby"


def test_a_gpus_standby_may_be_beside_who_is_alone() -> None:
    """A GPU's standby is replaced on a device in use once the cold start is over, and is never used
    twice."""
    play = on_gpus(PoolSpec(A), devices=[GPU])
    play.demand(a=1)
    play.on(events.Loaded("r1", 4, True, 8_000.0, {}))

    assert play.on(events.FirstRun("r1", 1.0))[-1] == Launch("r2", "", ("gpu",), "standby", {})
    assert {one.devices for one in play.machine.replicas()} == {("gpu",)}


def test_a_gpus_standby_needs_memory_of_that_gpu() -> None:
    """No standby is started beside a model that leaves too little memory."""
    play = on_gpus(PoolSpec(A, memory_mib=9_500.0), devices=[GPU])
    play.demand(a=1)
    play.on(events.Loaded("r1", 4, True, 9_500.0, {}))

    assert play.on(events.FirstRun("r1", 1.0)) + play.tick(10.0) == []
    assert play.receipts == [RecordColdStart(A, "r1", ("gpu",), 0.0, {"first_run": 1.0}, "ready")]


def test_a_gpus_standby_too_many_goes_first() -> None:
    """A GPU's second standby is evicted for its memory before any replica."""
    play = on_gpus(PoolSpec(A, memory_mib=9_500.0), count=2, devices=[GPU])

    assert play.demand(a=1) == [Release("r2", f"evicted for {A}")]
    assert assigned(play.on(events.Released("r2"))) == [("r1", A)]


def test_found_standbys_join_their_device() -> None:
    """An adopted standby is used for its own GPU only; one for the CPU slots has no device."""
    play = Play(
        PoolSpec(A), devices=[GPU, GPU2, *cpus(1)], standbys=1, gpu_standbys=1, is_open=False
    )
    play.on(events.Found("old1", "", ("gpu2",), "standby"))
    play.on(events.Found("old2", "", ("d0",), "standby"))
    play.on(events.ReplicasListed())

    assert standbys(play.demand()) == ["r1"]
    assert play.replica("r1").devices == ("gpu",)
    assert (play.replica("old1").pool, play.replica("old2").pool) == ("standby/gpu2", STANDBY_KEY)
    assert play.replica("old2").devices == ()


def wakes_by_standby(play: Play, key: str = A) -> bool:
    return play.machine.cluster.wakes_by_standby(play.machine.pools[key])


def test_it_is_known_whether_a_standby_will_help() -> None:
    """A waiting standby counts, and so does the one assigned to the pool, which helps no other
    pool; a starting one does not count."""
    play = Play(PoolSpec(A), PoolSpec(B, device_kind="cuda"), standbys=1)
    play.demand()
    starting = wakes_by_standby(play)
    play.on(events.Greeted("r1", {"start": 3.0}))
    waiting = wakes_by_standby(play)
    play.demand(a=1)

    assert (starting, waiting, wakes_by_standby(play)) == (False, True, True)
    assert not wakes_by_standby(play, B)


def test_a_standby_taken_while_it_starts_is_one_all_the_same() -> None:
    """A cold start from a starting standby counts as one from a standby."""
    play = Play(PoolSpec(A), standbys=1)
    play.demand()
    play.demand(a=1)

    assert play.state("r1") == "starting"
    assert wakes_by_standby(play)


def test_a_new_process_is_none() -> None:
    """A new process does not count as a standby, from its launch until it has loaded."""
    play = Play(PoolSpec(A))
    play.demand(a=1)
    starting = wakes_by_standby(play)
    play.on(events.Greeted("r1", {"start": 3.0, "import": 4.0}))

    assert (starting, wakes_by_standby(play)) == (False, False)


def test_a_standby_on_a_gpu_helps_who_may_go_there() -> None:
    """A standby for CPU slots does not help a pool that needs a GPU, and vice versa."""
    play = Play(
        PoolSpec(A, device_kind="cuda"),
        PoolSpec(B, device_kind="cpu"),
        devices=[GPU, *cpus(1)],
        gpu_standbys=1,
    )
    play.demand()
    play.on(events.Greeted("r1", {"start": 3.0}))

    assert (wakes_by_standby(play, A), wakes_by_standby(play, B)) == (True, False)
