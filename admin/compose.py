"""Plugs everything together, opens it in order and closes it in reverse."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from admin.api.functions import FunctionRoutes
from admin.api.keys import KeyRoutes
from admin.api.operate import OperateRoutes
from admin.api.pools import PoolRoutes
from admin.api.routes import AdminApi
from admin.api.uploads import UploadRoutes
from admin.deploy.deploys import Deploys
from admin.drivers import open_driver
from admin.feed import Feed
from admin.health import Health
from admin.past import Past
from admin.settings import Settings
from admin.store import Store, open_store
from gateway.access import Access
from gateway.cold_check import ColdCheck
from gateway.delivery import Delivery
from gateway.dispatch.dispatcher import Limits
from gateway.http.app import Gateway, stop_serving
from gateway.http.invoke import Invoker
from gateway.metrics import Metrics
from gateway.traffic import follow_traffic
from pool_manager.devices import cpu_slots, host_memory_mib
from pool_manager.driver import Driver
from pool_manager.gpus.opening import find_gpus, open_gpus
from pool_manager.manager import Manager
from pool_manager.ports import Bundles
from pool_manager.replica.folders import Folders
from registry.bundles.blobs import BlobStore
from registry.errors import BadRequest, Conflict
from registry.model import Bundle

BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class Server:
    """A server that accepts calls at `url`."""

    url: str
    store: Store
    manager: Manager
    delivery: Delivery
    gateway: Gateway
    deploys: Deploys


@asynccontextmanager
async def running(settings: Settings, driver: Driver | None = None) -> AsyncIterator[Server]:
    """A whole server while the block runs; leaving it finishes what was accepted.

    `driver` takes the place of the one that the settings name.

    Start order: store, manager, gateway, HTTP; the manager adopts before calls come. Stop order
    is the reverse: no new calls, accepted calls answered, replicas drained, store closed.

    Raises Conflict where another server has the data folder, BadRequest on settings that do not
    go together, StoreUnavailable, DriverError where replicas cannot be run, OSError where the
    port cannot be had.
    """
    async with AsyncExitStack() as stack:
        store = await open_store(settings.store(), stack)
        _check_exposure(settings, store)
        past = Past(store.history, time.time)  # noqa: TID251 - the shell passes the clock in
        await past.load()
        stack.callback(past.flush)
        manager, delivery = await _open_pools(settings, store, past, driver, stack)
        deploys = await _open_deploys(settings, store, manager, stack)
        gateway, runner = await _open_gateway(settings, store, delivery, manager, past, deploys)
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, settings.listen, settings.port, backlog=BACKLOG)
        await site.start()
        stack.push_async_callback(stop_serving, gateway, delivery, settings.gateway().shutdown_s)
        stack.push_async_callback(site.stop)
        yield Server(_url(runner, settings), store, manager, delivery, gateway, deploys)


def _check_exposure(settings: Settings, store: Store) -> None:
    """Other machines may only connect where calls need keys and hosts are named."""
    if settings.is_local:
        return
    if not len(store.ring):
        raise BadRequest(
            f"--listen {settings.listen} lets other machines call: first make a key with"
            " fnctl key add --scope invoke on a server that listens on 127.0.0.1"
        )
    if not settings.public_hosts:
        raise BadRequest(
            f"--listen {settings.listen} needs --public-host NAME, the name clients call it by"
        )


def _check_private(folder: Path) -> None:
    """In the system's temporary folder anybody may have made it first, to read the sockets."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_ours or stat.S_IMODE(found.st_mode) & 0o077:
        raise Conflict(
            f"{folder}: expected a folder that only user {os.getuid()} may enter, got"
            f" {stat.filemode(found.st_mode)} of user {found.st_uid}; remove it"
        )


class _Linked(Bundles):
    """Blobs as the manager's source of model files; linking runs in a thread."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    async def materialise(self, bundle: Bundle, target: Path) -> None:
        await asyncio.to_thread(self._blobs.materialise, bundle, target)


async def _open_pools(
    settings: Settings, store: Store, past: Past, driver: Driver | None, stack: AsyncExitStack
) -> tuple[Manager, Delivery]:
    """Manager and gateway side by side: each sees of the other only serialised messages."""
    section = settings.pool()
    _check_private(section.run_dir)
    memory_mib = section.host_memory_mib or host_memory_mib()
    found, slots = await find_gpus(section.gpus), cpu_slots(section.cpu_slots, memory_mib)
    driver = driver or await open_driver(settings, [*found.devices(), *slots])
    gpus = await open_gpus(found, driver, Folders(section).read_records())
    devices = [*gpus.devices(), *slots]
    manager = Manager(section, driver, devices, _Linked(store.blobs), past, gpus)
    limits = Limits(settings.gateway().held_bytes_max, settings.gateway().retries)
    delivery = Delivery(limits, f"{os.getpid()}", manager, past)
    stack.push_async_callback(delivery.close)
    stack.push_async_callback(manager.close)
    stack.callback(manager.subscribe(delivery.receive_endpoints))
    stack.callback(Feed(store.catalog, manager, store.bundles.__getitem__).close)
    stack.callback(follow_traffic(store.catalog, delivery))
    await manager.start()
    delivery.open()
    return manager, delivery


async def _open_deploys(
    settings: Settings, store: Store, manager: Manager, stack: AsyncExitStack
) -> Deploys:
    deploys = Deploys(store, manager, idle_s=settings.idle_s, wall=time.time)  # noqa: TID251 - the shell passes the clock in
    stack.push_async_callback(deploys.close)
    # In this order, for a sweep spares the files of what runs.
    await deploys.resume()
    await deploys.sweep()
    return deploys


async def _open_gateway(
    settings: Settings,
    store: Store,
    delivery: Delivery,
    manager: Manager,
    past: Past,
    deploys: Deploys,
) -> tuple[Gateway, web.AppRunner]:
    access = Access(settings.listen, settings.public_hosts, store.ring, store.token)
    loop = asyncio.get_running_loop()
    metrics = Metrics(
        delivery.loads,
        delivery.states,
        lambda: len(asyncio.all_tasks(loop)),
        lambda namespace, name: store.catalog.find(name, namespace) is not None,
    )
    store.catalog.subscribe(metrics.changed)
    invoker = Invoker(
        settings.gateway(), access, store.catalog, delivery, ColdCheck(), metrics, past
    )
    health = Health(settings.data, manager, delivery, store.history, time.monotonic)
    gateway = Gateway(invoker, health.reasons)
    operate = OperateRoutes(store.catalog, manager, deploys, time.monotonic)
    api = AdminApi(
        access,
        FunctionRoutes(store, manager, delivery, deploys, past),
        operate,
        UploadRoutes(store.blobs, deploys),
        KeyRoutes(store.keys, store.ring, time.time),  # noqa: TID251 - the shell passes the clock in
        PoolRoutes(store.catalog, manager, time.monotonic),
    )
    app = web.Application()
    api.add_routes(app, gateway)
    gateway.add_routes(app)
    app.on_shutdown.extend([deploys.runner.stop_waiting, operate.stop_waiting])
    app.on_cleanup.append(gateway.close)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    return gateway, runner


def _url(runner: web.AppRunner, settings: Settings) -> str:
    """Where the server is, with the port that the system chose for port 0."""
    host = f"[{settings.listen}]" if ":" in settings.listen else settings.listen
    return f"http://{host}:{runner.addresses[0][1]}"
