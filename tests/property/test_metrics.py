"""Property tests of the metrics page: it equals a plain count of the same answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics.counters import TEXT
from gateway.metrics.requests import ROWS, SECONDS, SENDS, Metrics
from gateway.replies import Receipt
from runtime_image.link.meta import AnswerMeta


class Answer(NamedTuple):
    """Answer of a replica; times are eighths of seconds, whose sums are exact."""

    function: str
    seconds: float
    queue_s: float
    rows: int
    sends: int


TIMES = st.one_of(
    st.integers(0, 8 * 100).map(lambda eighths: eighths / 8), st.sampled_from([1.0, 0.25, 60.0])
)
ANSWERS = st.builds(
    Answer,
    st.sampled_from(["digits", "words"]),
    TIMES,
    TIMES,
    st.one_of(st.integers(0, 140), st.just(2**32 - 1)),
    st.integers(1, 14),
)
Page = dict[tuple[str, str, str], float]
"""Values by sample, function, and bound ("" for none)."""


def shown(metrics: Metrics) -> Page:
    """Return the samples about answers, without creation times."""
    return {
        (sample.name, sample.labels["function"], sample.labels.get("le", "")): sample.value
        for family in text_string_to_metric_families(TEXT.encode(metrics).decode())
        if family.name != "fngate_retries"
        for sample in family.samples
        if "function" in sample.labels
    }


def plainly(answers: Sequence[Answer]) -> Page:
    """Return the same samples, counted bound by bound."""
    page: Page = Counter()
    for one in answers:
        page["fngate_requests_total", one.function, ""] += 1
        for name, value, bounds in (
            ("fngate_request_seconds", one.seconds, SECONDS),
            ("fngate_queue_seconds", one.queue_s, SECONDS),
            ("fngate_batch_rows", one.rows, ROWS),
            ("fngate_request_sends", one.sends, SENDS),
        ):
            page[f"{name}_sum", one.function, ""] += value
            page[f"{name}_count", one.function, ""] += 1
            page[f"{name}_bucket", one.function, "+Inf"] += 1
            for bound in bounds:
                page[f"{name}_bucket", one.function, str(float(bound))] += value <= bound
    return page


@given(st.lists(ANSWERS, max_size=30))
def test_the_page_is_the_sum_of_all_answers(answers: list[Answer]) -> None:
    """Every counter and every bucket of every histogram equals the plain count."""
    metrics = Metrics(lambda *_: True)
    for one in answers:
        meta = AnswerMeta("application/json", 0, 0, 0, 0, one.rows)
        receipt = Receipt(f"{one.function}@1", "r", ("cpu-0",), one.queue_s * 1e3, {}, False, meta)
        metrics.count_answer(("default", one.function), one.seconds, receipt, one.sends, 0)

    assert shown(metrics) == plainly(answers)
