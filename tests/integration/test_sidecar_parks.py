"""A real sidecar parks a small engine: no exchange meets it asleep, or before it is right."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from runtime_image.contract.link import Flag, Kind, NotStarted
from runtime_image.contract.parks import IDLE_LEAST, LifeState, ParkHooks
from runtime_image.contract.samples import (
    GoldenPlan,
    GoldenSample,
    SampleRequest,
    golden_from_json,
)
from runtime_image.contract.server import ServerSpec
from runtime_image.link.frames import pack
from runtime_image.server.connecting import Server
from runtime_image.server.trial import learn_golden
from tests.support.sidecar_process import Gateway, Sidecar, ask, sidecar
from tests.support.sleepy_engine import SOURCE, running

pytestmark = pytest.mark.slow
LIMIT_MS = 60_000
HOOKS = ParkHooks(
    SampleRequest("/sleep?level=1", "POST"),
    SampleRequest("/wake_up", "POST"),
    SampleRequest("/is_sleeping"),
)


@pytest.fixture(scope="module")
def golden() -> GoldenSample:
    """What a trial has learnt of an engine without faults."""
    with TemporaryDirectory(prefix="sl-") as folder, running(Path(folder)) as engine:
        server = Server(0, engine.socket_path, is_shared=False)
        spec = ServerSpec("web@1", ("x",), golden_plan=GoldenPlan(base="/v1", model="m"))
        return golden_from_json(learn_golden(spec, server, Path(), 1e6)["golden"])


@contextmanager
def parked(
    learnt: GoldenSample, fault: str = "", **changes: Any
) -> Iterator[tuple[Sidecar, Gateway, dict[str, Any]]]:
    """Serve an engine on a Unix socket; yield the sidecar, a gateway and LOADED."""
    options = ("--fault", fault) if fault else ()
    command = (sys.executable, "-B", str(SOURCE), "${SOCKET}", *options)
    given: dict[str, Any] = {"golden": learnt, "park": HOOKS, "concurrency": 4, **changes}
    spec = ServerSpec("web@1", command, ready="/health", start_s=60.0, stop_grace_s=1.0, **given)
    with sidecar(spec) as web:
        loaded = web.ready()
        yield web, web.gateway(), loaded


def tell(web: Sidecar, kind: Kind, *, if_idle_ms: int = 1) -> None:
    """Send a command of a park."""
    body = IDLE_LEAST.pack(if_idle_ms) if kind is Kind.PARK else b""
    frame = pack(kind, flags=Flag.OPTIONAL, aux=LIMIT_MS, body=body)
    web.control.sock.sendall(b"".join(frame))


def told(web: Sidecar) -> dict[str, Any]:
    """Return the next LIFE."""
    life: dict[str, Any] = json.loads(web.expect(Kind.LIFE).body)
    return life


def quiesced(gateway: Gateway) -> None:
    """Answer QUIESCE."""
    gateway.link.next(Kind.QUIESCE)
    gateway.link.send(Kind.QUIESCED)


def test_an_engine_sleeps_and_serves_again(golden: GoldenSample) -> None:
    """A call in between goes to another replica; a gateway that comes meanwhile waits as well."""
    with parked(golden) as (web, gateway, loaded):
        assert loaded["life"] == LifeState.READY
        tell(web, Kind.PARK)
        quiesced(gateway)
        assert (told(web) | {"took_ms": 0}) == {"life": "parked", "problem": "", "took_ms": 0}

        gateway.link.send(Kind.OPEN, 1)
        assert gateway.link.next(Kind.NOT_STARTED).aux == NotStarted.DRAINING
        second = web.gateway()
        quiesced(second)
        web.control.sock.sendall(b"".join(pack(Kind.SAMPLE)))
        assert json.loads(web.expect(Kind.SAMPLED).body)["reason"] == "it is parked"

        tell(web, Kind.UNPARK)
        assert told(web)["life"] == LifeState.VERIFYING
        gateway.link.send(Kind.OPEN, 2)
        assert gateway.link.next(Kind.NOT_STARTED).aux == NotStarted.DRAINING
        tell(web, Kind.VERIFY)
        assert told(web)["life"] == LifeState.READY
        for one in (gateway, second):
            assert one.link.next(Kind.WINDOW).aux == 0
        sock = gateway.open(3)
        web.expect(Kind.FIRST_RUN)
        assert ask(sock, "/is_sleeping") == b'{"is_sleeping": false}'


def test_an_open_exchange_refuses_a_park(golden: GoldenSample) -> None:
    """And so does one that is not long ago; the gateways stay open."""
    with parked(golden) as (web, gateway, _):
        gateway.open(1)
        web.expect(Kind.FIRST_RUN)
        tell(web, Kind.PARK)
        assert web.expect(Kind.NOT_IDLE).aux == 0
        gateway.end(1)
        gateway.open(2)
        gateway.end(2)
        tell(web, Kind.PARK, if_idle_ms=3_600_000)
        web.expect(Kind.NOT_IDLE)
        gateway.open(3)


def test_a_sample_that_is_asked_refuses_a_park(golden: GoldenSample) -> None:
    """The sleep would cut it off."""
    with parked(golden, "hung") as (web, gateway, _):
        web.control.sock.sendall(b"".join(pack(Kind.SAMPLE)))
        tell(web, Kind.PARK)
        quiesced(gateway)
        assert web.expect(Kind.NOT_IDLE).aux == 0
        assert gateway.link.next(Kind.WINDOW).aux == 0
        gateway.open(1)


def test_a_wake_that_is_wrong_opens_no_exchange(golden: GoldenSample) -> None:
    """Also not for the next manager, which is told the same."""
    with parked(golden, "stale-prefix") as (web, gateway, _):
        tell(web, Kind.PARK)
        quiesced(gateway)
        assert told(web)["life"] == LifeState.PARKED
        web.restart_manager()
        assert web.hello["loaded"]["life"] == LifeState.PARKED
        tell(web, Kind.PARK)
        assert told(web)["life"] == LifeState.PARKED
        tell(web, Kind.UNPARK)
        assert told(web)["life"] == LifeState.VERIFYING
        tell(web, Kind.VERIFY)
        wrong = told(web)
        assert wrong["life"] == LifeState.VERIFYING
        assert "with a prompt that was cached: wrong" in wrong["problem"]
        web.restart_manager()
        assert web.hello["loaded"]["life"] == LifeState.VERIFYING
        tell(web, Kind.VERIFY)
        assert told(web) == wrong
        gateway.link.send(Kind.OPEN, 1)
        assert gateway.link.next(Kind.NOT_STARTED).aux == NotStarted.DRAINING


def test_a_parked_server_is_stopped_by_a_drain(golden: GoldenSample) -> None:
    """As any other."""
    with parked(golden) as (web, gateway, _):
        tell(web, Kind.PARK)
        quiesced(gateway)
        told(web)
        web.control.sock.sendall(b"".join(pack(Kind.DRAIN)))
        assert web.exit_code() == 0


@pytest.mark.parametrize("changes", [{"park": None}, {"golden": None}])
def test_a_server_without_a_park_says_so(golden: GoldenSample, changes: dict[str, Any]) -> None:
    """HELLO has no life, and a manager that asks all the same is told."""
    with parked(golden, **changes) as (web, _, loaded):
        assert "life" not in loaded
        tell(web, Kind.PARK)
        assert told(web)["problem"] == "it cannot be parked"


@contextmanager
def tried(**changes: Any) -> Iterator[tuple[Sidecar, dict[str, Any]]]:
    """Run the trial of an engine; yield the sidecar, and what LOADED says."""
    command = (sys.executable, "-B", str(SOURCE), "${SOCKET}", "--host-mib", "200")
    plan = GoldenPlan(base="/v1", model="m")
    given: dict[str, Any] = {"command": command, "golden_plan": plan, "park": HOOKS, **changes}
    spec = ServerSpec("web@1", ready="/health", start_s=60.0, stop_grace_s=1.0, **given)
    with sidecar(spec, role="trial") as web:
        yield web, web.ready()


def test_a_trial_is_parked_as_its_manager_says() -> None:
    """It has no exchanges, so it refuses nothing. What it has learnt of its golden sample is asked,
    and the memory of its processes is measured."""
    with tried() as (web, loaded):
        assert loaded["life"] == LifeState.READY
        assert "golden" in loaded["report"]
        assert "no_park" not in loaded["report"]
        tell(web, Kind.PARK, if_idle_ms=3_600_000)
        parked = told(web)
        assert (parked["life"], parked["problem"]) == (LifeState.PARKED, "")
        assert "host_mib" not in parked
        web.restart_manager()
        assert web.hello["loaded"]["life"] == LifeState.PARKED
        tell(web, Kind.UNPARK)
        woke = told(web)
        assert woke["life"] == LifeState.VERIFYING
        assert 195 <= woke["host_mib"] <= 240
        tell(web, Kind.VERIFY)
        assert told(web)["life"] == LifeState.READY
        web.control.sock.sendall(b"".join(pack(Kind.DRAIN)))
        assert web.exit_code() == 0


PORT = (sys.executable, "-B", str(SOURCE), "${PORT}")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"golden_plan": GoldenPlan(base="/elsewhere", model="m")},
            "it has no golden sample: /elsewhere/completions: expected 200, got 404",
        ),
        ({"command": PORT, "network": "egress"}, "other users of this host can reach the engine's"),
    ],
    ids=["no sample", "reached by others"],
)
def test_a_trial_that_cannot_be_parked_says_why(changes: dict[str, Any], why: str) -> None:
    """Its report comes all the same, and a manager that asks is told."""
    with tried(**changes) as (web, loaded):
        assert loaded["report"]["no_park"].startswith(why)
        assert "life" not in loaded
        tell(web, Kind.PARK)
        assert told(web)["problem"] == "it cannot be parked"


def test_a_trial_without_a_park_says_nothing_of_it() -> None:
    """Most functions have none."""
    with tried(park=None) as (_, loaded):
        assert loaded["report"].keys().isdisjoint({"no_park", "park"})
