"""Tests of what closes a server to callers without a key."""

from __future__ import annotations

import pytest

from registry.openness import CLOSED, Decision, Openness, newly_exposed

OPENED = Decision(Openness.OPEN, ("gpu.example",))


@pytest.mark.parametrize(
    ("decision", "exposure", "closes"),
    [
        (Decision(), (), []),
        (Decision(), ("gpu.example", "10.0.0.0/8"), ["10.0.0.0/8", "gpu.example"]),
        (OPENED, ("gpu.example",), []),
        (OPENED, (), []),
        (OPENED, ("gpu.example", "127.0.0.1"), ["127.0.0.1"]),
        (CLOSED, ("gpu.example",), []),
    ],
)
def test_what_is_newly_exposed(
    decision: Decision, exposure: tuple[str, ...], closes: list[str]
) -> None:
    """A public host or proxy closes a server unless it was there when the operator opened it."""
    assert newly_exposed(decision, exposure) == closes
