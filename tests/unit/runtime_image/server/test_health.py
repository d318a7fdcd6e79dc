"""Readings of a ready server: its probes go on until one is answered."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
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


class OneExchange(NoExchanges):
    """The exchanges of a server that has one, which never moves."""

    def read_progress(self) -> tuple[int, bool]:
        return 1, False


@contextmanager
def monitored(
    loop: Loop, exchanges: NoExchanges, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[HealthMonitor, list[Health]]]:
    """A server that refuses connections, whose readings and probes are quick."""
    monkeypatch.setattr(health, "AGAIN_S", 0.01)
    monkeypatch.setattr(health, "READ_S", 0.01)
    told: list[Health] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    server = Server(port, None, is_shared=False)
    made = HealthMonitor(
        *(loop, server, ServerSpec("web@1", ("serve",)), "/", exchanges),
        processes=lambda: [],
        tell=told.append,
    )
    yield made, told
    made.close()


def turn_for(loop: Loop, seconds: float) -> None:
    """Turn the loop for a time."""
    over: list[bool] = []
    loop.after(seconds, lambda: over.append(True))
    while not over:
        loop._turn()


def test_nothing_is_read_of_a_server_that_is_parked(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither readings nor probes, also not those that had begun; then as before."""
    with monitored(loop, OneExchange(), monkeypatch) as (monitor, told):
        monitor.suspect()
        turn_for(loop, 0.1)
        assert told[-1]["probes"] > 1
        assert told[-1]["ready"] == Ready.REFUSED

        monitor.rest()
        told.clear()
        monitor.suspect()
        turn_for(loop, 0.1)
        assert told == []

        monitor.resume()
        turn_for(loop, 0.1)
        probes = told[-1]["probes"]
        assert probes == told[0]["probes"], "a probe from before the rest goes on"
        monitor.suspect()
        turn_for(loop, 0.1)
        assert told[-1]["probes"] > probes


def test_a_rest_ends_what_a_probe_had_shown(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without exchanges there is nothing to tell after it."""
    with monitored(loop, NoExchanges(), monkeypatch) as (monitor, told):
        monitor.suspect()
        turn_for(loop, 0.05)
        assert told
        monitor.rest()
        monitor.resume()
        told.clear()
        turn_for(loop, 0.05)
        assert told == []
