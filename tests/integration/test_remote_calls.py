"""Calls and exchanges over a real sshd with real replica processes in remote mode."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from structlog.testing import capture_logs

from gateway.data_links import Delivered, HeldCall, Outcome
from gateway.delivery import Delivery
from gateway.dispatch.dispatcher import Limits
from registry.errors import ReplicaDied
from registry.exchange import Endpoints, HostRoute, PoolEndpoints, ReplicaEndpoint, encode
from runtime_image.contract.model import InputRule, ModelSpec
from runtime_image.link.meta import RequestMeta
from tests.integration.test_exchanges import Exchange
from tests.support import models
from tests.support.peers import KEY, Client, KnownPast, ListeningManager
from tests.support.remote_replica import GREETING, RemoteReplica
from tests.support.sidecar_process import tiny
from tests.support.sshd import Sshd, sshd

pytestmark = pytest.mark.slow

NPY = RequestMeta("application/x-npy", "application/x-npy", -1, "")
JSON = RequestMeta("application/json", "", -1, "")
ADD_ONE = ModelSpec("digits@1", model="add_one.onnx", batch_max=4)
SLOW = ModelSpec("digits@1", handler="handler.py", inputs={"x": InputRule("json")})
HANDLER = """
import os, time

def predict(inputs, ctx):
    folder = os.path.dirname(__file__)
    with open(os.path.join(folder, "runs"), "a") as runs:
        runs.write("x")
    while os.path.exists(os.path.join(folder, "hold")):
        time.sleep(0.01)
    return {"y": inputs["x"]}
"""


class Far:
    """A host that is this machine behind sshd, its replicas, and a delivery that uses them."""

    def __init__(self, server: Sshd, stack: ExitStack) -> None:
        self.sshd = server
        self.replicas: list[RemoteReplica] = []
        self._stack = stack
        self.client = Client()
        self.way = HostRoute(server.target, server.host_key, str(server.identity), epoch=1)
        self.delivery = Delivery(Limits(), "worker", ListeningManager(), KnownPast())

    async def launch(self, spec: object = ADD_ONE) -> RemoteReplica:
        """Start a replica; return it once it is ready."""
        root = Path(self._stack.enter_context(TemporaryDirectory(prefix="far-")))
        replica = self._stack.enter_context(closing(RemoteReplica(root, spec)))  # type: ignore[arg-type]
        models.add_one(replica.model_dir)
        (replica.model_dir / "handler.py").write_text(HANDLER)
        await asyncio.to_thread(replica.ready)
        self.replicas.append(replica)
        return replica

    def publish(self, *endpoints: ReplicaEndpoint) -> None:
        """Publish replicas."""
        pool = PoolEndpoints(list(endpoints), "warm" if endpoints else "cold", "test")
        self.delivery.receive_endpoints(
            encode(Endpoints(1, False, {KEY: pool}, {"gpu2": self.way} if endpoints else {}))
        )

    async def call(self, body: bytes, **changes: object) -> Outcome:
        """Make one call."""
        client = Client()
        self.delivery.submit(client.call(body, **changes))
        return await asyncio.wait_for(client.outcomes.get(), 60)

    def begin(self, body: bytes, **changes: object) -> tuple[HeldCall, asyncio.Queue[Outcome]]:
        """Submit one call."""
        client = Client()
        call = client.call(body, **changes)
        self.delivery.submit(call)
        return call, client.outcomes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    """sshd without limits on logins."""
    with sshd(tmp_path / "sshd") as server:
        yield server


@pytest.fixture
async def far(server: Sshd) -> AsyncIterator[Far]:
    """A host without replicas."""
    with ExitStack() as stack:
        far = Far(server, stack)
        far.delivery.open()
        try:
            yield far
            assert far.delivery.balance().missing == 0
        finally:
            await far.delivery.close()


def endpoint(replica: RemoteReplica, **changes: object) -> ReplicaEndpoint:
    """Return the manager's record of a replica."""
    fields: dict[str, object] = {"greeting": GREETING, "host": "gpu2"}
    made = ReplicaEndpoint(
        str(replica.run_dir.parent.parent.name),
        str(replica.data_path),
        8,
        True,
        "gpu2/cpu:0",
        {},
    )
    return msgspec_replace(made, **{**fields, **changes})


def msgspec_replace(made: ReplicaEndpoint, **changes: object) -> ReplicaEndpoint:
    """Return a changed copy."""
    import msgspec

    return msgspec.structs.replace(made, **changes)


def npy(size: int, seed: int) -> tuple[bytes, bytes]:
    """Return a body of about `size` bytes and its answer."""
    numbers = np.random.default_rng(seed).random((max(1, size // 16), 4), np.float32)
    bodies = []
    for each in (numbers, numbers + np.float32(1)):
        file = io.BytesIO()
        np.save(file, each)
        bodies.append(file.getvalue())
    return bodies[0], bodies[1]


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for something that has no event."""
    async with asyncio.timeout(30):
        while not is_true():  # noqa: ASYNC110 - files and processes
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("size", [1_000, 64_000, 600_000, 10_000_000])
async def test_bodies_of_all_sizes_arrive_whole(far: Far, size: int) -> None:
    """Several at once, in both directions, over two connections."""
    far.publish(endpoint(await far.launch()))
    bodies = [npy(size, seed) for seed in range(4)]

    outcomes = await asyncio.gather(*[far.call(body, meta=NPY) for body, _ in bodies])

    for outcome, (_, answer) in zip(outcomes, bodies, strict=True):
        assert isinstance(outcome, Delivered)
        assert bytes(outcome.body) == answer


async def test_a_models_call_survives_the_end_of_its_connection(far: Far) -> None:
    """sshd's processes are killed in the middle of it: it runs again, and is answered."""
    replica = await far.launch(SLOW)
    hold = replica.model_dir / "hold"
    hold.touch()
    far.publish(endpoint(replica))
    _, outcomes = far.begin(b'{"inputs": {"x": 7}}', meta=JSON)
    await until(lambda: replica.runs() == 1)

    await asyncio.to_thread(_kill_sessions, far.sshd)
    hold.unlink()
    outcome = await asyncio.wait_for(outcomes.get(), 60)

    assert isinstance(outcome, Delivered)
    assert b"7" in bytes(outcome.body)
    assert replica.runs() == 2


async def test_a_handlers_call_is_never_run_twice(far: Far) -> None:
    """502, once, with a text that says what is not known; the link comes back."""
    replica, other = await far.launch(SLOW), await far.launch(SLOW)
    hold = replica.model_dir / "hold"
    hold.touch()
    far.publish(endpoint(replica))
    _, outcomes = far.begin(b'{"inputs": {"x": 7}}', meta=JSON, may_rerun=False)
    await until(lambda: replica.runs() == 1)
    far.publish(endpoint(replica), endpoint(other))

    await asyncio.to_thread(_kill_sessions, far.sshd)
    outcome = await asyncio.wait_for(outcomes.get(), 60)
    hold.unlink()
    later = await far.call(b'{"inputs": {"x": 8}}', meta=JSON, may_rerun=False)

    assert isinstance(outcome, ReplicaDied)
    assert "may have run" in outcome.message
    assert isinstance(later, Delivered)
    assert outcomes.empty()
    assert replica.runs() + other.runs() == 2


async def test_a_silent_host_is_noticed(far: Far) -> None:
    """A frozen sshd: the connection counts as broken after 8 s, and a handler's call fails."""
    replica = await far.launch(SLOW)
    (replica.model_dir / "hold").touch()
    far.publish(endpoint(replica))
    _, outcomes = far.begin(b'{"inputs": {"x": 7}}', meta=JSON, may_rerun=False)
    await until(lambda: replica.runs() == 1)

    await asyncio.to_thread(far.sshd.freeze)
    began = asyncio.get_running_loop().time()
    outcome = await asyncio.wait_for(outcomes.get(), 60)

    assert isinstance(outcome, ReplicaDied)
    assert asyncio.get_running_loop().time() - began < 15


async def test_a_replica_cannot_aim_the_gateway_at_another_socket(far: Far) -> None:
    """It replaces its socket by a link to one that only the login may open: not a byte arrives."""
    replica = await far.launch()
    secret = replica.data_path.parent.parent / "engine.sock"
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.put_nowait(await reader.read())
        writer.close()

    engine = await asyncio.start_unix_server(serve, secret)
    replica.data_path.unlink()
    replica.data_path.symlink_to(secret)
    with capture_logs():
        far.publish(endpoint(replica))
        received = await asyncio.wait_for(got.get(), 30)
        far.publish()

    engine.close()
    assert received == b""


async def test_a_replica_cannot_pass_for_another_one(far: Far) -> None:
    """Its socket leads to that of another replica, whose greeting differs."""
    replica, other = await far.launch(), await far.launch()
    replica.data_path.unlink()
    replica.data_path.symlink_to(other.data_path)
    body, answer = npy(1000, 0)

    with capture_logs() as logs:
        far.publish(endpoint(replica, greeting="cd" * 32))
        await until(lambda: any("greeting" in str(each) for each in logs))
    assert far.delivery.is_cold(KEY)
    far.publish(endpoint(other))
    outcome = await far.call(body, meta=NPY)

    assert isinstance(outcome, Delivered)
    assert bytes(outcome.body) == answer


async def test_exchanges_reach_a_server(far: Far) -> None:
    """New connections, reused ones, and more at once than there are slots."""
    replica = await far.launch(tiny(concurrency=2))
    far.publish(endpoint(replica, is_server=True, limit=2))

    answers = await asyncio.gather(*[Exchange(far.delivery).result for _ in range(20)])
    last = Exchange(far.delivery)

    assert answers == [b"hello"] * 20
    assert await asyncio.wait_for(last.result, 30) == b"hello"
    assert last.is_reused


async def test_exchanges_survive_the_end_of_their_connection(far: Far) -> None:
    """Requests that are sent again get their answers after the break."""
    replica = await far.launch(tiny(concurrency=2))
    far.publish(endpoint(replica, is_server=True, limit=2))
    assert await Exchange(far.delivery).result == b"hello"

    await asyncio.to_thread(_kill_sessions, far.sshd)

    assert await asyncio.wait_for(Exchange(far.delivery).result, 10) == b"hello"


async def test_nothing_is_left_after_shutdown(far: Far) -> None:
    """No descriptors, no tasks: a gateway process that ends closes its connections."""
    replica = await far.launch()
    body, _ = npy(100_000, 0)
    before = _sockets()
    far.publish(endpoint(replica))
    await far.call(body, meta=NPY)

    await far.delivery.close()

    await until(lambda: _sockets() <= before)
    assert len(far.delivery.tasks) == 0


def _sockets() -> int:
    """Return the number of this process's sockets."""
    found = 0
    for each in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found += Path(f"/proc/self/fd/{each}").readlink().name.startswith("socket:")
    return found


def _kill_sessions(server: Sshd) -> None:
    """Kill the processes of all logins; sshd goes on listening."""
    import signal

    for pid in server._family()[1:]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
