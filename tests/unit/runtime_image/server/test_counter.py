"""Reading a server's own counter from its metrics."""

from __future__ import annotations

import pytest

from runtime_image.server.counter import BODY_MAX, SERIES_MAX, read_counter

VLLM = b"""HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n# HELP steps_total Steps.
# TYPE steps_total counter
steps_total{model="a} b",rank="0"} 17.0 1395066363000
steps_total{model="c\\"} 9"}3 # {trace="x"} 7
steps_total_created{model="a"} 1.7e9
steps_total_sum 5
steps
"""


def test_the_labels_of_a_metric_are_added_up() -> None:
    """Longer names, comments, time stamps and braces in labels do not count."""
    assert read_counter(VLLM, "steps_total") == 20.0
    assert read_counter(VLLM, "steps_total_sum") == 5.0


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"steps",
        b"steps_total",
        b"steps_total ",
        b"steps_total{",
        b'steps_total{a="b"}',
        b"steps_total x",
        b"steps_total NaN\nsteps_total +Inf",
        b"steps_total \xff\x00",
        b"\x00" * 100,
        b"steps_total{" + b'a="' * 1000,
        b"steps_total" + b"{" * BODY_MAX,
        b"steps_total" + b" " * BODY_MAX,
    ],
)
def test_what_is_no_number_is_no_value(answer: bytes) -> None:
    """The server may answer anything."""
    assert read_counter(answer, "steps_total") is None


def test_a_metric_has_few_series() -> None:
    """The sidecar's loop adds them up; the first ones move as well as all."""
    assert read_counter(b"steps_total 1\n" * (SERIES_MAX + 5), "steps_total") == SERIES_MAX
    assert read_counter(b"steps_total 1e308\n" * 9, "steps_total") is None
