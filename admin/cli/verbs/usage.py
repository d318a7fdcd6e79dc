"""fnctl usage, fnctl cost."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from admin.cli.completion import OnlyFunction
from admin.cli.options import Session, connected
from admin.text import NONE, get, table

NUMBERS: Final = ("calls", "tokens_in", "tokens_out", "unknown")
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
    answer = session.client.usage(by.value, since, name)
    session.answer(answer, lambda: render(answer))


def render(answer: dict[str, Any]) -> str:
    """Render the answer: a table with the sum below, and what is not listed."""
    is_by_key, items = answer.get("by") == "key", answer.get("items") or []
    total, left_out = answer.get("total") or {}, int(answer.get("left_out") or 0)
    begin = datetime.fromtimestamp(float(answer.get("from_s") or 0), UTC)
    since = f"since {begin:%Y-%m-%d %H:%M} UTC"
    if not items:
        return f"no calls of /v1 {since}"
    head = ("KEY", "NOTE") if is_by_key else ("FUNCTION",)
    rows = [[*(_key(item) if is_by_key else _function(item)), *_numbers(item)] for item in items]
    if left_out:
        rows.append([f"{left_out} more", *[""] * (len(head) + len(NUMBERS) - 1)])
    rows.append(["total", *[""] * (len(head) - 1), *_numbers(total)])
    titles = (*head, "CALLS", "TOKENS IN", "TOKENS OUT", "UNKNOWN")
    return f"{table(titles, rows)}\n{since}"


def _key(item: dict[str, Any]) -> tuple[str, str]:
    id = get(item, "key")
    if id == OTHERS:
        return "others", "not told apart"
    note = get(item, "note")
    return id if item.get("key") else "none", "removed" if item.get("removed") else note


def _function(item: dict[str, Any]) -> tuple[str]:
    name = get(item, "function")
    if name == OTHERS:
        return ("others",)
    return (f"{name} (removed)" if item.get("removed") else name,)


def _numbers(item: dict[str, Any]) -> list[str]:
    return [f"{int(item.get(name) or 0):,}" for name in NUMBERS]


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
    answer = session.client.cost(by.value, since, name)
    session.answer(answer, lambda: render_cost(answer, name))


def render_cost(answer: dict[str, Any], function: str = "") -> str:
    """Render the answer: a table with the sum and notes about missing parts below. `function`: the
    requested one."""
    items, whole = answer.get("items") or [], answer.get("total") or {}
    begin = datetime.fromtimestamp(float(answer.get("from_s") or 0), UTC)
    since = f"since {begin:%Y-%m-%d %H:%M} UTC"
    if not items:
        held = f"{function} held no device" if function else "there was no device"
        return f"{held} {since}; the last seconds are missing"
    currency, left_out = str(answer.get("currency") or ""), int(answer.get("left_out") or 0)
    is_by_key = answer.get("by") == "key"
    head = ["KEY", "NOTE"] if is_by_key else ["FUNCTION"]
    rows = [[*_who(item, is_by_key=is_by_key), *_cells(item, currency)] for item in items]
    titles = [*head, "BUSY", "HELD", "ENERGY"]
    if currency:
        titles += ["DEVICES", "ELECTRICITY", currency]
    if left_out:
        rows.append([f"{left_out} more", *[""] * (len(titles) - 1)])
    rows.append(["total", *[""] * (len(head) - 1), *_cells(whole, currency)])
    return "\n".join([table(titles, rows), since, *_notes(whole, currency)])


def _who(item: dict[str, Any], *, is_by_key: bool) -> list[str]:
    id = get(item, "key" if is_by_key else "function")
    removed = bool(item.get("removed"))
    if not is_by_key:
        return [f"{id} (removed)" if removed else NAMES.get(id, id)]
    if id in NAMES:
        return [NAMES[id], ""]
    note = "removed" if removed else get(item, "note")
    return [id if item.get("key") else "none", note]


def _cells(item: dict[str, Any], currency: str) -> list[str]:
    joules = item.get("joules")
    cells = [
        _time(float(item.get("busy_s") or 0)),
        _time(float(item.get("held_s") or 0)),
        NO_COUNTER if joules is None else _energy(float(joules)),
    ]
    if currency:
        cells += [_money(item.get(name)) for name in ("device_cost", "energy_cost", "cost")]
    return cells


def _notes(whole: dict[str, Any], currency: str) -> list[str]:
    notes = []
    if whole.get("joules") is not None and (whole.get("no_counter_s") or 0) > 0:
        notes.append("energy is that of GPUs with a counter; CPU slots have none")
    if not currency:
        notes.append("no prices: set FN_PRICE_DEVICE_HOUR and FN_PRICE_KWH")
    elif (unpriced_s := float(whole.get("unpriced_s") or 0)) > 0:
        notes.append(f"{_time(unpriced_s)} of devices have no price in FN_PRICE_DEVICE_HOUR")
    return notes


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:,.1f} h"


def _energy(joules: float) -> str:
    watt_hours = joules / JOULES_PER_WH
    return f"{watt_hours:.1f} Wh" if watt_hours < 1000 else f"{watt_hours / 1000:,.2f} kWh"


def _money(value: object) -> str:
    if not isinstance(value, int | float):
        return NONE
    if 0 < value < SHOWN_LEAST:
        return f"<{SHOWN_LEAST}"
    return f"{value:,.2f}" if value >= 0.1 or value == 0 else f"{value:.4f}"
