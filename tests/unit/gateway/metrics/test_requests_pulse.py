"""What was answered since the last look."""

from __future__ import annotations

from gateway.metrics.counters import HistogramFamily, LocalStore
from gateway.metrics.requests import RateSample, RateSampler

F = ("default", "f")


def test_only_what_came_since_is_told() -> None:
    """By bucket; of what did not answer nothing."""
    durations = HistogramFamily(
        "d_seconds", "", ("namespace", "function"), (0.1, 1.0), LocalStore()
    )
    children = {F: durations.of(*F), ("default", "g"): durations.of("default", "g")}
    pulse = RateSampler(children.items)
    assert pulse.sample() == []
    children[F].observe(0.05)
    children[F].observe(5.0)
    assert pulse.sample() == [RateSample(*F, (1, 0, 1))]
    children[F].observe(0.5)

    assert pulse.sample() == [RateSample(*F, (0, 1, 0))]
    assert pulse.sample() == []


def test_a_function_that_came_again_begins_anew() -> None:
    """Removed and deployed again it has other counters."""
    children = {}
    pulse = RateSampler(children.items)
    for _ in range(2):
        made = HistogramFamily("d_seconds", "", ("namespace", "function"), (0.1,), LocalStore())
        children[F] = made.of(*F)
        children[F].observe(0.05)
        assert pulse.sample() == [RateSample(*F, (1, 0))]
