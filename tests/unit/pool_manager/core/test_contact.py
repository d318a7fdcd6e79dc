"""Replicas of a host that cannot be reached: who counts, what is commanded when it is back."""

from __future__ import annotations

import pytest

from pool_manager.core import events
from pool_manager.core.commands import (
    Assign,
    Bind,
    Drain,
    EndTrial,
    Launch,
    Quiesce,
    Release,
    Resume,
    StopBatching,
    Terminate,
)
from pool_manager.core.eviction import PREEMPT_AFTER_S, RESIDENCY_S
from pool_manager.core.host_lifecycle import JOINING_S
from pool_manager.core.hosts import HOST_LOST_S
from pool_manager.core.pool import PAUSE_S
from pool_manager.core.state import (
    DRAIN_S,
    GREETING_AFTER_ADOPTION_S,
    RELEASE_RETRY_S,
    RESUME_S,
    START_S,
    TERM_S,
    PoolSpec,
    load_limit_s,
)
from registry.exchange import ReplicaEndpoint
from tests.support.fleet_play import FAR_GPU, FleetPlay
from tests.support.play import launched

A, B = "default/a@1", "default/b@1"
MODEL, HANDLER = PoolSpec(A), PoolSpec(A, may_rerun=False)
SERVER = PoolSpec(A, is_server=True, may_rerun=False, drain_s=20.0)
INF = float("inf")


def ready(spec: PoolSpec = MODEL, near: int = 0) -> FleetPlay:
    """r1 is ready on gpu2; no calls."""
    return far_first(FleetPlay(spec, near=near))


def far_first(play: FleetPlay) -> FleetPlay:
    """Warm pool a, whose replica r1 is placed on gpu2."""
    play.on(events.HostDefined("local", is_draining=True))
    play.warm(a="r1")
    play.on(events.HostDefined("local"))
    return play


def listed(play: FleetPlay) -> list[ReplicaEndpoint]:
    return play.machine.endpoints(A, play.now).replicas


def test_only_known_replicas_are_listed() -> None:
    """A replica on an unreachable host is not listed until it has greeted again."""
    play = ready()
    assert [one.id for one in listed(play)] == ["r1"]

    play.down()
    assert (listed(play), play.shown("a"), play.reason("a")) == (
        [],
        "cold",
        "gpu2 cannot be reached",
    )
    assert play.up("r1") == []
    assert (listed(play), play.shown("a")) == ([], "waking")

    assert play.greet("r1") == []
    assert [one.id for one in listed(play)] == ["r1"]
    assert frozenset({A}) in play.published[-1:]


def test_a_model_starts_elsewhere_at_once() -> None:
    """Calls of a model, which may run again, do not wait for the host."""
    play = ready(near=1)
    play.down()

    assert launched(play.demand(a=1)) == [("r2", "d0")]
    assert play.pool("a").count() == 1


@pytest.mark.parametrize("spec", [HANDLER, SERVER], ids=["handler", "server"])
def test_a_handler_starts_elsewhere_once_the_host_is_gone(spec: PoolSpec) -> None:
    """While a replica may run, its calls may be running: none is started beside it."""
    play = ready(spec, near=1)
    play.down()

    assert play.demand(a=1) == []
    text = "gpu2 is unreachable: no route; r1 may still run on gpu2, another one starts 75 s after"
    assert play.reason("a") == f"{text} the loss at the latest"
    assert play.shown("a") == "waking"
    play.now += HOST_LOST_S - 1.0
    assert play.demand(a=1) == []
    assert play.tick() == []

    play.now += 1.0
    assert launched(play.tick()) == [("r2", "d0")]
    assert play.host.state == "gone"
    assert (play.state("r1"), play.contact("r1")) == ("releasing", "gone")
    assert play.machine.endpoints(A, play.now).ended == {"r1": "gpu2 is gone: no route"}


def test_a_reservation_ends_where_a_replica_may_run() -> None:
    """A handler that waits for a device waits for the host instead, once its own replica is
    there."""
    play = ready(HANDLER)
    play.down()
    play.demand(a=1)
    assert A in play.machine.cluster.blocked

    play.up("r1")
    play.greet("r1")

    assert A not in play.machine.cluster.blocked
    assert play.pool("a").blocked == ""


def test_a_warm_up_waits_for_the_host() -> None:
    """A request for a warm handler is not answered while its replica may run."""
    play = ready(HANDLER, near=1)
    play.down()

    play.on(events.WarmRequested(A))
    assert "may still run" in play.pool("a").blocked

    play.up("r1")
    assert play.pool("a").blocked == ""


def test_a_handler_that_is_given_up_counts_until_its_end_is_proved() -> None:
    """The report that a replica of another host has ended may be wrong, as its link may be what
    failed. It counts until it is released."""
    play = ready(HANDLER, near=1)
    play.on(events.Lost("r1", "it does not answer"))
    assert play.demand(a=1) == []
    assert play.reason("a").startswith("it does not answer; r1 may still run on gpu2, another one")

    assert launched(play.on(events.Released("r1"))) == [("r2", "d0")]


def test_a_handler_that_cannot_be_released_blocks_nothing_for_ever() -> None:
    """A failed release alone proves nothing: the connection may be what failed. It leaves the
    memory charged, and frees the function once the replica has had no manager for long."""
    play = ready(HANDLER, near=1)
    play.on(events.Lost("r1", "it does not answer"))
    assert play.on(events.NotReleased("r1", "stuck"), HOST_LOST_S - 1.0) == []
    assert play.demand(a=1) == []
    assert play.tick(RELEASE_RETRY_S) == [Release("r1", "tried again")]
    assert play.demand(a=1) == []

    assert launched(play.on(events.NotReleased("r1", "stuck"))) == [("r2", "d0")]
    assert play.machine.cluster.ledger.in_bank("gpu2/ram") == ["r1"]


def test_a_connection_renews_the_lease_of_a_lost_handler() -> None:
    """The time after which a replica that cannot be released counts as ended begins with the
    connection over which its release is commanded."""
    play = ready(HANDLER, near=1)
    play.down()
    play.on(events.Lost("r1", "exit 1"))
    play.now += HOST_LOST_S - 1.0
    assert play.up("r1") == [Release("r1", "exit 1")]
    assert play.demand(a=1) == []

    assert play.on(events.NotReleased("r1", "stuck"), 2.0) == []


def test_a_release_that_fails_with_the_host_proves_nothing() -> None:
    """NotReleased from a host that is unreachable leaves the replica in doubt, without a retry."""
    play = ready(HANDLER, near=1)
    play.on(events.Lost("r1", "it does not answer"))
    play.down()
    play.on(events.NotReleased("r1", "connection lost"))

    assert play.demand(RELEASE_RETRY_S, a=1) == []
    assert play.tick() == []
    assert play.replica("r1").deadline_s == INF


def test_a_lost_handler_of_an_unreachable_host_stays_in_doubt() -> None:
    """An exit that is reported while the host is unreachable is no proof."""
    play = ready(HANDLER, near=1)
    play.down()

    assert play.on(events.Lost("r1", "exit 1")) == []
    assert play.demand(a=1) == []
    assert play.state("r1") == "releasing"


def test_a_missing_replica_has_ended() -> None:
    """A replica that does not run any more is lost without blame; its folders are removed, and a
    handler starts at once."""
    play = ready(HANDLER, near=1)
    play.down()
    play.demand(a=1)

    commands = play.up()

    assert commands[0] == Release("r1", "it ended while gpu2 was unreachable")
    assert [one.pool for one in commands[1:] if isinstance(one, Launch)] == [A]
    assert play.pool("a").failures == 0


def test_a_replica_that_does_not_connect_again_is_lost() -> None:
    """A replica that runs but does not greet within its limit is released."""
    play = ready()
    play.down()
    play.up("r1")
    assert play.replica("r1").deadline_s == play.now + GREETING_AFTER_ADOPTION_S

    (release,) = play.tick(GREETING_AFTER_ADOPTION_S)

    assert release == Release("r1", "it did not connect again after gpu2 was back")


def test_time_limits_are_suspended() -> None:
    """Nothing that is unknown is overdue, and nothing is commanded on an unreachable host."""
    play = FleetPlay(MODEL)
    play.demand(a=1)
    play.greet("r1", loaded=False)
    play.demand()
    play.down()

    assert play.tick(HOST_LOST_S - 1.0) == []
    assert (play.state("r1"), play.replica("r1").deadline_s) == ("loading", INF)

    play.up("r1")
    assert play.greet("r1", loaded=False) == [Bind("r1", A)]
    assert play.replica("r1").deadline_s == play.now + load_limit_s(MODEL)


def test_a_launch_may_take_its_time() -> None:
    """A replica that was being launched has the time of a start to connect."""
    play = FleetPlay(MODEL)
    play.demand(a=1)
    play.demand()
    play.down()
    play.up("r1")

    assert play.contact("r1") == "expected"
    assert play.replica("r1").deadline_s == play.now + START_S
    assert play.greet("r1", loaded=False) == [Bind("r1", A)]
    assert play.contact("r1") == "known"


def test_a_greeting_may_precede_the_host() -> None:
    """HELLO and LOADED may come before HostUp: the commands follow with it."""
    play = FleetPlay(SERVER, is_up=False)
    play.found("old", A)

    assert play.greet("old") == []
    assert play.on(events.Loaded("old", 4, True, 80.0, {"load": 5.0})) == []
    assert (play.state("old"), play.contact("old"), play.shown("a")) == (
        "ready",
        "joining",
        "waking",
    )
    assert play.up("old") == [Resume("old")]
    assert play.shown("a") == "warm"


def test_a_greeting_before_the_host_may_lack_the_model() -> None:
    """A replica that greets early without its model gets it with HostUp."""
    play = FleetPlay(MODEL, is_up=False)
    play.found("old", A)
    assert play.greet("old", loaded=False) == []

    assert play.up("old") == [Bind("old", A)]


def test_a_removed_pool_binds_nothing() -> None:
    """A replica of a pool that was removed meanwhile is drained instead of bound."""
    play = FleetPlay(MODEL, is_up=False)
    play.found("old", A)
    play.greet("old", loaded=False)
    play.on(events.PoolRemoved(A))

    assert play.up("old") == [Drain("old", None)]


def test_the_replicas_of_a_start_are_awaited_for_a_moment() -> None:
    """After a restart, calls of a model wait a little for the host of its replica."""
    play = FleetPlay(MODEL, near=1, is_up=False)
    play.found("old", A)

    assert play.demand(a=1) == []
    assert play.shown("a") == "waking"
    play.now += JOINING_S
    assert launched(play.tick()) == [("r1", "d0")]
    assert play.contact("old") == "unreachable"
    assert play.tick(1.0) == []


def test_a_repeated_greeting_repeats_no_command() -> None:
    """A repeated greeting of a ready model changes nothing."""
    play = ready()

    assert play.greet("r1") == []
    assert play.on(events.Loaded("r1", 4, True, 80.0, {})) == []
    assert play.state("r1") == "ready"


def test_a_repeated_greeting_of_a_loaded_replica_binds_nothing() -> None:
    """HELLO that says that the model is loaded precedes LOADED."""
    play = FleetPlay(MODEL)
    play.demand(a=1)
    play.greet("r1", loaded=False)

    assert play.greet("r1", loaded=True) == []


def test_batching_is_stopped_again() -> None:
    """A refutation is repeated, since the command may have been lost with the link."""
    play = ready()
    play.down()
    play.on(events.BatchingRefuted("r1", "rows are lost"))
    play.up("r1")

    assert play.greet("r1") == [StopBatching("r1")]


def test_a_final_drain_is_repeated() -> None:
    """A drain goes on after a break, within a new time limit; a link that is only dialled again
    does not prolong it."""
    play = ready()
    play.on(events.PoolRemoved(A))
    play.down()
    play.up("r1")

    assert play.greet("r1") == [Drain("r1", None)]
    deadline_s = play.replica("r1").deadline_s
    assert deadline_s == play.now + DRAIN_S
    play.now += 1.0
    assert play.greet("r1") == [Drain("r1", None)]
    assert play.replica("r1").deadline_s == deadline_s


def test_a_conditional_drain_becomes_final() -> None:
    """Whether the replica has agreed or refused is not known."""
    play = ready()
    assert play.on(events.SleepRequested(A)) == [Drain("r1", 0.001)]
    play.down()
    play.up("r1")

    assert play.greet("r1") == [Drain("r1", None)]
    assert not play.replica("r1").if_idle


def test_a_terminated_drain_is_terminated_again() -> None:
    """TERM is sent again, since it may have been lost."""
    play = ready()
    play.on(events.PoolRemoved(A))
    play.tick(DRAIN_S)
    play.down()
    play.up("r1")

    (again,) = play.greet("r1")

    assert again == Terminate("r1", "did not drain: the pool was removed")
    assert play.replica("r1").deadline_s == play.now + TERM_S


def claimed() -> FleetPlay:
    """r1, a server on gpu2, finishes its exchanges for b."""
    play = FleetPlay(SERVER, PoolSpec(B), far=[FAR_GPU])
    play.warm(a="r1")
    for _ in range(int(RESIDENCY_S + PREEMPT_AFTER_S) + 1):
        play.hear_all(1.0, in_flight={"a": 1}, queued={"b": 1})
        play.tick()
    assert play.replica("r1").is_quiesced
    return play


def test_a_soft_drain_is_repeated() -> None:
    """Over a new link on the same host, the soft drain is repeated."""
    assert claimed().greet("r1") == [Quiesce("r1")]


def test_a_soft_drain_ends_with_the_host() -> None:
    """What is claimed on an unreachable host is of no use: the server is to serve again."""
    play = claimed()
    play.down()
    assert play.replica("r1").is_revoked
    assert play.pool("b").reservation is None

    play.hear_all(in_flight={}, queued={})
    play.up("r1")
    assert play.greet("r1") == [Resume("r1")]
    assert play.replica("r1").deadline_s == play.now + RESUME_S

    play.on(events.NotIdle("r1", 0.0))
    assert play.state("r1") == "ready"


def test_a_trial_begins_anew_elsewhere() -> None:
    """A trial on an unreachable host is no failure: it runs elsewhere after a pause."""
    play = FleetPlay(far=[FAR_GPU], near=1)
    play.demand()
    play.on(events.PoolDefined(PoolSpec(A, role="trial", may_rerun=False)))
    assert play.replica("r1").devices == ("gpu2/GPU-1",)

    assert play.down() == []
    assert play.state("r1") == "releasing"
    assert launched(play.tick(PAUSE_S)) == [("r2", "d0")]

    assert play.up() == [Release("r1", "gpu2 is unreachable: no route")]


def test_a_trial_ends_if_no_other_host_can_run_it() -> None:
    """The reason of its end names the host that is gone, not the model."""
    play = FleetPlay(far=[FAR_GPU], near=1)
    play.demand()
    play.on(events.PoolDefined(PoolSpec(A, role="trial", device_kind="cuda")))
    assert play.replica("r1").devices == ("gpu2/GPU-1",)
    play.down()
    assert play.tick(PAUSE_S) == []

    (end,) = [one for one in play.tick(HOST_LOST_S) if isinstance(one, EndTrial)]

    assert end.stage == "place"
    assert "gpu2 is gone: no route" in end.reason


def test_a_trial_waits_for_another_kind() -> None:
    """A host that is gone is no reason to end a trial that it could not have run."""
    play = FleetPlay(far=[FAR_GPU], near=0)
    play.demand()
    play.on(events.PoolDefined(PoolSpec(A, role="trial", device_kind="cpu")))
    play.down()

    assert play.tick(HOST_LOST_S) == []


def test_a_given_up_replica_is_released_when_its_host_is_back() -> None:
    """The release of a replica of a host that is gone is commanded as soon as it can be."""
    play = ready()
    play.down()
    assert play.tick(HOST_LOST_S) == []
    assert play.tick(HOST_LOST_S) == []

    assert play.up("r1") == [Release("r1", "gpu2 is gone: no route")]
    assert play.contact("r1") == "known"
    play.on(events.Released("r1"))
    assert play.machine.replicas() == []


def test_a_release_is_commanded_anew() -> None:
    """Nothing is known of a release that the break interrupted."""
    play = ready()
    play.on(events.Lost("r1", "exit 1"))
    play.down()

    assert play.up("r1") == [Release("r1", "exit 1")]


def test_a_replica_found_on_a_host_that_is_gone_is_given_up() -> None:
    """It takes no calls any more."""
    play = FleetPlay(MODEL)
    play.down()
    play.tick(HOST_LOST_S)

    play.found("old", A)

    assert (play.state("old"), play.contact("old")) == ("releasing", "gone")


def test_a_replica_without_its_device_is_released() -> None:
    """A replica found on a device that its host does not have any more is useless."""
    play = FleetPlay(MODEL, is_up=False)
    play.found("old", A, "gpu2/GPU-7")

    assert play.up("old") == [Release("old", "gpu2 has no device gpu2/GPU-7")]


def test_a_trial_of_an_earlier_manager_is_released_with_the_host() -> None:
    """Its deploy is gone; its release waits for the host."""
    play = FleetPlay(MODEL, is_up=False)
    assert play.on(events.Found("old", A, ("gpu2/d0",), "trial", "gpu2")) == []

    assert play.up("old") == [Release("old", "its deploy ended with the earlier manager")]


def test_losses_are_no_failures_while_the_host_is_away() -> None:
    """A start that fails with its host only delays the next one."""
    play = FleetPlay(MODEL, near=1)
    play.demand(a=1)
    id = next(iter(play.pool("a").replicas))
    play.machine.cluster.hosts["local"].engine_down = "no answer"

    play.on(events.Lost(id, "no answer"))

    assert play.pool("a").failures == 0


def test_an_assigned_standby_gets_its_model_when_it_is_back() -> None:
    """A standby that was assigned while it was starting gets its model once it is known again, even
    if it has greeted before its host was."""
    play = FleetPlay(MODEL, standbys=1)
    play.demand()
    play.demand(1.0, a=1)
    play.demand()
    play.down()
    play.up("r1")
    play.down()

    assert play.greet("r1", loaded=False) == []
    (told,) = play.up("r1", "r2")

    assert isinstance(told, Assign)
    assert (told.id, told.pool) == ("r1", A)


def test_an_assigned_standby_of_a_removed_pool_is_released() -> None:
    """It has no model to load any more."""
    play = FleetPlay(MODEL, standbys=1)
    play.demand()
    play.demand(1.0, a=1)
    play.down()
    play.on(events.PoolRemoved(A))
    play.up("r1")

    assert play.greet("r1", loaded=False) == [Release("r1", "the pool was removed")]


@pytest.mark.parametrize(
    "end",
    [events.HostUnreachable("gpu2", "no route"), events.Lost("r1", "it does not answer")],
    ids=["unreachable", "lost"],
)
def test_other_revisions_wait_for_one_that_may_run(end: events.Event) -> None:
    """`max` holds over all revisions, also over a replica that may run: of a handler until its end
    is proved, of a model not at all."""
    for may_rerun, started in ((False, []), (True, [("r2", "d0")])):
        old, new = (
            PoolSpec(f"default/{name}@1", may_rerun=may_rerun, function="default/f")
            for name in ("a", "b")
        )
        play = far_first(FleetPlay(old, new, near=1))
        play.on(end)

        assert launched(play.demand(b=1)) == started
        if not may_rerun:
            assert "r1 may still run on gpu2" in play.reason("b")


def test_a_draining_handler_counts_for_other_revisions() -> None:
    """A drain that was begun before the break may not be over."""
    old, new = (
        PoolSpec(f"default/{name}@1", may_rerun=False, function="default/f") for name in "ab"
    )
    play = far_first(FleetPlay(old, new, near=1))
    play.on(events.PoolRemoved(A))
    assert play.state("r1") == "draining"
    assert play.demand(b=1) == []
    assert play.reason("b") == "waits for r1 of default/a@1 to drain"
    play.down()

    assert play.demand(b=1) == []
    assert "r1 may still run on gpu2" in play.reason("b")
