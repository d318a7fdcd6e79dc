"""A function's answer as text: the best labels as bars, else the outputs shortened. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from admin.cli.text import bar, one_line

BAR_WIDTH: Final = 24
ROWS_MAX: Final = 8
TEXT_MAX: Final = 72
"""Characters of one output's value."""
_ITEMS: Final = 6
_DEPTH_MAX: Final = 4


def render(answer: dict[str, Any]) -> str:
    """A short JSON answer: {"outputs": {...}, "top": [[{"label", "score"}]], "revision": ...}.

    Any other object is shown by its keys.
    """
    top = answer.get("top")
    if isinstance(top, list) and top:
        return "\n".join(_rows(top))
    outputs = answer.get("outputs", answer)
    if not isinstance(outputs, dict):
        return shorten(outputs)
    width = max((len(name) for name in outputs), default=0)
    return "\n".join(f"{name.ljust(width)}  {shorten(value)}" for name, value in outputs.items())


def first_line(answer: dict[str, Any]) -> str:
    """The answer in a line: the best label with its score, else the outputs."""
    return one_line(render(answer).split("\n")[0]) if answer.get("top") else _outputs(answer)


def shorten(value: Any) -> str:
    """JSON with long lists cut, their lengths told, in at most `TEXT_MAX` characters."""
    text = json.dumps(_cut(value, _DEPTH_MAX), ensure_ascii=False).replace('"…"', "…")
    text = text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
    shape = _shape(value)
    return f"{text}  [{' x '.join(map(str, shape))}]" if len(shape) > 1 or "…" in text else text


def _outputs(answer: dict[str, Any]) -> str:
    outputs = answer.get("outputs", answer)
    if not isinstance(outputs, dict):
        return shorten(outputs)
    return ", ".join(f"{name} {shorten(value)}" for name, value in outputs.items())


def _rows(top: list[Any]) -> Iterator[str]:
    rows = [row for row in top if isinstance(row, list)]
    for index, row in enumerate(rows[:ROWS_MAX]):
        if len(rows) > 1:
            yield f"row {index}"
        best = [each for each in row if isinstance(each, dict)]
        labels = [str(each.get("label", "")) for each in best]
        scores = [_score(each.get("score")) for each in best]
        width = max(map(len, labels), default=0)
        most = max([1.0, *scores])
        for label, score in zip(labels, scores, strict=True):
            shown = bar(score / most, BAR_WIDTH).ljust(BAR_WIDTH)
            yield f"{label.ljust(width)}  {shown}  {score:.3f}"
    if len(rows) > ROWS_MAX:
        yield f"… and {len(rows) - ROWS_MAX} more rows"


def _score(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _cut(value: Any, depth: int) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, list):
        if depth == 0:
            return "…"
        kept = [_cut(item, depth - 1) for item in value[:_ITEMS]]
        return kept if len(value) <= _ITEMS else [*kept, "…"]
    if isinstance(value, dict):
        return {key: _cut(item, depth - 1) for key, item in value.items()} if depth else "…"
    return value


def _shape(value: Any) -> list[int]:
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    return shape
