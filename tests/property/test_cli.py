"""Property tests of fnctl: any answer can be read, and inputs are sent as given."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from admin import text
from admin.cli import answers
from admin.cli.inputs import payload
from gateway.replies import Receipt, server_timing
from runtime_image.contract.control import PHASES
from runtime_image.link.meta import AnswerMeta

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=30,
)
FINITE = JSON.filter(lambda value: "Infinity" not in json.dumps(value))
MS = st.floats(0, 1e6).map(lambda ms: round(ms, 3))
NAMES = st.text(min_size=1).filter(lambda name: "=" not in name)


@given(st.dictionaries(NAMES, FINITE, min_size=1, max_size=4))
def test_inputs_arrive_as_they_were_given(values: dict[str, Any]) -> None:
    """Any names and JSON values given with -i are the inputs of the body."""
    made = payload(None, [f"{name}={json.dumps(value)}" for name, value in values.items()])

    assert json.loads(made.body) == {"inputs": values}


@given(st.dictionaries(st.sampled_from(PHASES), MS), MS, st.integers(0, 10**6))
def test_fnctl_reads_any_server_timing_of_the_gateway(
    phases: dict[str, float], queue_ms: float, us: int
) -> None:
    """fnctl parses every Server-Timing header that a gateway writes."""
    meta = AnswerMeta("application/json", us, us, us, us, 3)
    written = server_timing(Receipt("digits@3", "r1", ("cpu:0",), queue_ms, phases, False, meta))

    found = answers.read_receipt(written)

    assert found.phases == phases
    assert found.replica == "r1"
    assert found.cold == ("digits@3 on cpu:0" if phases else "")
    assert found.times["queue"] == queue_ms
    assert set(found.times) == {"queue", "decode", "batch", "compute", "encode"}


@given(st.text())
def test_any_header_is_read(header: str) -> None:
    """No header raises an error, and its rendering is at most one line."""
    assert len(answers.render_receipt(answers.read_receipt(header)).splitlines()) <= 1


@given(JSON)
def test_any_answer_can_be_shown(value: Any) -> None:
    """Any JSON value is shortened to bounded length and can be rendered."""
    shown = answers.shorten(value)

    assert len(shown) < 300
    assert isinstance(answers.render_answer({"top": value, "outputs": value}), str)


@given(st.floats(-10, 10), st.integers(0, 100))
def test_a_bar_stays_in_its_width(share: float, width: int) -> None:
    """A bar is never longer than its width."""
    assert len(text.bar(share, width)) <= width


@given(st.text())
def test_plain_text_has_no_control_characters(given_text: str) -> None:
    """Printed text contains no terminal control characters."""
    assert all(c.isprintable() or c in "\t\n" for c in text.plain(given_text))
