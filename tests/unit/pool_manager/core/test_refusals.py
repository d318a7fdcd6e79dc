"""Refused and evicted replicas: where their pools go, and how long their devices take nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pool_manager.core import events
from pool_manager.core.commands import Command, Drain, EndBuild, EndTrial, Launch, Release
from pool_manager.core.cordons import BACKOFF_MAX_S, REFUSED_MAX_S, TRIES_MAX
from pool_manager.core.hosts import ALL_KINDS
from pool_manager.core.ledger import StandingClaim
from pool_manager.core.placement import HOSTS_MAX, REASONS_MAX
from pool_manager.core.pool import REFUSED_MAX, forecast
from pool_manager.core.starts import TEXT_MAX
from pool_manager.core.state import START_S, STARTING_MAX_S, Contact, Device, PoolSpec, State
from registry.exchange import Load
from tests.support.fleet_play import HOST, SLOTS, FleetPlay
from tests.support.play import Play, launched

A, B = "default/a@1", "default/b@1"
WORDS = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"
FAR = tuple(Device(f"gpu2/g{number}", "cuda", host=HOST) for number in range(3))


def refused(id: str, words: str = WORDS, seconds: float = 30.0) -> events.Lost:
    """The loss of a replica for which its host has no place."""
    return events.Lost(id, words, is_its_fault=False, cause=words, refused_s=seconds)


def evicted(id: str, words: str = "was preempted") -> events.Lost:
    """The loss of a replica whose place is taken."""
    return events.Lost(id, words, is_its_fault=False, cause=words, refused_s=30.0, is_eviction=True)


def gone(play: Play, *ids: str) -> None:
    for id in ids:
        play.on(events.Released(id))


def test_a_refused_pool_is_placed_elsewhere_at_once() -> None:
    """In the same step, on another device, and nothing counts as a failure."""
    play = FleetPlay(PoolSpec(A), far=FAR)
    play.demand(a=1)

    commands = play.on(refused("r1"))

    assert commands[0] == Release("r1", WORDS)
    assert launched(commands) == [("r2", "gpu2/g1")]
    assert (play.pool("a").failures, play.receipts) == (0, [])
    assert [note.text for note in play.notes if "refused" in note.text] == [
        f"r1 was refused its place on gpu2: {WORDS}"
    ]


def test_a_refused_device_takes_nothing_before_its_time() -> None:
    """Callers read the engine's own words meanwhile; then it is tried again."""
    play = FleetPlay(PoolSpec(A), PoolSpec(B), far=FAR[:1])
    play.demand(a=1)
    play.on(refused("r1"))
    gone(play, "r1")

    assert play.reason("a") == f"no free device (0 in use), 1 is refused: {WORDS} (gpu2/g0)"
    for _ in range(29):
        assert play.tick(1.0) == []
        play.demand(a=1, b=1)
    assert launched(play.tick(1.0)) == [("r2", "gpu2/g0")]


def test_what_runs_on_a_refused_device_stays() -> None:
    """Another function that shares it is not drained; a kept replica gets its slot back."""
    half = PoolSpec(A, share=0.5)
    play = FleetPlay(half, PoolSpec(B, share=0.5), far=FAR[:1])
    play.demand(a=1)
    play.ready("r1")
    play.hear({A: Load(0, 1, 0.0), B: Load(1, 0, 0.0)})

    play.on(refused("r2"))

    assert play.replica("r1").state is State.READY
    ledger = play.machine.cluster.ledger
    need = play.machine.cluster.need(play.pool("b"))
    assert not ledger.fits("gpu2/g0", need, ("r2",))
    assert ledger.fits("gpu2/g0", replace(need, has_memory=True), ("r2",))


def test_another_host_is_tried_before_the_devices_of_this_one() -> None:
    """A host that has refused a pool is less wanted, also by a pool that is not spread."""
    play = FleetPlay(PoolSpec(A, spread=False), far=FAR)
    other = Device("gpu3/g0", "cuda", host="gpu3")
    play.on(events.HostDefined("gpu3"))
    play.on(events.HostUp("gpu3", 1, (other,), frozenset(), rtt_s=0.1))
    play.demand(a=1)
    assert play.replica("r1").host == HOST

    assert launched(play.on(refused("r1"))) == [("r2", "gpu3/g0")]
    play.ready("r2")
    assert play.machine.cluster.need(play.pool("a")).spread_from == ()


def test_a_pool_that_nobody_takes_waits_longer_and_longer() -> None:
    """It is tried at once TRIES_MAX times in a row, then with a back-off, and is ready in the
    end; then it is counted anew."""
    many = tuple(Device(f"gpu2/g{number}", "cuda", host=HOST) for number in range(40))
    play = FleetPlay(PoolSpec(A), far=many)
    play.demand(a=1)
    waits = []
    for number in range(1, 20):
        id = f"r{number}"
        commands = play.on(refused(id))
        gone(play, id)
        waits.append(play.pool("a").retry_at_s - play.now)
        if number <= TRIES_MAX:
            assert launched(commands)
            continue
        assert play.reason("a") == f"refused {number} times in a row, next try soon: {WORDS}"
        play.now = play.pool("a").retry_at_s
        assert len(launched(play.demand(a=1))) == 1

    assert all(wait <= 0.0 for wait in waits[:TRIES_MAX])
    assert waits[TRIES_MAX : TRIES_MAX + 7] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, BACKOFF_MAX_S]
    assert play.pool("a").refused == {HOST: REFUSED_MAX}
    play.ready("r20")
    assert (play.pool("a").refusals, play.pool("a").refused) == (0, {})


def test_an_eviction_is_no_failure() -> None:
    """Its calls are placed anew at once, on another device; the cause is what gateways read."""
    play = FleetPlay(PoolSpec(A), far=FAR)
    play.demand(a=1)
    play.ready("r1")
    play.demand(a=1)

    commands = play.on(evicted("r1"))

    assert launched(commands) == [("r2", "gpu2/g1")]
    assert (play.pool("a").failures, play.pool("a").refusals) == (0, 0)
    assert play.pool("a").ended == {"r1": "was preempted"}
    assert any(note.text == "r1 was evicted on gpu2: was preempted" for note in play.notes)


def test_evictions_on_a_host_have_a_back_off() -> None:
    """30 s, twice as long each time up to REFUSED_MAX_S; several at once count as one, and after
    that long without any they are counted anew."""
    play = FleetPlay(PoolSpec(A), PoolSpec(B), far=FAR)
    ledger, lasts = play.machine.cluster.ledger, []

    def evict(*ids: str) -> None:
        for id in ids:
            play.ready(id)
        for id in ids:
            device = play.replica(id).first_device
            play.on(evicted(id))
            lasts.append(round(ledger.refusals[device].until_s - play.now))
            gone(play, id)

    play.hear({A: Load(1, 0, 0.0), B: Load(1, 0, 0.0)})
    evict("r1", "r2")
    numbers = iter(range(3, 20))
    for _ in range(4):
        play.demand(a=1)
        play.now = play.host.evicted_until_s
        play.tick()
        ids = [one.id for one in play.machine.replicas() if one.state is State.STARTING]
        evict(*ids[:1])
    assert next(numbers) == 3
    assert lasts[:2] == [30, 30]
    assert sorted(lasts[2:]) == [60, 120, 240, 300]
    play.now = play.host.evicted_until_s + REFUSED_MAX_S
    play.tick()
    play.demand(a=1)
    evict(*[one.id for one in play.machine.replicas() if one.state is State.STARTING][:1])
    assert lasts[-1] == 30


def test_a_refused_standby_waits() -> None:
    """One for CPU slots has no device: its pool waits, twice as long each time."""
    play = FleetPlay(standbys=1)
    play.tick(2.0)
    play.tick(2.0)
    waits = []
    for number in range(1, 8):
        id = f"r{number}"
        assert play.replica(id).role == "standby"
        play.on(refused(id))
        pool = play.machine.pools["standby/gpu2/cpu"]
        waits.append(pool.retry_at_s - play.now)
        gone(play, id)
        play.now = pool.retry_at_s
        play.tick()
        play.tick(2.0)

    assert waits == [30.0, 60.0, 120.0, 240.0, 300.0, 300.0, 300.0]


def test_no_standby_on_a_refused_gpu() -> None:
    """The refusal of a replica on a GPU is one of its standbys, too."""
    play = FleetPlay(PoolSpec(A), far=FAR[:1], gpu_standbys=1)
    play.tick(2.0)
    play.tick(2.0)
    play.on(events.Greeted("r1", {}))
    play.on(refused("r1"))
    gone(play, "r1")
    play.tick(2.0)

    assert play.machine.replicas() == []
    play.tick(30.0)
    play.tick(2.0)
    assert [one.role for one in play.machine.replicas()] == ["standby"]


def test_reservations_and_claims_on_a_refused_device_end() -> None:
    """Another pool that waits for victims there is placed anew."""
    play = FleetPlay(PoolSpec(A, share=0.5), PoolSpec(B), far=FAR[:1])
    play.run(a=1)
    play.ready("r1")
    play.run()
    play.demand(20.0, b=1)
    ledger = play.machine.cluster.ledger
    assert play.pool("b").reservation is not None
    ledger.claim = StandingClaim(B, ("gpu2/g0",), 0.0)

    play.on(evicted("r1"))

    assert (play.pool("b").reservation, ledger.claim, ledger.reservations) == (None, None, {})


def test_a_trial_that_nobody_takes_ends() -> None:
    """Once it has waited for as long as it may, with the engine's words; not before."""
    trial = PoolSpec("default/a@trial-1", role="trial", trial_wait_s=60.0)
    play = FleetPlay(trial, far=FAR)
    play.demand()
    first, second = play.on(refused("r1")), play.on(refused("r2"), 61.0)

    assert [one for one in first if isinstance(one, EndTrial)] == []
    [end] = [one for one in second if isinstance(one, EndTrial)]
    assert (end.stage, end.reason) == (
        "room",
        f"no host had a place for the trial, which was refused 2 times: {WORDS}",
    )
    assert [one for one in second if isinstance(one, Launch)] == []


def test_a_refused_build_is_given_up() -> None:
    """Whether it is tried again is the server's decision."""
    play = FleetPlay(PoolSpec(A, role="build"), far=FAR)
    play.demand()

    [end] = [one for one in play.on(refused("r1")) if isinstance(one, EndBuild)]

    assert (end.outcome, end.reason) == ("given_up", WORDS)


@pytest.mark.parametrize("is_eviction", [False, True])
def test_a_refused_server_is_not_waited_for(*, is_eviction: bool) -> None:
    """A server must not run twice. What was refused has never run; one that is evicted may still
    run until it is released."""
    play = FleetPlay(PoolSpec(A, is_server=True, may_rerun=False), far=FAR)
    play.demand(a=1)
    commands: list[Command] = play.on(evicted("r1") if is_eviction else refused("r1"))

    assert len(launched(commands)) == (0 if is_eviction else 1)
    gone(play, "r1")
    assert any(one.state is State.STARTING for one in play.machine.replicas())


def test_late_refusals_change_nothing() -> None:
    """Of a replica that is being released, or is not known."""
    play = FleetPlay(PoolSpec(A), far=FAR[:1])
    play.demand(a=1)
    play.on(events.Lost("r1", "crashed"))

    assert play.on(refused("r1")) == play.on(refused("nobody")) == []
    assert play.machine.cluster.ledger.refusals == {}


def test_a_refusal_on_a_device_that_left_is_harmless() -> None:
    """The host came back without it; what it has taken away is forgotten with its refusal."""
    play = FleetPlay(PoolSpec(A), far=FAR[:1])
    play.demand(a=1)
    play.on(refused("r1"))
    play.far = ()
    play.up()
    assert play.machine.cluster.ledger.refusals == {}
    found = play.replica("r1")
    assert (found.state, found.contact) == (State.RELEASING, Contact.KNOWN)

    play = FleetPlay(PoolSpec(A), far=FAR[:1])
    play.demand(a=1)
    play.machine.cluster.ledger.remove_devices(["gpu2/g0"])
    play.on(refused("r1"))
    assert play.machine.cluster.ledger.refusals == {}


def test_words_and_times_have_limits() -> None:
    """However long the engine's text is, and however long it refuses."""
    play = FleetPlay(PoolSpec(A), far=FAR[:1])
    play.demand(a=1)
    play.on(refused("r1", "x" * 9_000, 1e9))

    [one] = play.machine.cluster.ledger.refusals.values()
    assert (one.reason, one.until_s) == ("x" * TEXT_MAX, play.now + REFUSED_MAX_S)
    play.machine.cluster.ledger.refuse("gpu2/g0", one._replace(reason="y", until_s=play.now))
    assert play.machine.cluster.ledger.refusals == {"gpu2/g0": one}


def test_only_some_reasons_and_devices_are_told() -> None:
    """At most REASONS_MAX reasons with HOSTS_MAX devices each."""
    many = tuple(Device(f"gpu2/g{number:02}", "cuda", host=HOST) for number in range(16))
    play = FleetPlay(PoolSpec(A), far=many)
    ledger = play.machine.cluster.ledger
    play.demand(a=1)
    play.on(refused("r1", "full"))
    [one] = ledger.refusals.values()
    for number, device in enumerate(many):
        reason = "full" if number < HOSTS_MAX + 2 else f"reason {number}"
        ledger.refuse(device.id, one._replace(reason=reason, until_s=one.until_s + 1))
    play.on(events.Lost("r2", "crashed", is_its_fault=False))
    play.tick(2.0)
    text = play.reason("a")

    assert text.startswith("no free device (0 in use), 16 are refused: full (gpu2/g00, ")
    assert "gpu2/g07 and 2 more); reason 10 (gpu2/g10);" in text
    assert text.endswith(f" and {1 + 6 - REASONS_MAX} other reasons")


SHARED = (
    Device("gpu2/g0", "cuda", host=HOST, is_exclusive=True),
    Device("gpu2/g1", "cuda", host=HOST),
)


def test_an_exclusive_device_takes_one_replica() -> None:
    """Whatever share that needs; a device that is shared takes two."""
    names = "abcd"
    specs = [PoolSpec(f"default/{name}@1", share=0.25) for name in names]
    play = FleetPlay(*specs, far=SHARED)
    play.demand(**dict.fromkeys(names, 1))

    on = {one.id: play.machine.cluster.ledger.on(one.id) for one in SHARED}
    assert len(on["gpu2/g0"]) == 1
    assert len(on["gpu2/g1"]) == 3
    ledger = play.machine.cluster.ledger
    assert (ledger.free_share("gpu2/g0"), ledger.free_share("gpu2/g1")) == (0.0, 0.25)
    assert ledger.free_share("gpu2/g0", on["gpu2/g0"]) == 1.0
    assert ledger.free_share("gpu2/g0", ["nobody"]) == 0.0


def test_an_exclusive_device_is_cleared_of_its_only_replica() -> None:
    """An idle replica with a small share makes room for another small one, which waits until it is
    gone."""
    play = FleetPlay(PoolSpec(A, share=0.25), PoolSpec(B, share=0.25), far=SHARED[:1])
    play.run(a=1)
    play.ready("r1")
    play.run()

    assert Drain("r1", 0.001) in play.demand(20.0, b=1)
    assert launched(play.tick()) == []
    play.on(events.Lost("r1", "exited"))
    play.on(events.Released("r1"))
    assert play.machine.cluster.ledger.on("gpu2/g0") == ["r2"]


def test_no_standby_keeps_an_exclusive_device() -> None:
    """It would be the one replica. Nor has a host any for kinds that it does not name."""
    play = FleetPlay(far=(*SHARED, *SLOTS), standbys=1, gpu_standbys=1)
    assert set(play.machine.cluster.standby_places) == {"standby/gpu2/g1", "standby/gpu2/cpu"}
    play.demand(after_s=3.0)
    play.tick(3.0)
    assert "standby/gpu2/g1" in {one.pool for one in play.machine.replicas()}

    def after(kinds: frozenset[str]) -> set[str]:
        """Return the pools with standbys after a connection with these kinds."""
        play.on(play.host_up(standby_kinds=kinds))
        gone(play, *[one.id for one in play.machine.replicas()])
        for _ in range(3):
            play.tick(30.0)
        return {one.pool for one in play.machine.replicas()}

    assert after(frozenset({"cpu"})) == {"standby/gpu2/cpu"}
    assert after(frozenset()) == set()
    assert after(ALL_KINDS) == {"standby/gpu2/g1", "standby/gpu2/cpu"}


def starting(text: str = "pulls the image") -> events.Starting:
    return events.Starting("r1", text)


def test_a_start_that_its_engine_works_on_has_more_time() -> None:
    """START_S from each report on, STARTING_MAX_S in all; what it does is told."""
    play = Play(PoolSpec(A))
    play.demand(a=1)
    play.on(events.Begun("r1"))
    began_s = play.now
    for _ in range(20):
        play.on(starting(), START_S - 1)
        limit_s = min(play.now + START_S, began_s + STARTING_MAX_S)
        assert play.replica("r1").deadline_s == limit_s
        if play.now >= limit_s:
            break
        play.demand(a=1)
        assert play.state("r1") is State.STARTING

    assert play.now - began_s < STARTING_MAX_S + START_S
    assert [one.id for one in play.tick() if isinstance(one, Release)] == ["r1"]


def test_what_an_engine_does_is_told() -> None:
    """In its own words, until the replica has connected; for how long it does that is known."""
    play = Play(PoolSpec(A))
    play.demand(a=1)
    play.on(starting("x" * 9_000))
    assert play.reason("a") == f"starting: {'x' * TEXT_MAX}"
    play.on(starting())
    play.on(starting(), 7.0)

    shown = forecast(play.pool("a"), 1, play.now)
    assert (play.reason("a"), shown.phase) == ("starting: pulls the image", "start")
    assert shown.awaited is not None
    assert (str(shown.awaited), shown.awaited.seconds) == ("starting: pulls the image", 7.0)
    assert play.on(starting("")) == []
    assert play.replica("r1").engine_step is None
    play.on(starting())
    play.on(events.Greeted("r1", {}))
    assert play.replica("r1").engine_step is None
    deadline_s = play.replica("r1").deadline_s
    play.on(starting(), 1.0)
    assert (play.replica("r1").engine_step, play.replica("r1").deadline_s) == (None, deadline_s)


def test_a_servers_image_may_be_pulled_while_its_sidecar_waits() -> None:
    """That is told, too; the time of the server's start is the function's own."""
    play = Play(PoolSpec(A, is_server=True))
    play.demand(a=1)
    play.on(events.Greeted("r1", {}))
    deadline_s = play.replica("r1").deadline_s
    play.on(starting(), 1.0)

    assert play.reason("a") == "starting: pulls the image"
    assert play.replica("r1").deadline_s == deadline_s
    play.ready("r1")
    assert play.replica("r1").engine_step is None


def test_what_is_told_of_hosts_that_are_away_begins_no_limit() -> None:
    """A replica that cannot be commanded has none."""
    play = FleetPlay(PoolSpec(A), far=FAR)
    play.demand(a=1)
    play.on(events.Begun("r1"))
    play.down()
    play.on(starting())

    assert play.replica("r1").deadline_s == float("inf")
