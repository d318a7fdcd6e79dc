"""The path of what happens to replicas."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pool_manager.core import events
from pool_manager.drivers.fake import FakeDriver, Script
from pool_manager.replicas import output
from pool_manager.replicas.run_folders import tail_lines
from pool_manager.settings import PoolSettings
from registry.errors import DriverError
from runtime_image.contract.server import ServerSpec
from tests.support.replicas import Stage, binding, pool_settings

ID = "aaaa0001"


@pytest.fixture
def settings() -> Iterator[PoolSettings]:
    with pool_settings(memory_mib=100) as made:
        yield made


@pytest.fixture
async def stage(settings: PoolSettings, tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(settings, FakeDriver(), tmp_path)
    yield made
    await made.close()


async def test_a_lost_link_is_explained_by_the_exit(stage: Stage) -> None:
    """If link and process end together, the loss is reported once, by the exit and with the log."""
    await stage.ready(ID)
    control = stage.launcher.control(ID)
    assert control is not None

    control.drain(None)
    lost = await stage.next(events.Lost)
    stage.launcher.release(ID)

    assert lost.reason == "exited with code 0"
    assert lost.log_tail[-1] == "fake replica aaaa0001 exited with code 0"
    assert await stage.events.get() == events.Released(ID)


async def test_an_end_is_told_without_reading_files_in_the_loop(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log tails are read outside the event loop, so that a slow disk does not delay calls."""
    readers: list[threading.Thread] = []

    def read(path: Path, count: int) -> tuple[str, ...]:
        readers.append(threading.current_thread())
        return tail_lines(path, count)

    monkeypatch.setattr(output, "tail_lines", read)
    await stage.ready(ID)
    control = stage.launcher.control(ID)
    assert control is not None
    control.drain(None)
    await stage.next(events.Lost)

    assert readers
    assert threading.main_thread() not in readers


async def test_a_refused_load_shows_the_log(settings: PoolSettings, tmp_path: Path) -> None:
    """A refused load is reported with the last log lines."""
    stage = Stage(settings, FakeDriver(Script(refuse_load="no such opset")), tmp_path)
    stage.launch(ID)

    lost = await stage.next(events.Lost)

    assert (lost.reason, lost.stage) == ("no such opset", "load")
    assert lost.log_tail == ("fake replica aaaa0001 starts for default/digits@1",)
    await stage.close()


@pytest.mark.parametrize("reason", ["std::bad_alloc", "MemoryError()", "Unable to allocate 9 GiB"])
async def test_a_load_that_lacks_memory_names_the_cap(
    settings: PoolSettings, tmp_path: Path, reason: str
) -> None:
    """A load that ran out of memory is reported with the cap, which the engine does not know."""
    stage = Stage(settings, FakeDriver(Script(refuse_load=reason)), tmp_path)
    stage.launch(ID)

    lost = await stage.next(events.Lost)

    assert lost.reason == f"{reason} (its memory cap is 100 MiB)"
    await stage.close()


@pytest.mark.parametrize(("measured", "mib"), [(300.0, 300.0), (None, 0.0), ("busy", 0.0)])
async def test_the_driver_measures_a_server_that_is_apart(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, measured: float | str | None, mib: float
) -> None:
    """Its sidecar does not see its memory, and says 0; a trial's report gets the figure, too."""

    async def used_mib(_id: str) -> float | None:
        if isinstance(measured, str):
            raise DriverError(measured)
        return measured

    monkeypatch.setattr(stage.launcher._relay, "_used_mib", used_mib)
    await stage.ready(ID, binding(ServerSpec("digits@1", (), is_apart=True)))
    said = events.Loaded(ID, 0, True, 0.0, {}, {"memory_mib": 0.0})

    for event in (said, replace(said, report={})):
        stage.launcher._relay.on_event(event)
        loaded = await stage.next(events.Loaded)

        assert loaded.memory_mib == mib
        assert loaded.report == ({"memory_mib": mib} if event.report else {})
