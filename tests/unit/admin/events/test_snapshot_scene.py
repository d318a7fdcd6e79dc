"""What there is to see of a whole server."""

from __future__ import annotations

import json

import pytest

from admin.events.snapshot import function_of
from gateway.metrics.requests import SECONDS, RateSample
from tests.support.server import ServingServer

CALL = {"inputs": {}}


def test_a_pool_is_of_a_function() -> None:
    """Standbys are nobody's."""
    assert function_of("default/digits@3") == "digits"
    assert function_of("standby/cpu") == ""


async def test_functions_that_are_gone_are_named(server: ServingServer) -> None:
    """Apart from those that exist."""
    there, gone = server.server.admin.reader.functions(["digits", "nobody"])

    assert [one.id for one in there] == ["digits"]
    assert gone == ["nobody"]


async def test_what_others_answered_makes_a_function_busy(server: ServingServer) -> None:
    """Its pace is theirs and ours together."""
    reader = server.server.admin.reader
    assert reader.busy_functions() == set()
    reader.count_answers([RateSample("default", "digits", (30,) + (0,) * len(SECONDS))])

    (one,), _ = reader.functions(["digits"])

    assert reader.busy_functions() == {"digits"}
    assert json.loads(one.data)["rate"] == 3.0
    assert reader.beat()["rate"] == 3.0


async def test_what_is_shown_is_the_same_at_every_look(server: ServingServer) -> None:
    """Times are not worked out anew, or they would be news each time."""
    assert (await server.call("digits", CALL)).status == 200
    reader = server.server.admin.reader

    assert list(reader.replicas()) == list(reader.replicas())
    assert list(reader.devices()) == list(reader.devices())


async def test_a_clock_that_was_set_counts_from_then_on(
    server: ServingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine may start with a wrong one."""
    assert (await server.call("digits", CALL)).status == 200
    reader = server.server.admin.reader
    [before] = [json.loads(one.data)["since_s"] for one in reader.replicas() if one.about]
    wall = reader._wall
    monkeypatch.setattr(reader, "_wall", lambda: wall() + 3600.0)
    reader.tick()

    [after] = [json.loads(one.data)["since_s"] for one in reader.replicas() if one.about]

    assert after - before == pytest.approx(3600.0, abs=1.0)
