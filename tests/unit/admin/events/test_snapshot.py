"""Tests of the state as followers receive it."""

from __future__ import annotations

import json
import time

import msgspec
import pytest

from admin.documents.functions import FailureRow
from admin.events.snapshot import explained, failure_row, function_of, pool_of
from gateway.metrics import exchanges
from gateway.metrics.requests import SECONDS
from gateway.metrics.samples import RateSample
from gateway.observing.errors import Failure
from registry.model.history import Decision
from tests.support.followed import following
from tests.support.server import ServingServer

CALL = {"inputs": {}}


def test_a_pool_is_of_a_function() -> None:
    """A pool belongs to a function, except for standbys."""
    assert function_of("default/digits@3") == "digits"
    assert function_of("standby/cpu") == ""


async def test_functions_that_are_gone_are_named(server: ServingServer) -> None:
    """Unknown functions are returned apart from the known ones."""
    there, gone = server.server.admin.reader.functions(["digits", "nobody"])

    assert [one.id for one in there] == ["digits"]
    assert gone == ["nobody"]


async def test_answers_of_other_processes_make_a_function_busy(server: ServingServer) -> None:
    """A function's rate includes the requests that other gateway processes answered."""
    reader = server.server.admin.reader
    assert reader.busy_functions() == set()
    reader.count_answers([RateSample("default", "digits", (30,) + (0,) * len(SECONDS))])

    (one,), _ = reader.functions(["digits"])

    assert reader.busy_functions() == {"digits"}
    assert json.loads(one.data)["rate"] == 3.0
    assert reader.beat().rate == 3.0


async def test_first_bytes_of_open_streams_are_shown(server: ServingServer) -> None:
    """The time to the first byte is known while no exchange has ended, and is no request of the
    rate yet."""
    reader = server.server.admin.reader
    counts = (0,) * len(exchanges.SECONDS)
    reader.count_answers([RateSample("default", "digits", (), (2, *counts))])

    (one,), _ = reader.functions(["digits"])

    assert reader.busy_functions() == {"digits"}
    shown = json.loads(one.data)
    assert (shown["rate"], shown["p50_ms"]) == (0.0, None)
    assert (shown["first_byte_p50_ms"], shown["first_byte_p95_ms"]) == (0.5, 0.95)


async def test_unchanged_state_reads_equal(server: ServingServer) -> None:
    """Reading the state twice gives equal items: ages are not recomputed, so nothing looks
    changed."""
    assert (await server.call("digits", CALL)).status == 200
    reader = server.server.admin.reader

    assert list(reader.replicas()) == list(reader.replicas())
    assert list(reader.devices()) == list(reader.devices())


async def test_a_clock_that_was_set_counts_from_then_on(
    server: ServingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times follow the wall clock after it was set."""
    assert (await server.call("digits", CALL)).status == 200
    reader = server.server.admin.reader
    [before] = [json.loads(one.data)["since_s"] for one in reader.replicas() if one.about]
    wall = reader._wall
    monkeypatch.setattr(reader, "_wall", lambda: wall() + 3600.0)
    reader.tick()

    [after] = [json.loads(one.data)["since_s"] for one in reader.replicas() if one.about]

    assert after - before == pytest.approx(3600.0, abs=1.0)


async def test_a_line_says_when_an_idle_function_sleeps(server: ServingServer) -> None:
    """A function has the Unix time at which it will sleep if it is idle; a cold one has none."""
    rows = server.server.admin.rows
    deployed = server.server.store.catalog.resolve("digits")
    cold = rows.row(deployed, rows.gateways.loads())
    assert (await server.call("digits", CALL)).status == 200

    async with following(server) as told:
        while (warm := await told.line("digits", state="warm"))["sleeps_at_s"] is None:
            pass

    assert (cold.sleeps_at_s, cold.devices) == (None, [])
    assert 0 < warm["sleeps_at_s"] - time.time() <= warm["idle_s"] + 0.1
    assert len(warm["devices"]) == 1


FAILURE = Failure("default", "digits", "digits@3", "replica_died", 1.23456, "it died", "a1", "q", 2)
DECISIONS = [
    Decision(1.0, "a1 ended: was killed by SIGTERM"),
    Decision(2.0, "a1 ended: was killed by SIGKILL"),
    Decision(3.0, "b2 ended: exited with code 0"),
]


def test_an_error_is_shown_with_its_cause() -> None:
    """An error's text includes how its replica ended."""
    assert failure_row(FailureRow, FAILURE, DECISIONS) == FailureRow(
        at_s=1.235,
        code="replica_died",
        detail="it died: a1 ended: was killed by SIGKILL",
        revision="digits@3",
        replica="a1",
        request_id="q",
        count=2,
    )
    assert pool_of(FAILURE) == "default/digits@3"


def test_a_cause_that_the_client_was_told_is_not_repeated() -> None:
    """The cause is not repeated if the error's text has it."""
    told = msgspec.structs.replace(FAILURE, detail="it died: it was killed by SIGKILL")

    assert explained(told, DECISIONS) == "it died: it was killed by SIGKILL"


@pytest.mark.parametrize(
    ("code", "replica"), [("queue_full", "a1"), ("poison", ""), ("poison", "c3")]
)
def test_other_errors_speak_for_themselves(code: str, replica: str) -> None:
    """Errors of living replicas, of no replica, or of one whose end is unknown have no cause."""
    failure = Failure("default", "digits", "digits@3", code, 1.0, "it died", replica, "q")

    assert explained(failure, DECISIONS) == "it died"
