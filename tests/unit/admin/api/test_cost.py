"""Tests of costs over the admin API."""

from __future__ import annotations

import pytest

from registry.model.devices import DeviceModel, Use
from registry.usage import HOUR_S, UsageRow, bucket_of
from tests.support.server import ServingServer, serving


async def add(server: ServingServer, name: str, held_s: float, joules: float = 0.0) -> None:
    """Store device-seconds and joules of a GPU in the current hour."""
    history = server.server.store.history
    bucket_s = bucket_of((await server.admin("GET", "/usage")).json()["to_s"])
    history.record(DeviceModel("GPU-a", "cuda", "NVIDIA H200", 1.0, bucket_s))
    space = "default" if name else ""
    use = Use(space, name, 1, "GPU-a", bucket_s, 0.0, held_s / 2, held_s / 2, held_s, joules)
    history.record(use)
    await history.flush()


async def test_without_prices_there_are_no_costs(server: ServingServer) -> None:
    """Device-seconds and joules are there; money is null, and so is the currency."""
    await add(server, "gone", 7200.0, 3.6e6)
    found = (await server.admin("GET", "/cost?function=gone")).json()

    assert found["currency"] is None
    assert found["items"] == [
        {
            "function": "gone",
            "removed": True,
            "waking_s": 0.0,
            "idle_s": 3600.0,
            "busy_s": 3600.0,
            "held_s": 7200.0,
            "no_counter_s": 0.0,
            "unpriced_s": 7200.0,
            "joules": 3.6e6,
            "device_cost": None,
            "energy_cost": None,
            "cost": None,
        }
    ]
    assert found["from_s"] == bucket_of(found["to_s"]) - 24 * HOUR_S


async def test_costs_by_function_and_by_key(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """The dearest is first; both groupings have the same sum, with what no function held."""
    prices = {"price_device_hour": "nvidia h200=3.9", "price_kwh": 0.5, "currency": "EUR"}
    async with serving(tmp_path / "data", **prices) as server:
        await add(server, "digits", 1800.0, 1.8e6)
        await add(server, "", 3600.0, 3.6e5)
        made = (await server.admin("POST", "/keys", {"scopes": ["invoke"], "note": "shop"})).json()
        usage = server.server.store.usage
        bucket_s = bucket_of((await server.admin("GET", "/usage")).json()["to_s"])
        usage.add(UsageRow(made["id"], "default", "digits", bucket_s, 0, 0, 1, 0, 750))
        usage.add(UsageRow("0123456789ab", "default", "digits", bucket_s, 0, 0, 1, 0, 250))
        await usage.flush()
        functions = (await server.admin("GET", "/cost?since=7d")).json()
        keys = (await server.admin("GET", "/cost?since=7d&by=key")).json()

    gpus = [one for one in functions["items"] if one["joules"] is not None]
    assert [(one["function"], one["removed"], one["cost"]) for one in gpus] == [
        ("_idle", False, 3.95),
        ("digits", True, 2.2),
    ]
    assert functions["currency"] == "EUR"
    assert [(one["key"], one["note"], one["removed"], one["cost"]) for one in keys["items"]] == [
        ("_idle", "", False, 3.95),
        (made["id"], "shop", False, 1.65),
        ("0123456789ab", "", True, 0.55),
    ]
    assert keys["total"] == pytest.approx(functions["total"])
    assert functions["total"]["cost"] == pytest.approx(6.15)


async def test_one_function_has_the_figures_that_it_has_among_all(server: ServingServer) -> None:
    """A function that held a GPU between two samples has 0 J of it, not a GPU without a counter."""
    await add(server, "brief", 0.5)
    await add(server, "long", 1800.0, 1.8e6)
    among = (await server.admin("GET", "/cost")).json()["items"]
    alone = (await server.admin("GET", "/cost?function=brief")).json()

    assert alone["items"] == [one for one in among if one["function"] == "brief"]
    assert (alone["total"]["joules"], alone["total"]["no_counter_s"]) == (0.0, 0.0)
    assert (await server.admin("GET", "/cost?function=other")).json()["items"] == []


async def test_a_span_is_no_longer_than_the_history(server: ServingServer) -> None:
    """The beginning says from when on the sums are."""
    found = (await server.admin("GET", "/cost?since=300d")).json()

    assert found["from_s"] == bucket_of(found["to_s"] - 30 * 86_400)


@pytest.mark.parametrize("query", ["by=model", "since=x", "function=No%20Name"])
async def test_a_bad_question_is_refused(server: ServingServer, query: str) -> None:
    """What cannot be understood is a 400, as for the usage."""
    assert (await server.admin("GET", f"/cost?{query}")).status == 400


async def test_costs_need_the_scope_read(server: ServingServer) -> None:
    """A key that may only invoke reads no costs."""
    made = (await server.admin("POST", "/keys", {"scopes": ["invoke"]})).json()
    header = {"Authorization": f"Bearer {made['secret']}"}

    assert (await server.request("GET", "/admin/v1/cost", None, header)).status == 403
