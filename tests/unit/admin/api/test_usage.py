"""Tests of the usage over the admin API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from admin.api.usage import since_s
from registry.errors import BadRequest
from registry.usage import HOUR_S, OTHERS, UsageRow, bucket_of
from tests.support.server import ServingServer

NOW_S = datetime(2026, 11, 23, 12, 40, tzinfo=UTC).timestamp()


async def add(server: ServingServer, key: str, name: str, calls: int = 1) -> None:
    """Store usage in the current hour."""
    store = server.server.store.usage
    span = (await server.admin("GET", "/usage")).json()
    bucket_s = bucket_of(span["to_s"])
    store.add(UsageRow(key, "default", name, bucket_s, 7 * calls, 3 * calls, calls, 1))
    assert await store.flush()


def sums(calls: int, rows: int = 1) -> dict[str, int]:
    """Return the numbers of that many calls in that many rows."""
    return {
        "tokens_in": 7 * calls,
        "tokens_out": 3 * calls,
        "calls": calls,
        "unknown": rows,
    }


async def test_usage_by_function(server: ServingServer) -> None:
    """Functions are listed by tokens; a removed one says so; the sum has all."""
    await add(server, "", "digits")
    await add(server, "", "gone", 5)

    found = (await server.admin("GET", "/usage")).json()

    assert found["items"] == [
        {"function": "gone", "removed": True, **sums(5)},
        {"function": "digits", "removed": False, **sums(1)},
    ]
    assert (found["by"], found["total"], found["left_out"]) == ("function", sums(6, 2), 0)
    assert found["from_s"] == bucket_of(found["to_s"]) - 24 * HOUR_S


async def test_usage_by_key(server: ServingServer) -> None:
    """Keys are listed with their notes: also those that were removed, the token, and none."""
    made = (await server.admin("POST", "/keys", {"scopes": ["invoke"], "note": "shop"})).json()
    token = server.server.store.ring.token_id
    for calls, key in enumerate(("", token, "0123456789ab", made["id"]), 1):
        await add(server, key, "digits", calls)
    await add(server, OTHERS, OTHERS, 9)

    found = (await server.admin("GET", "/usage?by=key&since=7d&function=digits")).json()

    assert [(one["key"], one["note"], one["removed"]) for one in found["items"]] == [
        (made["id"], "shop", False),
        ("0123456789ab", "", True),
        (token, "admin token", False),
        ("", "", False),
    ]
    assert found["total"] == sums(10, 4)


async def test_usage_needs_the_scope_read(server: ServingServer) -> None:
    """A key that may only invoke reads no usage, not even of its own function."""
    answers = {}
    for scope in ("invoke", "invoke:digits", "read"):
        made = (await server.admin("POST", "/keys", {"scopes": [scope]})).json()
        header = {"Authorization": f"Bearer {made['secret']}"}
        answers[scope] = (await server.request("GET", "/admin/v1/usage", None, header)).status

    assert answers == {"invoke": 403, "invoke:digits": 403, "read": 200}


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("by=model", "by: expected key or function, got 'model'"),
        ("since=2030-01-01", "since: expected a date that has come in UTC, got 2030-01-01"),
        ("since=x", "since: expected hours, days or a date, such as 24h, 7d or 2026-11-01"),
        ("function=No%20Name", "expected"),
    ],
)
async def test_a_bad_question_is_refused(server: ServingServer, query: str, text: str) -> None:
    """What cannot be understood is a 400 that says what can."""
    answer = await server.admin("GET", f"/usage?{query}")

    assert answer.status == 400
    assert text in answer.problem["detail"]


@pytest.mark.parametrize(
    ("text", "hours"),
    [("1h", 1), ("24h", 24), ("7d", 168), ("2026-11-23", 12), ("2026-11-01", 22 * 24 + 12)],
)
def test_a_span_begins_with_an_hour(text: str, hours: int) -> None:
    """Hours and days are counted back from now, dates begin at midnight in UTC."""
    assert since_s(text, NOW_S) == bucket_of(NOW_S) - hours * HOUR_S


def test_a_span_does_not_begin_before_time() -> None:
    """A span longer than Unix time begins with it."""
    assert since_s("99999d", NOW_S) == 0
    assert since_s("0001-01-01", NOW_S) == 0


@pytest.mark.parametrize(
    "text",
    ["", "0h", "h", "7", "7w", "-1d", "1.5h", "100000h", "2026-13-01", "20261101", "2026-1-1"],
)
def test_a_bad_span_is_refused(text: str) -> None:
    """Anything else is refused."""
    wanted: Any = pytest.raises(BadRequest, match="since: expected hours, days or a date")
    with wanted:
        since_s(text, NOW_S)
