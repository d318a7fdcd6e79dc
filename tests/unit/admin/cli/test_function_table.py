from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from admin.cli.function_table import HEAD, render, row, sleeps_in
from admin.documents.functions import FunctionRow
from tests.support.admin_documents import made

ITEM = made(
    FunctionRow,
    name="digits",
    revision="digits@3",
    state="warm",
    ready=1,
    wanted=2,
    held=4,
    in_flight=5,
    rate=41.26,
    p50_ms=1.2,
    p95_ms=8.4,
    cold_start_ms=183.2,
    ready_in_ms=0,
    sleeps_at_s=1042.0,
)
COLD = replace(
    ITEM,
    name="b",
    state="cold",
    rate=0.0,
    p50_ms=None,
    p95_ms=None,
    cold_start_ms=None,
    ready_in_ms=40,
    sleeps_at_s=None,
)


def test_functions_are_rows() -> None:
    """Each function is a row, with a dash for unknown values; those that are gone come last."""
    waking = replace(COLD, name="c", state="waking", phase="load", ready_in_ms=None)
    parked = replace(COLD, name="e", state="parked", ready_in_ms=2_100)
    verified = replace(parked, state="waking", phase="verify", ready_in_ms=180)
    items = [ITEM, COLD, waking, parked, verified]

    rows = [line.split() for line in render(items, 1000.0, gone=["d"]).split("\n")]

    assert " ".join(rows[0]) == " ".join(HEAD[:-1])
    assert [" ".join(row) for row in rows[1:]] == [
        "digits digits@3 warm 1/2 4 5 41 1.2 ms 8.4 ms 183 ms now 42 s",
        "b digits@3 cold 1/2 4 5 0 - - - ~40 ms -",
        "c digits@3 waking: load 1/2 4 5 0 - - - - -",
        "e digits@3 parked 1/2 4 5 0 - - - ~2.1 s -",
        "e digits@3 waking: verify 1/2 4 5 0 - - - ~180 ms -",
        "d gone -/- - - 0 - - - - -",
    ]


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, "warm"),
        ({"golden": "wrong"}, "warm: wrong answers"),
        ({"trouble": "it refuses connections"}, "warm: not answering"),
        ({"golden": "wrong", "trouble": "it refuses connections"}, "warm: not answering"),
    ],
)
def test_a_server_in_trouble_is_told(fields: dict[str, Any], shown: str) -> None:
    """Beside the state, the worse of both troubles; `fnctl why` has the reason."""
    assert row(replace(ITEM, **fields), 0.0)[2] == shown


def test_functions_with_a_reserved_user_id_are_told_below() -> None:
    """Each is a line with what its server may run as; all others are rows only."""
    root = replace(ITEM, name="web", reserved_user="root (user id 0)")

    shown = render([ITEM, root, COLD], 1000.0).split("\n")

    assert shown[4:] == ["web may run as root (user id 0)"]


def test_a_narrow_terminal_goes_without_some_columns() -> None:
    """A narrow terminal leaves out the least important columns; a pipe has all of them."""
    widths = [max(map(len, render([ITEM, COLD], 1000.0, room).split("\n"))) for room in (60, 80)]

    assert widths[0] <= 60
    assert widths[0] < widths[1] <= 80
    head = render([ITEM], 1000.0, 80).split("\n")[0]
    assert "P50" not in head
    assert head.split()[-2:] == ["SLEEPS", "IN"]
    assert "READY IN" in render([ITEM], 1000.0, 1)


def test_when_a_replica_goes_needs_a_clock() -> None:
    """Without the server's clock the time to sleep is unknown; a time in the past is 0 s."""
    found = [sleeps_in(1042.0, 0.0), sleeps_in(1042.0, 2000.0), sleeps_in(1600.0, 1000.0)]

    assert found == ["-", "0 s", "10.0 min"]
