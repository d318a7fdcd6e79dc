"""Tests of a whole server: its preconditions, and its state after the end."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from admin.compose import running
from admin.settings import Settings, run_dir
from registry.errors import BadRequest, Conflict, StoreUnavailable
from tests.support.fake_driver.driver import FakeDriver
from tests.support.fake_driver.opening import drivers_of
from tests.support.operator import MODEL, until
from tests.support.server import serving


def settings(tmp_path: Path, **changes: Any) -> Settings:
    """Return settings of a server on a free port over fake replicas."""
    defaults = {"port": 0, "data": tmp_path / "data", "shutdown_s": 5.0}
    return Settings(**{**defaults, **changes})


async def test_a_server_says_where_it_is(tmp_path: Path) -> None:
    """The server's URL has the port that the system chose, and the server listens there."""
    async with running(settings(tmp_path), drivers_of()) as server:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        await writer.wait_closed()


async def test_every_task_that_runs_as_long_as_the_server_is_named(tmp_path: Path) -> None:
    """Every permanent task is named by its owner; /readyz names one that ended early."""
    async with serving(tmp_path, FakeDriver()) as server:
        owners = server.server.tasks
        assert [one.running() for one in owners] == [
            ["history", "usage", "daily copy", "revocations", "ballast"],
            ["tick", "trim logs"],
            ["build models"],
            ["history", "events", "workers"],
        ]
        delivery = server.gateway.invoker.delivery.tasks
        assert delivery.running() == ["sweep", "demand"]
        for one in (owners[-1], delivery):
            one.root("test", asyncio.sleep(0))
        await until(lambda: len(server.server.admin.reasons()) == 2)

        answer = (await server.readiness()).json()
        assert answer["reasons"] == [
            "task gateway:test ended: RuntimeError: it returned",
            "task server:test ended: RuntimeError: it returned",
        ]


async def test_a_stream_in_memory_that_breaks_is_replaced(tmp_path: Path) -> None:
    """A gateway in the server's process comes back, too: its demand ends with its
    stream, and with the next one it wakes functions again."""
    async with serving(tmp_path, FakeDriver()) as server:
        await server.deploy({"m.onnx": MODEL}, name="digits")
        [slot] = server.server.gateways._slots
        before = slot.session
        assert before is not None
        before._stream.abort("broken by a test")
        await until(lambda: slot.session not in (None, before) and slot.breaks == 1)

        assert (await server.call("digits", {"inputs": {}})).status == 200
        assert server.server.gateways.deaths == 0


async def test_a_gateway_in_this_process_that_ends_is_replaced(tmp_path: Path) -> None:
    """A gateway that ends in the server's process is started again on the same port, and has every
    function; /readyz and the metrics tell of it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with serving(tmp_path, FakeDriver(), port=port) as server:
        await server.deploy({"m.onnx": MODEL}, name="digits")
        gateways = server.server.gateways
        [slot] = gateways._slots
        assert slot.process is not None
        slot.process.kill()
        await until(lambda: gateways.deaths == 1 and not gateways.reasons())

        assert (await server.call("digits", {"inputs": {}})).status == 200
        assert b"fngate_gateway_process_deaths_total 1.0" in (await server.get("/metrics")).body


async def test_an_ipv6_address_is_written_as_in_urls(tmp_path: Path) -> None:
    """An IPv6 address stands in brackets in the URL."""
    if not socket.has_ipv6:
        pytest.skip("this host has no IPv6")
    try:
        async with running(settings(tmp_path, listen="::1"), drivers_of()) as server:
            assert server.url.startswith("http://[::1]:")
    except OSError as error:
        pytest.skip(f"this host has no IPv6: {error}")


async def test_other_machines_are_let_in_only_with_key_and_name(tmp_path: Path) -> None:
    """--listen 0.0.0.0 without a key and a host name is refused with advice before the server
    listens."""
    with pytest.raises(BadRequest, match="fnctl key add --scope invoke"):
        async with running(settings(tmp_path, listen="0.0.0.0"), drivers_of()):
            pass
    async with running(settings(tmp_path), drivers_of()) as server:
        await server.store.keys.add(["invoke"], now_s=0.0)
    with pytest.raises(BadRequest, match="needs --public-host NAME"):
        async with running(settings(tmp_path, listen="0.0.0.0"), drivers_of()):
            pass

    async with running(
        settings(tmp_path, listen="0.0.0.0", public_hosts=("fn.example",)), drivers_of()
    ):
        pass


async def test_one_data_folder_has_one_server(tmp_path: Path) -> None:
    """A second server on the same data folder is refused and does not affect the first."""
    async with running(settings(tmp_path), drivers_of()):
        with pytest.raises(Conflict, match="in use by another server"):
            async with running(settings(tmp_path), drivers_of()):
                pass


async def test_a_port_that_is_taken_frees_the_data_folder(tmp_path: Path) -> None:
    """A server that cannot listen releases the data folder."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="address already in use"):
            async with running(settings(tmp_path, port=port), drivers_of()):
                pass

    async with running(settings(tmp_path), drivers_of()):
        pass


@pytest.mark.parametrize("mode", [0o755, 0o770])
async def test_sockets_lie_where_nobody_else_can_reach_them(tmp_path: Path, mode: int) -> None:
    """A run folder that others own or may enter is refused with advice."""
    folder = run_dir(tmp_path / "data")
    folder.mkdir(parents=True)
    folder.chmod(mode)

    with pytest.raises(Conflict, match="expected a folder that only user"):
        async with running(settings(tmp_path), drivers_of()):
            pass


async def test_a_run_folder_is_no_link(tmp_path: Path) -> None:
    """A symbolic link as run folder is refused: its creator would choose where the sockets lie."""
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder = run_dir(tmp_path / "data")
    folder.parent.mkdir()
    folder.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(Conflict, match="expected a folder that only user"):
        async with running(settings(tmp_path), drivers_of()):
            pass


async def test_metrics_show_what_is_and_forget_what_was(tmp_path: Path) -> None:
    """A called function has series and a state in the metrics until it is removed."""
    async with serving(tmp_path, FakeDriver()) as server:
        await server.deploy({"m.onnx": MODEL}, name="digits")
        await server.call("digits", {"inputs": {}})
        called = (await server.get("/metrics")).body.decode()
        assert 'fngate_requests_total{function="digits"' in called
        assert 'fngate_pool_state{pool="default/digits@1",state="warm"} 1.0' in called

        await server.admin("DELETE", "/functions/digits")
        removed = (await server.get("/metrics")).body.decode()
        assert 'function="digits"' not in removed


async def test_a_server_without_dialling_replicas_knows_no_tls(tmp_path: Path) -> None:
    """Without FN_LINK_LISTEN there is no authority, no thread and no module of the door."""
    code = (
        "import asyncio, sys, threading\n"
        "from pathlib import Path\n"
        "from admin.compose import running\n"
        "from admin.settings import Settings\n"
        "from tests.support.fake_driver.opening import drivers_of\n"
        "async def main():\n"
        f"    settings = Settings(port=0, data=Path({str(tmp_path / 'data')!r}))\n"
        "    async with running(settings, drivers_of()):\n"
        "        print([one for one in sys.modules if one.startswith('hosts.tls')],"
        " [one.name for one in threading.enumerate() if one.name == 'link door'])\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert output.decode().splitlines()[-1] == "[] []"
    assert not (tmp_path / "data" / "link").exists()


async def test_a_door_is_open_while_the_server_is(tmp_path: Path) -> None:
    """With FN_LINK_LISTEN the door listens with the store's epoch before the manager starts, and
    until it has ended; the next server has the same authority and a later epoch."""
    found = []
    for _ in range(2):
        async with running(settings(tmp_path, link_listen="127.0.0.1:0"), drivers_of()) as server:
            door = server.manager._hosts._services("local").door
            assert door is not None
            route = door.gateway_route()
            found.append((route.authority, route.epoch, server.store.epoch))
            socket.create_connection(("127.0.0.1", door.address.port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", door.address.port))
    assert found[0][0] == found[1][0]
    assert [epoch for _, *epoch in found] == [[1, 1], [2, 2]]


async def test_a_door_that_has_died_is_in_readyz(tmp_path: Path) -> None:
    """The server goes on without it, and says so."""

    def die() -> None:
        raise SystemExit("of this test")

    with capture_logs():
        async with running(settings(tmp_path, link_listen="127.0.0.1:0"), drivers_of()) as server:
            door = server.manager._hosts._services("local").door
            assert door is not None
            door._call(die)
            await until(lambda: server.admin.reasons() == door.reasons() != [])


async def test_a_door_that_cannot_open_refuses_the_start(tmp_path: Path) -> None:
    """A port in use, and a folder that cannot be made, are errors with a way out, after which
    nothing is left."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BadRequest, match=f"FN_LINK_LISTEN=127.0.0.1:{port}: cannot listen"):
            async with running(settings(tmp_path, link_listen=f"127.0.0.1:{port}"), drivers_of()):
                pass
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link").write_text("in the way")
    where = settings(tmp_path, link_listen="127.0.0.1:0", data=tmp_path / "other")
    with pytest.raises(StoreUnavailable, match="disk error: File exists"):
        async with running(where, drivers_of()):
            pass
