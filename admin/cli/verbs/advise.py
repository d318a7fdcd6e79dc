"""fnctl advise."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from admin import documents as d
from admin.cli.options import Session, connected
from admin.cli.verbs.show import Name
from admin.client import routes
from admin.text import duration, number, table

Hours = Annotated[
    int, typer.Option("--hours", min=1, max=24 * 7, metavar="HOURS", help="Hours to look back.")
]
DAY_S: Final = 86_400.0
HOUR_S: Final = 3600.0
SAVED_MIN: Final = 0.1
"""Share of the device-seconds that a change must save, or may cost, to matter."""
WAITED_MIN: Final = 0.5
"""Share of the waiting time that a change must save to be recommended."""
WAITED_MIN_S: Final = 10.0
"""Seconds of waiting per day below which a difference does not count."""


@connected
def advise(session: Session, name: Name, hours: Hours = 24) -> None:
    """Show what other idle times would have cost and saved.

    Replays the requests of the last hours through the rules that start and stop replicas, for
    several idle times. Takes up to two minutes of spare processor time.

    \b
    Example:
      fnctl advise digits --hours 24
    """
    session.show(
        session.client.call(routes.ADVICE, name, hours=hours),
        render,
        lambda advice: (
            [f"fnctl scale {name} --idle {best.idle_s:g}"] if (best := better(advice)) else []
        ),
    )


def render(advice: d.history.Advice) -> str:
    """Render the answer: its basis, a table, a recommendation, and notes."""
    basis, length_s = advice.basis, _length_s(advice)
    notes = "\n".join(f"note: {text}" for text in advice.notes)
    if not advice.rows:
        return notes
    how = f"{basis.cold_starts_seen} seen" if basis.cold_starts_seen else "estimated"
    head = (
        f"{advice.requests} requests in {length_s / HOUR_S:.1f} h; a cold start takes"
        f" {duration(basis.cold_start_ms)} ({how}), a run {duration(basis.run_ms)}"
    )
    current = _current(advice)
    columns = ("IDLE", "COLD STARTS", "WAITED", "REQUESTS", "DEVICE", "OF IT IDLE", "A DAY")
    shown = [_cells(row, current, length_s) for row in advice.rows]
    return "\n\n".join(
        part for part in (head, table(("", *columns), shown), sentence(advice), notes) if part
    )


def better(advice: d.history.Advice) -> d.history.AdviceRow | None:
    """Return the row that is clearly better than the current one, if any.

    Either it uses a tenth less of the device for at most 10 s more waiting per day, or it has half
    the waiting (and at least 10 s per day less) for at most a tenth more of the device.
    """
    current = _current(advice)
    if current is None:
        return None
    least_s = WAITED_MIN_S * _length_s(advice) / DAY_S
    cheaper = [
        row
        for row in advice.rows
        if row.waited_s <= current.waited_s + least_s
        and row.device_s <= (1 - SAVED_MIN) * current.device_s
    ]
    if cheaper:
        return min(cheaper, key=lambda row: (row.device_s, row.idle_s))
    quicker = [
        row
        for row in advice.rows
        if row.waited_s <= WAITED_MIN * current.waited_s
        and current.waited_s - row.waited_s >= least_s
        and row.device_s <= (1 + SAVED_MIN) * current.device_s
    ]
    return min(quicker, key=lambda row: (row.waited_s, row.idle_s)) if quicker else None


def sentence(advice: d.history.Advice) -> str:
    """Return the recommendation in one sentence."""
    current, best = _current(advice), better(advice)
    if current is None:
        return ""
    if best is None:
        return (
            f"idle {current.idle_s:g} s is already a good choice: less device time would mean"
            " more waiting, less waiting more device time"
        )
    a_day = DAY_S / _length_s(advice)
    saved_h = (current.device_s - best.device_s) * a_day / HOUR_S
    waits_s = (current.waited_s - best.waited_s) * a_day
    device = f"{'saves' if saved_h >= 0 else 'takes'} {number(abs(saved_h))} device-hours a day"
    waiting = f"{duration(abs(waits_s) * 1e3)} {'less' if waits_s >= 0 else 'more'} waiting"
    return f"idle {best.idle_s:g} s {device}, with {waiting if waits_s else 'the same waiting'}"


def _cells(
    row: d.history.AdviceRow, current: d.history.AdviceRow | None, length_s: float
) -> tuple[str, ...]:
    difference = ""
    if current is not None and not row.is_current:
        hours = (row.device_s - current.device_s) * DAY_S / length_s / HOUR_S
        waits_s = (row.waited_s - current.waited_s) * DAY_S / length_s
        difference = f"{_signed(hours)} device-h, {_signed(waits_s)} s waited"
    return (
        "now" if row.is_current else "",
        f"{row.idle_s:g} s",
        str(row.cold_starts),
        duration(row.waited_s * 1e3),
        str(row.held),
        _length(row.device_s),
        _length(row.idle_device_s),
        difference,
    )


def _current(advice: d.history.Advice) -> d.history.AdviceRow | None:
    return next((row for row in advice.rows if row.is_current), None)


def _length_s(advice: d.history.Advice) -> float:
    return max(60.0, advice.to_s - advice.from_s)


def _length(seconds: float) -> str:
    return f"{seconds / HOUR_S:.1f} h" if seconds >= HOUR_S else duration(seconds * 1e3)


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{number(abs(value))}"
