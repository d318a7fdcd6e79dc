from __future__ import annotations

from typing import Any

import pytest

from admin.cli.render import TEXT_MAX, first_line, render_answer, shorten

TOP = {"top": [[{"label": "7", "score": 0.75}, {"label": "ten", "score": 0.25}]], "outputs": {}}


def test_the_best_labels_are_bars() -> None:
    """Each of the best labels has a bar of its share and its score."""
    assert render_answer(TOP).split("\n") == [
        "7    ██████████████████        0.750",
        "ten  ██████                    0.250",
    ]


def test_rows_are_told_apart_and_bounded() -> None:
    """Several rows are numbered, and of many rows the first are shown."""
    shown = render_answer({"top": TOP["top"] * 10}).split("\n")  # type: ignore[operator] # a list

    assert (shown[0], shown[3], shown[-1]) == ("row 0", "row 1", "… and 2 more rows")


def test_scores_above_one_are_scaled() -> None:
    """Where scores are no shares, the largest fills the bar."""
    shown = render_answer({"top": [[{"label": "a", "score": 20}, {"label": "b", "score": -5}]]})

    assert shown.split("\n")[0] == "a  ████████████████████████  20.000"
    assert shown.split("\n")[1] == "b                            -5.000"


def test_outputs_are_shortened() -> None:
    """Without labels the outputs are shown by name, cut, with their shape."""
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
    """A value is shown as JSON, deep and long ones with an ellipsis."""
    assert shorten(value).startswith(shown)


def test_a_long_text_is_cut() -> None:
    """No value takes more than its line."""
    assert len(shorten("x" * 1000).split("  ")[0]) == TEXT_MAX


@pytest.mark.parametrize(
    "answer", [{}, {"top": "x"}, {"top": [1]}, {"outputs": [1]}, {"answer": 3}]
)
def test_any_object_can_be_shown(answer: dict[str, Any]) -> None:
    """An answer of another shape is shown as it is."""
    assert isinstance(render_answer(answer), str)
    assert "\n" not in first_line(answer)


def test_a_line_has_the_best_label() -> None:
    """In one line there is the best label, or all outputs."""
    assert first_line(TOP) == "7 ██████████████████ 0.750"
    assert first_line({"outputs": {"a": 1, "b": [2]}}) == "a 1, b [2]"
