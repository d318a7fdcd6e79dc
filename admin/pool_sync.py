"""Keeps the pools of the manager in step with the catalog."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pool_manager.core.state import ParkSpec, PoolSpec
from pool_manager.manager import Manager
from pool_manager.ports import Binding, PythonRun, ServerContainer
from registry.batching import rows_of
from registry.bundles.paths import extended
from registry.catalog import Catalog, Change, Deployed
from registry.compilation import Compiled, memory_mib
from registry.model.bundles import Bundle, BundleFile
from registry.model.functions import ExchangeLimits
from registry.model.revisions import pool_key
from registry.spec import (
    candidate_of,
    golden_of,
    host_labels,
    may_rerun,
    park_of,
    prepared_of,
    replica_spec,
    runner_settings,
    step_s_of,
)
from runtime_image.contract.server import PORT_DEFAULT

SUPERSEDED_IDLE_S = 10.0
"""Max idle seconds of a replica whose revision has no traffic; then it is stopped."""


CompiledOf = Callable[[Deployed], Sequence[Compiled]]


class PoolSync:
    """Defines a pool for every revision in the catalog, and removes it with the revision."""

    def __init__(
        self,
        catalog: Catalog,
        manager: Manager,
        bundle_of: Callable[[str], Bundle],
        compiled_of: CompiledOf,
    ) -> None:
        """`compiled_of` returns the compiled models of a revision, one for each type of device."""
        self._catalog = catalog
        self._manager = manager
        self._bundle_of = bundle_of
        self._compiled_of = compiled_of
        self._defined: dict[tuple[str, str], tuple[int, ...]] = {}
        for deployed in catalog.all():
            self.define(deployed.function.namespace, deployed.function.name)
        self.close = catalog.subscribe(self._changed)

    def _changed(self, change: Change) -> None:
        self.define(change.namespace, change.name)

    def define(self, namespace: str, name: str) -> None:
        """Define the pools of a function's revisions as they are now."""
        deployed = self._catalog.revisions(name, namespace)
        numbers = tuple(one.revision.number for one in deployed)
        for number in set(self._defined.get((namespace, name), ())).difference(numbers):
            self._manager.remove(pool_key(namespace, name, number))
        for one in deployed:
            bundle, compiled = self._bundle_of(one.revision.bundle), self._compiled_of(one)
            spec = pool_spec(one, bundle, compiled)
            self._manager.define(spec, binding(one, bundle, compiled))
        if numbers:
            self._defined[namespace, name] = numbers
        else:
            self._defined.pop((namespace, name), None)


def pool_spec(deployed: Deployed, bundle: Bundle, compiled: Sequence[Compiled] = ()) -> PoolSpec:
    """Return the part of a revision that the manager's decisions need."""
    function, revision, profile = deployed.function, deployed.revision, deployed.profile
    is_current = function.revision == revision.number
    idle_s = function.scaling.idle_s
    batch_max = rows_of(revision, profile)
    required = extended(bundle, optimised_files(deployed))
    spec = PoolSpec(
        key=revision.key,
        min=function.scaling.min if is_current else 0,
        max=function.scaling.max,
        idle_s=idle_s if is_current else min(idle_s, SUPERSEDED_IDLE_S),
        device_kind=revision.device.kind,
        target=max(2, 2 * batch_max),
        load_s=profile.load_ms / 1e3 if profile else 0.0,
        bundle_bytes=required.size,
        function=f"{function.namespace}/{function.name}",
        share=revision.device.share,
        count=revision.device.count,
        memory_mib=max(_measured_mib(deployed, compiled), _served_mib(deployed, bundle)),
        batches=batch_max > 1,
    )
    return with_server(with_hosts(spec, deployed, required), deployed)


def optimised_files(deployed: Deployed) -> tuple[BundleFile, ...]:
    """Return the files that a replica needs beside the bundle's: the chosen candidate, if any."""
    candidate = candidate_of(deployed)
    return (candidate,) if candidate else ()


def _served_mib(deployed: Deployed, bundle: Bundle) -> float:
    """Return the MiB of the files that a replica loads, by which a profile cannot be too small."""
    candidate = candidate_of(deployed)
    return (candidate.size if candidate else bundle.size) / 2**20


def with_hosts(spec: PoolSpec, deployed: Deployed, bundle: Bundle) -> PoolSpec:
    """Return `spec` with the constraints and preferences of the hosts for its replicas.

    A model runs on any host. A server runs on hosts with the ability for it.
    """
    revision, server = deployed.revision, deployed.revision.server
    return replace(
        spec,
        may_rerun=server is None and may_rerun(deployed),
        labels=tuple(sorted(host_labels(revision).items())),
        ability=server.ability if server else None,
        spread=deployed.function.scaling.spread,
        files=bundle.digest if bundle.files else "",
        file_hosts=deployed.function.scaling.file_hosts,
        image=server.image.id if server and server.image else "",
    )


def with_server(spec: PoolSpec, deployed: Deployed) -> PoolSpec:
    """Return `spec` with the settings of the revision's server, unchanged for a model function."""
    server, exchange = deployed.revision.server, deployed.function.exchange or ExchangeLimits()
    if server is None:
        return spec
    health = deployed.function.health
    return replace(
        spec,
        is_server=True,
        target=exchange.concurrency,
        start_s=server.start_s,
        drain_s=exchange.drain_s,
        stop_grace_s=server.stop_grace_s,
        sample_every_s=health.sample_every_s,
        batches=False,
        hang=health.hang,
        step_s=step_s_of(health, server),
        park=_park_spec(deployed),
    )


def _park_spec(deployed: Deployed) -> ParkSpec | None:
    """Return what the trial has measured of a park that works, None without one, and for a
    superseded revision: nobody would wake its replicas, which would keep memory for a day."""
    found, server = park_of(deployed), deployed.revision.server
    is_current = deployed.function.revision == deployed.revision.number
    if found is None or server is None or server.park is None or not is_current:
        return None
    return ParkSpec(
        sleep_s=found.sleep_s,
        wake_s=found.wake_s,
        host_mib=found.host_mib,
        residue_mib=found.residue_mib,
        verify_s=found.verify_s,
        park_s=server.park.park_s,
    )


def _measured_mib(deployed: Deployed, compiled: Sequence[Compiled]) -> float:
    return memory_mib(deployed.profile.memory_mib if deployed.profile else 0.0, compiled)


def binding(deployed: Deployed, bundle: Bundle, compiled: Sequence[Compiled] = ()) -> Binding:
    """Return the binding of a revision for its replicas, with its compiled models."""
    revision, prepared, park = deployed.revision, prepared_of(deployed), park_of(deployed)
    return Binding(
        replica_spec(deployed),
        bundle,
        revision.namespace,
        revision.name,
        revision.number,
        revision.device.memory_mib,
        _measured_mib(deployed, compiled),
        prepared.files if prepared else (),
        optimised=optimised_files(deployed),
        container=server_container(deployed, bundle),
        python=_python_run(deployed),
        secrets=dict(revision.server.secrets) if revision.server else {},
        variants={one.target.device: one for one in compiled},
        golden=golden_of(deployed),
        park_mib=park.host_mib if park else 0.0,
        preemptible=deployed.function.scaling.is_preemptible,
    )


def _python_run(deployed: Deployed) -> PythonRun | None:
    server = deployed.revision.server
    if server is None or server.python is None:
        return None
    settings = runner_settings(deployed) if deployed.revision.handler else None
    return PythonRun(server.python.environment, settings)


def server_container(deployed: Deployed, bundle: Bundle) -> ServerContainer | None:
    """Return the container of a revision's server, None unless it runs an image. `bundle` are the
    revision's files.

    An image that was not pinned yet is named by its reference.
    """
    server, exchange = deployed.revision.server, deployed.function.exchange or ExchangeLimits()
    if server is None or server.image is None:
        return None
    return ServerContainer(
        image=server.image.id or server.image.reference,
        arguments=server.command,
        env=server.env,
        network=server.network,
        user=server.user,
        capabilities=server.capabilities,
        writable=server.writable,
        shm_mib=server.shm_mib,
        stop_signal=server.stop_signal,
        stop_grace_s=server.stop_grace_s,
        mounts=server.mounts,
        port=server.port or PORT_DEFAULT,
        concurrency=exchange.concurrency,
        has_files=bool(bundle.files),
        reference=server.image.reference,
        digest=server.image.digest,
    )
