"""Runs the server until a signal ends it."""

from __future__ import annotations

import asyncio
import errno
import gc
import resource
import signal
import sys
import time
from collections.abc import Mapping

import structlog
import uvloop

from admin.compose import DRIVERS, OpenDriver, address_of, running
from admin.gateway_process import keep_large_buffers
from admin.settings import Settings, is_malloc_set
from admin.telemetry import logs
from admin.ui import FOLDER, INDEX
from pool_manager.hosts.kinds import Engines, engines_of
from registry.errors import FnError
from registry.files import DataDirectory
from registry.settings import StoreSettings
from registry.store.recovery.restoring import start_empty

log = structlog.get_logger()

EXIT_REFUSED = 1


def serve(
    settings: Settings,
    drivers: Mapping[str, OpenDriver] = DRIVERS,
    *,
    engines: Engines = engines_of,
    may_start_empty: bool = False,
) -> int:
    """Serve in the foreground; return 0 after a clean shutdown, 1 if the server could not start.

    `drivers` are those that the settings may name, `engines` those of other hosts.
    `may_start_empty`: a data folder that has lost its database starts anew, without functions and
    keys.
    """
    logs.set_up(settings.log_format)
    raise_descriptor_limit()
    if not is_malloc_set():
        keep_large_buffers()
    # Loading thousands of functions creates only long-lived objects: collecting finds no garbage.
    gc.disable()
    try:
        if may_start_empty:
            asyncio.run(_start_empty(settings.store()))
        uvloop.run(_serve(settings, drivers, engines))
    except FnError as error:
        print(f"fnctl serve: {error.message}", file=sys.stderr)  # noqa: T201 - to the operator
        return EXIT_REFUSED
    except OSError as error:
        print(f"fnctl serve: {_words(error, settings)}", file=sys.stderr)  # noqa: T201 - as above
        return EXIT_REFUSED
    finally:
        gc.enable()
    return 0


def _words(error: OSError, settings: Settings) -> str:
    """Return an error in words; of a port that is taken with how to choose another one."""
    if error.errno != errno.EADDRINUSE:
        return str(error)
    return (
        f"another program listens on {settings.listen} port {settings.port} (address already in"
        " use): choose another port with --port or FN_PORT"
    )


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard limit, and return it. Every client and every
    replica needs descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


async def _start_empty(settings: StoreSettings) -> None:
    with DataDirectory.open(settings.data):
        emptied = await start_empty(settings, time.time())  # noqa: TID251 - the shell reads the clock
    if emptied is None:
        log.info("--start-empty changes nothing: the data folder is new or has its database")
        return
    log.warning(
        "the server begins without functions, access keys and history",
        set_aside=str(emptied),
        to_let_anybody_call="fnctl access open",
    )


async def _serve(settings: Settings, drivers: Mapping[str, OpenDriver], engines: Engines) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with running(settings, drivers, engines=engines) as server:
        # Only now: until the server is open, a signal ends the process as usual.
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        # Objects of the start live for ever: exclude them from later collections.
        gc.collect()
        gc.freeze()
        gc.enable()
        if settings.grpc_port:
            log.info("serving gRPC", address=address_of(settings.listen, settings.grpc_port))
        facts = {"driver": settings.driver, "data": str(settings.data)}
        if (FOLDER / INDEX).is_file():
            facts["dashboard"] = f"{server.url}/ui/"
        log.info("serving", url=server.url, **facts)
        await ended.wait()
        log.info("stopping: accepted requests are finished first")
    log.info("stopped")
