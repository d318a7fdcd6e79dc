"""One revision as the dispatcher sees it."""

from __future__ import annotations

from gateway.dispatch.call import Call
from gateway.dispatch.links import Link
from gateway.dispatch.pool import UNKNOWN, Pool
from registry.exchange import PoolEndpoints
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
