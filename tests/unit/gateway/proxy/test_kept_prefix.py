"""The kept prefix: what it counts, keeps and forgets."""

from __future__ import annotations

import pytest

from gateway.dispatch.held import HeldBytes
from gateway.http.reservations import BodyBudget
from gateway.proxy.kept_prefix import KEPT_MAX, KeptPrefix, may_resend
from gateway.proxy.retries import Retry
from registry.errors import BodyEvicted, FnError


def kept(capacity: int = 10 * KEPT_MAX) -> tuple[HeldBytes, BodyBudget, KeptPrefix, list[FnError]]:
    """Return a prefix, its memory, and the errors of its evictions."""
    held, errors = HeldBytes(capacity), list[FnError]()
    budget = BodyBudget(held, lambda: 0.0)
    return held, budget, KeptPrefix(budget), errors


def test_bytes_are_counted_until_they_are_dropped() -> None:
    """Arriving, settled and added bytes are counted once, and not at all after `drop`."""
    held, _, prefix, errors = kept()
    prefix.add(b"abc", errors.append, is_sent=False)
    assert held.bytes == 3
    prefix.settle()
    prefix.settle()
    assert held.bytes == 3
    prefix.add(b"de", errors.append, is_sent=True)
    assert held.bytes == 5
    prefix.settle()
    assert held.bytes == 5
    assert prefix.pieces == [b"abc", b"de"]
    prefix.drop()
    prefix.drop()
    assert held.bytes == 0
    assert not prefix.is_whole
    assert not prefix.is_lost


def test_an_eviction_tells_the_owner() -> None:
    """Arriving bytes are evicted for others; settled ones are not."""
    held, budget, prefix, errors = kept(capacity=100)
    prefix.add(b"x" * 60, errors.append, is_sent=False)
    budget.make_room(80)
    assert [type(error) for error in errors] == [BodyEvicted]
    assert prefix.is_lost
    assert held.bytes == 0
    held, budget, prefix, errors = kept(capacity=100)
    prefix.add(b"x" * 60, errors.append, is_sent=False)
    prefix.settle()
    budget.make_room(80)
    assert not errors
    assert prefix.is_whole


def test_no_memory_is_an_error_and_loses_the_prefix() -> None:
    """Bytes that do not fit raise BodyEvicted, and nothing stays counted."""
    held, _, prefix, errors = kept(capacity=100)
    held.bytes += 90
    with pytest.raises(BodyEvicted):
        prefix.add(b"x" * 20, errors.append, is_sent=False)
    assert held.bytes == 90
    assert prefix.is_lost
    assert not errors


def test_a_whole_body_is_charged_at_once() -> None:
    """A complete body cannot be evicted, and counts until it is dropped."""
    held, budget, prefix, errors = kept(capacity=100)
    prefix.add_whole([b"x" * 60], 60, errors.append)
    assert (held.bytes, len(budget), prefix.pieces) == (60, 0, [b"x" * 60])
    budget.make_room(80)
    prefix.settle()
    assert (held.bytes, errors) == (60, [])
    prefix.drop()
    assert held.bytes == 0


def test_a_whole_body_evicts_others_for_its_memory() -> None:
    """Where the memory is used up, a whole body is reserved like one that arrives in parts."""
    held, budget, prefix, errors = kept(capacity=100)
    evicted: list[FnError] = []
    budget.open(evicted.append).grow(80)
    prefix.add_whole([b"x" * 60], 60, errors.append)
    assert (held.bytes, len(evicted), prefix.is_whole) == (60, 1, True)
    prefix.drop()
    held.bytes += 90
    with pytest.raises(BodyEvicted):
        prefix.add_whole([b"x" * 20], 20, errors.append)
    assert (held.bytes, prefix.is_lost) == (90, True)


def test_a_sent_request_is_not_kept_beyond_the_limit() -> None:
    """A held request keeps what was read; a sent one forgets a body that grows too long."""
    _, _, prefix, errors = kept()
    prefix.add(bytes(KEPT_MAX), errors.append, is_sent=False)
    assert prefix.is_full
    prefix.add(b"x", errors.append, is_sent=True)
    assert prefix.is_lost
    assert prefix.size == 0


@pytest.mark.parametrize(
    ("method", "retry", "sends", "is_reused", "may"),
    [
        (b"GET", "auto", 1, False, True),
        (b"POST", "auto", 1, False, False),
        (b"POST", "auto", 1, True, True),
        (b"GET", "auto", 2, True, False),
        (b"POST", "always", 1, False, True),
        (b"POST", "always", 2, False, False),
        (b"GET", "never", 1, True, False),
    ],
)
def test_what_is_worth_keeping(
    method: bytes, retry: Retry, sends: int, is_reused: bool, may: bool
) -> None:
    """Bytes are kept exactly as long as the table of retries could send them again."""
    assert may_resend(method, retry, sends, is_reused) is may
