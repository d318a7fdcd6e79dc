from __future__ import annotations

from typing import Any

import pytest

from admin.cli.answers import (
    TEXT_MAX,
    Receipt,
    first_line,
    read_receipt,
    render_answer,
    render_receipt,
    shorten,
)

TOP = {"top": [[{"label": "7", "score": 0.75}, {"label": "ten", "score": 0.25}]], "outputs": {}}


def test_the_best_labels_are_bars() -> None:
    """Each of the best labels has a bar as long as its score, and its score."""
    assert render_answer(TOP).split("\n") == [
        "7    ██████████████████        0.750",
        "ten  ██████                    0.250",
    ]


def test_rows_are_told_apart_and_bounded() -> None:
    """Several rows are numbered; of many rows only the first are shown."""
    shown = render_answer({"top": TOP["top"] * 10}).split("\n")  # type: ignore[operator] # a list

    assert (shown[0], shown[3], shown[-1]) == ("row 0", "row 1", "… and 2 more rows")


def test_scores_above_one_are_scaled() -> None:
    """If scores are not shares, the largest one fills the bar."""
    shown = render_answer({"top": [[{"label": "a", "score": 20}, {"label": "b", "score": -5}]]})

    assert shown.split("\n")[0] == "a  ████████████████████████  20.000"
    assert shown.split("\n")[1] == "b                            -5.000"


def test_outputs_are_shortened() -> None:
    """An answer without labels shows its outputs by name, shortened, with their shape."""
    shown = render_answer({"outputs": {"y": [[0.123456] * 10] * 3, "n": [1]}, "revision": "a@1"})

    assert shown.split("\n") == [
        "y  [[0.1235, 0.1235, 0.1235, 0.1235, 0.1235, 0.1235, …], [0.1235, 0.1235, …  [3 x 10]",
        "n  [1]",
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("hello", '"hello"'),
        (None, "null"),
        ([], "[]"),
        (list(range(9)), "[0, 1, 2, 3, 4, 5, …]  [9]"),
        ({"a": [[[[[1]]]]]}, '{"a": [[[…]]]}'),
    ],
)
def test_values_are_json(value: Any, shown: str) -> None:
    """A value is shown as JSON; deep and long ones are cut with an ellipsis."""
    assert shorten(value).startswith(shown)


def test_a_long_text_is_cut() -> None:
    """A long text is cut to its line."""
    assert len(shorten("x" * 1000).split("  ")[0]) == TEXT_MAX


@pytest.mark.parametrize(
    "answer", [{}, {"top": "x"}, {"top": [1]}, {"outputs": [1]}, {"answer": 3}]
)
def test_any_object_can_be_shown(answer: dict[str, Any]) -> None:
    """An answer of unknown shape is shown as JSON."""
    assert isinstance(render_answer(answer), str)
    assert "\n" not in first_line(answer)


def test_a_line_has_the_best_label() -> None:
    """One line shows the best label, or all outputs."""
    assert first_line(TOP) == "7 ██████████████████ 0.750"
    assert first_line({"outputs": {"a": 1, "b": [2]}}) == "a 1, b [2]"


COLD = (
    'cold;desc="digits@3 on cpu:0", replica;desc="7afa", queue;dur=180.000, start;dur=12.000, '
    "import;dur=118.4, load;dur=9, first_run;dur=1, decode;dur=0.100, "
    'batch;dur=0.000;desc="1 rows", first_run;dur=7'
)


def test_a_cold_start_is_told_by_its_phases() -> None:
    """The phases of a cold start are shown apart from the times of the request."""
    receipt = read_receipt(COLD)

    assert (receipt.cold, receipt.replica) == ("digits@3 on cpu:0", "7afa")
    assert receipt.phases == {"start": 12.0, "import": 118.4, "load": 9.0, "first_run": 1.0}
    assert receipt.times == {"queue": 180.0, "decode": 0.1, "batch": 0.0}
    assert render_receipt(receipt) == (
        "cold start 140 ms: start 12 · import 118 · load 9 · first_run 1"
        " | queue 180 · decode 0.1 ms"
    )


def test_a_warm_answer_is_told_by_its_times() -> None:
    """A warm answer shows only the times of the request, the first run among them."""
    receipt = read_receipt('replica;desc="r", queue;dur=0.1, decode;dur=0.12, first_run;dur=0.05')

    assert receipt.phases == {}
    assert render_receipt(receipt) == "warm: queue 0.1 · decode 0.12 · first_run 0.05 ms"


@pytest.mark.parametrize(
    "header", ["", "no", "queue;dur=x", "queue;dur=-1", "queue;dur=inf", ";;,,="]
)
def test_a_broken_header_is_left_out(header: str) -> None:
    """A broken Server-Timing header gives an empty receipt and no line."""
    assert read_receipt(header) == Receipt()
    assert render_receipt(read_receipt(header)) == ""


def test_a_cold_start_without_times_is_told_too() -> None:
    """A cold start without some times shows only what is known."""
    assert render_receipt(read_receipt("cold, load;dur=9")) == "cold start 9 ms: load 9"


def test_quotes_in_a_description_are_undone() -> None:
    """A quoted description may contain quotes and commas."""
    assert read_receipt(r'replica;desc="a\"b, c"').replica == 'a"b, c'


def test_the_receipt_as_json_says_whether_it_was_cold() -> None:
    """The JSON receipt has the sum of the phases after a cold start, and null after a warm
    answer."""
    assert read_receipt(COLD).to_json()["cold_start_ms"] == pytest.approx(140.4)
    assert read_receipt("queue;dur=1").to_json() == {
        "cold": False,
        "parked": False,
        "started": "",
        "replica": "",
        "cold_start_ms": None,
        "phases_ms": {},
        "times_ms": {"queue": 1.0},
    }


def test_a_wake_is_no_cold_start() -> None:
    """The line and the JSON receipt say that the call waited for a parked replica."""
    phases = "wake;dur=1900, verify;dur=180"
    receipt = read_receipt(f'cold;desc="llm@1 on GPU-1f", {phases}, queue;dur=2100')

    assert render_receipt(receipt) == (
        "parked, woke in 2.1 s: wake 1900 · verify 180 | queue 2100 ms"
    )
    shown = receipt.to_json()
    assert (shown["cold"], shown["parked"], shown["cold_start_ms"]) == (True, True, 2080.0)
    assert shown["phases_ms"] == {"wake": 1900.0, "verify": 180.0}


def test_another_host_is_named() -> None:
    """The line and the JSON receipt name the host of the replica, unless it is the server's."""
    warm = read_receipt('host;desc="gpu2", replica;desc="r", queue;dur=0.1')

    assert render_receipt(warm) == "warm on gpu2: queue 0.1 ms"
    assert render_receipt(read_receipt(f'{COLD}, host;desc="gpu2"')).startswith(
        "cold start on gpu2 140 ms: start 12 "
    )
    assert warm.to_json()["host"] == "gpu2"


def test_several_gpus_are_counted() -> None:
    """The line of a cold start on several GPUs says how many, and on which other host."""
    cold = COLD.replace("on cpu:0", "on 4 GPUs")

    assert render_receipt(read_receipt(cold)).startswith("cold start on 4 GPUs 140 ms: start 12 ")
    assert render_receipt(read_receipt(f'{cold}, host;desc="gpu2"')).startswith(
        "cold start on 4 GPUs of gpu2 140 ms: start 12 "
    )
