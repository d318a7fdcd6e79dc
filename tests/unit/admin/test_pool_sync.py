"""Tests of the synchronisation of pools with the catalog."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from admin.pool_sync import SUPERSEDED_IDLE_S, binding, pool_spec
from pool_manager.core.state import ParkSpec
from pool_manager.ports import ServerContainer
from registry.catalog import Deployed
from registry.model.functions import ExchangeLimits, Limits, Scaling
from registry.model.hosts import Ability
from registry.model.parks import EngineCall, ParkProfile, ParkSettings
from registry.model.revisions import DeviceNeed
from registry.model.servers import Mount, PythonSettings, ServerImage
from runtime_image.contract.precision import Optimisation
from tests.support.nouns import (
    bundle,
    deployed,
    function,
    optimised,
    prepared,
    profile,
    revision,
    server_deployed,
    server_profile,
    server_revision,
)
from tests.support.operator import Operator, operating

KEYS = [f"default/digits@{number}" for number in (1, 2)]


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[Operator]:
    """An empty catalog connected to a manager, and the bundle of every revision below."""
    async with operating(tmp_path) as operator:
        operator.store.bundles[bundle().digest] = bundle()
        yield operator


def pools(operator: Operator) -> list[str]:
    """Return the keys of digits that the manager knows."""
    return [key for key in KEYS if operator.manager.pool(key) is not None]


async def test_every_revision_has_a_pool(operator: Operator) -> None:
    """A deployed revision has a pool; a removed one has none."""
    catalog = operator.store.catalog
    catalog.put(deployed(number=1))
    catalog.put(deployed(number=2))
    assert pools(operator) == KEYS

    catalog.remove_revisions("digits", [1])
    assert pools(operator) == KEYS[1:]
    catalog.remove("digits")
    assert pools(operator) == []


async def test_a_change_defines_the_pools_of_its_function_only(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change defines only the pools of its own function."""
    catalog = operator.store.catalog
    for name in ("digits", "faces", "voices"):
        catalog.put(deployed(name, 1))
    defined: list[str] = []
    monkeypatch.setattr(operator.manager, "define", lambda spec, _: defined.append(spec.key))

    catalog.put(deployed("digits", 2))
    catalog.put_function(function("digits", 2, scaling=Scaling(max=2)))

    assert set(defined) == set(KEYS)


async def test_after_its_end_nothing_is_fed(operator: Operator) -> None:
    """After its end no change reaches the manager."""
    operator.pool_sync.close()

    operator.store.catalog.put(deployed())

    assert pools(operator) == []


async def test_stored_revisions_have_pools_from_the_start(tmp_path: Path) -> None:
    """After a restart every stored revision has a pool."""
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")

    async with operating(tmp_path) as operator:
        assert pools(operator) == KEYS[:1]


def test_a_pool_is_as_its_function_says() -> None:
    """Bounds and idle time of a pool come from the function, sizes from revision and profile."""
    scaling = Scaling(min=1, max=3, idle_s=40)

    spec = pool_spec(Deployed(function(scaling=scaling), revision(), profile()), bundle())

    assert (spec.key, spec.min, spec.max, spec.idle_s) == (KEYS[0], 1, 3, 40)
    assert (spec.target, spec.load_s) == (64, 0.0125)
    assert spec.bundle_bytes == bundle().size


@pytest.mark.parametrize(
    ("scaling", "is_preemptible"),
    [
        (Scaling(), True),
        (Scaling(min=1), False),
        (Scaling(preemptible=False), False),
        (Scaling(min=1, preemptible=True), True),
    ],
)
def test_replicas_may_be_preempted_unless_some_are_kept(
    scaling: Scaling, *, is_preemptible: bool
) -> None:
    """By default; the function may say otherwise. Each replica's binding has it."""
    assert binding(Deployed(function(scaling=scaling), revision()), bundle()).preemptible is (
        is_preemptible
    )


def test_without_a_profile_one_request_runs_and_one_waits() -> None:
    """A revision without a profile is not batched: one request runs and one waits."""
    spec = pool_spec(Deployed(function(), revision()), bundle())

    assert (spec.target, spec.load_s) == (2, 0.0)


@pytest.mark.parametrize(("idle_s", "expected"), [(300.0, SUPERSEDED_IDLE_S), (1.0, 1.0)])
def test_a_superseded_revision_has_no_minimum(idle_s: float, expected: float) -> None:
    """A superseded revision has no minimum and a short idle time, at most the function's."""
    scaling = Scaling(min=2, max=3, idle_s=idle_s)

    spec = pool_spec(Deployed(function(revision=2, scaling=scaling), revision()), bundle())

    assert (spec.min, spec.max, spec.idle_s) == (0, 3, expected)


PARK = ParkSettings("", EngineCall("/s"), EngineCall("/w"), park_s=3600.0)
SHOWN = ParkProfile(True, "", 3.1, 2.2, 0.1, 16_000.0, 1100.0)


@pytest.mark.parametrize(
    ("settings", "shown", "known"),
    [
        (PARK, SHOWN, ParkSpec(3.1, 2.2, 16_000.0, 1100.0, 0.1, 3600.0)),
        (PARK, replace(SHOWN, works=False, reason="it hangs"), None),
        (PARK, None, None),
        (None, SHOWN, None),
    ],
    ids=["works", "does not work", "not tried", "no table"],
)
def test_a_pool_knows_of_parks_that_work(
    settings: ParkSettings | None, shown: ParkProfile | None, known: ParkSpec | None
) -> None:
    """As the trial has measured them; its replicas have the host memory beside their cap."""
    one = server_revision(park=settings)
    deployed = Deployed(function("web"), one, server_profile(one, park=shown))

    assert pool_spec(deployed, bundle()).park == known
    assert binding(deployed, bundle()).park_mib == (known.host_mib if known else 0.0)


def test_a_superseded_revision_is_not_parked() -> None:
    """Its replicas are stopped: nobody would wake them."""
    one = server_revision(park=PARK)
    deployed = Deployed(function("web", 2), one, server_profile(one, park=SHOWN))

    assert pool_spec(deployed, bundle()).park is None


def test_a_replica_is_bound_to_its_revision() -> None:
    """A replica is bound to the model, files and memory cap of exactly its revision."""
    one = deployed(number=2)
    capped = replace(
        one, revision=replace(one.revision, device=replace(one.revision.device, memory_mib=64))
    )

    bound = binding(capped, bundle())

    assert (bound.spec.revision, bound.bundle, bound.number) == ("digits@2", bundle(), 2)
    assert bound.memory_mib == 64


def test_a_replica_is_given_the_chosen_candidate() -> None:
    """A replica needs the candidate that its trial chose: it is one of the files that a host must
    have, and revisions of one bundle in different precision have different files there."""
    one = revision(optimise=Optimisation("auto", 0.01))
    measured = profile(optimised=optimised(b"x" * 2**20), memory_mib=0.5)
    whole, plain = Deployed(function(), one, measured), deployed()

    bound, spec = binding(whole, bundle()), pool_spec(whole, bundle())

    assert [file.path for file in bound.optimised] == [".optimised/model.onnx"]
    assert [file.path for file in bound.required.files] == [".optimised/model.onnx", "model.onnx"]
    assert bound.bundle == bundle()
    assert (spec.files, spec.bundle_bytes) == (bound.required.digest, 2**20 + 5)
    assert spec.memory_mib == 1.0
    assert (binding(plain, bundle()).optimised, binding(plain, bundle()).required) == ((), bundle())
    assert pool_spec(plain, bundle()).files == bundle().digest != spec.files


def test_a_replica_is_given_what_was_prepared() -> None:
    """A replica gets the prepared files if they were made of the revision's own model."""
    made = prepared()
    whole = Deployed(function(), revision(), profile(prepared=made))
    other = Deployed(function(), revision(model="other.onnx"), profile(prepared=made))

    assert binding(whole, bundle()).prepared == made.files
    assert binding(other, bundle()).prepared == ()
    assert binding(deployed(), bundle()).prepared == ()


def test_a_command_has_no_container() -> None:
    """Neither has a model; the names of secrets are passed on, not their values."""
    bound = binding(server_deployed(secrets={"TOKEN": "hf"}), bundle())

    assert (bound.container, bound.secrets) == (None, {"TOKEN": "hf"})
    assert binding(deployed(), bundle()).container is None


def test_the_container_of_an_image_is_as_its_revision_says() -> None:
    """The pinned image, and every setting of the container."""
    mounts = (Mount("models", "/srv/models", "/models"),)
    one = server_deployed(
        command=("-v", "${PORT}"),
        env={"A": "1"},
        network="egress",
        stop_grace_s=3.0,
        port=81,
        image=ServerImage("web:1", "sha256:abc", "web@sha256:def"),
        user="1:2",
        capabilities=("CHOWN",),
        writable={"/x": 1},
        shm_mib=7,
        stop_signal="SIGQUIT",
        mounts=mounts,
        secrets={"TOKEN": "hf"},
        exchange=ExchangeLimits(concurrency=4),
    )

    bound = binding(one, bundle())

    assert bound.container == ServerContainer(
        image="sha256:abc",
        arguments=("-v", "${PORT}"),
        env={"A": "1"},
        network="egress",
        user="1:2",
        capabilities=("CHOWN",),
        writable={"/x": 1},
        shm_mib=7,
        stop_signal="SIGQUIT",
        stop_grace_s=3.0,
        mounts=mounts,
        port=81,
        concurrency=4,
        has_files=True,
        reference="web:1",
        digest="web@sha256:def",
    )
    assert bound.secrets == {"TOKEN": "hf"}


def test_an_image_that_is_not_pinned_is_named() -> None:
    """With the port that the sidecar expects."""
    container = binding(server_deployed(image=ServerImage("web:1")), bundle()).container

    assert container is not None
    assert (container.image, container.port) == ("web:1", 8000)


def test_a_model_may_run_on_any_host_and_again() -> None:
    """A model needs no ability, and its calls may run again unless its function says otherwise."""
    scaling = Scaling(spread=False)
    model = revision(device=DeviceNeed(host={"zone": "a", "disk": "nvme"}))
    spec = pool_spec(Deployed(function(scaling=scaling), model), bundle())

    assert (spec.ability, spec.may_rerun, spec.spread) == (None, True, False)
    assert spec.labels == (("disk", "nvme"), ("zone", "a"))
    assert (spec.files, spec.image) == (bundle().digest, "")

    never = Deployed(function(limits=Limits(retry="never")), revision())
    handler = Deployed(function(), revision(handler="handler.py"))
    assert [pool_spec(one, bundle()).may_rerun for one in (never, handler)] == [False, False]


def test_a_server_runs_on_hosts_with_its_ability() -> None:
    """A server's calls run once; folders that it mounts and Python environments are this machine's,
    unless it names other hosts."""
    mounts = (Mount("data", "/srv", "/data"),)
    plain = server_deployed(image=ServerImage("app:1", "sha256:1"))
    mounted = server_deployed(image=ServerImage("app:1", "sha256:1"), mounts=mounts)
    elsewhere = replace(
        mounted, revision=replace(mounted.revision, device=DeviceNeed(host={"zone": "a"}))
    )

    specs = [pool_spec(one, bundle()) for one in (plain, mounted, elsewhere)]

    assert {(spec.ability, spec.may_rerun, spec.image) for spec in specs} == {
        (Ability.IMAGE, False, "sha256:1")
    }
    assert [spec.labels for spec in specs] == [(), (("host", "local"),), (("zone", "a"),)]
    packed = server_deployed(python=PythonSettings())
    spec = pool_spec(packed, bundle())
    assert (spec.ability, spec.labels) == (Ability.PACKAGES, (("host", "local"),))
    assert pool_spec(server_deployed(), bundle()).ability is Ability.COMMAND
