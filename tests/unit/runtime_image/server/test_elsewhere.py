"""Servers that listen elsewhere: told from those that still start."""

from __future__ import annotations

import pytest

from runtime_image.server.elsewhere import SETTLED_S, Elsewhere, misplaced
from runtime_image.server.listeners import Listener

WRONG = Listener("0.0.0.0", 9321, 5)
METRICS = Listener("127.0.0.1", 9090, 6)


def seen(addresses: list[list[Listener]], cpu_s: float = 0.0) -> int | None:
    """Return the second at which a server with these addresses, one list a second, has settled.

    `cpu_s` is its CPU time in each second.
    """
    elsewhere = Elsewhere()
    for second, found in enumerate(addresses):
        if elsewhere.has_settled(100.0 + second, found, cpu_s * second):
            return second
    return None


@pytest.mark.parametrize(
    ("listener", "is_misplaced"),
    [
        (Listener("127.0.0.1", 8000, 1), False),
        (Listener("0.0.0.0", 8000, 1), False),
        (Listener("::", 8000, 1), False),
        (Listener("::ffff:127.0.0.1", 8000, 1), False),
        (Listener("127.0.0.2", 8000, 1), True),
        (Listener("127.0.0.1", 8001, 1), True),
    ],
)
def test_another_port_or_address_is_misplaced(listener: Listener, is_misplaced: bool) -> None:
    """An address at which the sidecar does not connect is no better than another port."""
    assert misplaced([listener], 8000) == [listener] * is_misplaced
    assert misplaced([listener], 0) == [listener]


def test_a_server_that_stays_elsewhere_has_settled() -> None:
    """After SETTLED_S, counted from its first second there."""
    assert seen([[], [], *[[WRONG]] * 30]) == 2 + SETTLED_S


def test_a_server_whose_addresses_change_has_not_settled() -> None:
    """It is still starting; the time begins anew."""
    assert seen([*[[METRICS]] * 9, *[[METRICS, WRONG]] * 30]) == 9 + SETTLED_S


def test_a_busy_server_has_not_settled() -> None:
    """It may load a model, with its port for metrics open."""
    assert seen([[METRICS]] * 30, cpu_s=0.5) is None
    assert seen([[METRICS]] * 30, cpu_s=0.1) == SETTLED_S


def test_a_server_that_listens_nowhere_has_not_settled() -> None:
    """Nothing can be said about it."""
    assert seen([[]] * 30) is None
