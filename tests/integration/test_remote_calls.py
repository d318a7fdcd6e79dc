"""Calls of real replica processes on other hosts: over a real sshd, and over TLS."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from gateway.data_links import Delivered
from registry.errors import ReplicaDied
from runtime_image.contract.model import InputRule, ModelSpec
from runtime_image.link.meta import RequestMeta
from tests.support.far_host import Far, any_far_host, endpoint, sockets, until
from tests.support.peers import KEY

pytestmark = pytest.mark.slow

NPY = RequestMeta("application/x-npy", "application/x-npy", -1, "")
JSON = RequestMeta("application/json", "", -1, "")
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


@pytest.fixture(params=["ssh", "tls"])
async def far(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Far]:
    """A host without replicas."""
    async with any_far_host(request.param, tmp_path / "sshd", {"handler.py": HANDLER}) as far:
        yield far


by_ssh = pytest.mark.parametrize("far", ["ssh"], indirect=True)


def npy(size: int, seed: int) -> tuple[bytes, bytes]:
    """Return a body of about `size` bytes and its answer."""
    numbers = np.random.default_rng(seed).random((max(1, size // 16), 4), np.float32)
    bodies = []
    for each in (numbers, numbers + np.float32(1)):
        file = io.BytesIO()
        np.save(file, each)
        bodies.append(file.getvalue())
    return bodies[0], bodies[1]


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
    """It breaks in the middle of it: the call runs again, and is answered."""
    replica = await far.launch(SLOW)
    hold = replica.model_dir / "hold"
    hold.touch()
    far.publish(endpoint(replica))
    _, outcomes = far.begin(b'{"inputs": {"x": 7}}', meta=JSON)
    await until(lambda: replica.runs() == 1)

    await far.break_off()
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

    await far.break_off()
    outcome = await asyncio.wait_for(outcomes.get(), 60)
    hold.unlink()
    await until(lambda: not far.delivery._dispatcher.links)  # the break is known of all links
    later = await far.call(b'{"inputs": {"x": 8}}', meta=JSON, may_rerun=False)

    assert isinstance(outcome, ReplicaDied)
    assert "may have run" in outcome.message
    assert isinstance(later, Delivered)
    assert outcomes.empty()
    assert replica.runs() + other.runs() == 2


async def test_a_silent_host_is_noticed(far: Far) -> None:
    """The connection counts as broken after 8 s, and a handler's call fails."""
    replica = await far.launch(SLOW)
    (replica.model_dir / "hold").touch()
    far.publish(endpoint(replica))
    _, outcomes = far.begin(b'{"inputs": {"x": 7}}', meta=JSON, may_rerun=False)
    await until(lambda: replica.runs() == 1)

    await far.freeze()
    began = asyncio.get_running_loop().time()
    outcome = await asyncio.wait_for(outcomes.get(), 60)

    assert isinstance(outcome, ReplicaDied)
    assert asyncio.get_running_loop().time() - began < 15


@by_ssh
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


@by_ssh
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


async def test_nothing_is_left_after_shutdown(far: Far) -> None:
    """No descriptors, no tasks: a gateway process that ends closes its connections."""
    replica = await far.launch()
    body, _ = npy(100_000, 0)
    before = sockets()
    far.publish(endpoint(replica))
    await far.call(body, meta=NPY)

    await far.delivery.close()

    await until(lambda: sockets() <= before)
    assert len(far.delivery.tasks) == 0
