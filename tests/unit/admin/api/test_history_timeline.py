"""What functions and devices did, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from registry.model import Arrivals, StateInterval, Use
from tests.support.server import ServingServer

CALL = {"inputs": {}}


async def test_a_functions_last_hour(server: ServingServer) -> None:
    """States with the one that lasts, device-seconds, requests, and their sums."""
    inside = server.server
    await server.call("digits", CALL)
    inside.manager._use.flush()
    past = inside.store.history
    (state,) = [one for one in (await timeline(server))["states"] if one["state"] == "warm"]
    minute = int(state["from_s"]) // 60 * 60
    past.record(Arrivals("default", "digits", minute, 2))
    past.record(Use("default", "digits", 1, "cpu:0", minute, 1.0, 2.0, 0.5))
    past.record(StateInterval("default", "digits", 1, "failing", "why", minute - 9, minute - 5))
    await past.flush()

    found = await timeline(server)

    assert found["bucket_s"] == 60
    assert found["from_s"] <= minute - 3000
    assert found["states"][-1]["to_s"] == pytest.approx(found["to_s"], abs=0.01)
    assert found["states"][-1]["revision"] == "digits@1"
    assert {"from_s": minute - 9, "to_s": minute - 5, "state": "failing"}.items() <= next(
        one for one in found["states"] if one["state"] == "failing"
    ).items()
    assert sum(one["busy_s"] for one in found["use"]) == pytest.approx(0.5, abs=0.1)
    assert found["arrivals"] == [{"at_s": minute, "count": 2}]
    assert found["totals"]["requests"] == 2
    assert found["totals"]["waking_s"] >= 1.0
    assert found["totals"]["cold_starts"] == 1


async def test_all_functions_and_devices(server: ServingServer) -> None:
    """Functions with most seconds first, devices with their buckets; standbys are no function."""
    history = server.server.store.history
    now = int((await timeline(server))["to_s"]) // 60 * 60
    for name, busy_s in (("digits", 3600.0), ("other", 4000.0), ("", 50.0)):
        history.record(Use("default" if name else "", name, 1, "cuda:9", now, 0.0, 1.0, busy_s))
    await history.flush()

    found = (await server.admin("GET", "/timeline?hours=24")).json()

    assert found["bucket_s"] == 600
    assert [one["name"] for one in found["functions"]][:2] == ["other", "digits"]
    assert found["functions"][0]["requests"] == 0
    (device,) = [one for one in found["devices"] if one["id"] == "cuda:9"]
    assert (device["idle_s"], device["busy_s"]) == (3.0, 7650.0)
    assert [one["busy_s"] for one in device["use"]] == [7650.0]


@pytest.mark.parametrize("hours", ["0", "169", "1.5", "", "x", "-1"])
async def test_a_bad_span_is_refused(server: ServingServer, hours: str) -> None:
    """With what was expected and what came."""
    for path in ("/timeline", "/functions/digits/timeline", "/functions/digits/advice"):
        answer = await server.admin("GET", f"{path}?hours={hours}")

        assert answer.status == 400
        assert "expected a whole number from 1 to 168" in answer.problem["detail"]


async def test_an_unknown_function_has_no_past(server: ServingServer) -> None:
    """404 as everywhere."""
    assert (await server.admin("GET", "/functions/digit/timeline")).status == 404
    assert (await server.admin("GET", "/functions/digit/advice")).status == 404


async def timeline(server: ServingServer) -> dict[str, Any]:
    """Of digits, the last hour."""
    found: dict[str, Any] = (await server.admin("GET", "/functions/digits/timeline")).json()
    return found
