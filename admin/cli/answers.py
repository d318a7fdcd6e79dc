"""Rendering of a function's answer for `fnctl invoke`: labels as bars or shortened outputs, and the
receipt from its Server-Timing header (W3C Server Timing). Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from admin.text import bar, duration, number, one_line
from runtime_image.contract.control import PHASES, WAKE_PHASES

BAR_WIDTH: Final = 24
ROWS_MAX: Final = 8
TEXT_MAX: Final = 72
"""Max characters of one output's value."""
_ITEMS: Final = 6
_DEPTH_MAX: Final = 4
HEADER_MAX: Final = 8192
"""Max characters read of a header."""
_METRIC: Final = re.compile(
    r"""\s*([\w.!#$%&'*+^`|~-]+)((?:\s*;\s*[\w-]+\s*=\s*(?:"(?:[^"\\]|\\.)*"|[^\s",;]*))*)\s*(?:,|$)"""
)
_PARAMETER: Final = re.compile(r"""([\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",;]*))""")
_LEAST_MS: Final = 0.0005
"""Shorter times are left out: the header has three decimals."""


def render_answer(answer: dict[str, Any]) -> str:
    """Render a short JSON answer: {"outputs": {...}, "top": [[{"label", "score"}]], ...}.

    Any other object is rendered by its keys.
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
    """Return the answer in one line: the best label with its score, else the outputs."""
    return one_line(render_answer(answer).split("\n")[0]) if answer.get("top") else _outputs(answer)


def shorten(value: Any) -> str:
    """Return JSON of at most `TEXT_MAX` characters; shortened lists are followed by their shape."""
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


@dataclass(frozen=True, slots=True)
class Receipt:
    """Times of a request in ms. `cold` is like "digits@3 on cpu:0" after a cold start, else "".

    `host`: the replica's host, "" for the server's machine.
    """

    cold: str = ""
    replica: str = ""
    phases: dict[str, float] = field(default_factory=dict)
    """Phases of the cold start."""
    times: dict[str, float] = field(default_factory=dict)
    """Phases of this request."""
    host: str = ""

    @property
    def is_wake(self) -> bool:
        """Whether a parked replica woke for the request."""
        return not self.phases.keys().isdisjoint(WAKE_PHASES)

    @property
    def cold_ms(self) -> float:
        """Duration of the whole cold start or wake."""
        return sum(self.phases.values())

    def to_json(self) -> dict[str, Any]:
        """Return the receipt as plain JSON data."""
        return {
            "cold": bool(self.cold),
            "parked": self.is_wake,
            "started": self.cold,
            "replica": self.replica,
            "cold_start_ms": round(self.cold_ms, 3) if self.cold else None,
            "phases_ms": self.phases,
            "times_ms": self.times,
            **({"host": self.host} if self.host else {}),
        }


def read_receipt(header: str) -> Receipt:
    """Parse the receipt in a Server-Timing header; invalid parts are ignored."""
    cold = replica = host = ""
    phases: dict[str, float] = {}
    times: dict[str, float] = {}
    metrics = [(m[1], _parameters(m[2])) for m in _METRIC.finditer(header[:HEADER_MAX])]
    is_cold = any(name == "cold" for name, _ in metrics)
    for name, parameters in metrics:
        ms = _ms(parameters.get("dur", ""))
        if name == "cold":
            cold = parameters.get("desc", "") or "cold"
        elif name == "replica":
            replica = parameters.get("desc", "")
        elif name == "host":
            host = parameters.get("desc", "")
        elif ms is not None:
            # Without a cold start a first run belongs to the request itself.
            into = phases if is_cold and name in PHASES else times
            into.setdefault(name, ms)
    return Receipt(cold, replica, phases, times, host)


_GPUS: Final = re.compile(r" on [0-9]+ GPUs\Z")
"""End of `Receipt.cold` for a replica on several GPUs."""


def render_receipt(receipt: Receipt) -> str:
    """Render as one line: "cold start 183 ms: start 12 · load 9 | queue 180 ms", "warm: ...", or
    "parked, woke in 2.1 s: wake 1900 · verify 180 | queue 2.1 s"."""
    times = _list(receipt.times)
    where = f" on {receipt.host}" if receipt.host else ""
    if not receipt.cold:
        return f"warm{where}: {times}" if times else ""
    if gpus := _GPUS.search(receipt.cold):
        where = f"{gpus[0]} of {receipt.host}" if receipt.host else gpus[0]
    kind = f"parked{where}, woke in" if receipt.is_wake else f"cold start{where}"
    cold = f"{kind} {duration(receipt.cold_ms)}: {_list(receipt.phases, unit='')}"
    return f"{cold} | {times}" if times else cold


def _list(times: dict[str, float], unit: str = " ms") -> str:
    shown = [f"{name} {number(ms)}" for name, ms in times.items() if ms >= _LEAST_MS]
    return " · ".join(shown) + unit if shown else ""


def _parameters(text: str) -> dict[str, str]:
    return {
        match[1].lower(): re.sub(r"\\(.)", r"\1", match[2]) if match[2] is not None else match[3]
        for match in _PARAMETER.finditer(text)
    }


def _ms(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None
