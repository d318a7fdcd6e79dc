"""fnctl usage, fnctl cost."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final

import typer

from admin import documents as d
from admin.cli.completion import OnlyFunction
from admin.cli.options import Session, connected
from admin.client import routes
from admin.text import NONE, table

NUMBERS: Final = ("CALLS", "TOKENS IN", "TOKENS OUT", "UNKNOWN")
OTHERS: Final = "_others"
NAMES: Final = {"_idle": "idle", "_by_no_key": "no calls", OTHERS: "others"}
JOULES_PER_WH: Final = 3600
NO_COUNTER: Final = "no counter"
SHOWN_LEAST: Final = 0.0001
"""Least amount of money that is shown as a number."""


class By(StrEnum):
    """Grouping of the usage."""

    FUNCTION = "function"
    KEY = "key"


Grouping = Annotated[By, typer.Option(help="Grouping of the rows.")]
Since = Annotated[
    str, typer.Option(help="Hours or days until now, or the first day (UTC): 24h, 7d, 2026-11-01.")
]


@connected
def usage(
    session: Session,
    name: OnlyFunction = "",
    by: Grouping = By.FUNCTION,
    since: Since = "24h",
) -> None:
    """Show the use of the models of /v1, by function or by key.

    TOKENS IN and TOKENS OUT are what the functions' servers said. UNKNOWN are calls that broke off,
    or whose answers said no tokens; nothing is estimated. Whole hours count, and the last seconds
    are missing. Functions and keys that were removed stay.

    \b
    Examples:
      fnctl usage
      fnctl usage --by key --since 7d
    """
    found = session.client.call(routes.USAGE, by=by.value, since=since, function=name)
    session.show(found, render)


def render(usage: d.history.Usage) -> str:
    """Render the answer: a table with the sum below, and what is not listed."""
    is_by_key, since = usage.by == "key", _since(usage.from_s)
    if not usage.items:
        return f"no calls of /v1 {since}"
    head = ("KEY", "NOTE") if is_by_key else ("FUNCTION",)
    rows = [
        [*(_key(item) if is_by_key else _function(item)), *_numbers(item)] for item in usage.items
    ]
    if usage.left_out:
        rows.append([f"{usage.left_out} more", *[""] * (len(head) + len(NUMBERS) - 1)])
    rows.append(["total", *[""] * (len(head) - 1), *_numbers(usage.total)])
    return f"{table((*head, *NUMBERS), rows)}\n{since}"


def _since(from_s: float) -> str:
    return f"since {datetime.fromtimestamp(from_s, UTC):%Y-%m-%d %H:%M} UTC"


def _key(item: d.history.UsageItem) -> tuple[str, str]:
    if item.key == OTHERS:
        return "others", "not told apart"
    return item.key or "none", "removed" if item.removed else item.note or ""


def _function(item: d.history.UsageItem) -> tuple[str]:
    if item.function == OTHERS:
        return ("others",)
    return (f"{item.function} (removed)" if item.removed else item.function or "",)


def _numbers(item: d.history.UsageSums) -> list[str]:
    counts = (item.calls, item.tokens_in, item.tokens_out, item.unknown)
    return [f"{count:,}" for count in counts]


@connected
def cost(
    session: Session,
    name: OnlyFunction = "",
    by: Grouping = By.FUNCTION,
    since: Since = "24h",
) -> None:
    """Show what functions cost: device-seconds, energy and money.

    The price of a device-hour is FN_PRICE_DEVICE_HOUR. HELD is the time that a function had of
    devices; holders of the same device split it, and a replica on 4 GPUs holds 4 seconds each
    second. BUSY is the part in which a model ran. ENERGY is read from the GPUs' counters. "idle" is
    time that no function held. Keys share each function by the time of their calls; "none" are
    calls without a key, "no calls" functions that were held without any. The last seconds are
    missing.

    \b
    Examples:
      fnctl cost
      fnctl cost --by key --since 7d
    """
    found = session.client.call(routes.COST, by=by.value, since=since, function=name)
    session.show(found, lambda costs: render_cost(costs, name))


def render_cost(costs: d.history.Costs, function: str = "") -> str:
    """Render the answer: a table with the sum and notes about missing parts below. `function`: the
    requested one."""
    since, currency, is_by_key = _since(costs.from_s), costs.currency or "", costs.by == "key"
    if not costs.items:
        held = f"{function} held no device" if function else "there was no device"
        return f"{held} {since}; the last seconds are missing"
    head = ["KEY", "NOTE"] if is_by_key else ["FUNCTION"]
    rows = [[*_who(item, is_by_key=is_by_key), *_cells(item, currency)] for item in costs.items]
    titles = [*head, "BUSY", "HELD", "ENERGY"]
    if currency:
        titles += ["DEVICES", "ELECTRICITY", currency]
    if costs.left_out:
        rows.append([f"{costs.left_out} more", *[""] * (len(titles) - 1)])
    rows.append(["total", *[""] * (len(head) - 1), *_cells(costs.total, currency)])
    return "\n".join([table(titles, rows), since, *_notes(costs.total, currency)])


def _who(item: d.history.CostItem, *, is_by_key: bool) -> list[str]:
    id = (item.key if is_by_key else item.function) or ""
    if not is_by_key:
        return [f"{id} (removed)" if item.removed else NAMES.get(id, id)]
    if id in NAMES:
        return [NAMES[id], ""]
    return [id or "none", "removed" if item.removed else item.note or ""]


def _cells(item: d.history.CostSums, currency: str) -> list[str]:
    energy = NO_COUNTER if item.joules is None else _energy(item.joules)
    cells = [_time(item.busy_s), _time(item.held_s), energy]
    if currency:
        cells += [_money(value) for value in (item.device_cost, item.energy_cost, item.cost)]
    return cells


def _notes(whole: d.history.CostSums, currency: str) -> list[str]:
    notes = []
    if whole.joules is not None and whole.no_counter_s > 0:
        notes.append("energy is that of GPUs with a counter; CPU slots have none")
    if not currency:
        notes.append("no prices: set FN_PRICE_DEVICE_HOUR and FN_PRICE_KWH")
    elif whole.unpriced_s > 0:
        notes.append(f"{_time(whole.unpriced_s)} of devices have no price in FN_PRICE_DEVICE_HOUR")
    return notes


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:,.1f} h"


def _energy(joules: float) -> str:
    watt_hours = joules / JOULES_PER_WH
    return f"{watt_hours:.1f} Wh" if watt_hours < 1000 else f"{watt_hours / 1000:,.2f} kWh"


def _money(value: float | None) -> str:
    if value is None:
        return NONE
    if 0 < value < SHOWN_LEAST:
        return f"<{SHOWN_LEAST}"
    return f"{value:,.2f}" if value >= 0.1 or value == 0 else f"{value:.4f}"
