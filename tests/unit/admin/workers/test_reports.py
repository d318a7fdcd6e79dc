"""Tests of what gateways report."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from admin.workers.messages import Activity, Arrived
from admin.workers.reports import Reports
from gateway.dispatch.pool import UNKNOWN
from gateway.observing.errors import Failure
from registry.exchange import Demand, Endpoints, Load, PoolEndpoints, encode
from registry.usage import UsageRow

F, G = "default/f@1", "default/g@1"
Said = list[tuple[Any, ...]]
USED = UsageRow("k", "default", "f", 0, calls=1)
FAILURE = Failure("default", "f", "f@1", "not_ready", 1.0, "", "", "id")


class Calls:
    """Stand-in for any receiver: records each method call with its arguments."""

    def __init__(self, said: Said, who: str) -> None:
        self._said = said
        self._who = who

    def __getattr__(self, what: str) -> Any:
        return lambda *given: self._said.append((self._who, what, *given))


class KnownLoads(Calls):
    """Manager with one pool that has calls."""

    def loads(self) -> dict[str, Load]:
        """Return its load."""
        return {F: Load(4, 2, 2.0)}


async def nothing() -> None:
    """Refresh nothing."""


@pytest.fixture
def said() -> Said:
    """All calls of the receivers, in order."""
    return []


@pytest.fixture
def reports(said: Said) -> Reports:
    """Reports whose receivers only record."""
    manager, history = KnownLoads(said, "manager"), Calls(said, "history")
    return Reports(cast("Any", manager), cast("Any", history), nothing)


def test_demand_reaches_the_manager_as_it_came(reports: Reports, said: Said) -> None:
    """A demand report is passed to the manager unchanged; it ends with its gateway."""
    data = encode(Demand("7", 1, True, {"default/f@1": Load(1, 0, 0.1)}))
    reports.on_demand("7", data)
    reports.on_gone("7")

    assert said == [("manager", "receive_demand", data), ("manager", "worker_lost", "7")]


@pytest.mark.parametrize(
    ("data", "error"),
    [(encode(Demand("8", 1, True, {})), ValueError), (b"nonsense", msgspec.DecodeError)],
)
def test_a_gateway_reports_only_its_own_demand(
    reports: Reports, said: Said, data: bytes, error: type[Exception]
) -> None:
    """A gateway may only report its own demand: that of an unknown one would never be removed."""
    with pytest.raises(error):
        reports.on_demand("7", data)

    assert said == []


def test_other_reports_go_to_whom_they_concern(reports: Reports, said: Said) -> None:
    """Arrivals and usage reach the history, failures the recent ones, all the subscribers."""
    heard: list[list[Failure]] = []
    reports.failures.subscribe(heard.append)
    end = reports.subscribe(lambda one: said.append(("all", one)))
    arrived = [Arrived("default", "f", 3)]
    activity = Activity(1, 4, failures=[FAILURE], arrived=arrived, used=[USED])
    reports.on_activity("7", activity)
    end()
    reports.on_activity("7", Activity(2))

    assert said == [
        ("history", "arrived", "default", "f", 3),
        ("history", "used", USED),
        ("all", activity),
    ]
    assert heard == [[FAILURE]]


def published(full: bool, **states: str) -> bytes:
    """Encode the manager's message about the pools f and g."""
    keys = {"f": F, "g": G}
    pools = {
        keys[name]: UNKNOWN if state == "rest" else PoolEndpoints([], state, "because")
        for name, state in states.items()
    }
    return encode(Endpoints(1, full, pools))


async def test_loads_are_the_managers_and_refreshed_by_gateways(said: Said) -> None:
    """The manager knows the load of all gateways; who needs that of now has them asked."""
    asked: list[str] = []

    async def refresh() -> None:
        asked.append("asked")

    manager = cast("Any", KnownLoads(said, "manager"))
    reports = Reports(manager, manager, refresh)
    await reports.refresh()

    assert (reports.loads(), asked) == ({F: Load(4, 2, 2.0)}, ["asked"])


def test_pools_at_rest_have_no_state(reports: Reports) -> None:
    """A cold pool without a reason, or a removed one, has no state; a full message replaces all
    states."""
    reports.on_endpoints(published(True, f="warm", g="failing"))
    assert reports.states() == {F: "warm", G: "failing"}
    reports.on_endpoints(published(False, f="rest"))
    assert reports.states() == {G: "failing"}
    reports.on_endpoints(published(False, g="gone", f="waking"))
    assert reports.states() == {F: "waking"}
    reports.on_endpoints(published(True, g="cold"))

    assert reports.states() == {G: "cold"}


def test_background_work_is_counted_over_living_gateways(reports: Reports) -> None:
    """Background tasks are summed over living gateways, each with its last number, and
    reasons of degradation are listed."""
    for gateway, count in (("a", 3), ("b", 4), ("a", 5)):
        reports.on_activity(gateway, Activity(1, count, reasons=[f"task {gateway}"]))
    assert reports.tasks == 9
    assert reports.reasons() == ["task a", "task b"]
    reports.on_gone("a")

    assert reports.tasks == 4
