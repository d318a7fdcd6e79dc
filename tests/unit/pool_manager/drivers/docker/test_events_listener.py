"""The listener of container events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import docker
import pytest

from pool_manager.drivers.docker.engine import Times
from pool_manager.drivers.docker.events import EventListener
from pool_manager.drivers.docker.spec import OWNER
from tests.support.engine import remove_container

LABEL = "fngate.test=listener"
QUICK = Times(reconnect_s=0.001, connect_s=5.0)

pytestmark = [
    pytest.mark.usefixtures("forgotten_sockets"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Heard:
    """Recorder of a listener's callbacks."""

    def __init__(self, owner: str = "nobody") -> None:
        label = f"{OWNER}={owner}"
        self._filters = {"type": "container", "event": ["die", "oom"], "label": label}
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue(100)
        self.connected = asyncio.Event()
        self.lost: asyncio.Queue[str] = asyncio.Queue(100)

    def listen(self, url: str) -> EventListener:
        return EventListener(
            url,
            self._filters,
            self.events.put_nowait,
            self.connected.set,
            self.lost.put_nowait,
            QUICK,
        )


@pytest.fixture
def api(engine: str) -> Iterator[docker.APIClient]:
    client = docker.APIClient(base_url=engine, version="1.41")
    yield client
    for one in client.containers(all=True, filters={"label": LABEL}):
        remove_container(client, one["Id"])
    client.close()


def ended(api: docker.APIClient, image: str, owner: str, code: int) -> str:
    """A container that ran and ended."""
    config = {
        "Image": image,
        "Entrypoint": ["python3", "-c", f"raise SystemExit({code})"],
        "Labels": {OWNER: owner, "fngate.test": "listener"},
        "HostConfig": {"NetworkMode": "none"},
    }
    container: str = api.create_container_from_config(config)["Id"]
    api.start(container)
    api.wait(container)
    return container


@pytest.mark.docker
@pytest.mark.slow
async def test_ends_are_heard_of(api: docker.APIClient, engine: str, runtime_image: str) -> None:
    """Exits shortly before the connection and after it are both reported."""
    heard = Heard("test-ends")
    before = await asyncio.to_thread(ended, api, runtime_image, "test-ends", 3)
    listener = heard.listen(engine)
    await asyncio.wait_for(heard.connected.wait(), 60)
    after = await asyncio.to_thread(ended, api, runtime_image, "test-ends", 4)

    events = [await asyncio.wait_for(heard.events.get(), 60) for _ in range(2)]
    listener.close()

    assert [one["Actor"]["ID"] for one in events] == [before, after]
    assert [one["Actor"]["Attributes"]["exitCode"] for one in events] == ["3", "4"]
    assert heard.lost.empty()


@pytest.mark.docker
@pytest.mark.slow
async def test_a_closed_listener_is_silent(
    api: docker.APIClient, engine: str, runtime_image: str
) -> None:
    """After `close` the thread has ended and no callback runs."""
    heard = Heard("test-silent")
    listener = heard.listen(engine)
    await asyncio.wait_for(heard.connected.wait(), 60)

    await asyncio.to_thread(listener.close)
    await asyncio.to_thread(ended, api, runtime_image, "test-silent", 0)

    assert heard.events.empty()
    assert not listener._thread.is_alive()


@asynccontextmanager
async def counting(path: Path) -> AsyncIterator[asyncio.Queue[None]]:
    """A server at the engine's socket that closes and counts all connections."""
    tries: asyncio.Queue[None] = asyncio.Queue()

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tries.put_nowait(None)
        writer.close()

    async with await asyncio.start_unix_server(hang_up, path):
        yield tries


async def test_a_lost_engine_is_told_of_once(tmp_path: Path) -> None:
    """A lost engine is reported once, however often the listener retries."""
    heard = Heard()
    async with counting(tmp_path / "d.sock") as tries:
        listener = heard.listen(f"unix://{tmp_path}/d.sock")
        reason = await asyncio.wait_for(heard.lost.get(), 60)
        async with asyncio.timeout(60):
            for _ in range(3):
                await tries.get()
        await asyncio.to_thread(listener.close)

    assert reason.startswith("cannot reach the engine at unix://")
    assert heard.lost.empty()
    assert not listener._thread.is_alive()
