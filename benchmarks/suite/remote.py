"""A replica on another host beside one on this machine, called by the same gateway process.

The hosts are this machine by its loopback interface, over SSH and over TLS, and a namespace of it
with a round trip of 70 ms, over SSH. There is no HTTP: the benchmark submits the calls to the
gateway's delivery. Needs root.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np
import structlog
import uvloop

from benchmarks.alone.process import replica_process
from benchmarks.measuring.processes import cpu_ns
from benchmarks.measuring.record import Figures, interleaved, percentile
from benchmarks.measuring.report import Part, compare
from benchmarks.measuring.setting import LeftOut, Setting
from gateway.data_links import Delivered
from gateway.delivery import Delivery
from gateway.dispatch.dispatcher import Limits
from gateway.hosts.greeting import DIAL_S
from registry.exchange import (
    Endpoints,
    HostRoute,
    PoolEndpoints,
    ReplicaEndpoint,
    SshRoute,
    encode,
)
from runtime_image.contract.control import DATA_SOCKET
from runtime_image.contract.model import ModelSpec
from runtime_image.link.meta import RequestMeta
from tests.support import models
from tests.support.dial_in_replica import DialInReplica
from tests.support.fleet.links import Relay, addresses
from tests.support.peers import Client, KnownPast, ListeningManager
from tests.support.remote_replica import GREETING, RemoteReplica
from tests.support.sshd import PORT, SFTP, Sshd
from tests.support.tls_front import route_of

NPY: Final = RequestMeta("application/x-npy", "application/x-npy", -1, "")
SPEC: Final = ModelSpec("digits@1", model="add_one.onnx", batch_max=4)
LOCAL, NEAR, FAR = "local", "another host", "another host, 70 ms away"
TLS: Final = "another host, over TLS"
DELAY_S: Final = 0.035
SIZES: Final = {"1 kB": 1_000, "64 kB": 64_000, "600 kB": 600_000, "10 MB": 10_000_000}
CALLS: Final = {"1 kB": 1_000, "64 kB": 400, "600 kB": 100, "10 MB": 10}
"""Calls per round, a tenth of them to the far host: one after another."""
GATEWAY_US, SSHD_US, REPLICA_US = (
    f"us of CPU per call, {which}" for which in ("gateway", "sshd", "replica")
)
P50, P99 = "p50 ms", "p99 ms"
STEPS = "calls per 1,000 of 35 ms and more"
"""Nagle's algorithm against delayed acknowledgements costs 40 ms."""
STEP_MS: Final = 35.0
UP_S: Final = 30.0
MIB: Final = 2**20


class Variant(NamedTuple):
    """A pool whose only replica is reached one way. `server`: that of another host over SSH."""

    pool: str
    replica: int
    server: Sshd | None
    is_far: bool

    def processes(self) -> dict[str, list[int]]:
        """Return the processes whose CPU time is measured, by metric."""
        found = {GATEWAY_US: [os.getpid()], REPLICA_US: [self.replica]}
        return found if self.server is None else {**found, SSHD_US: self.server.family()}


def measure(setting: Setting) -> list[Part]:
    """Measure bodies of all sizes. Raises LeftOut without root."""
    if os.geteuid() != 0:
        raise LeftOut("it needs root, for a network with a delay")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    parts: list[Part] = []
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="fn-")))
        far = stack.enter_context(far_sshd(folder / "far"))
        near = stack.enter_context(near_sshd(folder / "near"))
        ways, delivery = _open(stack, runner, folder, {NEAR: near, FAR: far})
        for size in SIZES:
            body = _npy(SIZES[size])
            for way in ways.values():
                runner.run(_calls(delivery, way.pool, body, 3))  # warms up
            cases = {name: _case(runner, delivery, way, name, size) for name, way in ways.items()}
            record = interleaved(cases, 1 if setting.quick else setting.rounds)
            parts += compare(record.only(*_SHOWN), LOCAL, cases=tuple(ways), title=size)
    return parts


_SHOWN: Final = (GATEWAY_US, SSHD_US, REPLICA_US, P50, P99, STEPS)


@contextmanager
def near_sshd(folder: Path) -> Iterator[Sshd]:
    """Run sshd on the loopback interface."""
    server = Sshd(folder)
    server.start(SFTP)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def far_sshd(folder: Path) -> Iterator[Sshd]:
    """Run sshd in a network namespace of its own, behind a link with a delay."""
    name, here, there = addresses()
    command = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo held && exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        relay = Relay(name, here, there)
        enter = ("nsenter", f"--target={holder.pid}", "--net")
        server = Sshd(folder, host=there, port=PORT, enter=enter)
        try:
            relay.connect(holder.pid)
            relay.set(delay_s=DELAY_S)
            server.start(SFTP)
            yield server
        finally:
            server.stop()
            relay.disconnect()
            holder.kill()


def _open(
    stack: ExitStack, runner: asyncio.Runner, folder: Path, servers: Mapping[str, Sshd]
) -> tuple[dict[str, Variant], Delivery]:
    """Start a replica here, one for the hosts over SSH and one that dials in; connect a gateway's
    delivery to them."""
    models.add_one(folder)
    local = stack.enter_context(replica_process(folder, SPEC))
    remote = _replica(stack, RemoteReplica(folder / "there", SPEC, **_LASTING))
    dial_in = DialInReplica(folder / "dial-in", SPEC, **_LASTING)
    _replica(stack, dial_in)
    delivery = runner.run(_delivery())
    stack.callback(lambda: runner.run(delivery.close()))
    here = local.pid, str(local.run_dir / DATA_SOCKET), None
    reached: dict[str, tuple[int, str, HostRoute | None]] = {LOCAL: here}
    for name, server in servers.items():
        way = SshRoute(server.target, server.host_key, str(server.identity), epoch=1)
        reached[name] = _pid(remote), remote.data_address, way
    reached[TLS] = _pid(dial_in), dial_in.data_address, route_of(dial_in.door.authority)
    pools: dict[str, PoolEndpoints] = {}
    hosts: dict[str, HostRoute] = {}
    ways = {}
    for number, (name, (pid, path, route)) in enumerate(reached.items()):
        host, greeting = "", ""
        if route is not None:
            host, greeting = f"gpu{number}", GREETING
            hosts[host] = route
        one = ReplicaEndpoint(
            f"r{number}", path, 8, True, ("cpu:0",), {}, host=host, greeting=greeting
        )
        pool = f"default/way{number}@1"
        pools[pool] = PoolEndpoints([one], "warm", "benchmark")
        ways[name] = Variant(pool, pid, servers.get(name), name == FAR)
    runner.run(_publish(delivery, Endpoints(1, True, pools, hosts)))
    return ways, delivery


_LASTING: Final[dict[str, Any]] = {"orphan_s": 86_400.0, "engine": "onnx"}


def _replica(stack: ExitStack, replica: RemoteReplica) -> RemoteReplica:
    """Start a replica, until the stack ends."""
    stack.enter_context(closing(replica))
    models.add_one(replica.model_dir)
    replica.ready()
    return replica


def _pid(replica: RemoteReplica) -> int:
    assert replica.process is not None
    return replica.process.pid


async def _delivery() -> Delivery:
    delivery = Delivery(Limits(), "benchmark", ListeningManager(), KnownPast())
    delivery.open()
    return delivery


async def _publish(delivery: Delivery, endpoints: Endpoints) -> None:
    """Publish the replicas; wait until all connections are up and each replica has answered."""
    delivery.receive_endpoints(encode(endpoints))
    for host in endpoints.hosts:
        await delivery._hosts.route(host).bodies.wait_up(DIAL_S)
    for pool in endpoints.pools:
        await _calls(delivery, pool, _npy(1_000), 1)


async def _calls(delivery: Delivery, pool: str, body: bytes, count: int) -> list[float]:
    """Make calls one after another; return their milliseconds."""
    client = Client()
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        delivery.submit(client.call(body, pool=pool, meta=NPY))
        outcome = await asyncio.wait_for(client.outcomes.get(), UP_S)
        taken.append((time.perf_counter() - began) * 1e3)
        if not isinstance(outcome, Delivered):
            raise RuntimeError(f"{pool}: expected an answer, got {outcome!r}")
    return taken


def _case(
    runner: asyncio.Runner, delivery: Delivery, way: Variant, name: str, size: str
) -> partial[Figures]:
    count = max(4, CALLS[size] // 10) if name == FAR else CALLS[size]
    return partial(_measured, runner, delivery, way, _npy(SIZES[size]), count)


def _measured(
    runner: asyncio.Runner, delivery: Delivery, way: Variant, body: bytes, count: int
) -> Figures:
    before = {metric: _cpu_ns(pids) for metric, pids in way.processes().items()}
    taken = runner.run(_calls(delivery, way.pool, body, count))
    used = {}
    for metric, began in before.items():
        ended = _cpu_ns(began)
        used[metric] = sum(ended[pid] - began[pid] for pid in ended) / count / 1e3
    figures = {**used, P50: percentile(taken, 0.5), P99: percentile(taken, 0.99)}
    if not way.is_far and len(body) < MIB:
        figures[STEPS] = sum(each >= STEP_MS for each in taken) / count * 1e3
    return figures


def _cpu_ns(pids: Iterable[int]) -> dict[int, int]:
    """Return the CPU time of each process; sshd ends those that handled a connection."""
    found = {}
    for pid in pids:
        with suppress(ProcessLookupError):
            found[pid] = cpu_ns(pid)
    return found


def _npy(size: int) -> bytes:
    """Return a body of about `size` bytes: rows of four numbers."""
    file = io.BytesIO()
    np.save(file, np.ones((max(1, size // 16), 4), np.float32))
    return file.getvalue()
