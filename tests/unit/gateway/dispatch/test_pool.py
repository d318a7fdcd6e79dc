"""One revision as the dispatcher sees it."""

from __future__ import annotations

from gateway.dispatch.call import Call, Stage
from gateway.dispatch.links import Link
from gateway.dispatch.pool import UNKNOWN, Pool
from registry.exchange import NOTHING, Expected, Load, PoolEndpoints
from runtime_image.link.meta import RequestMeta

META = RequestMeta("application/json", "", -1, "")


def test_a_pool_never_heard_of_is_cold() -> None:
    """Before the manager says anything a pool has no replica, and may be waited for."""
    pool = Pool("default/a@1")

    assert (pool.shown.state, pool.shown.replicas) == ("cold", [])
    assert (len(pool.waiting), pool.in_flight, pool.retry_at_s) == (0, 0, 0.0)


def test_what_is_in_flight_is_counted_over_all_links() -> None:
    """Requests at any of its replicas count."""
    pool = Pool("default/a@1")
    for number in range(3):
        link = Link(f"r{number}", pool.key, 4, marks_started=True)
        for id in range(number):
            link.in_flight[id] = Call(pool.key, META, b"", 0.0, 55.0, 60.0)
        pool.links[link.id] = link

    assert pool.in_flight == 3


def test_pools_share_nothing() -> None:
    """What happens to one pool is not seen in another."""
    one, other = Pool("default/a@1"), Pool("default/b@1")

    one.waiting.append(Call(one.key, META, b"", 0.0, 55.0, 60.0))

    assert len(other.waiting) == 0


def test_a_pool_rests_when_it_is_as_if_never_heard_of() -> None:
    """Cold, nobody waits, no replica, nothing to say."""
    pool = Pool("default/a@1")
    assert pool.is_at_rest

    pool.shown = PoolEndpoints([], "cold", "no memory")
    assert not pool.is_at_rest
    pool.shown = UNKNOWN
    pool.links["r1"] = Link("r1", pool.key, 1, marks_started=True)
    assert not pool.is_at_rest
    del pool.links["r1"]
    pool.waiting.append(Call(pool.key, META, b"", 0.0, 55.0, 60.0))
    assert not pool.is_at_rest
    pool.waiting.clear()
    pool.want(10.0)
    assert not pool.is_at_rest


def test_waking_begins_with_who_asks_and_ends_with_a_replica() -> None:
    """Whoever waits, would wait, or has it woken elsewhere; a closing link is no replica."""
    pool = Pool("default/a@1")
    pool.watch(10.0)
    assert (pool.waking_since_s, pool.waking_s(20.0)) == (None, 0.0)

    pool.waiting.append(Call(pool.key, META, b"", 0.0, 55.0, 60.0))
    pool.watch(10.0)
    pool.watch(11.0)
    assert (pool.waking_since_s, pool.waking_s(12.0)) == (10.0, 2.0)

    link = pool.links["r1"] = Link("r1", pool.key, 1, marks_started=True)
    pool.watch(13.0)
    assert pool.waking_since_s is None
    link.closing = True
    pool.watch(14.0)
    assert pool.waking_since_s == 14.0

    pool.waiting.clear()
    pool.watch(15.0)
    assert pool.waking_since_s is None
    pool.shown = PoolEndpoints([], "waking", "min is 1")
    pool.watch(16.0)
    assert pool.waking_since_s == 16.0


def test_a_pool_is_wanted_for_one_cold_start() -> None:
    """Asked for again while it wakes, it is not wanted for longer; with a replica no more."""
    pool = Pool("default/a@1")
    pool.pace.expected = Expected(1.0, 2.0, 4.0, 9)

    pool.want(10.0)
    pool.watch(10.0)
    pool.want(13.0)
    assert pool.wanted_until_s == 14.0
    pool.want(15.0)
    assert pool.load(15.0) == NOTHING
    pool.watch(15.0)
    assert (pool.wanted_until_s, pool.waking_since_s) == (0.0, None)

    pool.want(20.0)
    pool.links["r1"] = Link("r1", pool.key, 1, marks_started=True)
    pool.watch(20.0)
    assert pool.load(20.0) == NOTHING


def test_the_load_is_of_who_waits_and_who_would() -> None:
    """The one that would wait is counted once, and has waited since the waking began."""
    pool = Pool("default/a@1")
    assert pool.load(10.0) == NOTHING
    pool.waiting.append(Call(pool.key, META, b"", 9.0, 55.0, 60.0))
    pool.want(10.0)
    pool.watch(10.0)

    assert pool.load(12.0) == Load(2, 0, 3.0)
    pool.waiting.clear()
    assert pool.load(12.0) == Load(1, 0, 2.0)


def test_the_estimate_is_of_the_line_or_of_the_cold_start() -> None:
    """While a replica serves, by its rate; else what is left of waking it."""
    pool = Pool("default/a@1")
    pool.pace.expected = Expected(1.0, 2.0, 30.0, 9)
    pool.waking_since_s = 10.0
    assert pool.retry_after_s(15.0) == 25

    pool.links["r1"] = Link("r1", pool.key, 1, marks_started=True)
    for number in range(20):
        pool.pace.answered(10.0 + number / 4)
        pool.waiting.append(Call(pool.key, META, b"", 0.0, 55.0, 60.0))
    assert pool.retry_after_s(15.0) == 5


def test_what_nobody_waits_for_is_owed_to_nobody() -> None:
    """A replica may still run what its client has given up."""
    pool = Pool("default/f@1")
    pool.links["r1"] = Link("r1", pool.key, 4, True)
    for id, stage in enumerate((Stage.SENT, Stage.STARTED, Stage.ABANDONED)):
        call = Call(pool.key, META, b"", 0.0, 1.0, 1.0, stage=stage)
        pool.links["r1"].in_flight[id] = call

    assert (pool.in_flight, pool.owed) == (3, 2)
