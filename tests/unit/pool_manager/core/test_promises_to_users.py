"""What people suffer from elsewhere, and what is promised instead."""

from __future__ import annotations

from pool_manager.core import events
from pool_manager.core.commands import Assign, Drain, Launch, Note, Release, Terminate
from pool_manager.core.eviction import PREEMPT_AFTER_S, RESIDENCY_S
from pool_manager.core.machine import Machine
from pool_manager.core.state import DRAIN_S, TERM_S, Device, PoolSpec
from registry.exchange import Demand, Load
from tests.support.play import Play, assigned, cpus, launched

A, B, C = "default/a@1", "default/b@1", "default/c@1"
GPU = Device("gpu", "cuda", 10_000)


def test_the_first_request_is_not_dropped_while_waking() -> None:
    """Problem: the call that wakes a function gets an error. Here the pool is waking, with a
    reason, until a replica is ready, and is never shown as failed or gone."""
    play = Play(PoolSpec(A, load_s=30.0))
    play.demand(a=1)
    looks = set()

    for _ in range(40):
        play.demand(1.0, a=1)
        play.tick()
        looks.add(play.shown("a"))
    play.ready("r1")

    assert looks == {"waking"}
    assert play.shown("a") == "warm"


def test_a_cold_start_is_not_killed_by_the_platform_itself() -> None:
    """Problem: the idle timer runs while a large model loads and stops it before it ever served.
    Here idle time begins when the replica is ready."""
    play = Play(PoolSpec(A, idle_s=5.0, load_s=60.0))
    play.demand(a=1)
    play.demand()
    play.on(events.Greeted("r1", {}))

    assert [c for _ in range(300) for c in play.tick(1.0)] == []
    play.on(events.Loaded("r1", 4, True, 80.0, {}))
    assert play.tick(4.0) == []
    assert play.tick(1.0) == [Drain("r1", 5.0)]


def test_nothing_is_killed_while_it_works() -> None:
    """Problem: scaling down kills a replica in the middle of a request. Here a surplus replica is
    drained, and ended only after the whole drain time."""
    play = Play(PoolSpec(A, max=2), devices=2)
    play.run(a=8)
    play.ready("r1")
    play.seconds(6, a=8)
    play.ready("r2")

    commands = play.seconds(150, a=1)

    assert [c for c in commands if isinstance(c, Drain)] == [Drain("r2", None)]
    ends = [c for c in commands if isinstance(c, Terminate | Release)]
    assert [type(c) for c in ends] == [Terminate, Release]
    drained = next(n for n in play.notes if n.text.startswith("r2 is asked to stop:"))
    assert drained.key == A
    assert (DRAIN_S, TERM_S) == (30.0, 5.0)


def test_a_device_is_free_only_when_its_memory_is_back() -> None:
    """Problem: the next model is started while the last one still holds the memory, and fails. Here
    nothing is placed before the release is proved, whatever the exit was."""
    play = Play(PoolSpec(A, memory_mib=9_000), PoolSpec(B, memory_mib=9_000), devices=[GPU])
    play.demand(a=1)
    play.ready("r1")
    play.demand(1.0, b=1)

    play.on(events.Lost("r1", "exit 0"))
    assert play.tick(1.0) == []
    play.on(events.NotReleased("r1", "its memory is not back"))
    assert launched(play.tick(1.0)) == []

    assert launched(play.on(events.Released("r1"))) == [("r2", "gpu")]


def test_two_models_that_alternate_each_get_their_time() -> None:
    """Problem: two busy models evict each other all the time, or one blocks the other for ever.
    Here a model keeps its device for its residency, then the waiting one gets it."""
    play = Play(PoolSpec(A), PoolSpec(B), devices=1)
    play.run(a=1)
    play.ready("r1")
    busy = {A: Load(0, 1, 0.0), B: Load(1, 0, 0.0)}
    gone_s = None
    began_s = play.now
    while gone_s is None:
        commands = play.hear(busy, 1.0) + play.tick()
        if commands:
            assert commands == [Drain("r1", None)]
            gone_s = play.now - began_s

    assert gone_s == max(RESIDENCY_S, PREEMPT_AFTER_S + 1.0)
    play.lose("r1", "exit 0")
    assert play.replica("r2").pool == B


def test_two_models_that_are_called_in_turns_do_not_only_load() -> None:
    """Problem: two clients with short pauses between calls evict each other's model in every pause,
    and the device only loads. Here an idle model is kept for as long as it took to load, at most
    its residency: at most half of the time is spent on loading."""
    play = Play(PoolSpec(A), PoolSpec(B), devices=1)
    play.demand(a=1)
    play.on(events.Greeted("r1", {"start": 3.0}))
    play.on(events.Loaded("r1", 4, True, 80.0, {"load": 4_000.0}))
    play.demand(0.1)

    assert play.demand(0.1, b=1) == []
    assert play.demand(3.5, b=1) == []
    assert play.demand(0.4, b=1) == [Drain("r1", 0.001)]


def test_one_waiting_model_does_not_hold_up_another() -> None:
    """Problem: a model that cannot be placed blocks one that could. Here each pool waits only for
    what it needs."""
    play = Play(PoolSpec(A, device_kind="cuda"), PoolSpec(B), devices=cpus(1))

    assert launched(play.demand(a=1, b=1)) == [("r1", "d0")]
    assert play.reason("a") == "no device of kind cuda"


def test_a_burst_at_zero_starts_one_copy() -> None:
    """Problem: a hundred requests for a cold model start a hundred copies of it. Here one is
    started, and more only when that one is ready and overloaded."""
    play = Play(PoolSpec(A, max=8), devices=8)

    starts = launched(play.demand(a=100))
    for _ in range(30):
        starts += launched(play.demand(1.0, a=100))
        starts += launched(play.tick())

    assert starts == [("r1", "d0")]
    play.ready("r1")
    assert len(play.machine.replicas()) == 8


def test_every_decision_says_why() -> None:
    """Problem: the reason of a start or stop is unknown. Here each start, drain, termination and
    wait is noted for its pool, in words, with the replica's id."""
    play = Play(PoolSpec(A, idle_s=300.0), PoolSpec(B), PoolSpec(C), devices=1, gpu_standbys=1)
    commands = play.tick(5.0)
    play.on(events.Greeted("r1", {}))
    commands += play.demand(a=1)
    play.ready("r1")
    for moment in (
        lambda: play.demand(20.0, a=1, b=1, c=1),
        lambda: play.demand(2.0, a=1, b=1, c=1),
        lambda: play.demand(2.0, a=1, b=1, c=1),
        lambda: play.demand(2.0, a=1, b=1, c=1),
        lambda: play.tick(),
        lambda: play.tick(DRAIN_S),
        lambda: play.tick(TERM_S),
    ):
        commands += moment()

    decided = [c for c in commands if isinstance(c, Launch | Assign | Drain | Terminate)]
    words = {word for note in play.notes for word in note.text.split()}
    assert {type(c) for c in decided} == {Launch, Assign, Drain, Terminate}
    assert {c.id for c in decided} <= words
    assert Note(B, f"cannot start yet: waits for {A} to make room on d0") in play.notes


def test_looking_wakes_nothing() -> None:
    """Problem: a health check or a metrics scrape wakes a model or keeps it awake. Here neither
    time nor queries start anything or count as use."""
    play = Play(PoolSpec(A, idle_s=10.0))
    play.demand()
    for _ in range(100):
        play.machine.endpoints(A, play.now)
        play.machine.replicas()
        assert play.tick(1.0) == []
    play.warm(a="r1")

    for _ in range(9):
        play.machine.endpoints(A, play.now)
        assert play.demand(1.0) + play.tick() == []
    assert play.tick(1.0) == [Drain("r1", 10.0)]


def test_it_does_go_to_sleep() -> None:
    """Problem: an idle model keeps its device for ever. Here it is stopped after its idle time,
    even the last replica, and even if the gateway that held its requests crashed."""
    play = Play(PoolSpec(A, idle_s=10.0))
    play.demand(a=1)
    play.ready("r1")
    play.on(events.WorkerLost("w1"))

    assert play.tick(10.0) == [Drain("r1", 10.0)]
    play.lose("r1", "exit 0")
    assert play.shown("a") == "cold"
    assert play.tick(100.0) == []


def test_size_follows_load_up_and_down() -> None:
    """Problem: too few replicas under load, too many for hours after it. Here a burst is met within
    seconds, and replicas that were not needed for a minute are stopped."""
    play = Play(PoolSpec(A, max=4), devices=4)
    play.run(a=1)
    play.ready("r1")
    play.seconds(8, a=8)
    ids = [one.id for one in play.machine.replicas()]
    play.ready(*ids[1:])
    assert len(ids) == 4

    commands = play.seconds(140, a=1)

    assert {c.id for c in commands if isinstance(c, Drain)} == set(ids[1:])
    assert play.state("r1") == "ready"


def test_panic_never_takes_a_replica_away() -> None:
    """Problem: a pause of a few seconds within a burst costs the replicas just started. Here none
    is stopped for a minute."""
    play = Play(PoolSpec(A, max=4), devices=4)
    play.run(a=1)
    play.ready("r1")
    play.seconds(8, a=8)
    play.ready("r2", "r3", "r4")

    assert [c for c in play.seconds(58, a=1) if isinstance(c, Drain)] == []


def test_models_share_a_device_as_far_as_its_memory_goes() -> None:
    """Problem: one small model per GPU, or one too many and all of them crash. Here models are
    placed by their measured memory, with a reserve."""
    small = [PoolSpec(f"default/{name}@1", share=0.3, memory_mib=4_000) for name in "abc"]
    play = Play(*small, devices=[GPU])

    assert launched(play.demand(a=1, b=1, c=1)) == [("r1", "gpu"), ("r2", "gpu")]
    assert play.reason("c") == "needs 4000 MiB, 1744 are free"


def test_what_a_model_really_takes_counts_next_time() -> None:
    """Problem: a wrong declared size is used for ever. Here a replica is charged what it reports
    when loaded, and so is the next one."""
    play = Play(PoolSpec(A, share=0.4), PoolSpec(B, share=0.4, memory_mib=3_000), devices=[GPU])
    play.demand(a=1)
    play.ready("r1", memory_mib=8_000.0)

    assert launched(play.demand(a=1, b=1)) == []
    assert play.reason("b") == "needs 3000 MiB, 1744 are free"


def test_cold_does_not_look_gone() -> None:
    """Problem: a function scaled to zero vanishes from lists, or looks broken. Here a cold pool is
    shown as cold and a removed one as gone."""
    play = Play(PoolSpec(A, idle_s=0.0))
    play.warm(a="r1")
    play.lose("r1", "exit 0")

    endpoints = play.machine.endpoints(A, play.now)
    assert (endpoints.state, endpoints.reason) == ("cold", "no calls")
    play.published.clear()
    play.on(events.PoolRemoved(A))
    assert play.published == [{A}]
    assert A not in play.machine.pools


def test_a_standby_shortens_the_next_cold_start() -> None:
    """Problem: every cold start pays for the same process start and imports. Here a standby has
    done both, is used once, and is replaced."""
    play = Play(PoolSpec(A), PoolSpec(B), devices=2, standbys=1)
    assert launched(play.tick(5.0)) == [("r1", "")]
    play.on(events.Greeted("r1", {"start": 3.0}))

    assert assigned(play.demand(a=1)) == [("r1", A)]
    assert launched(play.demand(a=1, b=1)) == [
        ("r2", "d0" if play.replica("r1").first_device == "d1" else "d1")
    ]
    assert play.tick(1.0) == []
    assert [c.role for c in play.tick(2.0) if isinstance(c, Launch)] == ["standby"]


def test_nothing_is_started_on_a_guess_after_a_restart() -> None:
    """Problem: a restarted manager starts everything a second time. Here it first lists what runs,
    adopts it, and counts it."""
    play = Play(PoolSpec(A, min=1), devices=cpus(2), is_open=False)
    play.demand(a=1)
    play.on(events.Found("old", A, ("d0",)))

    assert play.on(events.ReplicasListed()) == []
    play.on(events.Greeted("old", {}, loaded=True))
    play.on(events.Loaded("old", 4, True, 80.0, {}))
    assert play.tick(60.0) == []
    assert [one.id for one in play.machine.replicas()] == ["old"]


def test_very_many_cold_functions_cost_a_tick_nothing() -> None:
    """Problem: ten thousand cold functions slow down the one that is called. Here a Tick settles
    only pools that time can change."""
    machine = Machine([GPU], iter(["r1"]).__next__)
    for number in range(1_000):
        machine.handle(events.PoolDefined(PoolSpec(f"f{number}")), 0.0)
    machine.handle(events.ReplicasListed(), 0.0)
    machine.handle(events.DemandReported(Demand("w", 1, True, {"f7": Load(1, 0, 0.0)})), 1.0)

    assert list(machine.cluster.live) == ["f7"]
