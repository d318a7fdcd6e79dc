"""Hosts that are this machine, behind a real sshd or over TLS, with real replica processes, and a
gateway's delivery that calls them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from gateway.data_links import HeldCall, Outcome
from gateway.delivery import Delivery
from gateway.dispatch.dispatcher import Limits
from gateway.hosts.tls import TlsConnection
from registry.exchange import (
    Endpoints,
    HostRoute,
    PoolEndpoints,
    ReplicaEndpoint,
    SshRoute,
    encode,
)
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.server import ServerSpec
from tests.support import models
from tests.support.dial_in_replica import DialInReplica
from tests.support.peers import KEY, Client, KnownPast, ListeningManager
from tests.support.remote_replica import GREETING, RemoteReplica
from tests.support.small_authority import SmallAuthority
from tests.support.sshd import Sshd, sshd
from tests.support.tls_front import drop_packets, reset, route_of

HOST = "gpu2"
WAIT_S = 60.0
ADD_ONE = ModelSpec("digits@1", model="add_one.onnx", batch_max=4)


class Far(ABC):
    """The host, its replicas, and a delivery that uses them. `files`: more files of each replica's
    bundle, by name."""

    way: HostRoute

    def __init__(self, stack: ExitStack, files: dict[str, str]) -> None:
        self._files = files
        self._stack = stack
        self.delivery = Delivery(Limits(), "worker", ListeningManager(), KnownPast())

    @abstractmethod
    def _make(self, root: Path, spec: ModelSpec | ServerSpec) -> RemoteReplica:
        """Make a replica in `root`, not started yet."""

    @abstractmethod
    async def break_off(self) -> None:
        """Break all connections, with no end of a stream; new ones can be made."""

    @abstractmethod
    async def freeze(self) -> None:
        """Let no sign of the host come through any more."""

    async def launch(self, spec: ModelSpec | ServerSpec = ADD_ONE) -> RemoteReplica:
        """Start a replica; return it once it is ready."""
        root = Path(self._stack.enter_context(TemporaryDirectory(prefix="far-")))
        replica = self._stack.enter_context(closing(self._make(root, spec)))
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


class FarBySsh(Far):
    """A host behind sshd."""

    def __init__(self, stack: ExitStack, files: dict[str, str], server: Sshd) -> None:
        super().__init__(stack, files)
        self._sshd = server
        self.way = SshRoute(server.target, server.host_key, str(server.identity), epoch=1)

    def _make(self, root: Path, spec: ModelSpec | ServerSpec) -> RemoteReplica:
        return RemoteReplica(root, spec)

    async def break_off(self) -> None:
        """Kill the processes of all logins; sshd goes on listening."""
        for pid in (await asyncio.to_thread(self._sshd.family))[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def freeze(self) -> None:
        """Stop sshd's processes."""
        await asyncio.to_thread(self._sshd.freeze)


class FarByTls(Far):
    """A host whose replicas dial in."""

    def __init__(self, stack: ExitStack, files: dict[str, str]) -> None:
        super().__init__(stack, files)
        self._authority = SmallAuthority()
        self.way = route_of(self._authority)

    def _make(self, root: Path, spec: ModelSpec | ServerSpec) -> RemoteReplica:
        replica = DialInReplica(root, spec)
        replica.door.authority = self._authority
        replica.write_entrance()
        return replica

    async def break_off(self) -> None:
        """Reset the connections."""
        for sock in self._sockets():
            reset(sock)

    async def freeze(self) -> None:
        """Drop every packet of the replicas."""
        for sock in self._sockets():
            drop_packets(sock)

    def _sockets(self) -> list[socket.socket]:
        route = self.delivery._hosts.route(HOST)
        uses = [each for each in route if isinstance(each, TlsConnection)]
        return [sock for each in uses for sock in each._channels.values()]


@asynccontextmanager
async def far_host(
    files: dict[str, str], make: Callable[..., Far], *arguments: Any
) -> AsyncIterator[Far]:
    """A host without replicas, until the block ends. Then every call has ended exactly once."""
    with ExitStack() as stack:
        far = make(stack, files, *arguments)
        far.delivery.open()
        try:
            yield far
            assert far.delivery.balance().missing == 0
        finally:
            await far.delivery.close()


@asynccontextmanager
async def any_far_host(kind: str, folder: Path, files: dict[str, str]) -> AsyncIterator[Far]:
    """A host behind sshd in `folder`, which has no limits on logins, or over TLS."""
    if kind == "tls":
        async with far_host(files, FarByTls) as far:
            yield far
        return
    with sshd(folder) as server:
        async with far_host(files, FarBySsh, server) as far:
            yield far


def endpoint(replica: RemoteReplica, **changes: Any) -> ReplicaEndpoint:
    """Return the manager's record of a replica."""
    fields = {"greeting": GREETING, "host": HOST, **changes}
    id, path = str(replica.run_dir.parent.parent.name), replica.data_address
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
