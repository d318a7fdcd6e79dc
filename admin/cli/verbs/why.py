"""fnctl why."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from admin.cli.errors import failures
from admin.cli.options import Session, connected
from admin.cli.verbs.show import Name
from admin.text import ago, bar, duration, get, number
from runtime_image.contract.control import PHASES

DECISIONS_MAX = 10
ERRORS_MAX = 5
COLD_STARTS_MAX = 3
WIDTH = 40
"""Columns of a waterfall."""


@connected
def why(session: Session, name: Name) -> None:
    """Say why a function is as it is.

    Its last decisions with their reasons, its last errors, and its last cold starts by phases.

    \b
    Example:
      fnctl why digits
    """
    answer = {**session.client.why(name), "errors": session.client.errors(name)}
    session.answer(answer, lambda: render(answer, datetime.now(UTC).timestamp()))
    if answer.get("state") == "failing":
        session.next(f"fnctl logs {name}")


def render(answer: dict[str, Any], now_s: float) -> str:
    """The answer as text; `now_s` in Unix seconds. What is last in a list is last in time."""
    parts = [f"{get(answer, 'state')}: {get(answer, 'reason')}"]
    blocked = get(answer, "blocked")
    if blocked and blocked != get(answer, "reason"):
        parts[0] += f"\nblocked: {blocked}"
    if batching := get(answer, "batching"):
        parts[0] += f"\nbatching: {batching}"
    decisions = sorted(answer.get("decisions") or [], key=_at_s)[-DECISIONS_MAX:]
    if decisions:
        lines = [f"  {ago(_at_s(each), now_s):<12}  {get(each, 'text')}" for each in decisions]
        parts.append("\n".join(["decisions", *lines]))
    if errors := failures(answer.get("errors") or [], now_s, ERRORS_MAX):
        parts.append(errors)
    cold_starts = sorted(answer.get("cold_starts") or [], key=_at_s)[-COLD_STARTS_MAX:]
    if cold_starts:
        shown = [waterfall(each, now_s) for each in cold_starts]
        parts.append("\n".join(["cold starts", *shown]))
    return "\n\n".join(parts)


def waterfall(cold_start: dict[str, Any], now_s: float) -> str:
    """One cold start: a line, then a bar for each phase that begins where the last one ended."""
    phases = {
        name: float(ms) for name, ms in (cold_start.get("phases") or {}).items() if float(ms) > 0
    }
    whole_ms = sum(phases.values()) or 1.0
    head = [
        ago(_at_s(cold_start), now_s),
        duration(float(cold_start.get("total_ms") or 0)),
        f"on {get(cold_start, 'device_kind')}",
        f"revision {get(cold_start, 'number')}",
        get(cold_start, "outcome"),
    ]
    lines = ["  " + "  ".join(head)]
    width = max(map(len, phases), default=0)
    before_ms = 0.0
    for name in [*(n for n in PHASES if n in phases), *(n for n in phases if n not in PHASES)]:
        offset = " " * int(before_ms / whole_ms * WIDTH)
        drawn = (offset + (bar(phases[name] / whole_ms, WIDTH) or "▏")).ljust(WIDTH + 1)
        lines.append(f"    {name.ljust(width)}  {drawn}  {number(phases[name])} ms")
        before_ms += phases[name]
    return "\n".join(lines)


def _at_s(item: dict[str, Any]) -> float:
    return float(item.get("at_s") or 0)
