"""A whole server: wires its parts together, opens them in order and closes them in reverse."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web

from admin.api.app import Admin, open_admin
from admin.api.context import AdminContext
from admin.built_images import read_built
from admin.dcgm import DcgmFamilies
from admin.deploy.builds import Builds
from admin.deploy.compiled_models import CompiledModels
from admin.deploy.deploys import Deploys, Settled, at_once
from admin.deploy.image_rules import ImageRules, ReservedIds
from admin.deploy.python import PythonPackages
from admin.gateway_process import (
    Process,
    check_extras,
    make_delivery,
    make_gateway,
    open_site,
    start_root_tasks,
    start_serving,
)
from admin.health import Health
from admin.history import ServerHistory, prior_of
from admin.host_sync import HostSync
from admin.metrics import (
    BuildFamilies,
    DeviceFamilies,
    Gateways,
    GoldenFamilies,
    HeldFamilies,
    HostFamilies,
    OneGateway,
    ReplicaFamilies,
    RunFamilies,
    ServerFamilies,
)
from admin.model_control import LocalModels
from admin.pool_sync import PoolSync
from admin.settings import Settings
from admin.statistics import ServerStatistics
from admin.store import Store, open_store
from gateway.admission.access import Access
from gateway.delivery import Delivery, follow_traffic
from gateway.http.app import Gateway, StatePages
from gateway.http.connected import Connections
from gateway.http.page_route import Entry
from gateway.metrics.requests import Metrics
from gateway.metrics.revisions import RevisionNumbers
from gateway.metrics.samples import RateSampler
from gateway.observing.errors import RecentFailures
from gateway.pages.tickets import Tickets
from gateway.ports import ModelControl
from pool_manager.core.state import Device
from pool_manager.devices import bank_mib, cpu_slots, host_memory_mib
from pool_manager.driver import Driver
from pool_manager.drivers.fake import FakeDriver
from pool_manager.drivers.process import ProcessDriver
from pool_manager.drivers.uids import parse_range
from pool_manager.gpus.discovery import find_gpus, open_gpus
from pool_manager.hosts.settings import HostSettings
from pool_manager.image_names import Reference
from pool_manager.manager import Manager
from pool_manager.ports import Bundles
from pool_manager.replicas.run_folders import RunFolders
from registry.bundles.blobs import BlobStore
from registry.errors import BadRequest, Conflict
from registry.model.bundles import Bundle, BundleFile
from registry.openness import CLOSED, newly_exposed
from registry.tasks import Tasks

log = structlog.get_logger()

KEEP_S: Final = 5.0
"""Seconds after which a request is on the timeline, even if no other request follows."""
SECOND_S: Final = 1.0
"""Period in seconds of rates, states of busy functions, and errors."""


@dataclass(frozen=True, slots=True)
class Server:
    """Running server that accepts calls at `url`. `tasks` are the owners of its root tasks."""

    url: str
    store: Store
    manager: Manager
    delivery: Delivery
    gateway: Gateway
    deploys: Deploys
    admin: Admin
    tasks: tuple[Tasks, ...]


@asynccontextmanager
async def running(settings: Settings, driver: Driver | None = None) -> AsyncIterator[Server]:
    """Run a whole server while the block runs; leaving it finishes accepted requests.

    `driver` replaces the driver that the settings name.

    Start order: store, manager, gateway, HTTP; the manager adopts replicas before calls arrive.
    Stop order is the reverse: refuse new calls, answer accepted calls, drain replicas, close the
    store.

    Raises Conflict if another server uses the data folder, BadRequest if settings contradict each
    other, StoreUnavailable, DriverError if replicas cannot run, OSError if the port is taken.
    """
    async with AsyncExitStack() as stack:
        section = settings.gateway()
        check_extras(section)
        store = await open_store(settings.store(), stack)
        await check_exposure(settings, store)
        history = await open_history(store, stack)
        manager = await make_manager(settings, store, history, driver)
        process = Process(f"{os.getpid()}", section, settings.log_format, is_shared=False)
        delivery = make_delivery(process, manager, history)
        models = CompiledModels(store.builds, settings.compiler)
        pools = await _open_pools(store, manager, delivery, models, stack)
        deploys = await open_deploys(settings, store, manager, models, stack)
        builds = await open_builds(settings, store, manager, pools, models, stack)
        tickets = Tickets(time.monotonic)
        control = LocalModels(store.catalog, manager)
        gateway = _make_gateway(
            process, settings, store, manager, delivery, history, tickets, control
        )
        context = AdminContext(
            *(settings, store, manager, deploys, builds, history, delivery, RecentFailures()),
            connections=partial(_connections, gateway),
            tickets=tickets,
        )
        tasks = Tasks("server")
        stack.push_async_callback(tasks.close)
        owners = (store.tasks, manager.tasks, delivery.tasks, builds.tasks, tasks)
        admin = _open_admin(context, gateway, owners, stack)
        failures = gateway.invoker.failures
        root_tasks = [
            ("history", KEEP_S, history.flush),
            ("errors", SECOND_S, lambda: context.failures.add(failures.drain())),
            ("events", SECOND_S, admin.watch.tick),
        ]
        start_root_tasks(tasks, root_tasks)
        site = await open_site(gateway, _application(gateway, admin), stack)
        port = await start_serving(site, gateway, delivery, stack)
        url = url_of(settings.listen, port)
        yield Server(url, store, manager, delivery, gateway, deploys, admin, owners)


async def open_history(store: Store, stack: AsyncExitStack) -> ServerHistory:
    """Return the history with the cold starts of earlier runs; `stack` flushes it at the end."""
    wall = time.time  # noqa: TID251 - the shell passes the clock in
    history = ServerHistory(store.history, wall, partial(prior_of, store.catalog), store.usage.add)
    await history.load()
    stack.callback(history.flush)
    return history


async def check_exposure(settings: Settings, store: Store) -> None:
    """Close the server to callers without a key if settings let others than this machine reach it
    that did not when it was opened.

    Raises BadRequest if other machines can connect but no key exists or no host is named.
    """
    exposed = newly_exposed(await store.openness.load(), settings.exposure())
    if exposed:
        await store.openness.save(CLOSED)
        store.ring.decide(CLOSED.openness)
        log.warning(
            "every caller needs a key from now on: others than this machine may reach the server",
            by=exposed,
            to_open_it="fnctl access open",
        )
    if settings.is_local:
        return
    if not store.ring.has_keys:
        raise BadRequest(
            f"--listen {settings.listen} accepts calls from other machines: first create a key with"
            " fnctl key add --scope invoke on a server that listens on 127.0.0.1"
        )
    if not settings.public_hosts:
        raise BadRequest(
            f"--listen {settings.listen} needs --public-host NAME, the host name that clients use"
        )


def _check_private(folder: Path) -> None:
    """Raise Conflict unless the folder is private. In the system's temporary folder another user
    could have created it first, to read the sockets."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_ours or stat.S_IMODE(found.st_mode) & 0o077:
        raise Conflict(
            f"{folder}: expected a folder that only user {os.getuid()} can enter, got"
            f" {stat.filemode(found.st_mode)} of user {found.st_uid}; remove it"
        )


class _Linked(Bundles):
    """The blob store as the manager's source of model files; linking runs in a thread."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    async def materialise(
        self, bundle: Bundle, target: Path, prepared: Collection[BundleFile] = ()
    ) -> None:
        await asyncio.to_thread(self._blobs.materialise, bundle, target, prepared)

    async def add(self, files: Collection[BundleFile], target: Path) -> None:
        await asyncio.to_thread(self._blobs.add, files, target)

    def path(self, sha256: str) -> Path:
        return self._blobs.path(sha256)

    async def keep(self, size: int, parts: AsyncIterator[bytes | bytearray]) -> str:
        async with self._blobs.take(size) as upload:
            async for part in parts:
                await upload.write(part)
        return upload.sha256


async def open_driver(
    settings: Settings, devices: Iterable[Device], visible: Callable[[Sequence[str]], str]
) -> Driver:
    """Return the driver that the settings name, ready for devices of these kinds. `visible` is
    `Gpus.visible` of this machine's GPUs, for processes.

    Raises DriverError if its container engine or images cannot be used.
    """
    if settings.driver == "fake":
        return FakeDriver()
    section = settings.pool()
    if settings.driver == "process":
        return ProcessDriver(section.run_dir, server_path=section.server_path, visible=visible)
    # Imported here, as servers with other drivers do not need the engine's library.
    from pool_manager.drivers.docker.driver import DockerDriver, DockerSettings

    known = {"cpu": settings.image_cpu, "cuda": settings.image_gpu}
    kinds = {"cpu"} | {device.kind for device in devices}
    return await DockerDriver.open(
        DockerSettings(
            url=settings.docker_host,
            images={kind: known[kind] for kind in sorted(kinds)},
            data=settings.data,
            pool=section,
            uids=parse_range(settings.replica_uids),
        )
    )


async def make_manager(
    settings: Settings, store: Store, history: ServerHistory, driver: Driver | None
) -> Manager:
    """Return the pool manager, not started yet."""
    section = settings.pool()
    _check_private(section.run_dir)
    section.mounts.check()
    memory_mib = section.host_memory_mib or bank_mib(host_memory_mib())
    found, slots = await find_gpus(section.gpus), cpu_slots(section.cpu_slots, memory_mib)
    # The GPUs are opened with the driver, which asks for them only at its first start.
    driver = driver or await open_driver(
        settings, [*found.devices(), *slots], lambda devices: gpus.visible(devices)
    )
    gpus = await open_gpus(found, driver, RunFolders(section).read_records())
    devices = [*gpus.devices(), *slots]
    remote = HostSettings(
        server=store.id,
        images={"cpu": settings.image_cpu, "cuda": settings.image_gpu},
        uids=parse_range(settings.replica_uids),
        engine_url=settings.docker_host,
        local_labels=settings.host_labels,
    )
    return Manager(
        *(section, driver, devices, _Linked(store.blobs), history, gpus, store.secrets, remote)
    )


async def _open_pools(
    store: Store,
    manager: Manager,
    delivery: Delivery,
    models: CompiledModels,
    stack: AsyncExitStack,
) -> PoolSync:
    """Connect manager and gateway; they exchange serialised messages only."""
    stack.push_async_callback(delivery.close)
    stack.push_async_callback(manager.close)
    stack.callback(manager.subscribe(delivery.receive_endpoints))
    pools = follow_store(store, manager, models, stack)
    stack.callback(follow_traffic(store.catalog, delivery))
    await manager.start()
    delivery.open()
    return pools


def follow_store(
    store: Store, manager: Manager, models: CompiledModels, stack: AsyncExitStack
) -> PoolSync:
    """Define the store's hosts and pools at a manager that has not started, and follow changes."""
    stack.callback(HostSync(store.hosts, manager).close)
    pools = PoolSync(store.catalog, manager, store.bundles.__getitem__, models.of)
    stack.callback(pools.close)
    return pools


async def open_builds(
    settings: Settings,
    store: Store,
    manager: Manager,
    pools: PoolSync,
    models: CompiledModels,
    stack: AsyncExitStack,
) -> Builds:
    """Return the background builds, which run until `stack` ends."""
    wall = time.time  # noqa: TID251 - the shell passes the clock in
    builds = Builds(store, manager, pools, models, wall, delay_s=settings.build_delay_s)
    stack.push_async_callback(builds.close)
    await builds.start()
    return builds


async def open_deploys(
    settings: Settings,
    store: Store,
    manager: Manager,
    models: CompiledModels,
    stack: AsyncExitStack,
    settled: Settled = at_once,
) -> Deploys:
    """Return deploys and rollbacks, after resuming operations that an earlier server left.
    `settled` is awaited after each change, until every gateway process has applied it."""
    deploys = Deploys(
        store,
        manager,
        idle_s=settings.idle_s,
        wall=time.time,  # noqa: TID251 - the shell passes the clock in
        settled=settled,
        prepare=settings.prepare,
        trial_wait_s=settings.trial_wait_s,
        mounts=settings.pool().mounts,
        models=models,
        driver=settings.driver,
        rules=image_rules(settings),
        packages=PythonPackages(
            store, settings.data / "environments", settings.environments(), settings.pythons
        ),
    )
    stack.push_async_callback(deploys.close)
    # In this order: the sweep spares files of resumed operations.
    await deploys.resume()
    await deploys.sweep()
    return deploys


def image_rules(settings: Settings) -> ImageRules:
    """Return what the scope deploy may name as the image of a server, and as its user. Images that
    the settings name for replicas are trusted as the engine has them."""
    own = (Reference.parse(one).full() for one in (settings.image_cpu, settings.image_gpu))
    for_replicas = dict.fromkeys(own, "")
    return ImageRules(
        ReservedIds(frozenset({os.getuid(), os.geteuid()}), parse_range(settings.replica_uids)),
        settings.images,
        lambda: {**read_built(settings.data), **for_replicas},
    )


def access_of(settings: Settings, store: Store) -> Access:
    """Return the access rules of this server: keys, hosts and origins."""
    return Access(
        settings.listen,
        settings.public_hosts,
        store.ring,
        store.cookie_secret,
        settings.cors_origins,
    )


def _make_gateway(  # noqa: PLR0913 - the collaborators of the gateway
    process: Process,
    settings: Settings,
    store: Store,
    manager: Manager,
    delivery: Delivery,
    history: ServerHistory,
    tickets: Tickets,
    models: ModelControl,
) -> Gateway:
    """Return the gateway of a server whose only gateway process is this one."""
    access, wall = access_of(settings, store), time.time  # noqa: TID251 - the shell
    entry = Entry(access, store.catalog, tickets, wall)

    def numbers() -> Mapping[str, RevisionNumbers]:
        return gateway.invoker.metrics.revisions.read()

    gateway = make_gateway(
        process,
        access,
        store.catalog,
        delivery,
        history,
        enter=entry.handle,
        upstream_keys=store.upstream_keys,
        statistics=ServerStatistics(numbers, manager, wall, time.monotonic),
        model_control=models,
    )
    return gateway


async def _connections(gateway: Gateway, namespace: str, name: str) -> Connections:
    return gateway.connections(namespace, name)


def _open_admin(
    context: AdminContext, gateway: Gateway, tasks: Iterable[Tasks], stack: AsyncExitStack
) -> Admin:
    """Return the admin API of a server whose only gateway process is this one."""
    metrics, store = gateway.invoker.metrics, context.store
    add_families(metrics, context, OneGateway())
    health, sampler = make_health(context), RateSampler(metrics.durations, metrics.first_bytes)
    sources = [health.reasons, store.reasons, *(one.reasons for one in tasks)]
    return open_admin(context, sampler.sample, sources, stack)


def _application(gateway: Gateway, admin: Admin) -> web.Application:
    """Return the application with all routes of a server with one gateway process."""
    app = web.Application()
    admin.add_routes(app, gateway.boundary)
    gateway.add_routes(app)
    boundary, metrics, gate = gateway.boundary, gateway.invoker.metrics, gateway.gate
    StatePages(boundary, metrics, admin.reasons, lambda: gate.is_open).add_routes(app)
    return app


def make_health(context: AdminContext) -> Health:
    """Return the checks of `/readyz`."""
    folder, history = context.settings.data, context.store.history
    return Health(folder, context.manager, context.gateways, history, time.monotonic)


def add_families(metrics: Metrics, context: AdminContext, gateways: Gateways) -> None:
    """Register the metric families that are not owned by a gateway."""
    manager, driver = context.manager, context.settings.driver
    counters = manager.counters
    metrics.add_source(ReplicaFamilies(counters))
    metrics.add_source(RunFamilies(manager.runs.shown))
    metrics.add_source(DeviceFamilies(manager.occupancies, lambda: counters.counts().reclaimed_mib))
    metrics.add_source(HeldFamilies(manager.held_totals))
    metrics.add_source(GoldenFamilies(manager.golden.counts))
    if context.settings.dcgm_metrics:
        metrics.add_source(DcgmFamilies(manager.occupancies, socket.gethostname()))
    metrics.add_source(HostFamilies(manager.hosts, manager.park_memory_mib))
    metrics.add_source(BuildFamilies(context.builds))
    metrics.add_source(ServerFamilies(driver, context.store.history.statistics, gateways))


def url_of(listen: str, port: int) -> str:
    """Return the URL of a server that listens on this address and port."""
    return f"http://{address_of(listen, port)}"


def address_of(listen: str, port: int) -> str:
    """Return an address and a port as clients write them."""
    return f"{f'[{listen}]' if ':' in listen else listen}:{port}"
