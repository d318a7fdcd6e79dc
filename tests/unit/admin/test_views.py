"""Tests of the JSON objects of the admin API."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

import pytest

from admin.documents.server import KeyRow
from admin.events.snapshot import FunctionRows
from admin.rates import FunctionRates, Rates
from admin.views import (
    device_row,
    exchanges_of,
    function_detail,
    neighbours,
    operation_row,
    park_off,
    park_row,
    replica_row,
    revision_row,
    shown_profile,
    struct_of,
)
from gateway.dispatch.pool import UNKNOWN
from gateway.http.connected import Connected, Connections
from gateway.metrics import exchanges
from gateway.metrics.requests import SECONDS
from pool_manager.core.ledger import Charge
from pool_manager.core.pool import AT_REST, PoolForecast
from pool_manager.core.starts import Awaited
from pool_manager.core.state import Device, Replica, State
from pool_manager.parked import ParkedReplica, PoolParks
from pool_manager.ports import GpuView
from pool_manager.reports import Occupancy
from registry.catalog import Deployed
from registry.exchange import NOTHING, Expected, Load, PoolEndpoints, ReplicaEndpoint
from registry.model.keys import Key
from registry.model.operations import Operation
from registry.model.parks import EngineCall, ParkProfile, ParkSettings
from registry.model.revisions import Batching, DeviceNeed
from registry.model.servers import ModelApi, PathRules, ServerSettings
from registry.store.keys import TOKEN_NOTE, KeyRing
from runtime_image.contract.model import ImageForm, InputRule, OutputRule
from runtime_image.contract.samples import SampleRequest, SampleVerdict
from tests.support.answers import as_sent
from tests.support.nouns import EMPTY, bundle, deployed, profile, server_deployed, server_profile


class Pools:
    """Pool manager, gateways, history and builds with one pool; `known` replaces the defaults."""

    def __init__(self, shown: PoolEndpoints, wanted: int, since_s: float, known: Known) -> None:
        self._pool = shown, wanted, since_s
        self._known = known
        self.golden = self

    def pool(self, _key: str) -> tuple[PoolEndpoints, int, float]:
        """Return the pool."""
        return self._pool

    def forecast(self, _key: str) -> PoolForecast:
        """Return its forecast."""
        return self._known.forecast

    def parks(self, _key: str) -> None:
        """Return that it has no parks."""

    def wakes_by_standby(self, _key: str) -> bool:
        """Return that no standby wakes it."""
        return False

    def verdict(self, _key: str) -> tuple[SampleVerdict, str]:
        """Return the verdict of no golden sample."""
        return SampleVerdict.NONE, ""

    def trouble(self, _key: str) -> str:
        """Return that its servers answer."""
        return ""

    def expected(self, _key: str) -> Expected:
        """Return its next cold start."""
        return self._known.expected

    def ready_in_ms(self, *_pool: object, **_how: object) -> float | None:
        """Return the wait for a replica."""
        return self._known.ready_in_ms

    def states(self, _deployed: Deployed) -> str:
        """Return that nothing is compiled."""
        return ""


class Known(NamedTuple):
    """What is known of a pool."""

    load: Load = NOTHING
    expected: Expected = Expected(0.02, 0.4, 0.4, 0)
    ready_in_ms: float | None = None
    rates: FunctionRates = FunctionRates(Rates(SECONDS), Rates(exchanges.SECONDS))
    forecast: PoolForecast = AT_REST


def row(
    one: Deployed, shown: PoolEndpoints, wanted: int = 0, since_s: float = 0.0, **known: Any
) -> dict[str, Any]:
    """Return the row of a function at 1000 Unix seconds, as it is sent."""
    found = Known(**known)
    pools: Any = Pools(shown, wanted, since_s, found)
    rows = FunctionRows(
        pools, pools, pools, found.rates, pools, lambda _revision: "", lambda: 10.0, lambda: 1000.0
    )
    return dict(as_sent(rows.row(one, {one.revision.key: found.load})))


def detail(one: Deployed) -> dict[str, Any]:
    """Return a function with its details, as it is sent."""
    pools: Any = Pools(UNKNOWN, 0, 0.0, Known())
    rows = FunctionRows(
        pools, pools, pools, Known().rates, pools, lambda _revision: "", lambda: 0.0, lambda: 0.0
    )
    return dict(as_sent(function_detail(one, rows.row(one, {}))))


def test_a_function_without_a_pool_is_cold() -> None:
    """A function without a pool is shown as cold."""
    shown = row(deployed(), UNKNOWN, ready_in_ms=20.4)

    assert (shown["name"], shown["revision"], shown["state"]) == ("digits", "digits@1", "cold")
    assert (shown["ready"], shown["wanted"], shown["held"], shown["in_flight"]) == (0, 0, 0, 0)
    assert (shown["cold_start_ms"], shown["ready_in_ms"]) == (None, 20)


def test_a_function_says_whether_it_is_a_server() -> None:
    """The engine of the revision with the traffic tells server functions from models."""
    assert row(deployed(), UNKNOWN)["engine"] == "onnx"
    assert row(server_deployed(), UNKNOWN)["engine"] == "server"


def test_a_function_shows_its_pool_and_load() -> None:
    """A function shows ready and wanted replicas, held requests and requests in flight."""
    endpoint = ReplicaEndpoint("r1", "/socket", 2, True, ("cpu:0",), {})
    rates = FunctionRates(Rates((0.005, 0.01)), Rates((0.001,)))
    rates.answers.add(("default", "digits"), (40, 0, 0), 10.0)
    rates.first_bytes.add(("default", "digits"), (2, 0), 10.0)

    shown = row(
        deployed(),
        PoolEndpoints([endpoint], "warm", "busy"),
        wanted=2,
        since_s=12.0,
        load=Load(3, 1, 0.5),
        expected=Expected(0.0, 0.1234, 0.2, 1),
        rates=rates,
        forecast=PoolForecast(None, 30.0, ("cpu:0",)),
    )

    assert (shown["state"], shown["reason"], shown["since_s"]) == ("warm", "busy", 12.0)
    assert (shown["ready"], shown["wanted"], shown["held"], shown["in_flight"]) == (1, 2, 3, 1)
    assert (shown["cold_start_ms"], shown["ready_in_ms"]) == (123.4, None)
    assert (shown["rate"], shown["p50_ms"], shown["p95_ms"]) == (4.0, 2.5, 4.75)
    assert (shown["first_byte_p50_ms"], shown["first_byte_p95_ms"]) == (0.5, 0.95)
    assert (shown["sleeps_at_s"], shown["devices"], shown["phase"]) == (1030.0, ["cpu:0"], None)


def test_a_waking_function_shows_its_phase() -> None:
    """The phase, and what its server is waited for, are shown only while the function wakes, not
    for further replicas of a warm one."""
    coming = PoolForecast("load", None, ("cpu:0",), Awaited("waiting", 38.0))

    waking = row(deployed(), PoolEndpoints([], "waking", ""), forecast=coming)
    warm = row(deployed(), PoolEndpoints([], "warm", ""), forecast=coming)

    assert (waking["phase"], waking["awaited"]) == ("load", "waiting for 35 s")
    assert (warm["phase"], warm["awaited"]) == (None, None)


def test_a_call_is_told_with_what_the_manifest_adds() -> None:
    """A function shows which inputs are images, which outputs are decoded, and the source of its
    sample."""
    known = deployed()
    picture = InputRule(kind="image", image=ImageForm((8, 8)))
    output = OutputRule("y", ("no", "yes"), 1)
    revision = replace(known.revision, inputs={"x": picture}, output=output)

    shown = detail(replace(known, revision=revision))

    assert shown["signature"]["kind"] == "tensors"
    assert shown["inputs"]["x"]["kind"] == "image"
    assert shown["inputs"]["x"]["image"]["size"] == [8, 8]
    assert "image/*" in shown["content_types"]
    assert shown["output"] == {"tensor": "y", "labels": ["no", "yes"], "top_k": 1}
    assert (shown["batching"]["mode"], shown["device"]["kind"]) == ("auto", "any")
    assert shown["sample"] == "zeros"


def test_a_revision_shows_what_it_is_and_was_measured() -> None:
    """A revision is shown with size, signature and profile as JSON."""
    shown = as_sent(revision_row(deployed(number=2), bundle()))

    assert (shown["number"], shown["size"]) == (2, bundle().size)
    assert shown["signature"]["inputs"] == [{"name": "x", "dtype": "FP32", "shape": [-1, 4]}]
    assert shown["profile"]["latency_ms"] == {"1": 1.0, "32": 4.0}
    assert shown["batch_max"] == 32


def test_a_revision_shows_how_far_its_settings_let_it_batch() -> None:
    """The batch size shown is the profile's within the revision's settings, since revisions share a
    profile."""
    known = deployed()
    asked = replace(known, revision=replace(known.revision, batching=Batching(max_size=4)))

    assert revision_row(asked, bundle()).batch_max == 4


def test_a_revision_without_a_profile_shows_none() -> None:
    """A revision without a profile shows none."""
    assert shown_profile(None) is None
    assert shown_profile(profile()) is not None


def test_an_operation_keeps_its_request_to_itself() -> None:
    """An operation is shown without its request, which may contain a long manifest."""
    operation = Operation("7", "deploy", "digits", {"manifest": "long"}, result={"revision": "a@1"})

    shown = as_sent(operation_row(operation))

    assert "request" not in shown
    assert (shown["id"], shown["state"], shown["result"]) == ("7", "running", {"revision": "a@1"})


SERVER = {"ready": "/health", "network": "none", "wait_s": 55.0}


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        pytest.param(
            {"server": SERVER},
            {"server": {**SERVER, "host": "client", "found_host": "client"}},
            id="before servers had a host",
        ),
        pytest.param(
            {"files": 2, "profile": {"load_ms": "fast"}, "batching": ["up to 4 rows"]},
            {"files": 2},
            id="members of another type",
        ),
        pytest.param({"a later name": 1, "files": 2}, {"files": 2}, id="an unknown member"),
    ],
)
def test_a_result_of_another_release_is_shown_as_far_as_it_is_known(
    stored: dict[str, Any], shown: dict[str, Any]
) -> None:
    """A result is stored as its release wrote it. What this one cannot read is left out, and the
    list of operations is no error because of it."""
    operation = Operation(
        "7", "deploy", "digits", {}, state="done", result={"revision": "a@1", **stored}
    )

    assert as_sent(operation_row(operation))["result"] == {"revision": "a@1", **shown}


def test_a_key_shows_nothing_it_could_be_found_out_from() -> None:
    """A key is shown with neither secret nor hash."""
    shown = as_sent(struct_of(KeyRow, Key("k1", "f" * 64, ("read", "invoke:digits"), "ci", 5.0)))

    assert shown == {
        "id": "k1",
        "scopes": ["read", "invoke:digits"],
        "note": "ci",
        "created_s": 5.0,
        "priority": "normal",
    }


def test_who_is_connected_is_named_by_the_keys_label() -> None:
    """The admin token has a label too; a key that was removed has none."""
    ring = KeyRing([Key("k1", "f" * 64, ("invoke",), "the lab", 5.0)])
    ids = ("k1", "token", "gone", "")
    items = [Connected(id, "request", 1.0, "/", True) for id in ids]

    ring.put(Key("token", "e" * 64, ("admin",), TOKEN_NOTE))
    shown = as_sent(exchanges_of(Connections(items, 4, 0), ring))

    notes = {one["key"]: one["note"] for one in shown["connected"]}
    assert notes == {"k1": "the lab", "token": "admin token", "gone": "", "": ""}


def sent_replica(replica: Replica, since_s: float, charge: Charge) -> dict[str, Any]:
    """Return a replica as it is sent."""
    return dict(as_sent(replica_row(replica, since_s, charge)))


CHARGE = Charge(("cpu:0",), ("cpu",), 1.0, 700.0)


def test_a_parked_replica_shows_what_it_keeps() -> None:
    """Its residue and when it is stopped, only while it is parked; host memory also afterwards."""
    replica = Replica("r1", "default/llm@1", ("g0",), "serve", since_s=100.0)
    replica.state, replica.deadline_s = State.PARKED, 3_700.0
    asleep = Charge((), ("g0",), 0.0, 320.0, "ram", 20_480.0)
    keys = ("state", "residue_mib", "host_mib", "ends_s")

    shown = sent_replica(replica, 1_700.0, asleep)
    assert [shown[key] for key in keys] == ["parked", 320.0, 20_480.0, 5_300.0]
    replica.deadline_s = inf
    assert replica_row(replica, 1_700.0, asleep).ends_s is None
    replica.state, replica.deadline_s = State.UNPARKING, 120.0
    awake = Charge(("g0",), ("g0",), 1.0, 8_000.0, "ram", 20_480.0)
    shown = sent_replica(replica, 1_700.0, awake)
    assert [shown[key] for key in keys] == ["unparking", None, 20_480.0, None]


PARK = ParkSettings("vllm", EngineCall("/sleep"), EngineCall("/wake"))
RIGHT = ParkProfile(True, "", 3.0, 2.0)


@pytest.mark.parametrize(
    ("settings", "measured", "off", "why"),
    [
        (None, None, "", "web@1 has no table [park]"),
        (PARK, None, "", "the trial of web@1 has not parked it: fnctl deploy --measure"),
        (PARK, ParkProfile(False, "it hangs"), "", "the trial of web@1 has shown: it hangs"),
        (PARK, ParkProfile(False), "", "the trial of web@1 has shown: it does not work"),
        (PARK, RIGHT, "2 went wrong", "2 went wrong"),
        (PARK, RIGHT, "", ""),
    ],
)
def test_a_function_says_why_it_is_not_parked(
    settings: ParkSettings | None, measured: ParkProfile | None, off: str, why: str
) -> None:
    """The first reason that holds. A function without the table and without a parked replica shows
    no parks at all."""
    one = server_deployed(park=settings)
    if measured is not None:
        one = replace(one, profile=server_profile(one.revision, park=measured))
    parks = PoolParks(off, 2.25, ())

    assert park_off(one, parks) == why
    found = as_sent(park_row(one, parks, 1_000.0))
    if settings is None:
        assert found is None
        asleep = ParkedReplica("r1", ("g0",), 5.0, None, 320.0, 20_480.0, "idle")
        found = as_sent(park_row(one, replace(parks, parked=(asleep,)), 1_000.0))
        assert found["parked"] == [
            {
                "id": "r1",
                "devices": ["g0"],
                "since_s": 1_005.0,
                "ends_s": None,
                "residue_mib": 320.0,
                "host_mib": 20_480.0,
                "why": "idle",
            }
        ]
    else:
        assert found == {"off": why, "wake_ms": 2_250, "parked": []}
        assert as_sent(park_row(one, None, 1_000.0))["wake_ms"] is None


def test_a_replica_shows_whose_it_is() -> None:
    """A replica is shown with its revision, state and the time of its last change."""
    replica = Replica("r1", "default/digits@1", ("cpu:0",), "serve", since_s=100.0, why="idle")

    shown = sent_replica(replica, 1700.25, CHARGE)

    assert (shown["id"], shown["state"], shown["since_s"]) == ("r1", "starting", 1700.25)
    assert (shown["function"], shown["revision"]) == ("digits", "digits@1")
    assert (shown["device"], shown["role"], shown["why"]) == ("cpu:0", "serve", "idle")


def test_a_replica_on_several_gpus_names_them_all() -> None:
    """Its devices are in the order of its ranks, and its device is the first one."""
    wide = Replica("r1", "default/llama@1", ("GPU-a", "GPU-b"), "serve", since_s=100.0)

    shown = sent_replica(wide, 1700.25, CHARGE)

    assert (shown["device"], shown["devices"]) == ("GPU-a", ["GPU-a", "GPU-b"])


def test_a_standby_is_no_functions() -> None:
    """A standby belongs to no function."""
    shown = sent_replica(Replica("r1", "standby/cpu", (), "standby", since_s=0.0), 5.0, CHARGE)

    assert (shown["function"], shown["revision"]) == ("", "")


def test_a_gpu_shows_what_it_is_and_has() -> None:
    """A GPU shows what it is, with memory in MiB; figures that the driver does not report are
    null."""
    device = Device("GPU-a", "cuda", 22_600.4)
    view = GpuView("NVIDIA H200", "1:0", "9.0", "580", 24_000.0, None, 100.6)
    shown = as_sent(
        device_row(Occupancy(device, "quarantined", "r1: why", ("r1",), 700.2, view), 0.25)
    )

    assert (shown["id"], shown["kind"], shown["bank"]) == ("GPU-a", "cuda", "GPU-a")
    assert (shown["name"], shown["index"]) == ("NVIDIA H200", "1:0")
    assert (shown["capability"], shown["driver"]) == ("9.0", "580")
    assert (shown["memory_mib"], shown["charged_mib"], shown["foreign_mib"]) == (22_600, 700, 101)
    assert (shown["total_mib"], shown["used_mib"]) == (24_000, None)
    assert (shown["state"], shown["reason"]) == ("quarantined", "r1: why")
    assert (shown["replicas"], shown["busy"]) == (["r1"], 0.25)


def test_a_slot_of_the_cpu_has_no_gpu() -> None:
    """A CPU slot has null for all fields of a GPU."""
    device = Device("cpu:0", "cpu", 8_000.0, "cpu")
    shown = as_sent(device_row(Occupancy(device, "free", "", (), 0.0, None), 0.0))

    nulls = {"name", "index", "capability", "driver", "used_mib", "total_mib", "foreign_mib"}
    assert {key for key, value in shown.items() if value is None} == nulls
    assert (shown["state"], shown["memory_mib"], shown["bank"]) == ("free", 8_000, "cpu")
    assert shown["busy"] == 0.0


def test_a_server_is_shown_without_its_values() -> None:
    """A server function has its settings and the limits of its exchanges; of its variables only the
    names, and of its profile's engine only the name."""
    one = server_deployed(env={"TOKEN": "hunter2"}, paths=PathRules(deny=("/x",)))
    measured = replace(one, profile=server_profile(one.revision))

    called, shown = detail(measured), as_sent(revision_row(measured, EMPTY))

    assert called["server"] == shown["server"]
    assert called["server"]["command"] == ["serve", "${PORT}"]
    assert called["server"]["env"] == ["TOKEN"]
    assert called["server"]["paths"]["deny"] == ["/x"]
    assert called["exchange"]["concurrency"] == 32
    assert called["content_types"] == []
    assert (shown["engine"], shown["profile"]["engine"], shown["batching"]) == (
        "server",
        "server",
        "",
    )
    assert "hunter2" not in json.dumps([called, shown])


def test_a_model_has_nothing_of_a_server() -> None:
    """The objects of model functions have no fields of server functions."""
    assert not {"server", "exchange"} & {
        *detail(deployed()),
        *as_sent(revision_row(deployed(), bundle())),
    }


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "no sample has golden = true"),
        ({"api": ModelApi(), "network": "egress"}, "its network is egress, and no sample has"),
        ({"api": ModelApi(upstream_key="k")}, "it has an upstream_key, and no sample has"),
        ({"api": ModelApi()}, "its trial learnt none: fnctl deploy --measure"),
        ({"samples": (SampleRequest(golden=True),)}, "its trial learnt none"),
    ],
)
def test_a_revision_says_why_it_has_no_golden_sample(settings: dict[str, Any], why: str) -> None:
    """Of a server only: nothing is to be asked, or its trial has learnt none."""
    one = deployed("web")
    server = ServerSettings(("serve", "${PORT}"), **settings)
    serving = replace(one, revision=replace(one.revision, server=server))

    model, shown = (as_sent(revision_row(each, EMPTY)) for each in (one, serving))
    assert not {"why_not_golden", "park_hint"} & model.keys()
    assert shown["why_not_golden"].startswith(why)
    assert shown["park_hint"] == ""


def on_gpus(count: int, found: Deployed) -> Deployed:
    """Return a function on so many GPUs whose trial took 61 s to start."""
    revision = replace(found.revision, device=DeviceNeed("cuda", count=count))
    return replace(found, revision=revision, profile=replace(profile(), load_ms=61_000.0))


def parkable(found: Deployed) -> Deployed:
    """Return a function whose trial has shown that it wakes in 3 s."""
    assert found.profile is not None
    return replace(found, profile=replace(found.profile, park=ParkProfile(True, wake_s=3.0)))


HANDLER, SERVER = deployed(), server_deployed()
GPUS = [Device(f"GPU-{n}", "cuda") for n in range(8)]


@pytest.mark.parametrize(
    ("found", "devices", "expected"),
    [
        (on_gpus(1, SERVER), GPUS, []),
        (on_gpus(8, HANDLER), GPUS, ["it takes all 8 GPUs of a host", "for 10 s"]),
        (on_gpus(8, SERVER), GPUS, ["it takes all 8 GPUs of a host", "for 61 s"]),
        (parkable(on_gpus(8, SERVER)), GPUS, ["for 10 s", "sleeps, and wakes at its next call"]),
        (on_gpus(2, SERVER), GPUS, ["it takes 2 of the 8 GPUs of a host", "for 61 s"]),
        (
            on_gpus(2, HANDLER),
            [*GPUS[:2], Device("gpu2/GPU-9", "cuda", host="gpu2")],
            ["all 2 GPUs"],
        ),
        (
            on_gpus(2, HANDLER),
            [*GPUS[:2], Device("MIG-1", "cuda", is_slice=True), Device("cpu:0", "cpu")],
            ["all 2 GPUs"],
        ),
        (on_gpus(2, HANDLER), [], ["all 2 GPUs"]),
    ],
)
def test_what_several_gpus_mean_for_others_is_told(
    found: Deployed, devices: list[Device], expected: list[str]
) -> None:
    """How many of the whole GPUs of one host it takes, and how long others wait for them: a server
    stays for as long as its trial took to start, and a handler for 10 s."""
    text = neighbours(found, devices)

    assert bool(text) is bool(expected)
    assert all(part in text for part in expected)
