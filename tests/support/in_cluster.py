"""A server in the double of a cluster: both run beside the test, the double in a thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from tests.support.caller import Caller
from tests.support.dial_in.places import free_port
from tests.support.kubernetes.double import IMAGE, Double, NodePlan
from tests.support.kubernetes.runtime import Image
from tests.support.kubernetes.store import Json
from tests.support.process_server import ServerProcess

CLUSTER = "k"
"""Name of the cluster among the hosts of the server."""
SETTINGS = {
    "FN_CPU_SLOTS": "1",
    "FN_GPUS": "none",
    "FN_STANDBYS": "0",
    "FN_PING_S": "0.5",
    "FN_ORPHAN_S": "20",
    "FN_HOST_LOST_S": "35",
}
THREADS = 8
T = TypeVar("T")


class InCluster:
    """The double, in whose loop `do` and `ask` work, and the server."""

    def __init__(self, double: Double, loop: asyncio.AbstractEventLoop, folder: Path) -> None:
        self.double = double
        self._loop = loop
        listen = f"{double.address}:{free_port()}"
        self._environment = {**SETTINGS, **double.environment, "FN_LINK_LISTEN": listen}
        self.server = ServerProcess(folder / "data", environment=self._environment)
        self._folder = folder

    def set(self, name: str, value: str) -> None:
        """Set a variable of the next start of the server."""
        self._environment[name] = value

    def folder(self, name: str) -> Path:
        """Return a new folder."""
        made = self._folder / name
        made.mkdir()
        return made

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the loop of the double."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def ask(self, question: Callable[[Double], T]) -> T:
        """Return what a function of the double returns."""

        async def answer() -> T:
            return question(self.double)

        return self.do(answer())

    def pods(self, function: str) -> list[Json]:
        """Return the Pods of a function that are not being deleted, in the order of their names."""
        return self._pods(lambda record: record["bound"].startswith(f"default/{function}@"))

    def standbys(self, node: str) -> list[Json]:
        """Return the Pods of a node's standbys."""
        there = self._pods(lambda record: not record["bound"])
        return [pod for pod in there if pod["spec"].get("nodeName") == node]

    def _pods(self, is_wanted: Callable[[dict[str, Any]], bool]) -> list[Json]:
        found = []
        for pod in self.ask(lambda double: double.pods()):
            record = self.record(id_of(pod))
            if record and is_wanted(record) and not pod["metadata"].get("deletionTimestamp"):
                found.append(pod)
        return found

    def record(self, id: str) -> dict[str, Any]:
        """Return the record of a replica, {} if it is gone."""
        for path in self.server.data.parent.rglob(f"{id}/replica.json"):
            try:
                return dict(json.loads(path.read_text()))
            except OSError:
                break
        return {}

    @asynccontextmanager
    async def caller(self) -> AsyncIterator[Caller]:
        """Yield a client of the server."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            yield Caller(self.server.url, self.server.token, session)


def id_of(pod: Json) -> str:
    """Return the id of the replica in a Pod."""
    return str(pod["metadata"]["labels"]["fngate.dev/replica"])


@contextmanager
def cluster(
    folder: Path,
    nodes: Sequence[NodePlan],
    images: Mapping[str, Image] | None = None,
    **settings: Any,
) -> Iterator[InCluster]:
    """Run a cluster and a server in it that has it as a host, with these settings, until the block
    ends. Needs root."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(_executor())
    thread = threading.Thread(target=loop.run_forever, name="double")
    thread.start()
    double = Double(nodes, images=images)
    try:
        asyncio.run_coroutine_threadsafe(double.open(), loop).result(60)
        made = InCluster(double, loop, folder)
        made.server.start()
        try:
            asyncio.run(_add(made, settings))
            yield made
        finally:
            if made.server.process is not None:
                made.server.stop()
    finally:
        asyncio.run_coroutine_threadsafe(double.close(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def _executor() -> ThreadPoolExecutor:
    """Return an executor whose threads all run: none is new in a test."""
    made, all_run = ThreadPoolExecutor(THREADS), threading.Barrier(THREADS)
    for done in [made.submit(all_run.wait) for _ in range(THREADS)]:
        done.result()
    return made


async def _add(made: InCluster, settings: Mapping[str, Any]) -> None:
    wanted = {"kind": "kubernetes", "name": CLUSTER, "image": IMAGE, "cpu_slots": 4, **settings}
    async with made.caller() as caller:
        answer = await caller.admin("POST", "/hosts?unchecked=true", wanted)
        assert answer.status == 201, answer.body
        await caller.until(lambda: are_up(caller))


async def states(caller: Caller) -> dict[str, str]:
    """Return the states of the hosts of the cluster by node."""
    answer = await caller.admin("GET", "/hosts")
    rows = answer.json()["items"]
    found = {row["name"]: row["state"] for row in rows}
    return {
        name.partition("/")[2]: state
        for name, state in found.items()
        if name.startswith(f"{CLUSTER}/")
    }


async def are_up(caller: Caller) -> bool:
    """Return whether there are hosts of the cluster, and all are up."""
    found = await states(caller)
    return bool(found) and set(found.values()) == {"up"}
