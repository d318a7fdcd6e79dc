"""A whole server: wires its parts together, opens them in order and closes them in reverse."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
from aiohttp import web

from admin.api.app import Admin, open_admin
from admin.api.context import AdminContext
from admin.built_images import read_built
from admin.dcgm import dcgm_families
from admin.deploy.builds import Builds
from admin.deploy.compiled_models import CompiledModels
from admin.deploy.deploys import Deploys, Settled
from admin.deploy.image_rules import ImageRules, ReservedIds
from admin.deploy.python import PythonPackages
from admin.gateway_process import check_extras, open_runner, start_root_tasks
from admin.health import Health
from admin.history import ServerHistory, prior_of
from admin.host_cluster import own_cluster
from admin.host_sync import HostSync
from admin.metrics import (
    BuildsSeen,
    DevicesSeen,
    HostsSeen,
    ReplicasSeen,
    ServerSeen,
    Source,
    server_families,
    show_builds,
    show_devices,
    show_golden,
    show_held,
    show_hosts,
    show_refusals,
    show_replicas,
    show_runs,
)
from admin.pool_sync import PoolSync
from admin.settings import Settings, is_malloc_set, link_address, run_dir
from admin.statistics import ServerStatistics
from admin.store import Store, open_store
from admin.workers.admin_proxy import PROXIED_MAX
from admin.workers.hub import Hub, ServerAnswers, StateFeed
from admin.workers.local import LocalGateway, Pair
from admin.workers.messages import Welcome
from admin.workers.metrics import MergedMetrics
from admin.workers.node import Place
from admin.workers.pool import Launch, WorkerPool
from admin.workers.port import Port, reserve
from admin.workers.process import WorkerProcess
from admin.workers.reports import Reports
from admin.workers.session import BEAT_S
from admin.workers.statistics import RevisionPage
from admin.workers.stream import memory_pair
from gateway.admission.access import Access
from gateway.http.app import MetricsPage, StatePages
from gateway.http.bodies import continue_later
from gateway.http.boundary import ErrorBoundary
from gateway.http.page_route import Entry
from gateway.pages.entering import ENTER
from gateway.pages.tickets import Tickets
from pool_manager.core.state import Device
from pool_manager.devices import bank_mib, cpu_slots, host_memory_mib
from pool_manager.driver import Driver
from pool_manager.drivers.process import ProcessDriver
from pool_manager.drivers.uids import parse_range
from pool_manager.gpus.discovery import find_gpus, open_gpus
from pool_manager.hosts.kinds import Engines, engines_of
from pool_manager.hosts.settings import HostSettings
from pool_manager.image_names import Reference
from pool_manager.manager import Manager
from pool_manager.ports import Bundles
from pool_manager.replicas.run_folders import RunFolders
from registry.builds import BUILD_ENDS
from registry.bundles.blobs import BlobStore
from registry.errors import BadRequest, Conflict
from registry.model.bundles import Bundle, BundleFile
from registry.openness import CLOSED, newly_exposed
from registry.tasks import Tasks

if TYPE_CHECKING:
    from hosts.tls.door import LinkDoor

log = structlog.get_logger()

Visible = Callable[[Sequence[str]], str]
"""`Gpus.visible` of this machine's GPUs, for processes."""
OpenDriver = Callable[[Settings, Iterable[Device], Visible], Awaitable[Driver]]
"""Returns a driver that is ready for devices of these kinds. Raises DriverError if its container
engine or images cannot be used."""

KEEP_S: Final = 5.0
"""Seconds after which a request is on the timeline, even if no other request follows."""
SECOND_S: Final = 1.0
"""Period in seconds of rates and states of busy functions."""
ADMIN_SOCKET: Final = "admin.sock"
"""Socket in the run folder on which gateway processes pass on requests that are not calls."""


async def _open_process(settings: Settings, _: Iterable[Device], visible: Visible) -> Driver:
    section = settings.pool()
    return ProcessDriver(section.run_dir, server_path=section.server_path, visible=visible)


async def _open_docker(settings: Settings, devices: Iterable[Device], _: Visible) -> Driver:
    # Imported here, as servers with other drivers do not need the engine's library.
    from pool_manager.drivers.docker.containers import check_uids
    from pool_manager.drivers.docker.driver import DockerDriver, DockerSettings
    from pool_manager.drivers.docker.spec import Owner

    uids = parse_range(settings.replica_uids)
    check_uids(uids)
    known = {"cpu": settings.image_cpu, "cuda": settings.image_gpu}
    kinds = {"cpu"} | {device.kind for device in devices}
    return await DockerDriver.open(
        DockerSettings(
            url=settings.docker_host,
            images={kind: known[kind] for kind in sorted(kinds)},
            owner=Owner.of(settings.data.resolve()),
            pool=settings.pool(),
            uids=uids,
        )
    )


DRIVERS: Final[Mapping[str, OpenDriver]] = {"process": _open_process, "docker": _open_docker}
"""The drivers that `Settings.driver` may name."""


@dataclass(frozen=True, slots=True)
class Server:
    """Running server that accepts calls at `url`, in its `gateways`. `tasks` are the owners of its
    root tasks."""

    url: str
    store: Store
    manager: Manager
    gateways: WorkerPool
    deploys: Deploys
    admin: Admin
    tasks: tuple[Tasks, ...]


@asynccontextmanager
async def running(
    settings: Settings,
    drivers: Mapping[str, OpenDriver] = DRIVERS,
    pair: Pair = memory_pair,
    engines: Engines = engines_of,
) -> AsyncIterator[Server]:
    """Run a whole server while the block runs; leaving it finishes accepted requests.

    `drivers` has the driver that the settings name; `pair` makes the stream to a gateway in this
    process; `engines` are those of other hosts.

    Start order: store, shared port, door for replicas, manager, gateways; the manager adopts
    replicas before calls arrive.
    Stop order is the reverse: refuse new calls, answer accepted calls, drain replicas, close the
    store.

    Raises Conflict if another server uses the data folder, BadRequest if settings contradict each
    other, StoreUnavailable, DriverError if replicas cannot run, OSError if the port is taken,
    FnError if a gateway cannot start.
    """
    async with AsyncExitStack() as stack:
        check_extras(settings.gateway())
        store = await open_store(settings.store(), stack)
        await check_exposure(settings, store)
        if settings.workers > 1:
            # Before replicas are adopted, which a server that cannot listen would stop again.
            port = await _reserve_ports(settings, stack)
            settings = settings.model_copy(update={"port": port.number})
        history = await open_history(store, stack)
        hub = _open_hub(store, history, stack)
        door = await _open_door(settings, store, stack)
        open_driver = drivers[settings.driver]
        manager = await make_manager(settings, store, history, open_driver, engines, door)
        reports = Reports(manager, history, hub.refresh)
        models = CompiledModels(store.builds, settings.compiler)
        pools = await _open_pools(store, manager, hub, reports, models, stack)
        deploys = await _open_deploys(settings, store, manager, models, hub.settled, stack)
        builds = await _open_builds(settings, store, manager, pools, models, stack)
        context = AdminContext(
            *(settings, store, manager, deploys, builds, history, reports, reports.failures),
            connections=hub.connections,
            tickets=Tickets(time.monotonic),
            clusters=own_cluster(settings, door),
            settled=hub.settled,
        )
        page = _metrics(store, reports, hub)
        numbers = _revision_numbers(store, manager, hub)
        gateways = WorkerPool(settings.workers, hub, reports, page, numbers)
        add_families(page, context, gateways, door)
        admin, owners = _open_admin(context, gateways, reports, stack, door)
        stack.callback(reports.subscribe(lambda one: admin.reader.count_answers(one.answered)))
        place = ServerPlace(admin, page.page, lambda: not gateways.is_stopping)
        await _start(gateways, settings, store, place, pair, stack)
        url = url_of(settings.listen, gateways.port)
        yield Server(url, store, manager, gateways, deploys, admin, owners)


def _open_admin(
    context: AdminContext,
    gateways: WorkerPool,
    reports: Reports,
    stack: AsyncExitStack,
    door: LinkDoor | None = None,
) -> tuple[Admin, tuple[Tasks, ...]]:
    """Return the admin API, and the owners of the server's root tasks, which all run now."""
    store, tasks = context.store, Tasks("server")
    stack.push_async_callback(tasks.close)
    owners = (store.tasks, context.manager.tasks, context.builds.tasks, tasks)
    sources = [make_health(context).reasons, store.reasons, gateways.reasons, reports.reasons]
    if door is not None:
        sources.append(door.reasons)
    admin = open_admin(context, [*sources, *(one.reasons for one in owners)], stack)
    root_tasks = [
        ("history", KEEP_S, context.history.flush),
        ("events", SECOND_S, admin.watch.tick),
        ("workers", BEAT_S, gateways.check),
    ]
    start_root_tasks(tasks, root_tasks)
    return admin, owners


class ServerPlace(Place):
    """This process, which is prepared already and answers requests that are not calls. `page` is
    `/metrics`, `is_open` returns whether calls are accepted."""

    def __init__(self, admin: Admin, page: MetricsPage, is_open: Callable[[], bool]) -> None:
        context = admin.context
        settings, store = context.settings, context.store
        access = Access(
            settings.listen,
            settings.public_hosts,
            store.ring,
            store.cookie_secret,
            settings.cors_origins,
        )
        wall = time.time  # noqa: TID251 - the shell passes the clock in
        self.enter = Entry(access, store.catalog, context.tickets, wall).handle
        self.boundary = ErrorBoundary(access)
        self._admin, self._page, self._is_open = admin, page, is_open

    def add_routes(self, app: web.Application, boundary: ErrorBoundary) -> None:  # noqa: ARG002
        """Implement `Place.add_routes`; keys are checked by the server's own ring."""
        self._admin.add_routes(app, self.boundary)
        pages = StatePages(self.boundary, self._page, self._admin.reasons, self._is_open)
        pages.add_routes(app)


async def _start(
    gateways: WorkerPool,
    settings: Settings,
    store: Store,
    place: ServerPlace,
    pair: Pair,
    stack: AsyncExitStack,
) -> None:
    """Start the gateways: one in this process, or several in processes of their own on a port that
    is reserved.

    One gateway in a process of its own would take 0.7 s and 44 MiB more, and answer no faster
    (admin/workers/design.md).
    """
    section, passing = settings.gateway(), ""
    is_shared = settings.workers > 1
    launch: Launch = partial(LocalGateway.start, place, pair)
    stop_waiting: Callable[[], Awaitable[None]] = _nothing
    if is_shared:
        passing = os.fspath(_socket_path(settings))
        stop_waiting = await _open_private(settings, place, stack)
        launch = WorkerProcess.start

    def welcome(name: str) -> Welcome:
        return Welcome(
            name,
            section,
            settings.log_format,
            passing,
            keeps_buffers=not is_malloc_set(),
            is_shared=is_shared,
            cookie_secret=store.cookie_secret,
        )

    stack.push_async_callback(gateways.stop, settings.shutdown_s, stop_waiting)
    await gateways.start(launch, welcome)


async def _nothing() -> None:
    """Do nothing: a gateway in this process ends the requests that wait here."""


async def _reserve_ports(settings: Settings, stack: AsyncExitStack) -> Port:
    """Return the port of HTTP, after reserving that of gRPC as well. Raises OSError, whose number
    is that of the port of HTTP only."""
    port = await reserve(settings.listen, settings.port)
    stack.callback(port.close)
    if settings.grpc_port:
        try:
            stack.callback((await reserve(settings.listen, settings.grpc_port)).close)
        except OSError as error:
            raise OSError(
                f"{error.strerror}, choose another port for gRPC with --grpc-port or FN_GRPC_PORT"
            ) from error
    return port


async def _open_private(
    settings: Settings, place: ServerPlace, stack: AsyncExitStack
) -> Callable[[], Awaitable[None]]:
    """Serve requests that are not calls on a Unix socket that only this user can connect to; return
    what ends those that wait."""
    app = web.Application()
    app.router.add_post(ENTER, place.enter, expect_handler=continue_later)
    place.add_routes(app, place.boundary)
    runner = await open_runner(app, stack, auto_decompress=False)
    path = _socket_path(settings)
    # Only one server uses the data folder, so an existing socket is stale.
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(os.fspath(path))
    stack.callback(path.unlink, missing_ok=True)
    path.chmod(0o600)
    await web.SockSite(runner, sock, backlog=PROXIED_MAX).start()
    return app.shutdown


def _socket_path(settings: Settings) -> Path:
    return run_dir(settings.data) / ADMIN_SOCKET


def _open_hub(store: Store, history: ServerHistory, stack: AsyncExitStack) -> Hub:
    """Return the hub, which sends changes from now on: before the manager follows the catalog, as
    gateways must know a revision before its pool."""
    feed = StateFeed(store.catalog, store.ring, store.upstream_keys, history.expected)
    hub = Hub(feed.whole)
    stack.push_async_callback(hub.close)
    stack.callback(history.subscribe(lambda record: hub.send_all(feed.after(record))))
    stack.callback(feed.follow(hub.send_all))
    return hub


def _metrics(store: Store, reports: Reports, hub: Hub) -> MergedMetrics:
    """Return the page `/metrics`."""
    loop = asyncio.get_running_loop()
    page = MergedMetrics(
        hub.ask_all,
        reports.states,
        lambda: len(asyncio.all_tasks(loop)) + reports.tasks,
        partial(_is_deployed, store),
        time.time,  # noqa: TID251 - the shell passes the clock in
    )
    store.catalog.subscribe(page.on_change)
    reports.subscribe(lambda one: page.count_cold_starts(one.woken))
    return page


def _revision_numbers(store: Store, manager: Manager, hub: Hub) -> RevisionPage:
    """Return the numbers by revision, from which gateways' questions are answered from now on."""
    numbers = RevisionPage(partial(_is_deployed, store))
    store.catalog.subscribe(numbers.on_change)
    wall = time.time  # noqa: TID251 - the shell passes the clock in
    statistics = ServerStatistics(numbers.numbers, manager, wall, time.monotonic)
    hub.answer(ServerAnswers(store.catalog, manager, statistics).handlers())
    return numbers


def _is_deployed(store: Store, namespace: str, ref: str) -> bool:
    return store.catalog.find(ref, namespace) is not None


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


async def _open_door(settings: Settings, store: Store, stack: AsyncExitStack) -> LinkDoor | None:
    """Return the door at which replicas dial in, None without FN_LINK_LISTEN; `stack` closes it.

    Raises StoreUnavailable without a usable authority, BadRequest for an address that cannot be
    listened at.
    """
    if not settings.link_listen:
        return None
    # Imported here, as servers without such replicas need neither TLS nor certificates.
    from hosts.tls.authority import Authority
    from hosts.tls.door import LinkDoor

    wall = time.time  # noqa: TID251 - the shell passes the clock in
    folder = store.settings.link
    authority = await asyncio.to_thread(Authority.open, folder, store.epoch, wall)
    dialled = link_address(settings.link_address) if settings.link_address else None
    door = LinkDoor(link_address(settings.link_listen), dialled, authority, wall)
    await door.open()
    stack.push_async_callback(door.close)
    return door


async def make_manager(
    settings: Settings,
    store: Store,
    history: ServerHistory,
    open_driver: OpenDriver,
    engines: Engines = engines_of,
    door: LinkDoor | None = None,
) -> Manager:
    """Return the pool manager, not started yet."""
    section = settings.pool()
    _check_private(section.run_dir)
    section.mounts.check()
    memory_mib = section.host_memory_mib or bank_mib(host_memory_mib())
    found, slots = await find_gpus(section.gpus), cpu_slots(section.cpu_slots, memory_mib)
    # The GPUs are opened with the driver, which asks for them only at its first start.
    driver = await open_driver(
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
        kubernetes=settings.kubernetes(),
        has_images=driver.images is not None,
    )
    return Manager(
        *(section, driver, devices, _Linked(store.blobs), history, gpus, store.secrets, remote),
        engine_of=engines(remote, section),
        door=door,
    )


async def _open_pools(
    store: Store,
    manager: Manager,
    hub: Hub,
    reports: Reports,
    models: CompiledModels,
    stack: AsyncExitStack,
) -> PoolSync:
    """Start the manager; gateways see only its serialised messages."""
    stack.push_async_callback(manager.close)
    stack.callback(manager.subscribe(reports.on_endpoints))
    stack.callback(manager.subscribe(hub.send_endpoints))
    stack.callback(HostSync(store.hosts, manager).close)
    pools = PoolSync(store.catalog, manager, store.bundles.__getitem__, models.of)
    stack.callback(pools.close)
    await manager.start()
    return pools


async def _open_builds(
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


async def _open_deploys(
    settings: Settings,
    store: Store,
    manager: Manager,
    models: CompiledModels,
    settled: Settled,
    stack: AsyncExitStack,
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


def make_health(context: AdminContext) -> Health:
    """Return the checks of `/readyz`."""
    folder, history = context.settings.data, context.store.history
    return Health(folder, context.manager, context.gateways, history, time.monotonic)


def add_families(
    page: MergedMetrics,
    context: AdminContext,
    gateways: WorkerPool,
    door: LinkDoor | None = None,
) -> None:
    """Add the metric families that are not the gateways'."""
    manager, counters, builds = context.manager, context.manager.counters, context.builds
    history = context.store.history

    def replicas() -> ReplicasSeen:
        return ReplicasSeen(counters.counts(), counters.supplied(), counters.waiting_starts)

    def devices() -> DevicesSeen:
        return DevicesSeen(manager.occupancies(), counters.counts().reclaimed_mib)

    def ended() -> BuildsSeen:
        outcomes = {end: builds.outcomes[end] for end in BUILD_ENDS}
        return BuildsSeen(outcomes, int(builds.is_running), builds.waiting())

    def server() -> ServerSeen:
        return ServerSeen(history.statistics(), gateways.running, gateways.deaths)

    page.add_source(Source(replicas, show_replicas))
    page.add_source(Source(manager.runs.shown, show_runs))
    page.add_source(Source(devices, show_devices))
    page.add_source(Source(manager.held_totals, show_held))
    page.add_source(Source(manager.golden.counts, show_golden))
    if context.settings.dcgm_metrics:
        page.add_source(Source(manager.occupancies, dcgm_families(socket.gethostname())))
    hosts = Source(lambda: HostsSeen(manager.hosts(), manager.park_memory_mib()), show_hosts)
    page.add_source(hosts)
    page.add_source(Source(lambda: {} if door is None else door.refusals(), show_refusals))
    page.add_source(Source(ended, show_builds))
    page.add_source(Source(server, server_families(context.settings.driver)))


def url_of(listen: str, port: int) -> str:
    """Return the URL of a server that listens on this address and port."""
    return f"http://{address_of(listen, port)}"


def address_of(listen: str, port: int) -> str:
    """Return an address and a port as clients write them."""
    return f"{f'[{listen}]' if ':' in listen else listen}:{port}"
