"""A host that is this machine behind a real sshd, with real replica processes in remote mode, and
a gateway's delivery that calls them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from gateway.data_links import HeldCall, Outcome
from gateway.delivery import Delivery
from gateway.dispatch.dispatcher import Limits
from registry.exchange import Endpoints, PoolEndpoints, ReplicaEndpoint, SshRoute, encode
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.server import ServerSpec
from tests.support import models
from tests.support.peers import KEY, Client, KnownPast, ListeningManager
from tests.support.remote_replica import GREETING, RemoteReplica
from tests.support.sshd import Sshd

HOST = "gpu2"
WAIT_S = 60.0
ADD_ONE = ModelSpec("digits@1", model="add_one.onnx", batch_max=4)


class Far:
    """The host, its replicas, and a delivery that uses them. `files`: more files of each replica's
    bundle, by name."""

    def __init__(self, server: Sshd, stack: ExitStack, files: dict[str, str]) -> None:
        self.sshd = server
        self._files = files
        self._stack = stack
        self.way = SshRoute(server.target, server.host_key, str(server.identity), epoch=1)
        self.delivery = Delivery(Limits(), "worker", ListeningManager(), KnownPast())

    async def launch(self, spec: ModelSpec | ServerSpec = ADD_ONE) -> RemoteReplica:
        """Start a replica; return it once it is ready."""
        root = Path(self._stack.enter_context(TemporaryDirectory(prefix="far-")))
        replica = self._stack.enter_context(closing(RemoteReplica(root, spec)))
        models.add_one(replica.model_dir)
        for name, text in self._files.items():
            (replica.model_dir / name).write_text(text)
        await asyncio.to_thread(replica.ready)
        return replica

    def publish(self, *endpoints: ReplicaEndpoint) -> None:
        """Publish replicas."""
        pool = PoolEndpoints(list(endpoints), "warm" if endpoints else "cold", "test")
        hosts = {HOST: self.way} if endpoints else {}
        self.delivery.receive_endpoints(encode(Endpoints(1, False, {KEY: pool}, hosts)))

    async def call(self, body: bytes, **changes: Any) -> Outcome:
        """Make one call."""
        _, outcomes = self.begin(body, **changes)
        return await asyncio.wait_for(outcomes.get(), WAIT_S)

    def begin(self, body: bytes, **changes: Any) -> tuple[HeldCall, asyncio.Queue[Outcome]]:
        """Submit one call."""
        client = Client()
        call = client.call(body, **changes)
        self.delivery.submit(call)
        return call, client.outcomes

    async def kill_sessions(self) -> None:
        """Kill the processes of all logins; sshd goes on listening."""
        for pid in (await asyncio.to_thread(self.sshd.family))[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def far_host(server: Sshd, files: dict[str, str]) -> AsyncIterator[Far]:
    """A host without replicas, until the block ends. Then every call has ended exactly once."""
    with ExitStack() as stack:
        far = Far(server, stack, files)
        far.delivery.open()
        try:
            yield far
            assert far.delivery.balance().missing == 0
        finally:
            await far.delivery.close()


def endpoint(replica: RemoteReplica, **changes: Any) -> ReplicaEndpoint:
    """Return the manager's record of a replica."""
    fields = {"greeting": GREETING, "host": HOST, **changes}
    id, path = str(replica.run_dir.parent.parent.name), str(replica.data_path)
    made = ReplicaEndpoint(id, path, 8, True, (f"{HOST}/cpu:0",), {})
    return msgspec.structs.replace(made, **fields)


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for something that has no event: files, and other processes."""
    async with asyncio.timeout(30):
        while not is_true():
            await turn()


async def turn() -> None:
    """Let the event loop and other processes do something."""
    await asyncio.to_thread(os.sched_yield)


def sockets(pid: int | str = "self") -> int:
    """Return the number of a process's sockets."""
    found = 0
    for each in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            found += Path(f"/proc/{pid}/fd/{each}").readlink().name.startswith("socket:")
    return found
