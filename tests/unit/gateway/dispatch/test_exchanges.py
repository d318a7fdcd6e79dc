"""Tests of the decisions about exchanges, one event at a time."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.dispatch.call import (
    Call,
    CloseIdle,
    Command,
    Decline,
    End,
    Fail,
    Link,
    Quiesced,
    Send,
    ServerLink,
    Stage,
    TellTunnel,
)
from gateway.dispatch.dispatcher import Dispatcher, Limits
from gateway.dispatch.exchanges import REFUSED_S, UNUSABLE
from gateway.dispatch.pool import UNKNOWN
from gateway.dispatch.redirects import RerunPolicy
from registry.errors import (
    FnError,
    Poison,
    QueueFull,
    ReplicaDied,
    UnknownFunction,
    UpstreamFailed,
    WaitBudgetOver,
)
from registry.exchange import Load, PoolEndpoints
from runtime_image.contract.link import ID_MAX, NotStarted
from runtime_image.contract.server import FREE_MAX
from runtime_image.link.meta import RequestMeta

KEY = "default/web@1"
NEXT = "default/web@2"
META = RequestMeta("", "", -1, "")
NOW = 100.0


def exchange(**changes: Any) -> Call:
    """Return an exchange that arrives at NOW and may be held for 55 s."""
    times = {"arrived_s": NOW, "wait_until_s": NOW + 55.0, "timeout_s": 0.0}
    fields: dict[str, Any] = {"pool": KEY, "meta": META, "body": b"", **times}
    return Call(is_exchange=True, may_poison=False, **{**fields, **changes})


def up(dispatcher: Dispatcher, id: str = "r1", limit: int = 2, pool: str = KEY) -> ServerLink:
    """Connect a sidecar and return its link."""
    link = ServerLink(id, pool, limit, marks_started=True)
    dispatcher.on_link_up(link, NOW)
    return link


def errors(commands: list[Command]) -> list[type[Exception]]:
    """Return the classes of the errors that were answered."""
    return [type(command.error) for command in commands if isinstance(command, Fail)]


@pytest.fixture
def dispatcher() -> Dispatcher:
    """Dispatcher with room for 100 bytes."""
    return Dispatcher(Limits(bytes_max=100))


def opened(dispatcher: Dispatcher, **changes: Any) -> Call:
    """Submit an exchange that gets its connection at once."""
    each = exchange(**changes)
    commands = dispatcher.submit(each, NOW)
    assert [type(command) for command in commands] == [Send]
    assert dispatcher.exchanges.on_opened(each.link, each.id, NOW) is each
    return each


# Start and end


def test_an_exchange_starts_when_its_connection_arrives(dispatcher: Dispatcher) -> None:
    """A warm exchange is requested at once, in flight until its end, and its end is counted."""
    up(dispatcher)
    each = exchange(body=b"kept")
    assert dispatcher.submit(each, NOW) == [Send("r1", 1, each)]
    assert (each.stage, each.started_s) == (Stage.SENT, NOW)

    assert dispatcher.exchanges.on_opened("r1", 1, NOW + 1.0) is each
    assert (each.stage, each.started_s) == (Stage.STARTED, NOW + 1.0)
    assert dispatcher.loads(NOW) == {KEY: Load(0, 1, 0.0)}
    assert (dispatcher.is_idle, dispatcher.held.bytes) == (False, 4)

    assert dispatcher.exchanges.on_ended(each, NOW + 2.0, kept=True) == [End("r1", 1, kept=True)]
    assert (each.stage, dispatcher.held.bytes) == (Stage.DONE, 0)
    assert dispatcher.is_idle
    assert list(dispatcher.pool(KEY).answered_s) == [NOW + 2.0]


def test_an_exchange_ends_once(dispatcher: Dispatcher) -> None:
    """Ending, retrying or cancelling an exchange that has ended has no effect."""
    up(dispatcher)
    each = opened(dispatcher)
    dispatcher.exchanges.on_ended(each, NOW, kept=False)

    assert dispatcher.exchanges.on_ended(each, NOW, kept=False) == []
    assert dispatcher.exchanges.retry(each, NOW) == []
    assert dispatcher.cancel(each, NOW) == []
    assert len(dispatcher.pool(KEY).answered_s) == 1


def test_a_connection_for_an_ended_or_open_exchange_is_not_used(dispatcher: Dispatcher) -> None:
    """A connection without an exchange that waits for it starts nothing."""
    up(dispatcher)
    each = opened(dispatcher)

    assert dispatcher.exchanges.on_opened("r1", each.id, NOW) is None
    assert dispatcher.exchanges.on_opened("r1", 99, NOW) is None


def test_an_end_sends_the_next_exchange(dispatcher: Dispatcher) -> None:
    """The connection is given back before the next exchange is sent, which may reuse it."""
    up(dispatcher, limit=1)
    first, second = opened(dispatcher), exchange()
    assert dispatcher.submit(second, NOW) == []

    commands = dispatcher.exchanges.on_ended(first, NOW, kept=True)

    assert commands == [End("r1", 1, kept=True), Send("r1", 2, second)]


def test_long_exchanges_are_not_timed_out(dispatcher: Dispatcher) -> None:
    """The sweep fails exchanges without a connection, and leaves running ones to the proxy."""
    up(dispatcher, limit=2)
    running, requested, queued = opened(dispatcher), exchange(), exchange()
    dispatcher.submit(requested, NOW)
    dispatcher.submit(queued, NOW)

    commands = dispatcher.sweep(NOW + 1000.0)

    assert commands[0] == Fail(queued, commands[0].error)  # type: ignore[union-attr]
    assert commands[1] == End("r1", requested.id, kept=False)
    assert errors(commands) == [WaitBudgetOver, WaitBudgetOver]
    assert (running.stage, requested.stage) == (Stage.STARTED, Stage.DONE)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_cancelled_exchange_leaves_its_link_at_once(
    dispatcher: Dispatcher, is_open: bool
) -> None:
    """END gives up a request and an open exchange alike, and makes room."""
    up(dispatcher, limit=1)
    each, queued = exchange(), exchange()
    dispatcher.submit(each, NOW)
    if is_open:
        dispatcher.exchanges.on_opened("r1", each.id, NOW)
    dispatcher.submit(queued, NOW)

    commands = dispatcher.cancel(each, NOW)

    assert commands == [End("r1", 1, kept=False), Send("r1", 2, queued)]
    assert each.stage is Stage.DONE


def test_an_exchange_that_expires_before_its_connection_makes_room(dispatcher: Dispatcher) -> None:
    """A waiting exchange is sent in the sweep that expires the one before it."""
    up(dispatcher, limit=1)
    hasty, patient = exchange(wait_until_s=NOW + 1.0), exchange()
    dispatcher.submit(hasty, NOW)
    dispatcher.submit(patient, NOW)

    commands = dispatcher.sweep(NOW + 1.0)

    assert errors(commands) == [WaitBudgetOver]
    assert commands[-1] == Send("r1", 2, patient)


def test_a_connection_has_time_to_arrive(dispatcher: Dispatcher) -> None:
    """An exchange without wait budget that was sent at once fails only if its connection does not
    arrive within a second."""
    up(dispatcher)
    dispatcher.submit(exchange(wait_until_s=NOW), NOW)

    assert dispatcher.sweep(NOW + 0.9) == []
    assert errors(dispatcher.sweep(NOW + 1.0)) == [WaitBudgetOver]


def test_a_refusal_says_what_takes_the_slots(dispatcher: Dispatcher) -> None:
    """Streams may be longer than a caller waits: the text names the slots that are taken and the
    age of the oldest exchange. A connection that has not arrived does not count."""
    up(dispatcher)
    first = opened(dispatcher)
    dispatcher.submit(exchange(wait_until_s=NOW + 99.0), NOW + 30.0)
    dispatcher.submit(exchange(wait_until_s=NOW + 40.0), NOW + 31.0)

    [failure] = dispatcher.sweep(NOW + 40.2)

    assert isinstance(failure, Fail)
    taken = "1 of 2 slots are taken by exchanges of this gateway process, the oldest for 40 s"
    assert str(failure.error).endswith(f"the function is cold: no calls; {taken}")
    dispatcher.exchanges.on_ended(first, NOW + 41.0, kept=False)
    [failure] = [one for one in dispatcher.sweep(NOW + 99.0) if isinstance(one, Fail)]
    assert str(failure.error).endswith("the function is cold: no calls")


def test_a_queued_exchange_is_cancelled_without_a_command(dispatcher: Dispatcher) -> None:
    """A queued exchange leaves its queue."""
    each, free = exchange(), exchange(is_free=True)
    dispatcher.submit(each, NOW)
    dispatcher.submit(free, NOW)
    assert dispatcher.loads(NOW + 1.0) == {KEY: Load(2, 0, 1.0)}

    assert dispatcher.cancel(each, NOW) + dispatcher.cancel(free, NOW) == []
    assert dispatcher.is_idle


def test_ids_in_use_are_skipped(dispatcher: Dispatcher) -> None:
    """After the wrap of ids, those of open exchanges are skipped, free ones included."""
    link = up(dispatcher)
    first, second = opened(dispatcher), opened(dispatcher, is_free=True)
    assert (first.id, second.id) == (1, 2)
    link.last_id = ID_MAX

    assert opened(dispatcher).id == 3


def test_exchanges_are_no_poison(dispatcher: Dispatcher) -> None:
    """A refused body of a model does not refuse an exchange with the same body."""
    dispatcher.on_link_up(Link("m", KEY, 1, marks_started=True), NOW)
    model = Call(KEY, META, b"", NOW, NOW + 55.0, 60.0)
    dispatcher.submit(model, NOW)
    for death in range(3):
        dispatcher.on_started(model.link, [model.id], NOW)
        dispatcher.on_link_lost(model.link, NOW)
        if death < 2:
            dispatcher.on_link_up(Link(f"m{death}", KEY, 1, marks_started=True), NOW)
    with pytest.raises(Poison):
        dispatcher.submit(Call(KEY, META, b"", NOW, NOW + 55.0, 60.0), NOW)

    assert dispatcher.submit(exchange(), NOW) == []


# Answers to requests


def test_a_full_sidecar_gets_nothing_until_it_offers_a_slot(dispatcher: Dispatcher) -> None:
    """FULL requeues the exchange, is not counted, and gives idle connections back."""
    link = up(dispatcher)
    each = exchange()
    dispatcher.submit(each, NOW)

    assert dispatcher.exchanges.on_not_started("r1", 1, NotStarted.FULL, NOW) == [CloseIdle("r1")]
    assert (each.stage, each.sends, link.full) == (Stage.QUEUED, 0, True)
    late = exchange()
    assert dispatcher.submit(late, NOW) == []

    assert dispatcher.exchanges.on_window("r1", 1, NOW) == [Send("r1", 2, each)]
    assert link.full
    assert dispatcher.exchanges.on_window("r1", 1, NOW) == [Send("r1", 3, late)]
    assert dispatcher.exchanges.on_window("r1", 1, NOW) == [Decline("r1")]
    assert not link.full


def test_a_full_link_keeps_no_connection(dispatcher: Dispatcher) -> None:
    """While a link waits for slots, its own slots are given back; it is sent nothing for them."""
    up(dispatcher)
    running, waiting = opened(dispatcher), exchange()
    dispatcher.submit(waiting, NOW)
    dispatcher.exchanges.on_not_started("r1", waiting.id, NotStarted.FULL, NOW)

    commands = dispatcher.exchanges.on_ended(running, NOW, kept=True)

    assert commands == [End("r1", running.id, kept=False)]


def test_an_offer_beyond_the_limit_is_declined(dispatcher: Dispatcher) -> None:
    """A sidecar that offers more than its limit does not exceed the limit."""
    up(dispatcher, limit=1)
    opened(dispatcher)
    dispatcher.submit(exchange(), NOW)

    assert dispatcher.exchanges.on_window("r1", 1, NOW) == [Decline("r1")]


def test_an_answer_to_an_ended_exchange_is_ignored(dispatcher: Dispatcher) -> None:
    """NOT_STARTED that crosses END changes nothing; for an open exchange it does not either."""
    link = up(dispatcher)
    each, running = exchange(), opened(dispatcher)
    dispatcher.submit(each, NOW)
    dispatcher.cancel(each, NOW)

    assert dispatcher.exchanges.on_not_started("r1", each.id, NotStarted.FULL, NOW) == []
    assert dispatcher.exchanges.on_not_started("r1", running.id, NotStarted.FULL, NOW) == []
    assert (link.full, running.stage) == (False, Stage.STARTED)


def test_a_server_that_refuses_connections_is_left_alone_for_a_while(
    dispatcher: Dispatcher,
) -> None:
    """After REFUSED the link is unused until a sweep after REFUSED_S; another link is used."""
    link = up(dispatcher)
    each = exchange()
    dispatcher.submit(each, NOW)
    assert dispatcher.exchanges.on_not_started("r1", 1, NotStarted.REFUSED, NOW) == []
    assert (each.stage, each.sends, link.full) == (Stage.QUEUED, 0, True)

    assert dispatcher.sweep(NOW + REFUSED_S / 2) == []
    assert dispatcher.sweep(NOW + REFUSED_S) == [Send("r1", 2, each)]
    assert (link.full, link.retry_s) == (False, 0.0)
    up(dispatcher, "r2")
    assert dispatcher.exchanges.on_not_started("r1", 2, NotStarted.REFUSED, NOW) == [
        Send("r2", 1, each)
    ]


def test_a_refusing_server_does_not_take_the_slots_that_it_is_offered(
    dispatcher: Dispatcher,
) -> None:
    """An offer during the back-off is declined; the link then waits for the back-off only."""
    link = up(dispatcher)
    first, second = exchange(), exchange()
    dispatcher.submit(first, NOW)
    dispatcher.submit(second, NOW)
    dispatcher.exchanges.on_not_started("r1", 1, NotStarted.FULL, NOW)
    dispatcher.exchanges.on_not_started("r1", 2, NotStarted.REFUSED, NOW)

    assert dispatcher.exchanges.on_window("r1", 1, NOW) == [Decline("r1")]
    assert (link.full, link.is_waiting) == (True, False)
    assert dispatcher.exchanges.on_window("r1", 0, NOW) == []
    assert dispatcher.sweep(NOW + 0.1) == [Send("r1", 3, first), Send("r1", 4, second)]


def test_a_waiting_link_stays_full_after_a_back_off(dispatcher: Dispatcher) -> None:
    """The end of a back-off does not end the wait for an offer."""
    link = up(dispatcher)
    dispatcher.submit(exchange(), NOW)
    dispatcher.submit(exchange(), NOW)
    dispatcher.exchanges.on_not_started("r1", 1, NotStarted.REFUSED, NOW)
    dispatcher.exchanges.on_not_started("r1", 2, NotStarted.FULL, NOW)

    dispatcher.sweep(NOW + 0.1)

    assert (link.full, link.is_waiting) == (True, True)


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (NotStarted.REFUSED, UpstreamFailed),
        (NotStarted.FULL, WaitBudgetOver),
        (UNUSABLE, WaitBudgetOver),
    ],
)
def test_an_exchange_that_is_always_refused_ends_with_its_wait_budget(
    dispatcher: Dispatcher, last: int, error: type[FnError]
) -> None:
    """Refused connections are not counted as sends; the wait budget ends them. The error names them
    if the last try was refused, by the server and not for want of a slot or descriptor."""
    up(dispatcher)
    each = exchange()
    dispatcher.submit(each, NOW)
    now = NOW
    for _ in range(100):
        dispatcher.exchanges.on_not_started("r1", each.id, NotStarted.REFUSED, now)
        now += 0.1
        assert [type(one) for one in dispatcher.sweep(now)] == [Send]
    dispatcher.exchanges.on_not_started("r1", each.id, last, now)

    commands = dispatcher.sweep(NOW + 60.0)

    if not errors(commands):  # sent once more before it expired
        commands = dispatcher.sweep(NOW + 120.0)
    assert errors(commands) == [error]


def test_a_draining_sidecar_gets_nothing_until_it_resumes(dispatcher: Dispatcher) -> None:
    """DRAINING closes the link and counts the send; WINDOW without an offer opens it again."""
    link = up(dispatcher)
    each = exchange()
    dispatcher.submit(each, NOW)

    assert dispatcher.exchanges.on_not_started("r1", 1, NotStarted.DRAINING, NOW) == []
    assert (link.closing, each.sends) == (True, 1)
    assert dispatcher.exchanges.on_window("r1", 1, NOW) == [Decline("r1")]
    assert dispatcher.exchanges.on_window("r1", 0, NOW) == [Send("r1", 2, each)]


# Drains


def test_quiesce_counts_what_is_not_over(dispatcher: Dispatcher) -> None:
    """QUIESCE closes the link; requested and open exchanges count, free ones do not."""
    link = up(dispatcher)
    running = opened(dispatcher)
    dispatcher.submit(exchange(), NOW)
    opened(dispatcher, is_free=True)

    assert dispatcher.exchanges.on_quiesce("r1") == [CloseIdle("r1"), Quiesced("r1", 2)]
    assert link.closing
    late, free = exchange(), exchange(is_free=True)
    assert dispatcher.submit(late, NOW) + dispatcher.submit(free, NOW) == []
    assert late.was_held
    assert dispatcher.exchanges.on_ended(running, NOW, kept=True) == [End("r1", 1, kept=False)]
    resumed = dispatcher.exchanges.on_window("r1", 0, NOW)
    assert resumed == [Send("r1", 4, late), Send("r1", 5, free)]


def test_a_missed_recall_costs_the_next_connection(dispatcher: Dispatcher) -> None:
    """For each recall that came too late one connection is closed; no more than are open."""
    link = up(dispatcher, limit=3)
    running = [opened(dispatcher) for _ in range(3)]
    free = opened(dispatcher, is_free=True)
    dispatcher.exchanges.on_recall_missed("r1")

    dispatcher.exchanges.on_ended(free, NOW, kept=True)
    kept = [dispatcher.exchanges.on_ended(each, NOW, kept=True)[0] for each in running[:2]]

    assert [isinstance(end, End) and end.kept for end in kept] == [False, True]
    dispatcher.exchanges.on_recall_missed("r1")
    dispatcher.exchanges.on_recall_missed("r1")
    assert link.recalled == 1
    dispatcher.exchanges.on_window("r1", 0, NOW)
    assert link.recalled == 0


# Lost links and retries


def test_a_lost_link_requeues_requests_and_detaches_open_exchanges(dispatcher: Dispatcher) -> None:
    """A request without a connection keeps its place; an open exchange is left to the proxy."""
    up(dispatcher, limit=2)
    running, requested, queued = opened(dispatcher), exchange(), exchange()
    free = exchange(is_free=True)
    for each in (requested, queued, free):
        dispatcher.submit(each, NOW)

    assert dispatcher.on_link_lost("r1", NOW) == []

    pool = dispatcher.pool(KEY)
    assert (list(pool.queue), list(pool.free_queue)) == ([requested, queued], [free])
    assert (running.stage, list(pool.detached)) == (Stage.STARTED, [running])
    assert (pool.in_flight, pool.owed, pool.held) == (0, 1, 3)
    assert up(dispatcher, "r2", limit=1)
    assert [each.stage for each in (requested, queued, free)] == [
        Stage.SENT,
        Stage.QUEUED,
        Stage.SENT,
    ]


@pytest.mark.parametrize("how", ["end", "cancel"])
def test_a_detached_exchange_ends_without_a_command(dispatcher: Dispatcher, how: str) -> None:
    """No sidecar is told of the end of an exchange whose link is lost; until then it is owed."""
    up(dispatcher)
    each = opened(dispatcher)
    dispatcher.on_link_lost("r1", NOW)
    assert not dispatcher.is_idle
    dispatcher.sweep(NOW)

    if how == "end":
        assert dispatcher.exchanges.on_ended(each, NOW, kept=True) == []
    else:
        assert dispatcher.cancel(each, NOW) == []
    assert dispatcher.is_idle
    dispatcher.sweep(NOW)
    assert dispatcher.pools == {}


def test_the_pool_of_a_removed_function_is_kept_for_detached_exchanges(
    dispatcher: Dispatcher,
) -> None:
    """A removed pool is dropped after its last exchange."""
    up(dispatcher)
    each = opened(dispatcher)
    dispatcher.on_endpoints(KEY, PoolEndpoints([], "gone", "removed"), NOW)
    dispatcher.on_link_lost("r1", NOW)
    assert KEY in dispatcher.pools

    assert errors(dispatcher.exchanges.retry(each, NOW)) == [UnknownFunction]
    dispatcher.sweep(NOW)
    assert KEY not in dispatcher.pools


def test_a_lost_link_of_a_removed_function_drops_the_pool(dispatcher: Dispatcher) -> None:
    """Without exchanges the pool goes with its last link."""
    up(dispatcher)
    dispatcher.on_endpoints(KEY, PoolEndpoints([], "gone", "removed"), NOW)
    dispatcher.on_link_lost("r1", NOW)

    assert dispatcher.pools == {}


def test_a_retry_keeps_its_place(dispatcher: Dispatcher) -> None:
    """An exchange that lost its connection is queued before later ones, and is sent at once."""
    up(dispatcher, limit=1)
    first, second = opened(dispatcher), exchange()
    dispatcher.submit(second, NOW)

    commands = dispatcher.exchanges.retry(first, NOW)

    assert commands == [End("r1", 1, kept=False), Send("r1", 2, first)]
    assert (first.sends, [one.has_died for one in first.attempts]) == (2, [False])


def test_a_retry_after_a_death_waits_for_another_replica(dispatcher: Dispatcher) -> None:
    """A detached exchange is queued again; its attempt says that the replica died."""
    up(dispatcher)
    each = opened(dispatcher)
    dispatcher.on_link_lost("r1", NOW)

    assert dispatcher.exchanges.retry(each, NOW) == []
    assert [one.has_died for one in each.attempts] == [True]
    up(dispatcher, "r2")
    assert (each.stage, each.link) == (Stage.SENT, "r2")


@pytest.mark.parametrize("is_free", [False, True])
def test_a_link_rests_after_a_connection_that_had_ended(
    dispatcher: Dispatcher, is_free: bool
) -> None:
    """Nothing was sent: the send is not counted, and the exchange is sent after REFUSED_S."""
    link = up(dispatcher)
    each = opened(dispatcher, is_free=is_free)

    commands = dispatcher.exchanges.retry(each, NOW, was_refused=True)

    assert commands == [End("r1", 1, kept=False)]
    assert (each.stage, each.sends, link.owed) == (Stage.QUEUED, 0, 0)
    assert dispatcher.sweep(NOW + REFUSED_S / 2) == []
    assert dispatcher.sweep(NOW + REFUSED_S) == [Send("r1", 2, each)]
    assert (each.sends, link.retry_s, link.free_retry_s) == (1, 0.0, 0.0)


def test_another_link_replaces_a_connection_that_had_ended(dispatcher: Dispatcher) -> None:
    """Only the link of the lost connection rests; exchanges that it has open go on."""
    up(dispatcher)
    first, second = opened(dispatcher), opened(dispatcher)
    up(dispatcher, "r2")

    commands = dispatcher.exchanges.retry(second, NOW, was_refused=True)

    assert commands == [End("r1", 2, kept=False), Send("r2", 1, second)]
    assert (first.stage, first.sends, second.sends) == (Stage.STARTED, 1, 1)


def test_a_lost_link_does_not_rest(dispatcher: Dispatcher) -> None:
    """An exchange that lost the link, too, was not sent either; the next link is used at once."""
    up(dispatcher)
    each = opened(dispatcher)
    dispatcher.on_link_lost("r1", NOW)

    assert dispatcher.exchanges.retry(each, NOW, was_refused=True) == []
    assert (each.stage, each.sends) == (Stage.QUEUED, 0)
    up(dispatcher, "r2")
    assert (each.stage, each.link, each.sends) == (Stage.SENT, "r2", 1)


def test_a_connection_that_had_ended_beyond_the_wait_budget(dispatcher: Dispatcher) -> None:
    """The exchange fails with what it met; its link rests none the less."""
    link = up(dispatcher)
    each = opened(dispatcher)

    commands = dispatcher.exchanges.retry(each, NOW + 55.0, was_refused=True)

    assert errors(commands) == [UpstreamFailed]
    assert (each.sends, link.retry_s) == (0, NOW + 55.0 + REFUSED_S)
    assert dispatcher.is_idle


def test_a_retry_beyond_the_wait_budget_fails(dispatcher: Dispatcher) -> None:
    """An exchange whose wait budget is over is not queued again."""
    up(dispatcher)
    each = opened(dispatcher)

    commands = dispatcher.exchanges.retry(each, NOW + 55.0)

    assert commands[0] == End("r1", 1, kept=False)
    assert errors(commands) == [WaitBudgetOver]
    assert dispatcher.is_idle


def test_an_exchange_whose_replicas_all_die_fails(dispatcher: Dispatcher) -> None:
    """An exchange that was never opened fails after many lost links, as calls do."""
    each = exchange()
    dispatcher.submit(each, NOW)
    commands: list[Command] = []
    for number in range(12):
        up(dispatcher, f"r{number}")
        commands = dispatcher.on_link_lost(f"r{number}", NOW)

    assert errors(commands) == [ReplicaDied]


def test_a_link_that_is_lost_during_a_back_off_is_forgotten(dispatcher: Dispatcher) -> None:
    """The end of a back-off of a lost link has no effect."""
    up(dispatcher)
    each = exchange()
    dispatcher.submit(each, NOW)
    dispatcher.exchanges.on_not_started("r1", 1, NotStarted.REFUSED, NOW)
    dispatcher.on_link_lost("r1", NOW)

    assert dispatcher.sweep(NOW + 1.0) == []
    assert each.stage is Stage.QUEUED


# Exchanges that take no slot


def test_free_exchanges_have_room_of_their_own(dispatcher: Dispatcher) -> None:
    """They are sent to a full link, count neither as load nor as in flight, but are owed."""
    link = up(dispatcher, limit=1)
    opened(dispatcher)
    dispatcher.submit(exchange(), NOW)
    link.full = True

    free = opened(dispatcher, is_free=True)

    assert dispatcher.loads(NOW) == {KEY: Load(1, 1, 0.0)}
    assert dispatcher.pool(KEY).owed == 2
    commands = dispatcher.exchanges.on_ended(free, NOW, kept=True)
    assert commands == [End("r1", free.id, kept=False)]


def test_free_exchanges_have_a_bound(dispatcher: Dispatcher) -> None:
    """At most FREE_MAX of them are open on a link; others wait, without load, and go elsewhere."""
    up(dispatcher, limit=1)
    several = [opened(dispatcher, is_free=True) for _ in range(FREE_MAX)]
    waiting = exchange(is_free=True)

    assert dispatcher.submit(waiting, NOW) == []
    assert dispatcher.loads(NOW) == {}
    assert not dispatcher.is_idle
    assert dispatcher.exchanges.on_ended(several[0], NOW, kept=False) == [
        End("r1", 1, kept=False),
        Send("r1", FREE_MAX + 1, waiting),
    ]
    up(dispatcher, "r2")
    up(dispatcher, "r3")
    assert [opened(dispatcher, is_free=True).link for _ in range(3)] == ["r2", "r3", "r2"]


def test_a_replica_with_too_many_free_exchanges_is_left_alone_for_a_while(
    dispatcher: Dispatcher,
) -> None:
    """FULL for a free exchange stops free exchanges for REFUSED_S and nothing else."""
    link = up(dispatcher)
    free = exchange(is_free=True)
    dispatcher.submit(free, NOW)

    assert dispatcher.exchanges.on_not_started("r1", 1, NotStarted.FULL, NOW) == []
    assert (link.full, link.is_waiting) == (False, False)
    assert opened(dispatcher).link == "r1"
    assert dispatcher.sweep(NOW + 0.01) == []
    assert dispatcher.sweep(NOW + 0.1) == [Send("r1", 3, free)]


def test_a_refused_free_exchange_does_not_prolong_the_back_off(dispatcher: Dispatcher) -> None:
    """Free exchanges that are returned for ever do not stop the others."""
    link = up(dispatcher)
    each, free = exchange(), exchange(is_free=True)
    dispatcher.submit(each, NOW)
    dispatcher.exchanges.on_not_started("r1", 1, NotStarted.REFUSED, NOW)
    now = NOW + REFUSED_S
    dispatcher.submit(free, now)
    dispatcher.exchanges.on_not_started("r1", 2, NotStarted.FULL, now)

    assert dispatcher.sweep(now) == [Send("r1", 3, each)]
    assert link.free_retry_s == now + REFUSED_S


def test_a_free_queue_has_a_limit_and_a_wait_budget(dispatcher: Dispatcher) -> None:
    """Free exchanges are refused and expire as others do; each queue has its own length."""
    waiting = exchange(is_free=True, queue_max=1)
    dispatcher.submit(waiting, NOW)
    with pytest.raises(QueueFull):
        dispatcher.submit(exchange(is_free=True, queue_max=1), NOW)
    dispatcher.submit(exchange(queue_max=1), NOW)

    assert errors(dispatcher.sweep(NOW + 60.0)) == [WaitBudgetOver, WaitBudgetOver]
    assert dispatcher.is_idle


def test_a_removed_function_refuses_free_exchanges(dispatcher: Dispatcher) -> None:
    """Queued exchanges of both kinds fail with the function."""
    dispatcher.submit(exchange(), NOW)
    dispatcher.submit(exchange(is_free=True), NOW)

    gone = dispatcher.on_endpoints(KEY, PoolEndpoints([], "gone", "removed"), NOW)

    assert errors(gone) == [UnknownFunction, UnknownFunction]


# Traffic


def test_waiting_exchanges_follow_their_traffic(dispatcher: Dispatcher) -> None:
    """Exchanges that wait move to the revision that has the traffic, except pinned ones."""
    dispatcher.on_endpoints(KEY, UNKNOWN, NOW)
    moving, free = exchange(), exchange(is_free=True)
    pinned = exchange(is_free=True, pinned=True)
    for each in (moving, free, pinned):
        dispatcher.submit(each, NOW)

    dispatcher.on_traffic_moved(KEY, NEXT, RerunPolicy(may_rerun=True, timeout_s=1.0), NOW)
    link = up(dispatcher, "r2", pool=NEXT)

    assert (list(link.in_flight.values()), list(link.free.values())) == ([moving], [free])
    assert pinned.stage is Stage.QUEUED


def test_a_returned_exchange_follows_its_traffic(dispatcher: Dispatcher) -> None:
    """A drain after a deploy sends the requests that it returns to the new revision."""
    up(dispatcher)
    each = exchange()
    dispatcher.submit(each, NOW)
    dispatcher.on_traffic_moved(KEY, NEXT, RerunPolicy(may_rerun=True, timeout_s=1.0), NOW)
    up(dispatcher, "r2", pool=NEXT)

    commands = dispatcher.exchanges.on_not_started("r1", 1, NotStarted.DRAINING, NOW)

    assert commands == [Send("r2", 1, each)]


# WebSockets


def test_a_quiet_websocket_leaves_its_slot_to_others(dispatcher: Dispatcher) -> None:
    """The next exchange is sent in its place; data makes it an open exchange again, even above the
    limit, and each change is told once."""
    link = up(dispatcher, limit=1)
    each, waiting = opened(dispatcher), exchange()
    tunnel = dispatcher.exchanges.on_tunnel
    assert tunnel(each, NOW, is_quiet=False) == [TellTunnel("r1", each.id, is_quiet=False)]
    assert dispatcher.submit(waiting, NOW) == []

    told = TellTunnel("r1", each.id, is_quiet=True)
    assert tunnel(each, NOW, is_quiet=True) == [told, Send("r1", waiting.id, waiting)]
    assert (each.is_free, link.quiet, list(link.in_flight)) == (True, {each.id}, [waiting.id])
    assert tunnel(each, NOW, is_quiet=True) == [told]

    assert tunnel(each, NOW, is_quiet=False) == [TellTunnel("r1", each.id, is_quiet=False)]
    assert (each.is_free, link.quiet, len(link.in_flight)) == (False, set(), 2)


def test_an_end_of_a_quiet_websocket_leaves_nothing(dispatcher: Dispatcher) -> None:
    """Its link is as before, and what comes later has no effect."""
    link = up(dispatcher)
    each = opened(dispatcher)
    dispatcher.exchanges.on_tunnel(each, NOW, is_quiet=True)

    dispatcher.exchanges.on_ended(each, NOW, kept=False)

    assert (link.quiet, link.free, link.in_flight) == (set(), {}, {})
    assert dispatcher.exchanges.on_tunnel(each, NOW, is_quiet=True) == []
    assert not dispatcher.exchanges.is_stopping(each)


def test_quiet_websockets_have_a_limit(
    dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it they go on to count as open; those that never take a slot are told as in use."""
    monkeypatch.setattr("gateway.dispatch.exchanges.QUIET_MAX", 1)
    link = up(dispatcher)
    first, second = opened(dispatcher), opened(dispatcher)
    free = opened(dispatcher, is_free=True)
    quiet = [
        dispatcher.exchanges.on_tunnel(each, NOW, is_quiet=True) for each in (first, second, free)
    ]

    assert quiet == [
        [TellTunnel("r1", each.id, is_quiet=each is first)] for each in (first, second, free)
    ]
    assert (link.quiet, list(link.in_flight)) == ({first.id}, [second.id])


@pytest.mark.parametrize("stops", [True, False])
def test_a_websocket_knows_whether_its_replica_stops(dispatcher: Dispatcher, stops: bool) -> None:
    """Before and after the end of the link, of which it is no part any more then."""
    link = up(dispatcher)
    each = opened(dispatcher)
    link.closing = stops
    assert dispatcher.exchanges.is_stopping(each) is stops

    dispatcher.on_link_lost("r1", NOW)

    assert dispatcher.exchanges.is_stopping(each) is stops
    assert dispatcher.exchanges.on_tunnel(each, NOW, is_quiet=True) == []
