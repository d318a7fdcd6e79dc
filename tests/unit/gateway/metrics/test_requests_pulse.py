"""What was answered since the last look."""

from __future__ import annotations

from gateway.metrics.counters import Distributions, Memory
from gateway.metrics.requests import Answered, Pulse

F = ("default", "f")


def test_only_what_came_since_is_told() -> None:
    """By bucket; of what did not answer nothing."""
    durations = Distributions("d_seconds", "", ("namespace", "function"), (0.1, 1.0), Memory())
    children = {F: durations.of(*F), ("default", "g"): durations.of("default", "g")}
    pulse = Pulse(children.items)
    assert pulse.take() == []
    children[F].observe(0.05)
    children[F].observe(5.0)
    assert pulse.take() == [Answered(*F, (1, 0, 1))]
    children[F].observe(0.5)

    assert pulse.take() == [Answered(*F, (0, 1, 0))]
    assert pulse.take() == []


def test_a_function_that_came_again_begins_anew() -> None:
    """Removed and deployed again it has other counters."""
    children = {}
    pulse = Pulse(children.items)
    for _ in range(2):
        made = Distributions("d_seconds", "", ("namespace", "function"), (0.1,), Memory())
        children[F] = made.of(*F)
        children[F].observe(0.05)
        assert pulse.take() == [Answered(*F, (1, 0))]
