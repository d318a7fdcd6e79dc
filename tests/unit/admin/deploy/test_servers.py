"""Tests of deploys of server functions: checks, trials, limits, and moving traffic."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from admin.deploy.changes import Changes, changed_settings
from admin.deploy.plan import (
    Plan,
    check_code,
    interface_from_report,
    plan,
    read_request,
    verified_before,
)
from admin.deploy.rollout import QUIET_S, Rollout
from admin.deploy.servers import deployed_interface, deployed_server, with_wait
from admin.deploy.verify import Samples, Verification
from admin.documents.deploys import DeployedServer
from admin.documents.requests import BundleEntry, DeployRequest
from admin.pool_sync import binding, pool_spec
from pool_manager.core.state import PoolSpec
from pool_manager.manager import Manager
from pool_manager.ports import Binding
from pool_manager.waiters import Warmed
from registry.catalog import Catalog, Deployed
from registry.errors import BadBundle, ModelRefused, Refused, ServerRefused, WrongScope
from registry.exchange import Load
from registry.model.functions import ExchangeLimits, Function, Limits
from registry.spec import settings_equal
from runtime_image.contract.samples import SampleRequest
from runtime_image.contract.server import DESCRIPTION, ServerSpec
from tests.support.fake_driver.opening import hosts_with
from tests.support.interfaces import description, named
from tests.support.nouns import (
    EMPTY,
    HTTP,
    bundle,
    function,
    server_deployed,
    server_profile,
    server_revision,
    sha256,
)
from tests.support.operator import Operator, operating

MANIFEST = 'schema = 1\n[server]\ncommand = "serve ${PORT}"\n'
REPORT: dict[str, Any] = {
    "device_kind": "cpu",
    "signature": {"kind": "http", "inputs": [], "outputs": []},
    "load_ms": 60_000.0,
    "memory_mib": 50.0,
    "latency_ms": {},
    "batchable": False,
    "why_not": "",
    "batch_max": 1,
    "profiled": True,
    "note": "",
    "sample_outputs": {"requests": [{"method": "GET", "path": "/", "status": 200}]},
}


def request(manifest: str = MANIFEST, **fields: Any) -> DeployRequest:
    return DeployRequest(**{"files": [], "manifest": manifest, "trust": True, **fields})


def planned(wanted: DeployRequest, catalog: Catalog | None = None) -> Plan:
    return plan("web", wanted, read_request("web", wanted), catalog or Catalog(), 0.0, 77.0)


def test_a_command_needs_no_file() -> None:
    """A bundle of a server may be empty; the draft has its settings and limits."""
    draft = planned(request())

    assert draft.bundle == EMPTY
    assert replace(draft.revision, signature=HTTP) == server_revision(number=0)
    assert draft.function.exchange == ExchangeLimits()


@pytest.mark.parametrize("manifest", [None, ""])
def test_only_a_server_needs_no_file(manifest: str | None) -> None:
    """Without a manifest there is no command, and then no function without files."""
    with pytest.raises(BadBundle, match="expected 1 to 5000 files, got 0"):
        planned(DeployRequest(files=[], manifest=manifest))


def test_a_command_must_be_trusted() -> None:
    """A command runs with the server's rights, so the deploy must say that this is wanted."""
    with pytest.raises(Refused, match="the command 'serve' would run"):
        planned(request(trust=False))


@pytest.mark.parametrize(
    ("driver", "scopes", "said"),
    [
        ("process", ("admin",), ""),
        ("process", ("deploy",), "the command would run as the server's own user under the driver"),
        ("docker", ("admin",), "expected the driver process, got docker"),
    ],
)
def test_who_may_deploy_a_command(driver: str, scopes: tuple[str, ...], said: str) -> None:
    """Beside the server it needs the scope admin; in containers it cannot run at all."""
    if not said:
        check_code(planned(request()), hosts_with(driver), scopes)
        return
    with pytest.raises((Refused, WrongScope), match=said) as caught:
        check_code(planned(request()), hosts_with(driver), scopes)
    assert "under the driver docker the scope" not in caught.value.message


@pytest.mark.parametrize(
    ("driver", "said"),
    [("docker", ""), ("process", "server.image: expected the driver docker, got")],
)
def test_an_image_needs_containers(driver: str, said: str) -> None:
    """Under the driver process it is refused, naming the other; it needs no trust."""
    image = request('schema = 1\n[server]\nimage = "nginx:1.27"\n', trust=False)
    if not said:
        check_code(planned(image), hosts_with(driver), ("admin",))
        return
    with pytest.raises(Refused, match=said):
        check_code(planned(image), hosts_with(driver), ("admin",))


@pytest.mark.parametrize(
    ("start_s", "manifest", "wait_s"),
    [
        (1.0, MANIFEST, 55.0),
        (60.0, MANIFEST, 90.0),
        (1000.0, MANIFEST, 600.0),
        (60.0, MANIFEST + "[limits]\nwait_s = 5\n", 5.0),
    ],
)
def test_calls_are_held_for_longer_than_a_start(
    start_s: float, manifest: str, wait_s: float
) -> None:
    """Without `wait_s` in the manifest, calls are held for 1.5 starts, from 55 to 600 seconds."""
    draft = planned(request(manifest))

    settled = with_wait(draft, server_profile(draft.revision, load_ms=start_s * 1e3))

    assert settled.function.limits.wait_s == wait_s
    assert settled == replace(draft, function=settled.function)


def test_the_wait_of_model_functions_stays() -> None:
    """A model function's wait is what the manifest says, or 55 seconds."""
    files = [BundleEntry("m.onnx", 1, sha256(b""))]
    draft = planned(DeployRequest(files=files, model="m.onnx"))

    assert with_wait(draft, None) == draft
    assert deployed_server(Deployed(draft.function, draft.revision)) is UNSET
    assert deployed_interface(draft.revision) is UNSET


def test_a_trial_is_reused_for_an_equal_server_only() -> None:
    """Everything that the server gets must be equal, also the limits that are no part of the
    revision, but not its name."""
    draft = planned(request())
    profile = server_profile(draft.revision)
    known = Deployed(function("other"), replace(draft.revision, name="other", number=3), profile)

    assert verified_before(draft, Catalog([known]), "cpu") == known
    for text in ("deny = ['/a']\n", "fields = ['x_y']\n"):  # of the gateway alone
        assert verified_before(planned(request(MANIFEST + text)), Catalog([known]), "cpu") == known
    for text in (
        "host = 'loopback'\n",
        "host = 'a'\n",
        "[server.env]\nA = '1'\n",
        "[limits]\nconcurrency = 2\n",
        "ready = '/up'\n",
    ):
        assert verified_before(planned(request(MANIFEST + text)), Catalog([known]), "cpu") is None


def test_limits_of_exchanges_are_settings_of_the_function() -> None:
    """Their change makes no revision, and is told by the keys of the manifest."""
    before, after = (
        planned(request(MANIFEST + text)).function for text in ("", "[limits]\nmax_s = 5\n")
    )

    assert changed_settings(before, after) == ["limits.max_s", "limits.drain_s"]
    assert "limits.concurrency" in changed_settings(function("web"), before)


def test_the_manager_gets_the_limits_of_a_server() -> None:
    """A pool of a server counts by concurrency, and knows how long its start and its end take."""
    one = server_deployed(
        exchange=ExchangeLimits(concurrency=4, drain_s=30.0), start_s=5.0, stop_grace_s=2.0
    )

    spec, bound = pool_spec(one, EMPTY), binding(one, EMPTY)

    assert (spec.is_server, spec.target, spec.batches) == (True, 4, False)
    assert (spec.start_s, spec.drain_s, spec.stop_grace_s) == (5.0, 30.0, 2.0)
    assert isinstance(bound.spec, ServerSpec)


class Trials:
    """Manager whose trials return one report, or raise an error; records what it was given."""

    def __init__(self, operator: Operator, outcome: dict[str, Any] | Exception) -> None:
        self._outcome = outcome
        self.asked: list[tuple[PoolSpec, Binding]] = []
        self.devices = operator.manager.devices

    async def trial(self, spec: PoolSpec, bound: Binding) -> dict[str, Any]:
        self.asked.append((spec, bound))
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


async def test_a_trial_runs_the_server_as_it_is(tmp_path: Path) -> None:
    """The trial gets the spec of the server and its limits; its report becomes the profile."""
    async with operating(tmp_path) as operator:
        draft = planned(request(MANIFEST + "start_s = 9\n"))
        trials = Trials(operator, REPORT)

        verified = await Verification(operator.store, trials, wall=time.time).verify(draft, "1")  # type: ignore[arg-type]

    ((spec, bound),) = trials.asked
    assert (spec.role, spec.is_server, spec.start_s) == ("trial", True, 9.0)
    assert isinstance(bound.spec, ServerSpec)
    assert (bound.spec.command, bound.spec.start_s) == (("serve", "${PORT}"), 9.0)
    assert verified.profile == server_profile(draft.revision, load_ms=60_000.0, memory_mib=50.0)
    assert verified.revision.signature.kind == "http"
    assert verified.sample == REPORT["sample_outputs"]


PYTHON = DeployRequest(
    files=[BundleEntry("handler.py", 1, sha256(b"x"))],
    manifest="schema = 1\n[python]\n",
    trust=True,
)


async def test_a_trial_asks_a_python_function_how_it_is_called(tmp_path: Path) -> None:
    """Its revision has it; an equal one has the same without a trial, and it makes none of them
    another. What the report says of another server is not read."""
    said = json.dumps(description(named("text", text={"type": "string"})))
    report = {**REPORT, "description": said}
    async with operating(tmp_path) as operator:
        draft, trials = planned(PYTHON), Trials(operator, report)
        verification = Verification(operator.store, trials, wall=time.time)  # type: ignore[arg-type]
        verified = await verification.verify(draft, "1")
        known = Deployed(function("web"), replace(verified.revision, number=1), verified.profile)
        operator.store.catalog.put(known)
        again = await verification.verify(draft, "2")
        other = await verification.verify(planned(request()), "3")

    ((_, bound), _) = trials.asked
    assert isinstance(bound.spec, ServerSpec)
    assert bound.spec.description == DESCRIPTION
    found = verified.revision.interface
    assert found is not None
    assert json.loads(found.schema)["inputs"]["required"] == ["text"]
    assert again.revision.interface == found
    assert other.revision.interface is None
    assert settings_equal(known.revision, draft.revision)
    calls = deployed_interface(known.revision)
    assert calls is not UNSET
    assert calls.predict == "predict(...)"


@pytest.mark.parametrize(
    ("report", "why"),
    [
        ({}, "cannot be read"),
        ({"description": {"a": 1}}, "the trial's report has no description"),
        ({"no_description": "GET /: expected 200, got 500"}, "expected 200, got 500"),
    ],
)
def test_a_function_without_a_description_is_deployed(report: dict[str, Any], why: str) -> None:
    """The replica is not trusted."""
    assert why in interface_from_report(report).why_not


async def test_a_refused_server_is_told_with_stage_and_log(tmp_path: Path) -> None:
    """The refusal of a trial has an error code of its own, and everything that the trial said."""
    refusal = ModelRefused(
        "exited with code 0", detail={"stage": "start"}, admin_detail={"log_tail": ["bye"]}
    )
    async with operating(tmp_path) as operator:
        trials = Trials(operator, refusal)
        with pytest.raises(ServerRefused) as caught:
            await Verification(operator.store, trials, wall=time.time).verify(
                planned(request()), "1"
            )  # type: ignore[arg-type]

    error = caught.value
    assert (error.code, error.message) == ("server_refused", "exited with code 0")
    assert (error.detail, error.admin_detail) == ({"stage": "start"}, {"log_tail": ["bye"]})


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ((), ("text/plain; charset=utf-8", b"")),
        ((SampleRequest(body="hi"),), ("text/plain; charset=utf-8", b"hi")),
        ((SampleRequest(headers={"content-type": "a/b"}, body="hi"),), ("a/b", b"hi")),
        ((SampleRequest(body="@q.json"),), ("application/json", b"{}")),
        ((SampleRequest(headers={"Content-Type": "a/b"}, body="@q.json"),), ("a/b", b"{}")),
    ],
)
async def test_the_sample_of_a_server_is_the_body_of_its_first_request(
    tmp_path: Path, samples: tuple[SampleRequest, ...], expected: tuple[str, bytes]
) -> None:
    """A body is text or a file of the bundle; a header of the sample names its type."""
    async with operating(tmp_path) as operator:
        files = {"q.json": b"{}"}
        await operator.request(files)
        stored = bundle(q__json=b"{}")
        one = server_deployed(bundle=stored.digest, samples=samples)
        operator.store.bundles[stored.digest] = stored

        assert await Samples(operator.store.bundles, operator.store.blobs).body(one) == expected


class Full:
    """Manager of one device, which the old revision of web holds. `in_flight` are its exchanges,
    `later` those after each pause; `outcomes` are those of successive warm-ups."""

    def __init__(self, in_flight: int, *outcomes: Warmed) -> None:
        self.in_flight = in_flight
        self.later: list[int] = []
        self.paused_s = 0.0
        self.asked: list[tuple[str, bool, float]] = []
        self._outcomes = list(outcomes)

    async def pause(self, seconds: float) -> None:
        """Let a second pass in which exchanges may end, or begin."""
        self.paused_s += seconds
        self.in_flight = self.later.pop(0) if self.later else self.in_flight

    async def warm(self, key: str, *, beside: bool = False, timeout_s: float = 1.0) -> Warmed:
        self.asked.append((key, beside, timeout_s))
        return self._outcomes.pop(0) if self._outcomes else Warmed("no_room", "")

    def load(self, key: str) -> Load:
        return Load(0, self.in_flight, 0.0)

    def pool(self, key: str) -> Any:
        class Warm:
            state = "warm" if key.endswith("@1") else "cold"

        return Warm, 0, 0.0

    def replicas(self) -> list[Any]:
        return []

    def define(self, spec: PoolSpec, binding: Binding) -> None:
        """Define nothing."""

    sleep = note = define


class Moves(Changes):
    """Changes that only record when traffic moved."""

    def __init__(self, manager: Full) -> None:
        self.moved: list[int] = []
        self._full = manager

    async def move(self, target: Deployed, settings: Function | None = None) -> None:
        self.moved.append(self._full.in_flight)


async def rolled_out(
    operator: Operator,
    manager: Full,
    drain_s: float = 60.0,
    phase: Callable[[str], None] = lambda _: None,
    *,
    now: bool = False,
) -> tuple[str, Moves]:
    """Move traffic from web@1 to web@2 on the manager's one device, with no replica to wait for."""
    catalog = operator.store.catalog
    old = server_deployed(exchange=ExchangeLimits(drain_s=drain_s))
    operator.store.bundles[EMPTY.digest] = EMPTY
    catalog.put(old)
    target = Deployed(old.function, server_revision(number=2, ready="/up"))
    moves = Moves(manager)
    rollout = Rollout(operator.store, manager, moves, manager.pause)  # type: ignore[arg-type]

    async def clear(_keys: set[str], _name: str) -> bool:
        return False

    rollout._clear = clear  # type: ignore[method-assign]

    async def tell(name: str) -> None:
        phase(name)

    how = await rollout.to(target, tell, now=now)
    await asyncio.sleep(0)
    await rollout.close()
    return how, moves


async def test_calls_stay_until_the_old_server_has_nothing_open(tmp_path: Path) -> None:
    """Where both do not fit, the old revision finishes its exchanges; then it makes room. Calls are
    reported late, so that it must have none for two seconds."""
    manager = Full(3)
    manager.later = [3, 0, 0, 1, 0]
    phases: list[str] = []

    async with operating(tmp_path) as operator:
        how, moves = await rolled_out(operator, manager, phase=phases.append)

    assert manager.paused_s == 0.25 * 5 + QUIET_S - 0.25
    assert phases == ["warm", "drain", "switch"]
    assert moves.moved == [0]
    assert how == (
        "no room for both: web@1 had no open exchange left and makes room, calls are held"
    )
    assert manager.asked[-1] == ("default/web@2", False, 60.0)


async def test_room_that_appears_meanwhile_is_used(tmp_path: Path) -> None:
    """If there is room for both once the exchanges are over, no call is held."""
    manager = Full(0, Warmed("no_room", "full"), Warmed("ready", ""))

    async with operating(tmp_path) as operator:
        how, _ = await rolled_out(operator, manager)

    assert how == "warm before traffic moved"


async def test_an_old_server_has_its_drain_time_at_most(tmp_path: Path) -> None:
    """Exchanges that are open after `drain_s` do not keep the traffic from moving."""
    async with operating(tmp_path) as operator:
        how, moves = await rolled_out(operator, Full(2), drain_s=4)

    assert moves.moved == [2]
    assert how == (
        "no room for both: web@1 had 2 open exchanges after 4 s (drain_s) and makes room,"
        " calls are held"
    )


async def test_a_deploy_may_hold_calls_at_once(tmp_path: Path) -> None:
    """With `now`, the old revision does not finish its exchanges before calls are held."""
    phases: list[str] = []
    async with operating(tmp_path) as operator:
        how, moves = await rolled_out(operator, Full(2), phase=phases.append, now=True)

    assert (phases, moves.moved) == (["warm", "switch"], [2])
    assert how == "no room for both: web@1 makes room at once, calls are held"


async def test_a_server_that_does_not_become_ready_gets_no_traffic(tmp_path: Path) -> None:
    """A failed warm-up of a server has the error code of servers."""

    class Failing(Full):
        async def logs(self, _function: str) -> list[tuple[str, bytes]]:
            return [("r1", b"one\ntwo\n")]

    async with operating(tmp_path) as operator:
        with pytest.raises(ServerRefused, match="web@2 does not become ready: exit 1") as caught:
            await rolled_out(operator, Failing(0, Warmed("failed", "exit 1")))

    assert caught.value.admin_detail == {"log_tail": ["one", "two"]}


def test_a_result_tells_the_wait() -> None:
    """The result of a deploy has what a caller of the server may have to wait for."""
    one = server_deployed(ready="/up", network="egress", limits=Limits(wait_s=90.0))

    assert deployed_server(one) == DeployedServer("/up", "egress", 90.0, "auto", "client")


def test_a_manager_has_what_the_double_has() -> None:
    """The double above stands for a manager: every method of it exists there."""
    names = {name for name in vars(Full) if not name.startswith("_")} - {"pause"}

    assert {name for name in names if not hasattr(Manager, name)} == set()
