"""Contract tests of server functions: of a command under the driver process, and of an image under
the driver docker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pool_manager.core import events
from registry.errors import DriverError
from runtime_image.contract.link import Kind
from runtime_image.contract.samples import SampleRequest
from tests.support.scenes import a_record
from tests.support.sidecar_process import ask
from tests.support.web_servers import ID, Web, ends

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


async def test_a_server_gets_ready_and_answers(web: Web) -> None:
    """The limit is its concurrency; a gateway's connections lead to the server; the first exchange
    completes the cold start."""
    stage = await web.scenes.stage()
    loaded = await stage.ready(ID, web.binding())
    one = await web.gateway(stage)

    assert loaded.limit == 4
    assert 1 < loaded.memory_mib < 500
    assert {"start", "import", "bind", "load"} <= set(loaded.phases)
    assert one.greeting == {"revision": "digits@1", "limit": 4}
    assert await asyncio.to_thread(lambda: ask(one.open(1))) == b"hello"
    assert (await stage.next(events.FirstRun)).ms == 0
    pids = await stage.driver.processes.pids(ID)
    assert pids is not None
    assert len(pids) >= 2


async def test_a_server_in_use_refuses_an_idle_drain_and_then_drains(web: Web) -> None:
    """An open exchange refuses the drain; without one, the replica exits with code 0."""
    stage = await web.ready()
    control, one = stage.launcher.control(ID), await web.gateway(stage)
    assert control is not None
    assert await asyncio.to_thread(lambda: ask(one.open(1))) == b"hello"

    control.drain(0.001)
    assert (await stage.next(events.NotIdle)).idle_s == 0
    one.end(1)
    control.drain(None)
    quiesce = await asyncio.to_thread(one.link.next, Kind.QUIESCE)
    one.link.send(Kind.QUIESCED)

    assert quiesce.kind is Kind.QUIESCE
    assert await stage.exit(ID) == "exited with code 0"
    assert await stage.driver.list() == set()


async def test_term_shuts_what_is_open(web: Web) -> None:
    """A stream ends, and so does the replica, with code 0; the server is not waited for."""
    stage = await web.ready()
    one = await web.gateway(stage)
    sock = await asyncio.to_thread(one.open, 1)
    await asyncio.to_thread(ask, sock, "/stream", to_end=False)

    await stage.driver.terminate(ID)

    assert await stage.exit(ID) == "exited with code 0"
    assert await asyncio.to_thread(ends, sock)


async def test_the_servers_end_is_the_replicas(web: Web) -> None:
    """It is reported once, with how the server ended, and the connection ends."""
    stage = await web.ready()
    one = await web.gateway(stage)
    sock = await asyncio.to_thread(one.open, 1)
    with pytest.raises((EOFError, ConnectionResetError)):
        await asyncio.to_thread(ask, sock, "/exit")

    lost = await stage.next(events.Lost)
    listed = await stage.driver.list()
    await stage.release(ID)

    assert "exited with code 3" in lost.reason
    assert listed == set()
    assert len(stage.exits) == 1


async def test_a_start_that_fails_says_why(web: Web) -> None:
    """A server that exits before it is ready is lost with its exit and its last output."""
    stage = await web.scenes.stage()
    stage.launch(ID, web.binding("exit", "7"))

    lost = await stage.next(events.Lost)
    await stage.release(ID)

    assert "exited with code 7" in lost.reason
    assert "hello from the server" in lost.log_tail


async def test_a_server_that_never_answers_is_given_up(web: Web) -> None:
    """After `start_s` the reason names what was expected, and where the server listens instead."""
    stage = await web.scenes.stage()
    stage.launch(ID, web.binding(ready="/facts", port=PORT_OF_NOBODY, start_s=3.0))

    lost = await stage.next(events.Lost)

    assert lost.reason.startswith("not ready within 3 s; expected a status from 200 to 399")
    if web.is_apart:  # its command does not follow the port
        assert "fngate: GET /facts: connection refused" in lost.log_tail
        assert "the server listens on 127.0.0.1:8000, expected port 8005" in lost.reason


PORT_OF_NOBODY = 8005


async def test_a_trial_runs_its_samples(web: Web) -> None:
    """The report has each answer."""
    stage = await web.scenes.stage()
    bound = web.binding(samples=(SampleRequest("/"),))

    loaded = await stage.ready(ID, bound, role="trial")

    [sample] = loaded.report["sample_outputs"]["requests"]
    assert (loaded.limit, sample["status"], sample["body"]) == (0, 200, "hello")
    assert 1 < loaded.report["memory_mib"] == loaded.memory_mib


async def test_a_later_manager_adopts_a_server(web: Web) -> None:
    """A new driver lists the replica; it serves on, greets the new manager as loaded, and can be
    released."""
    earlier = await web.ready()
    one = await web.gateway(earlier)
    sock = await asyncio.to_thread(one.open, 1)
    record = earlier.launcher.folders.read_records()[ID]
    assert record is not None
    earlier.launcher._close_control(ID)
    await earlier.abandon()

    later = await web.scenes.stage()
    assert await later.driver.list() == {ID}
    later.expect(ID, web.binding())
    later.launcher.adopt(record, "digits")
    greeted = await later.next(events.Greeted)

    assert greeted.loaded
    assert await asyncio.to_thread(ask, sock) == b"hello"
    await later.release(ID)
    assert await later.driver.list() == set()


async def test_a_release_ends_everything(web: Web) -> None:
    """Open exchanges end; no folder and no replica is left; a second release has no effect."""
    stage = await web.ready()
    one = await web.gateway(stage)
    sock = await asyncio.to_thread(one.open, 1)
    await asyncio.to_thread(ask, sock, "/stream", to_end=False)

    await stage.release(ID)
    await stage.driver.release(ID)

    assert await asyncio.to_thread(ends, sock)
    assert await stage.driver.list() == set()
    assert list(stage.settings.run_dir.iterdir()) == []


async def test_a_servers_output_is_its_functions_log(web: Web) -> None:
    """What the server prints, to its last word at the stop signal."""
    stage = await web.ready()
    await stage.driver.terminate(ID)
    await stage.exit(ID)
    await stage.release(ID)

    [(_, output)] = await stage.launcher.output.kept("digits")
    assert b"hello from the server\n" in output


async def test_a_failed_start_leaves_nothing(web: Web, tmp_path: Path) -> None:
    """If the run folder is missing, the start fails with the reason."""
    stage = await web.scenes.stage()

    with pytest.raises(DriverError, match=r"No such file|source path does not exist"):
        await stage.driver.start(
            a_record(), tmp_path / "missing", tmp_path / "missing" / "log", web.binding().container
        )

    assert await stage.driver.list() == set()


async def test_gateways_share_the_slots(web: Web) -> None:
    """A second gateway is full while the first holds every slot, and is offered the one that gets
    free."""
    stage = await web.ready(concurrency=1)
    first, second = await web.gateway(stage), await web.gateway(stage)
    await asyncio.to_thread(first.open, 1)
    second.link.send(Kind.OPEN, 1)
    assert (await asyncio.to_thread(second.link.next, Kind.NOT_STARTED)).id == 1

    first.end(1)

    assert (await asyncio.to_thread(second.link.next, Kind.WINDOW)).aux == 1
    assert await asyncio.to_thread(lambda: ask(second.open(2))) == b"hello"
