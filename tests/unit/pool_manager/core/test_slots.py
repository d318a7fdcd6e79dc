"""CPU slots: who runs, who is kept, whose turn it is."""

from __future__ import annotations

from pool_manager.core import events
from pool_manager.core.commands import Drain, Launch, Quiesce, Release, Terminate
from pool_manager.core.pool import JUST_USED_S, Warming
from pool_manager.core.state import DRAIN_S, PoolSpec, State
from registry.exchange import Load
from tests.support.fleet_play import HOST, SLOTS, FleetPlay
from tests.support.play import Play, cpus, launched

A, B, C = "default/a@1", "default/b@1", "default/c@1"
MIB = 80.0


def box(*specs: PoolSpec, slots: int = 1, kept: int = 10) -> Play:
    """Return a machine with CPU slots, and memory for `kept` replicas."""
    return Play(*specs, devices=cpus(slots, 256.0 + kept * MIB))


def two(**settings: float) -> Play:
    """Return a machine with one slot and two kept replicas: r1 of a, r2 of b."""
    play = box(PoolSpec(A, **settings), PoolSpec(B, **settings))  # type: ignore[arg-type]
    play.warm(a="r1", b="r2")
    return play


def limits(play: Play, name: str) -> list[int]:
    """Return what a pool's replicas take of gateways, 0 for those that are paused."""
    shown = play.machine.endpoints(f"default/{name}@1", play.now)
    return [0 if one.paused else one.limit for one in shown.replicas]


def has_slot(play: Play, id: str) -> bool:
    return play.machine.cluster.ledger.has_slot(id)


def hear(
    play: Play, after_s: float, flying: dict[str, int], queued: dict[str, int] | None = None
) -> list[object]:
    """Report calls in flight and queued, and tick."""
    commands = play.hear_all(after_s, in_flight=flying, queued=queued or {})
    return [*commands, *play.tick()]


def test_a_start_takes_a_slot_and_an_idle_replica_none() -> None:
    """Two functions are kept on one slot. Each can be called at once: both are listed with room."""
    play = two()

    assert not has_slot(play, "r1")
    assert not has_slot(play, "r2")
    assert play.machine.cluster.ledger.in_bank("ram") == ["r1", "r2"]
    assert limits(play, "a") == limits(play, "b") == [4]
    assert play.machine.cluster.on_slots == {}


def test_a_called_replica_takes_a_slot_and_gives_it_back() -> None:
    """Gateways have nothing to learn: the replica is listed as before."""
    play = two()
    listed = play.machine.endpoints(A, play.now).replicas

    assert play.run(a=1) == []
    assert has_slot(play, "r1")
    assert play.machine.endpoints(A, play.now).replicas == listed
    assert play.run() == []
    assert not has_slot(play, "r1")
    assert play.machine.endpoints(A, play.now).replicas == listed


def test_a_replica_without_a_slot_is_paused() -> None:
    """Its calls are held while another function runs on the only slot, and go on when that is
    idle, in the same event."""
    play = two()
    play.run(a=1)

    play.hear_all(in_flight={"a": 1}, queued={"b": 1})

    assert limits(play, "b") == [0]
    assert play.shown("b") == "waking"
    assert play.reason("b") == "all CPU slots run other functions"
    play.demand(b=1)
    assert limits(play, "b") == [4]
    assert has_slot(play, "r2")
    assert play.shown("b") == "warm"


def test_what_is_in_flight_at_a_paused_replica_ends_there() -> None:
    """It was sent before the manager knew. Without further calls nothing is preempted for it."""
    play = two()
    play.run(a=1)
    hear(play, 20.0, {"a": 1, "b": 1})
    hear(play, 20.0, {"a": 1, "b": 1})

    assert limits(play, "b") == [0]
    assert limits(play, "a") == [4]
    hear(play, 1.0, {"a": 1})
    assert limits(play, "b") == [0]
    assert not has_slot(play, "r2")
    assert (play.shown("b"), play.reason("b")) == ("warm", "kept until a CPU slot is free")
    hear(play, 1.0, {})
    assert limits(play, "b") == [4]


def test_a_function_that_leaves_its_slot_to_another_waits_for_the_next() -> None:
    """Short calls would run beside the one that has the slot until they are reported. With a free
    slot, all take calls without a word to the manager."""
    play = two()
    play.run(a=1)
    play.hear_all(in_flight={"a": 1}, queued={"b": 1})

    play.demand(b=1)
    assert (limits(play, "a"), limits(play, "b")) == ([0], [4])
    play.hear_all(in_flight={"b": 1}, queued={"a": 1})
    assert limits(play, "a") == [0]
    play.demand(a=1)
    assert (limits(play, "a"), limits(play, "b")) == ([4], [0])

    hear(play, 1.0, {})
    assert (limits(play, "a"), limits(play, "b")) == ([4], [4])


def test_a_replica_may_move_to_another_slot() -> None:
    """The slot that it had before comes first."""
    play = box(*map(PoolSpec, (A, B, C)), slots=2)
    play.warm(a="r1", b="r2", c="r3")
    assert [play.replica(id).first_device for id in ("r1", "r2", "r3")] == ["d0", "d1", "d0"]

    play.run(c=1)
    play.run(c=1, a=1)

    assert (play.replica("r3").first_device, play.replica("r1").first_device) == ("d0", "d1")
    assert play.machine.endpoints(A, play.now).replicas[0].devices[0] == "d1"
    play.run()
    play.run(a=1)
    assert play.replica("r1").first_device == "d1"


def test_a_turn_ends_for_a_function_that_waits() -> None:
    """After 10 s on its slot the busy function is paused for one that has waited for 5 s. It keeps
    the slot until its open calls have ended, and nothing is stopped or started."""
    play = two(min=1)
    play.run(a=1)
    hear(play, 6.0, {"a": 1}, {"b": 1})
    hear(play, 5.0, {"a": 1}, {"b": 1})

    assert play.replica("r1").is_yielding
    assert limits(play, "a") == limits(play, "b") == [0]
    assert hear(play, 1.0, {"a": 1}, {"a": 1, "b": 1}) == []
    assert (has_slot(play, "r1"), has_slot(play, "r2")) == (True, False)
    assert play.reason("a") == f"its CPU slot goes to {B}"
    assert hear(play, 1.0, {}, {"a": 1, "b": 1}) == []
    assert (has_slot(play, "r1"), has_slot(play, "r2")) == (False, True)
    assert (limits(play, "a"), limits(play, "b")) == ([0], [4])
    assert play.reason("a") == "all CPU slots run other functions"

    hear(play, 11.0, {"b": 1}, {"a": 1})
    assert play.replica("r2").is_yielding, "turns go on"


def test_a_pause_ends_when_nobody_waits_any_more() -> None:
    """Its calls go on, and the slot stays."""
    play = two()
    play.run(a=1)
    hear(play, 6.0, {"a": 1}, {"b": 1})
    hear(play, 5.0, {"a": 1}, {"b": 1})
    assert limits(play, "a") == [0]

    hear(play, 1.0, {"a": 1})

    assert limits(play, "a") == [4]
    assert has_slot(play, "r1")
    assert play.replica("r1").deadline_s == float("inf")


def test_a_pause_ends_when_the_claimant_is_removed() -> None:
    """A pool that is gone needs no slot."""
    play = two()
    play.run(a=1)
    hear(play, 6.0, {"a": 1}, {"b": 1})
    hear(play, 5.0, {"a": 1}, {"b": 1})

    play.on(events.PoolRemoved(B))
    play.on(events.Lost("r2", "exit 0"))
    play.on(events.Released("r2"))
    hear(play, 1.0, {"a": 1})

    assert limits(play, "a") == [4]


def test_calls_that_do_not_end_are_bounded_as_in_a_drain() -> None:
    """After the time of a drain the replica is drained, and terminated."""
    play = two(min=1)
    play.run(a=1)
    hear(play, 6.0, {"a": 1}, {"b": 1})
    hear(play, 5.0, {"a": 1}, {"b": 1})

    assert Drain("r1", None) in hear(play, DRAIN_S + 1.0, {"a": 1}, {"b": 1})
    assert not play.replica("r1").is_paused
    [ended] = [one for one in play.tick() if isinstance(one, Terminate)]
    assert ended.id == "r1"
    play.lose("r1")
    assert has_slot(play, "r2")


def test_a_cold_function_gets_the_slot_of_a_turn_that_is_over() -> None:
    """With memory for both, the other one is paused, and kept."""
    play = box(PoolSpec(A, memory_mib=MIB), PoolSpec(B, memory_mib=MIB), kept=2)
    play.warm(a="r1")
    play.run(a=1)
    hear(play, 6.0, {"a": 1}, {"b": 1})

    assert hear(play, 5.0, {"a": 1}, {"b": 1}) == []
    assert play.replica("r1").is_yielding
    assert launched(play.hear_all(1.0, in_flight={}, queued={"a": 1, "b": 1})) == [("r2", "d0")]
    assert play.state("r1") == "ready"


def test_memory_comes_from_idle_replicas_first() -> None:
    """The slot of a busy function and the memory of an idle one make room for a third."""
    specs = [PoolSpec(key, memory_mib=MIB) for key in (A, B, C)]
    play = box(*specs, kept=2)
    play.warm(a="r1", b="r2")
    play.run(a=1)
    hear(play, 6.0, {"a": 1}, {"c": 1})

    commands = hear(play, 5.0, {"a": 1}, {"c": 1})

    assert commands == [Drain("r2", None)]
    assert play.replica("r1").is_yielding
    hear(play, 1.0, {}, {"a": 1, "c": 1})
    assert not has_slot(play, "r1")
    play.on(events.Lost("r2", "exit 0"))
    assert launched(play.on(events.Released("r2"))) == [("r3", "d0")]


def test_memory_of_called_functions_is_that_of_the_last_turn() -> None:
    """Where all that is kept is called, the one whose turn is over ends: the others' is to come."""
    specs = [PoolSpec(key, memory_mib=MIB) for key in (A, B, C)]
    play = box(*specs, kept=2)
    play.warm(a="r1", b="r2")
    play.run(b=1)
    hear(play, 20.0, {"b": 1}, {"a": 1, "c": 1})
    commands = hear(play, 6.0, {"b": 1}, {"a": 1, "c": 1})
    assert play.replica("r2").is_yielding
    hear(play, 1.0, {}, {"a": 1, "b": 1, "c": 1})
    assert has_slot(play, "r1")

    commands = hear(play, 11.0, {"a": 1}, {"b": 1, "c": 1})

    assert commands == [Drain("r1", None)]
    assert limits(play, "b") == [0]
    assert play.state("r2") == "ready"


def test_an_overfull_host_starts_nobody_of_unknown_memory() -> None:
    """A replica may turn out larger than its bank. It runs on, but the next one waits until it has
    made room."""
    play = box(PoolSpec(A, idle_s=60.0), PoolSpec(B), kept=1)
    play.demand(a=1)
    play.ready("r1", memory_mib=2 * MIB)
    play.demand()
    play.run(a=1)
    assert has_slot(play, "r1")
    play.run(11.0)

    commands = play.demand(b=1)

    assert launched(commands) == []
    assert [one.id for one in commands if isinstance(one, Drain)] == ["r1"]
    assert launched(play.lose("r1")) == [("r2", "d0")]


def test_an_idle_replica_ends_for_memory_where_a_slot_is_free() -> None:
    """It may refuse, as on a GPU."""
    play = box(PoolSpec(A, memory_mib=MIB), PoolSpec(B, memory_mib=MIB), kept=1)
    play.warm(a="r1")

    assert play.demand(20.0, b=1) == [Drain("r1", JUST_USED_S)]


def test_shares_of_a_slot_that_a_whole_one_needs_are_kept() -> None:
    """A function that needs a whole slot gets it from small ones, which come and go."""
    specs = [PoolSpec(key, share=0.5) for key in (A, B)]
    play = box(*specs, PoolSpec(C))
    play.warm(a="r1", b="r2", c="r3")
    play.run(a=1)
    hear(play, 5.0, {"a": 1}, {"c": 1})
    hear(play, 4.0, {"a": 1, "b": 1}, {"c": 1})
    hear(play, 2.0, {"a": 1, "b": 1}, {"c": 1})

    reservation = play.pool("c").reservation
    assert reservation is not None, "the turn of b is not over"
    assert (reservation.devices, reservation.victims) == (("d0",), ())
    hear(play, 1.0, {"a": 1}, {"c": 1})
    hear(play, 1.0, {"a": 1, "b": 1}, {"c": 1})
    assert limits(play, "b") == [0], "no other function gets a part of the slot"
    hear(play, 1.0, {"b": 1}, {"a": 1, "b": 1, "c": 1})
    assert has_slot(play, "r3")


def test_two_small_turns_end_for_a_whole_slot() -> None:
    """Both are past their residency, so both yield."""
    specs = [PoolSpec(key, share=0.5) for key in (A, B)]
    play = box(*specs, PoolSpec(C))
    play.warm(a="r1", b="r2", c="r3")
    play.run(a=1, b=1)
    hear(play, 6.0, {"a": 1, "b": 1}, {"c": 1})

    hear(play, 6.0, {"a": 1, "b": 1}, {"c": 1})

    assert play.replica("r1").is_yielding
    assert play.replica("r2").is_yielding


def test_a_start_has_its_slot_to_the_end() -> None:
    """A function that waits beside a start preempts nothing; it gets the next slot."""
    play = box(PoolSpec(A), PoolSpec(B))
    play.warm(a="r1")
    assert launched(play.demand(b=1)) == [("r2", "d0")]

    hear(play, 6.0, {}, {"a": 1, "b": 1})
    hear(play, 11.0, {}, {"a": 1, "b": 1})

    assert play.replica("r2").state is State.STARTING
    assert play.pool("a").reservation is not None
    play.demand(a=1)
    play.ready("r2")
    assert has_slot(play, "r1")


def test_a_build_ends_for_a_called_function() -> None:
    """It had the slot only because nobody called."""
    play = two()
    play.on(events.PoolDefined(PoolSpec("default/m@build-1", role="build", memory_mib=MIB)))
    assert play.replica("r3").role == "build"

    commands = play.run(a=1)

    assert Release("r3", f"its place is needed for {A}") in commands
    assert play.replica("r1").is_paused
    play.on(events.Released("r3"))
    assert has_slot(play, "r1")


def test_replicas_of_one_function_take_the_slots_there_are() -> None:
    """One serves, the other one is paused: the function does not wait, and is preempted as a
    whole, as its open calls are reported together."""
    play = box(PoolSpec(A, min=2, max=2), PoolSpec(B), slots=2)
    play.demand()
    play.ready("r1", "r2")
    play.warm(b="r3")
    play.run(b=1)
    hear(play, 1.0, {"a": 1, "b": 1})
    assert sorted(limits(play, "a")) == [0, 4]
    assert play.shown("a") == "warm"
    play.run(a=1)
    assert limits(play, "a") == [4, 4]

    hear(play, 6.0, {"a": 2}, {"b": 1})
    hear(play, 6.0, {"a": 2}, {"b": 1})
    assert limits(play, "a") == [0, 0]
    hear(play, 1.0, {}, {"a": 1, "b": 1})
    assert has_slot(play, "r3")
    assert sorted(limits(play, "a")) == [0, 4]


def test_a_host_without_an_engine_takes_no_turns() -> None:
    """Nothing may be started there; what is kept serves on, with or without a slot."""
    play = two()
    play.run(a=1)
    play.on(events.EngineLost("no answer"))

    hear(play, 1.0, {"a": 1, "b": 1})

    assert limits(play, "b") == [4]
    assert not has_slot(play, "r2")


def test_a_paused_replica_is_used_again_where_the_engine_went_away() -> None:
    """No turns are taken there any more."""
    play = two()
    play.run(a=1)
    hear(play, 1.0, {"a": 1}, {"b": 1})
    assert limits(play, "b") == [0]

    play.on(events.EngineLost("no answer"))
    hear(play, 1.0, {"a": 1}, {"b": 1})

    assert limits(play, "b") == [4]


def test_turns_on_another_host_are_told_with_its_name() -> None:
    """Slots belong to a host: others' are of no use."""
    play = FleetPlay(PoolSpec(A), PoolSpec(B), PoolSpec(C))
    play.warm(a="r1", b="r2", c="r3")
    play.run(a=1, b=1)

    hear(play, 1.0, {"a": 1, "b": 1}, {"c": 1})

    assert play.reason("c") == f"all CPU slots of {HOST} run other functions"


def test_an_idle_replica_of_a_host_that_is_away_leaves_its_slot() -> None:
    """It may end as soon as the host is back: without a slot, on which another one starts in the
    same event."""
    play = FleetPlay(PoolSpec(A, idle_s=5.0), PoolSpec(B), far=SLOTS[:1])
    play.warm(a="r1")
    play.run(a=1)
    play.down()
    play.run(6.0)
    play.tick()
    assert not has_slot(play, "r1")
    play.demand(b=1)

    assert launched(play.up("r1")) == [("r2", SLOTS[0].id)]
    play.greet("r1")
    play.tick(6.0)

    assert play.state("r1") is State.DRAINING
    assert play.machine.cluster.ledger.on(SLOTS[0].id) == ["r2"]


def test_a_replica_may_get_ready_leave_its_slot_and_end_in_one_event() -> None:
    """Its callers left while it loaded, and its function keeps nobody (`idle_s` 0)."""
    play = box(PoolSpec(A, idle_s=0.0), PoolSpec(B))
    play.demand(a=1)
    play.on(events.Greeted("r1", {}))
    play.demand(b=1)

    commands = play.on(events.Loaded("r1", 4, True, MIB, {"load": 1.0}))

    assert launched(commands) == [("r2", "d0")]
    assert play.state("r1") is State.DRAINING
    assert play.machine.cluster.ledger.on("d0") == ["r2"]
    assert play.machine.cluster.ledger.in_bank("ram") == ["r1", "r2"]


def test_a_revision_that_is_warmed_beside_takes_no_slot_of_its_function() -> None:
    """The one that serves is not paused for a deploy."""
    specs = [PoolSpec(key, function="f", max=2) for key in (A, B)]
    play = box(*specs)
    play.warm(a="r1")
    play.run(a=1)
    play.on(events.WarmRequested(B, beside=True))
    play.pool("b").warming = Warming(beside=True, failures=0)
    hear(play, 6.0, {"a": 1}, {"b": 1})
    play.pool("b").warming = Warming(beside=True, failures=0)

    play.hear_all(6.0, in_flight={"a": 1}, queued={"b": 1})

    assert limits(play, "a") == [4]
    hear(play, 1.0, {"a": 1}, {"b": 1})
    assert limits(play, "a") == [0], "it has calls of its own now, and traffic"


def test_a_claim_on_gpus_takes_no_slot() -> None:
    """What needs a GPU waits for a GPU."""
    play = box(PoolSpec(A), PoolSpec(B, device_kind="cuda"))
    play.warm(a="r1")
    play.run(a=1)
    hear(play, 6.0, {"a": 1}, {"b": 1})
    hear(play, 6.0, {"a": 1}, {"b": 1})

    assert limits(play, "a") == [4]


def test_a_server_is_paused_like_a_model() -> None:
    """It is not drained: its open exchanges have `drain_s` to end, and it is kept."""
    play = two(is_server=True, drain_s=100.0)
    play.run(a=1)
    hear(play, 6.0, {"a": 1}, {"b": 1})
    commands = hear(play, 5.0, {"a": 1}, {"b": 1})

    assert not [one for one in commands if isinstance(one, Quiesce | Drain | Launch)]
    assert play.replica("r1").deadline_s == play.now + 100.0


def test_a_replaced_server_is_not_paused_any_more() -> None:
    """A drain of any kind ends a pause."""
    play = two()
    play.run(a=1)
    hear(play, 1.0, {"a": 1}, {"b": 1})
    assert play.replica("r2").is_paused

    play.on(events.SleepRequested(B, force=True))

    assert not play.replica("r2").is_paused
    assert play.state("r2") == "draining"


def test_reports_of_calls_reach_a_pool_with_none_waiting() -> None:
    """A partial report that says nothing new changes nothing."""
    play = two()
    play.run(a=1)
    play.hear({A: Load(0, 2, 0.0)}, full=False)

    assert has_slot(play, "r1")


def test_turns_that_are_over_are_of_no_use_without_memory() -> None:
    """What `min` keeps in memory is not stopped for a function that has no room."""
    play = box(PoolSpec(A, min=1, memory_mib=MIB), PoolSpec(B, memory_mib=MIB), kept=1)
    play.demand()
    play.ready("r1")
    play.run(a=1)
    hear(play, 6.0, {"a": 1}, {"b": 1})

    hear(play, 6.0, {"a": 1}, {"b": 1})

    assert limits(play, "a") == [4]
    assert play.pool("b").kept_by == ("default/a",)
    play.demand(b=1)
    assert play.reason("b") == "needs 80 MiB, 0 are free, the min of other functions keeps the rest"


def test_as_many_turns_end_as_are_needed() -> None:
    """Of three that share a slot, the two pause that had it for longest."""
    specs = [PoolSpec(key, share=0.3) for key in (A, B, C)]
    play = box(*specs, PoolSpec("default/d@1", share=0.6))
    play.warm(a="r1", b="r2", c="r3", d="r4")
    play.run(a=1)
    play.run(1.0, a=1, b=1)
    play.run(1.0, a=1, b=1, c=1)
    flying = {"a": 1, "b": 1, "c": 1}
    hear(play, 6.0, flying, {"d": 1})

    hear(play, 6.0, flying, {"d": 1})

    assert [play.replica(id).is_yielding for id in ("r1", "r2", "r3")] == [True, True, False]
