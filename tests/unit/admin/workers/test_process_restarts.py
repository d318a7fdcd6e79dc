"""Tests of the delays before restarts."""

from __future__ import annotations

import pytest

from admin.workers.process import SOUND_S, Restarts


def test_pauses_double_up_to_a_limit() -> None:
    """The delay doubles with each early death, up to a limit."""
    restarts = Restarts()

    pauses = [restarts.pause_s(0.0) for _ in range(8)]

    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


def test_a_sound_life_is_forgiven() -> None:
    """A process that served long enough is replaced at once, and the delays start anew."""
    restarts = Restarts()
    for _ in range(5):
        restarts.pause_s(SOUND_S - 1)

    assert [restarts.pause_s(SOUND_S), restarts.pause_s(0.0)] == pytest.approx([0.1, 0.2])
