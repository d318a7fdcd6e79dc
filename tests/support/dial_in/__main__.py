"""A server whose hosts are those of a file: `python -m tests.support.dial_in serve [OPTIONS]`.

FN_TEST_PLACES names the file, a JSON list of places (`places.py`); their replicas dial the server
at FN_LINK_LISTEN. The options are those of `fnctl serve` that tests give.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from admin.serve import serve
from admin.settings import Settings, load_settings
from admin.store import open_store
from pool_manager.host import HostEngine
from pool_manager.hosts.kinds import EngineFactory
from pool_manager.hosts.services import HostServices
from pool_manager.hosts.settings import HostSettings
from pool_manager.settings import PoolSettings
from registry.model.hosts import Host, SshHost
from tests.support.dial_in.engine import SLOTS, DialInEngine
from tests.support.dial_in.places import Place

NAME = "cluster"
"""Name of the engine."""
LABELS = {"kind": "dial-in"}
"""Labels of its hosts."""


def engines(_settings: HostSettings | None, _pool: PoolSettings) -> EngineFactory:
    """Return the factory of the engine, whatever a host's definition is."""
    listed = json.loads(Path(os.environ["FN_TEST_PLACES"]).read_text())
    places = [Place(**one) for one in listed]

    def make(host: Host, services: HostServices) -> HostEngine:
        return DialInEngine(host.name, places, SLOTS, services)

    return make


async def store_host(settings: Settings) -> None:
    """Store the definition of the engine, unless it is there. No kind of host is for tests: it is
    stored as one by SSH, which nothing reads."""
    async with AsyncExitStack() as stack:
        store = await open_store(settings.store(), stack)
        if not store.hosts.has(NAME):
            await store.hosts.add(SshHost(NAME, labels=LABELS, address="dial-in@127.0.0.1"))


def main() -> int:
    """Serve until a signal ends it; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.dial_in")
    parser.add_argument("verb", choices=["serve"])
    parser.add_argument("--port", type=int)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--log-format")
    given = vars(parser.parse_args())
    del given["verb"]
    settings = load_settings(given)
    asyncio.run(store_host(settings))
    return serve(settings, engines=engines)


if __name__ == "__main__":
    sys.exit(main())
