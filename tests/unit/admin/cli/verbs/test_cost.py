"""Tests of fnctl cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from tests.support.admin_api import AdminApi, Canned

COST = "/admin/v1/cost"
NUMBERS: dict[str, Any] = {
    "waking_s": 0.0,
    "idle_s": 100.0,
    "busy_s": 50.0,
    "held_s": 7200.0,
    "no_counter_s": 0.0,
    "unpriced_s": 0.0,
    "joules": 5.4e6,
    "device_cost": 7.8,
    "energy_cost": 0.45,
    "cost": 8.25,
}
SLOT = {**NUMBERS, "no_counter_s": 600.0, "held_s": 600.0, "joules": None, "energy_cost": None}
ANSWER: dict[str, Any] = {
    "by": "function",
    "from_s": 1_793_491_200,  # 2026-11-01 00:00
    "to_s": 1_793_500_000.0,
    "currency": "EUR",
    "items": [
        {"function": "qwen", "removed": False, **NUMBERS},
        {"function": "gone", "removed": True, **SLOT, "device_cost": 0.00006, "cost": 0.0067},
        {"function": "_idle", "removed": False, **NUMBERS, "busy_s": 0, "joules": 360.0},
    ],
    "left_out": 0,
    "total": {**NUMBERS, "no_counter_s": 600.0, "unpriced_s": 9000.0},
    "next": None,
}


def test_costs_by_function(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Functions with device time, energy and money; time without a counter or price is noted."""
    api.on("GET", COST, Canned(ANSWER))
    result = fnctl("cost")

    assert api.requests[0].query == {"by": "function", "since": "24h"}
    assert result.stdout.splitlines() == [
        "FUNCTION        BUSY    HELD      ENERGY      DEVICES  ELECTRICITY  EUR",
        "qwen            50.0 s  2.0 h     1.50 kWh    7.80     0.45         8.25",
        "gone (removed)  50.0 s  10.0 min  no counter  <0.0001  -            0.0067",
        "idle            0.0 s   2.0 h     0.1 Wh      7.80     0.45         8.25",
        "total           50.0 s  2.0 h     1.50 kWh    7.80     0.45         8.25",
        "since 2026-11-01 00:00 UTC",
        "energy is that of GPUs with a counter; CPU slots have none",
        "2.5 h of devices have no price in FN_PRICE_DEVICE_HOUR",
    ]


def test_costs_by_key(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Keys have their notes; the rest says what it is."""
    items = [
        {"key": "k1", "note": "shop", "removed": False, **NUMBERS},
        {"key": "k2", "note": "", "removed": True, **NUMBERS},
        {"key": "", "note": "", "removed": False, **NUMBERS},
        {"key": "_by_no_key", "note": "", "removed": False, **NUMBERS},
        {"key": "_others", "note": "", "removed": False, **NUMBERS},
        {"key": "_idle", "note": "", "removed": False, **NUMBERS},
    ]
    api.on("GET", COST, Canned({**ANSWER, "by": "key", "items": items, "left_out": 12}))
    result = fnctl("cost", "qwen", "--by", "key", "--since", "7d")

    assert api.requests[0].query == {"by": "key", "since": "7d", "function": "qwen"}
    assert [line.split("  50.0 s")[0].rstrip() for line in result.stdout.splitlines()[1:9]] == [
        "k1        shop",
        "k2        removed",
        "none",
        "no calls",
        "others",
        "idle",
        "12 more",
        "total",
    ]


def test_costs_without_prices(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Time and energy are shown, and how money would be."""
    bare = {**SLOT, "device_cost": None, "cost": None, "unpriced_s": 600.0}
    items = [{"function": "digits", "removed": False, **bare}]
    api.on("GET", COST, Canned({**ANSWER, "currency": None, "items": items, "total": bare}))

    assert fnctl("cost").stdout.splitlines() == [
        "FUNCTION  BUSY    HELD      ENERGY",
        "digits    50.0 s  10.0 min  no counter",
        "total     50.0 s  10.0 min  no counter",
        "since 2026-11-01 00:00 UTC",
        "no prices: set FN_PRICE_DEVICE_HOUR and FN_PRICE_KWH",
    ]


def test_no_costs(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Nothing is no empty table."""
    api.on("GET", COST, Canned({**ANSWER, "items": []}))

    late = "since 2026-11-01 00:00 UTC; the last seconds are missing\n"
    assert fnctl("cost").stdout == f"there was no device {late}"
    assert fnctl("cost", "f").stdout == f"f held no device {late}"


def test_costs_as_json(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """The answer is printed as it is."""
    api.on("GET", COST, Canned(ANSWER))

    assert json.loads(fnctl("cost", "--json").stdout) == ANSWER


@pytest.mark.parametrize("words", [("--by", "model"), ("--by", "")])
def test_a_wrong_grouping_is_refused(fnctl: Callable[..., Result], words: tuple[str, ...]) -> None:
    """What can be listed is a closed set."""
    assert fnctl("cost", *words).exit_code == 2
