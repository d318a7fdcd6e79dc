"""Readings of a ready server: its probes go on until one is answered."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime_image.contract.health import Health, Ready
from runtime_image.contract.server import ServerSpec
from runtime_image.replica.loop import Loop
from runtime_image.server import health
from runtime_image.server.connecting import Server
from runtime_image.server.health import HealthMonitor
from runtime_image.server.progress import Progress


class NoExchanges:
    """The exchanges of a server that has none."""

    def __init__(self) -> None:
        self.progress = Progress()

    def read_progress(self) -> tuple[int, bool]:
        return 0, False


@pytest.fixture
def loop() -> Iterator[Loop]:
    """A loop that the test turns."""
    made = Loop(time.monotonic)
    yield made
    made.close()


@pytest.mark.parametrize("is_unix", [False, True], ids=["tcp", "unix"])
def test_a_server_that_stopped_listening_is_probed_again(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_unix: bool
) -> None:
    """The manager counts refused probes in a row. A Unix socket refuses at once."""
    monkeypatch.setattr(health, "AGAIN_S", 0.01)
    told: list[Health] = []

    def tell(reading: Health) -> None:
        told.append(reading)
        if reading["probes"] >= 3:
            loop.stop()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    server = Server(port, tmp_path / "none" if is_unix else None, is_shared=False)
    spec = ServerSpec("web@1", ("serve",))
    monitor = HealthMonitor(loop, server, spec, "/", NoExchanges(), processes=lambda: [], tell=tell)
    monitor.suspect()
    loop.after(5.0, loop.stop)
    loop.run()
    monitor.close()

    assert [one["probes"] for one in told][-1:] == [3]
    assert {one["ready"] for one in told} == {Ready.REFUSED}
