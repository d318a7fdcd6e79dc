"""Tests of fnctl usage."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from tests.support.admin_api import AdminApi, Canned

USAGE = "/admin/v1/usage"
NUMBERS = {"tokens_in": 7_000_000, "tokens_out": 300, "calls": 12, "unknown": 1}
ANSWER: dict[str, Any] = {
    "by": "function",
    "from_s": 1_793_491_200,  # 2026-11-01 00:00
    "to_s": 1_793_500_000.0,
    "items": [
        {"function": "qwen", "removed": False, **NUMBERS},
        {"function": "gone", "removed": True, **NUMBERS, "calls": 3},
        {"function": "_others", "removed": True, **NUMBERS, "calls": 1},
    ],
    "left_out": 0,
    "total": {**NUMBERS, "calls": 16},
    "next": None,
}


def test_usage_by_function(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """By default the functions of the last day are listed, with their sum."""
    api.on("GET", USAGE, Canned(ANSWER))

    result = fnctl("usage")

    assert api.requests[0].query == {"by": "function", "since": "24h"}
    assert result.stdout.splitlines() == [
        "FUNCTION        CALLS  TOKENS IN  TOKENS OUT  UNKNOWN",
        "qwen            12     7,000,000  300         1",
        "gone (removed)  3      7,000,000  300         1",
        "others          1      7,000,000  300         1",
        "total           16     7,000,000  300         1",
        "since 2026-11-01 00:00 UTC",
    ]


def test_usage_by_key(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Keys have their notes; removed ones and calls without a key say so; the rest is counted."""
    items = [
        {"key": "k1", "note": "shop", "removed": False, **NUMBERS},
        {"key": "k2", "note": "", "removed": True, **NUMBERS},
        {"key": "", "note": "", "removed": False, **NUMBERS},
        {"key": "_others", "note": "", "removed": True, **NUMBERS},
    ]
    api.on("GET", USAGE, Canned({**ANSWER, "by": "key", "items": items, "left_out": 1234}))

    result = fnctl("usage", "qwen", "--by", "key", "--since", "2026-11-01")

    assert api.requests[0].query == {"by": "key", "since": "2026-11-01", "function": "qwen"}
    assert [line.split("  12 ")[0].rstrip() for line in result.stdout.splitlines()] == [
        "KEY        NOTE            CALLS  TOKENS IN  TOKENS OUT  UNKNOWN",
        "k1         shop",
        "k2         removed",
        "none",
        "others     not told apart",
        "1234 more",
        "total                      16     7,000,000  300         1",
        "since 2026-11-01 00:00 UTC",
    ]


def test_no_usage(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Nothing is no empty table."""
    api.on("GET", USAGE, Canned({**ANSWER, "items": []}))

    assert fnctl("usage").stdout == "no calls of /v1 since 2026-11-01 00:00 UTC\n"


def test_usage_as_json(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """The answer is printed as it is."""
    api.on("GET", USAGE, Canned(ANSWER))

    assert json.loads(fnctl("usage", "--json").stdout) == ANSWER


@pytest.mark.parametrize("words", [("--by", "model"), ("--by", "")])
def test_wrong_usage_is_refused(fnctl: Callable[..., Result], words: tuple[str, ...]) -> None:
    """What can be listed is a closed set."""
    result = fnctl("usage", *words)

    assert result.exit_code == 2
    assert "'function', 'key'" in result.stderr


def test_a_bad_span_is_explained(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """The server's reason is shown."""
    text = "since: expected hours, days or a date, such as 24h, 7d or 2026-11-01, got 'soon'"
    api.on("GET", USAGE, Canned({"code": "bad_request", "detail": text}, 400))

    result = fnctl("usage", "--since", "soon")

    assert result.exit_code != 0
    assert text in result.stderr
