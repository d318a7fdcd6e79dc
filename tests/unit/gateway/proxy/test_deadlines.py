"""The time limits of an exchange."""

from __future__ import annotations

from gateway.proxy.deadlines import Deadlines
from registry.errors import BodyTimeout
from registry.model.functions import ExchangeLimits


def test_first_byte_counts_from_the_last_byte_sent() -> None:
    """An upload that moves is no silent server; one that stands still is."""
    clock = Deadlines(ExchangeLimits(first_byte_s=10, max_s=1000), 30.0)
    clock.sent(100.0)
    assert clock.check(109.0, 5, False, is_answered=False) is None
    assert clock.check(118.0, 5, False, is_answered=False) is None
    assert clock.check(119.0, 5, False, is_answered=False) is not None
    assert clock.check(119.0, 5, False, is_answered=True) is None


def test_stall_counts_after_the_head_and_zero_is_no_limit() -> None:
    """`stall_s` is for silence in the middle of an answer."""
    clock = Deadlines(ExchangeLimits(stall_s=5, max_s=1000), 30.0)
    clock.sent(0.0)
    assert clock.check(1.0, 1, False, is_answered=True) is None
    assert clock.check(5.9, 1, False, is_answered=True) is None
    assert clock.check(6.0, 1, False, is_answered=True) is not None
    never = Deadlines(ExchangeLimits(stall_s=0, max_s=1000), 30.0)
    never.sent(0.0)
    assert never.check(900.0, 0, False, is_answered=True) is None


def test_a_second_try_does_not_extend_the_whole() -> None:
    """`max_s` counts from the first sending, whatever moves."""
    clock = Deadlines(ExchangeLimits(max_s=60), 30.0)
    clock.sent(10.0)
    clock.sent(50.0)
    assert clock.check(69.0, 1, False, is_answered=False) is None
    error = clock.check(70.0, 2, False, is_answered=True)
    assert error is not None
    assert "60 s" in error.message


def test_a_client_that_stops_sending_is_not_the_servers_fault() -> None:
    """A body that stands still while the server reads is `body_timeout`, after `body_s`."""
    clock = Deadlines(ExchangeLimits(first_byte_s=10, max_s=1000), 30.0)
    clock.sent(0.0)
    assert clock.check(29.0, 0, True, is_answered=False) is None
    error = clock.check(30.0, 0, True, is_answered=False)
    assert isinstance(error, BodyTimeout)
    assert clock.check(30.0, 0, True, is_answered=True) is None
