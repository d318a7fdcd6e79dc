"""Pools of server functions: time limits, no standbys, residency, and soft swaps."""

from __future__ import annotations

import pytest

from pool_manager.core import events
from pool_manager.core.commands import (
    Bind,
    Command,
    Drain,
    Launch,
    Quiesce,
    Release,
    Resume,
    Terminate,
)
from pool_manager.core.eviction import PREEMPT_AFTER_S, RESIDENCY_S
from pool_manager.core.state import (
    DRAIN_S,
    RESUME_S,
    SERVER_MARGIN_S,
    TERM_S,
    Device,
    PoolSpec,
    Replica,
    State,
    load_limit_s,
    state_limit_s,
)
from tests.support.house import House, without_notes
from tests.support.play import Play, cpus, launched

A, B, C = "default/a@1", "default/b@1", "default/c@1"
GPU = [Device("GPU-1", "cuda", 10_000)]


def server(key: str, **changes: object) -> PoolSpec:
    """Return the spec of a server that takes 8 exchanges at once."""
    spec = {"target": 8, "is_server": True, "start_s": 200.0, "drain_s": 90.0, "stop_grace_s": 7.0}
    return PoolSpec(key, **{**spec, **changes})  # type: ignore[arg-type]


def only(commands: list[Command], kind: type[Command]) -> list[Command]:
    return [one for one in commands if isinstance(one, kind)]


def notes(play: Play, key: str) -> list[str]:
    return [note.text for note in play.notes if note.key == key]


# Time limits


def test_the_limit_of_a_start_is_the_functions() -> None:
    """`start_s` and a margin replace the limit of a load, whatever was measured; a trial has its
    verification in addition."""
    spec = server(A, load_s=1000.0, bundle_bytes=2**40)
    assert load_limit_s(spec) == 200.0 + SERVER_MARGIN_S
    loading = Replica("r1", A, ("d0",), "serve", 0.0, State.LOADING)
    trial = Replica("r2", A, ("d0",), "trial", 0.0, State.LOADING)
    assert state_limit_s(loading, spec) == load_limit_s(spec)
    assert state_limit_s(trial, server(A, role="trial")) > load_limit_s(spec)


def test_a_final_drain_lasts_for_the_functions_time() -> None:
    """Open exchanges have `drain_s`, then the server has `stop_grace_s` after TERM."""
    house = House(State.READY)
    house.pool.spec = server(A)
    house.drain(None)

    assert house.enforce_deadline(89.0) == []
    [terminate] = house.enforce_deadline(1.0)
    assert isinstance(terminate, Terminate)
    assert house.enforce_deadline(7.0 + TERM_S - 0.1) == []
    [release] = house.enforce_deadline(0.1)
    assert isinstance(release, Release)


def test_a_drain_that_ends_no_exchange_has_time_for_the_handshake() -> None:
    """A server with a short `drain_s` may still agree with all gateways and stop in peace."""
    house = House(State.READY)
    house.pool.spec = server(A, drain_s=0.0)
    house.drain(5.0)

    assert house.enforce_deadline(DRAIN_S + 7.0) == []
    [terminate] = house.enforce_deadline(DRAIN_S)
    assert isinstance(terminate, Terminate)


def test_an_exchange_that_crossed_a_conditional_drain_keeps_its_time() -> None:
    """If a drain that might have been refused becomes final, `drain_s` counts from then on."""
    house = House(State.READY)
    house.pool.spec = server(A)
    house.drain(5.0)
    house.now += 30.0
    house.drain(None)

    assert house.enforce_deadline(89.0) == []
    [terminate] = house.enforce_deadline(1.0)
    assert isinstance(terminate, Terminate)


# Standbys and placement


def test_a_server_never_uses_a_standby() -> None:
    """A server is launched beside a waiting standby, and is told what to run when it connects."""
    play = Play(server(A), PoolSpec(B), standbys=1)
    play.tick(5.0)
    play.on(events.Greeted("r1", {}))
    assert play.machine.cluster.wakes_by_standby(play.pool("b"))
    assert not play.machine.cluster.wakes_by_standby(play.pool("a"))

    assert launched(play.demand(a=1)) == [("r2", "d0")]
    assert not play.machine.cluster.wakes_by_standby(play.pool("a"))
    assert play.on(events.Greeted("r2", {})) == [Bind("r2", A)]


def test_the_memory_of_a_standby_is_not_a_servers() -> None:
    """A server that lacks the memory of a standby waits until the standby has ended; a model takes
    its place at once."""
    play = Play(server(A, memory_mib=700.0), devices=cpus(1, 1_000.0), standbys=1)
    play.tick(5.0)
    play.on(events.Greeted("r1", {}))

    assert only(play.demand(a=1), Release) == [Release("r1", f"evicted for {A}")]
    assert launched(play.on(events.Released("r1"))) == [("r2", "d0")]


def test_endpoints_name_servers() -> None:
    """Gateways learn which replicas hand out sockets."""
    play = Play(server(A), PoolSpec(B))
    play.warm(a="r1", b="r2")

    def shown(key: str) -> list[bool]:
        return [one.is_server for one in play.machine.endpoints(key, play.now).replicas]

    assert (shown(A), shown(B)) == ([True], [False])


# Residency


@pytest.mark.parametrize(("load_s", "stays_s"), [(1.0, 10.0), (120.0, 120.0), (900.0, 300.0)])
def test_an_idle_server_is_kept_for_as_long_as_it_took_to_start(
    load_s: float, stays_s: float
) -> None:
    """An idle server is evicted after its residency: 10 s at least, 300 s at most."""
    play = Play(server(A, load_s=load_s, idle_s=1e4), server(B), devices=1)
    play.warm(a="r1")
    play.pool("a").reload_s = 0.0

    assert play.demand(stays_s - 1.0, b=1) == []
    assert only(play.demand(1.0, b=1), Drain) == [Drain("r1", 0.001)]


def test_a_measured_start_replaces_the_trials() -> None:
    """What the last start took decides, not the trial."""
    play = Play(server(A, load_s=200.0, idle_s=1e4), server(B), devices=1)
    play.warm(a="r1")
    assert play.pool("a").reload_s < 1.0

    assert only(play.demand(RESIDENCY_S, b=1), Drain) == [Drain("r1", 0.001)]


def test_a_busy_server_serves_for_as_long_as_it_took_to_start() -> None:
    """A busy server is not swapped within its residency, but its device is reserved."""
    play = Play(server(A), server(B), devices=1)
    play.warm(a="r1")
    play.pool("a").reload_s = 60.0
    commands = busy_a_waiting_b(play, 59)

    assert only(commands, Quiesce) == []
    assert play.pool("b").reservation is not None
    assert only(busy_a_waiting_b(play, 2), Quiesce) == [Quiesce("r1")]


def test_the_device_is_reserved_whose_server_is_free_to_go_first() -> None:
    """Of two servers within their residency, the one that will be past it sooner is reserved."""
    play = Play(server(A), server(B), server(C))
    play.warm(a="r1", b="r2")
    play.pool("a").reload_s, play.pool("b").reload_s = 120.0, 30.0
    for _ in range(28):
        play.hear_all(1.0, in_flight={"a": 1, "b": 1}, queued={"c": 1})
        play.tick()

    reservation = play.pool("c").reservation
    assert reservation is not None
    assert reservation.victims == ("r2",)


# Soft swaps


def busy_a_waiting_b(play: Play, seconds: int, a_queued: int = 0) -> list[Command]:
    """Let pool a have an exchange open and pool b wait, for some seconds."""
    commands: list[Command] = []
    for _ in range(seconds):
        commands += play.hear_all(1.0, in_flight={"a": 1}, queued={"a": a_queued, "b": 1})
        commands += play.tick()
    return commands


@pytest.fixture
def swap() -> Play:
    """Return a host in which busy r1 of pool a makes room for pool b."""
    play = Play(server(A), server(B), devices=1)
    play.warm(a="r1")
    assert only(busy_a_waiting_b(play, 12), Quiesce) == [Quiesce("r1")]
    return play


def test_a_busy_server_is_swapped_softly(swap: Play) -> None:
    """A busy server finishes its exchanges for another function; gateways keep their links to it,
    and everybody is told why."""
    assert swap.state("r1") is State.DRAINING
    shown = swap.machine.endpoints(A, swap.now)
    assert [one.id for one in shown.replicas] == ["r1"]
    reason = f"finishes its open streams before it makes room for {B}"
    assert f"r1 takes no new calls: it {reason}" in notes(swap, A)
    assert swap.reason("b") == (
        f"waits for {A} to make room on d0: open streams may take up to 90 s to end"
    )
    busy_a_waiting_b(swap, 1, a_queued=1)
    assert (swap.shown("a"), swap.reason("a")) == ("waking", reason)

    swap.on(events.Lost("r1", "exited with code 0"))
    assert launched(swap.on(events.Released("r1"))) == [("r2", "d0")]


def test_a_swap_ends_streams_after_the_functions_time(swap: Play) -> None:
    """A server whose streams do not end is terminated after `drain_s`, and then killed."""
    assert busy_a_waiting_b(swap, 80) == []
    commands = busy_a_waiting_b(swap, 10)
    assert [type(one) for one in commands] == [Terminate]
    assert swap.machine.endpoints(A, swap.now).replicas == []
    commands = busy_a_waiting_b(swap, 12)
    assert [type(one) for one in commands] == [Release]


def test_a_swap_is_revoked_when_nobody_waits(swap: Play) -> None:
    """Once the other function's callers are gone, the server takes exchanges again."""
    assert only(swap.run(1.0, a=1), Resume) == [Resume("r1")]
    assert only(swap.run(1.0, a=1), Resume) == []
    assert swap.pool("a").count() == 1

    swap.on(events.NotIdle("r1", 0.0))

    assert swap.state("r1") is State.READY
    assert notes(swap, A)[-2:] == [
        f"r1 is to take calls again: {B} needs no room any more",
        "r1 takes calls again",
    ]
    assert swap.machine.cluster.quiesced == {}


def test_a_swap_is_revoked_when_a_device_is_free(swap: Play) -> None:
    """A function that finds room elsewhere gives the claim up, in the same step."""
    swap.machine.cluster.ledger.add_devices([Device("d9", "cpu", 0.0, "ram")])

    commands = busy_a_waiting_b(swap, 1)

    assert launched(commands) == [("r2", "d9")]
    assert only(commands, Resume) == [Resume("r1")]


def test_a_swap_is_revoked_when_the_claimant_is_removed(swap: Play) -> None:
    """The claim of a function that was removed ends."""
    assert only(swap.on(events.PoolRemoved(B)), Resume) == [Resume("r1")]


def test_a_revoked_server_that_ends_is_replaced(swap: Play) -> None:
    """If the server stopped just before it was told to resume, a new one starts, without a
    failure."""
    swap.run(1.0, a=1)
    swap.on(events.Lost("r1", "exited with code 0"))

    assert launched(swap.on(events.Released("r1"))) == [("r2", "d0")]
    assert swap.pool("a").failures == 0


def test_a_revoked_server_must_answer(swap: Play) -> None:
    """A sidecar that does not confirm is terminated, later than any answer takes."""
    swap.run(1.0, a=1)

    assert swap.seconds(int(RESUME_S) - 1, a=1) == []
    commands = swap.seconds(1, a=1)
    assert [type(one) for one in commands] == [Terminate]


def test_a_swap_of_a_removed_function_is_final(swap: Play) -> None:
    """A server that makes room and whose function is removed is not called back; its exchanges
    keep their time."""
    deadline_s = swap.replica("r1").deadline_s
    assert swap.on(events.PoolRemoved(A)) == [Drain("r1", None)]
    assert swap.replica("r1").deadline_s == deadline_s

    assert only(swap.demand(1.0), Resume) == []
    swap.on(events.NotIdle("r1", 0.0))
    assert swap.state("r1") is State.DRAINING


def test_a_swap_on_a_cordoned_device_is_final(swap: Play) -> None:
    """On a device that needs a reset, the server is not called back either."""
    assert swap.on(events.DeviceLost("d0", "XID 48", False)) == [Drain("r1", None)]


def test_a_shutdown_drains_a_revoked_server(swap: Play) -> None:
    """A server that is about to resume may have taken exchanges again: they get `drain_s`."""
    swap.run(1.0, a=1)

    assert swap.on(events.Shutdown(), 5.0) == [Drain("r1", None)]
    assert swap.replica("r1").deadline_s == swap.now + 90.0


def test_a_function_that_makes_room_waits_for_its_turn() -> None:
    """The callers of a server that makes room do not make other busy servers stop: one claim would
    otherwise reach every device."""
    play = Play(server(A), server(B), server(C))
    play.warm(a="r1", b="r2")
    commands: list[Command] = []
    for _ in range(30):
        commands += play.hear_all(1.0, in_flight={"a": 1, "b": 1}, queued={"a": 1, "b": 1, "c": 1})
        commands += play.tick()

    assert len(only(commands, Quiesce)) == 1


def test_an_idle_replica_goes_sooner_than_a_stream_ends() -> None:
    """While a busy server finishes its streams, a replica that becomes idle is evicted, and the
    swap is revoked when its device is free."""
    play = Play(server(A), server(B), PoolSpec(C))
    play.warm(a="r1", c="r2")
    for _ in range(15):
        commands = play.hear_all(1.0, in_flight={"a": 1, "c": 1}, queued={"b": 1})
        play.pool("c").replicas["r2"].ready_s = play.now
    assert [one.is_quiesced for one in play.machine.replicas()] == [True, False]
    play.replica("r2").ready_s -= 10.0

    commands = play.hear_all(1.0, in_flight={"a": 1}, queued={"b": 1})
    assert commands == [Drain("r2", 0.001)]
    assert play.hear_all(1.0, in_flight={"a": 1}, queued={"b": 1}) == []
    play.on(events.Lost("r2", "exited with code 0"))
    commands = play.on(events.Released("r2"))

    assert launched(commands) == [("r3", "d1")]
    assert only(commands, Resume) == [Resume("r1")]


def test_a_busy_model_goes_sooner_than_a_stream_ends() -> None:
    """A model that may be preempted gives way although a server makes room already; if it refuses
    or is not past its residency, the claim on the server stays."""
    play = Play(server(A), server(B), PoolSpec(C))
    play.warm(a="r1", c="r2")
    for _ in range(15):
        play.replica("r2").ready_s = play.now
        play.hear_all(1.0, in_flight={"a": 1, "c": 1}, queued={"b": 1})
    assert play.replica("r1").is_quiesced
    play.replica("r2").ready_s -= RESIDENCY_S

    assert play.hear_all(1.0, in_flight={"a": 1, "c": 1}, queued={"b": 1}) == [Drain("r2", None)]
    assert play.replica("r1").is_quiesced


def test_a_busy_model_is_preferred_to_a_busy_server() -> None:
    """Of a server that served longest and a model, the model is swapped: its calls are short."""
    play = Play(server(A), server(B), PoolSpec(C))
    play.warm(a="r1", c="r2")
    commands: list[Command] = []
    for _ in range(16):
        commands += play.hear_all(1.0, in_flight={"a": 1, "c": 1}, queued={"b": 1})
        commands += play.tick()

    assert commands == [Drain("r2", None)]


def test_a_trial_waits_longer_and_swaps_softly() -> None:
    """A trial that evicts makes a busy server finish, later than a caller would."""
    play = Play(server(A), devices=1)
    play.warm(a="r1")
    play.on(events.PoolDefined(server("trial/1", role="trial", evicts=True)))

    assert only(play.seconds(29, a=1), Quiesce) == []
    assert only(play.seconds(2, a=1), Quiesce) == [Quiesce("r1")]


def test_two_revisions_of_a_server_take_turns_softly() -> None:
    """At `max`, calls to the other revision make the busy one finish first."""
    play = Play(server(A, function="a"), server("default/a@2", function="a"), devices=3)
    play.warm(a="r1")
    commands: list[Command] = []
    for _ in range(12):
        commands += play.hear_all(1.0, in_flight={"a": 1}, queued={}, more={"default/a@2": 1})
        commands += play.tick()

    assert only(commands, Quiesce) == [Quiesce("r1")]
    assert only(commands, Launch) == []


def test_an_adopted_server_is_told_to_serve() -> None:
    """The earlier manager may have drained a server softly; its successor revokes that, and is not
    confused by the answer."""
    play = Play(server(A), is_open=False)
    play.on(events.Found("old1", A, ("d0",)))
    play.on(events.Greeted("old1", {}, True))

    assert play.on(events.Loaded("old1", 8, True, 50.0, {})) == [Resume("old1")]
    assert play.on(events.NotIdle("old1", 3.0)) == []
    assert play.state("old1") is State.READY


def test_surplus_servers_finish_their_exchanges() -> None:
    """Above the wanted number, a server is drained without a chance to refuse, in its own time."""
    play = Play(server(A, max=2), devices=2)
    for _ in range(8):
        play.hear_all(1.0, in_flight={}, queued={"a": 16})
        play.ready(*(one.id for one in play.machine.replicas() if one.is_coming))
    assert len(play.machine.replicas()) == 2

    commands = play.seconds(150, a=1)

    [drain] = only(commands, Drain)
    assert drain == Drain("r2", None)
    assert any(isinstance(one, Terminate) for one in commands)
    assert only(commands, Quiesce) == []


def test_waiting_is_bounded_by_the_preemption() -> None:
    """A soft swap begins once calls have waited for PREEMPT_AFTER_S, not sooner."""
    play = Play(server(A), server(B), devices=1)
    play.warm(a="r1")
    play.seconds(20, a=1)

    assert only(busy_a_waiting_b(play, int(PREEMPT_AFTER_S) - 1), Quiesce) == []
    assert only(busy_a_waiting_b(play, 2), Quiesce) == [Quiesce("r1")]


def test_a_quiesced_replica_that_ends_is_forgotten() -> None:
    """No record of a soft drain outlives its replica."""
    house = House(State.READY)
    house.pool.spec = server(A)
    commands: list[Command] = []
    house.replicas.quiesce(house.replica, B, "makes room", house.now, commands)
    assert without_notes(commands) == [Quiesce("r1")]
    house.on(events.Lost("r1", "exited with code 0"))
    house.on(events.Released("r1"))

    house.replicas.revoke_unclaimed(house.now, commands)

    assert without_notes(commands)[-1:] != [Resume("r1")]
    assert house.cluster.quiesced == {}
