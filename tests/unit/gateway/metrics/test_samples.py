"""Tests of samples of histograms."""

from __future__ import annotations

from gateway.metrics.counters import HistogramFamily, LocalStore
from gateway.metrics.samples import RateSample, RateSampler

F = ("default", "f")


def test_a_rate_sample_has_only_new_observations() -> None:
    """A sample holds the observations per bucket since the last one; functions without any are left
    out."""
    durations = HistogramFamily(
        "d_seconds", "", ("namespace", "function"), (0.1, 1.0), LocalStore()
    )
    children = {F: durations.of(*F), ("default", "g"): durations.of("default", "g")}
    pulse = RateSampler(children.items, lambda: ())
    assert pulse.sample() == []
    children[F].observe(0.05)
    children[F].observe(5.0)
    assert pulse.sample() == [RateSample(*F, (1, 0, 1))]
    children[F].observe(0.5)

    assert pulse.sample() == [RateSample(*F, (0, 1, 0))]
    assert pulse.sample() == []


def test_a_rate_sample_has_first_bytes_before_their_answers_end() -> None:
    """A first byte is told although the duration of its exchange is not known yet."""
    family = HistogramFamily("d_seconds", "", ("namespace", "function"), (0.1,), LocalStore())
    duration, first_byte = family.of(*F), family.of("default", "first")
    pulse = RateSampler(lambda: [(F, duration)], lambda: [(F, first_byte)])
    first_byte.observe(0.05)
    assert pulse.sample() == [RateSample(*F, (), (1, 0))]
    duration.observe(7.0)
    first_byte.observe(0.5)

    assert pulse.sample() == [RateSample(*F, (0, 1), (0, 1))]


def test_a_redeployed_function_starts_new_samples() -> None:
    """A function that was removed and deployed again has new counters."""
    children = {}
    pulse = RateSampler(children.items, lambda: ())
    for _ in range(2):
        made = HistogramFamily("d_seconds", "", ("namespace", "function"), (0.1,), LocalStore())
        children[F] = made.of(*F)
        children[F].observe(0.05)
        assert pulse.sample() == [RateSample(*F, (1, 0))]
