"""Replicas on another host: a real sshd, a real engine, its own disk and power switch."""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
import subprocess
import tarfile
from asyncio import all_tasks
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path, PurePosixPath
from shlex import quote

import pytest
from msgspec import structs

from gateway.data_links import Delivered
from pool_manager.core.state import PoolSpec
from pool_manager.hosts.folders import HostFolders
from pool_manager.ports import Binding
from registry.builds import DeviceType
from runtime_image.contract.compiled import BuildOrder, ShapeRange
from runtime_image.contract.gpus import Ancestor, Link
from runtime_image.contract.link import VERSION, Kind
from runtime_image.contract.model import InputRule, ModelSpec
from runtime_image.link.frames import pack
from tests.support import models
from tests.support.builds import compiled_of
from tests.support.engine import connected
from tests.support.fleet.fleet import open_fleet
from tests.support.fleet.host import WORKER, Plan
from tests.support.fleet.host import Host as Machine
from tests.support.leaks import Leaks
from tests.support.nvml.board import Gpu
from tests.support.other_hosts import HOST, KEY, Killed, Place, house
from tests.support.replicas import pool_settings

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(180)]

MANY = 10_000
"""Files that a replica puts into its data folder."""
LOST_S = 8.0
GPU = Gpu("GPU-aaaa", 24_000, 400, 100)
SECOND = Gpu("GPU-bbbb", 24_000, 400, 100)
HANDLER = """
import os

def predict(inputs, ctx):
    return {"y": os.environ["NVIDIA_VISIBLE_DEVICES"] + inputs["x"]}
"""


@pytest.fixture(scope="module")
def machine(engine: str) -> Iterator[Machine]:
    """A host that has no image yet."""
    with open_fleet(Plan(user=WORKER, is_relayed=True, gpus=(GPU, SECOND))) as fleet:
        fleet.first.board.link(GPU.uuid, SECOND.uuid, Ancestor.SINGLE, nvlink=0)
        yield fleet.first
        assert fleet.left() == []


@pytest.fixture
def restarts(leaks: Leaks) -> None:
    """Accept new processes and pipes of the host, which outlives the test."""
    for text in ("nsenter", "unshare", "python", "pipe:"):
        leaks.exclude(text, reason="of a host, which outlives the test")


@pytest.fixture
def place(machine: Machine, engine: str, runtime_image: str, tmp_path: Path) -> Place:
    """Where manager and host are."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    models.add_one(folder)
    return Place(
        str(folder),
        machine.address,
        machine.host_key,
        str(machine.identity),
        engine,
        runtime_image,
    )


def names(machine: Machine) -> dict[str, str]:
    """Return the ids of the running replicas and of the agent by the names of their containers."""
    running = [one for one in machine.containers() if one["State"] == "running"]
    found = {one["Names"][0]: one["Id"] for one in running}
    return {name: id for name, id in found.items() if "-network-" not in name}


def kept(machine: Machine) -> set[str]:
    """Return the kinds of files that are on the host."""
    return {Path(path).parts[1] for path in machine.files()}


async def test_a_function_runs_on_another_host(machine: Machine, place: Place) -> None:
    """The host gets the runtime image, a replica answers calls there, scales to zero, and leaves
    nothing but files."""
    with pool_settings() as settings:
        async with house(settings, place, idle_s=1.0) as one:
            up = one.view
            assert up.transferred_bytes > 50 * 2**20
            assert up.cpu_slots == 3
            assert up.engine_version
            id = await one.until_ready()
            assert await one.answers()
            [endpoint] = one.last.pools[KEY].replicas
            assert endpoint.host == HOST
            assert endpoint.path.startswith(f"{machine.home}/.fngate/")
            assert endpoint.path.endswith(f"/data/{id}/data.sock")
            assert len(endpoint.greeting) == 64
            assert one.last.hosts[HOST].address == machine.address
            mode = await asyncio.to_thread(
                machine.run, "stat", "-c", "%a", str(Path(endpoint.path).parent)
            )
            assert mode == "711\n"

            await one.until(lambda: not one.replicas)
            assert one.view.cached_files == 1
            assert kept(machine) == {"files", "control", "run"}
            assert ["-agent-" in name for name in names(machine)] == [True]
        assert machine.containers() == []
        assert kept(machine) == {"files", "control"}


async def test_a_later_manager_adopts_what_runs_there(machine: Machine, place: Place) -> None:
    """A manager that is killed leaves replicas and agent; the next one has them, and starts
    none."""
    with pool_settings() as settings:
        first = await Killed.start(settings.run_dir.parent, place)
        try:
            id = await first.replica()
        finally:
            await first.kill()
        before = names(machine)
        assert len(before) == 2
        async with house(settings, place) as one:
            assert [replica.id for replica in one.replicas] == [id]
            assert await one.answers()
            assert names(machine) == before
        assert machine.containers() == []


async def test_a_model_is_compiled_on_another_host(machine: Machine, place: Place) -> None:
    """Its files come over the replica's own socket, behind its greeting; they are sent to the
    replica that serves there, which uses them, and later ones start with them."""
    order = BuildOrder("onnxruntime", (ShapeRange("x", (1, 4), (4, 4), (8, 4)),), 0.01)
    with pool_settings() as settings:
        async with house(settings, place) as one:
            model = ModelSpec("digits@1", model="add_one.onnx")
            bound = Binding(replace(model, build=order), one.files.bundle(), "default", "digits", 1)
            spec = PoolSpec(
                KEY, device_kind="cpu", labels=(("host", HOST),), function=KEY[:-2], memory_mib=100
            )
            id = await one.until_ready()

            built = await one.manager.build(spec, bound)
            there = DeviceType(HOST, "")
            compiled = compiled_of(built, there)
            variants = {there: compiled}
            one.manager.define(spec, replace(bound, spec=model, variants=variants))
            results = await one.manager.upgrade(KEY, compiled)

            assert built.device.startswith(f"{HOST}/")
            assert results == {id: {"session": "compiled", "reason": ""}}
            assert await one.answers()
            one.manager.unload(KEY)
            await one.until(lambda: not one.replicas)
            await one.until_ready()
            assert [(one.session, one.not_compiled) for one in one.replicas] == [("compiled", "")]
        assert machine.containers() == []


@pytest.mark.usefixtures("restarts")
async def test_a_host_is_cut_off_and_loses_its_power(machine: Machine, place: Place) -> None:
    """Replicas of a host that comes back in time are known again and none was started; those of a
    host that was gone are ended, and their function starts there anew."""
    with pool_settings(host_lost_s=LOST_S) as settings:
        async with house(settings, place) as one:
            id = await one.until_ready()
            before = names(machine)
            await asyncio.to_thread(machine.link.cut)
            await one.until(lambda: one.view.state == "unreachable")
            assert one.last.pools[KEY].replicas == []
            assert [replica.id for replica in one.replicas] == [id]
            await asyncio.to_thread(machine.link.heal)
            await one.until(lambda: one.view.state == "up" and one.last.pools[KEY].replicas)
            assert await one.answers()
            assert names(machine) == before

            await asyncio.to_thread(machine.stop)
            await one.until(lambda: one.view.state == "gone")
            assert one.last.pools[KEY].replicas == []
            await asyncio.to_thread(machine.start)
            await one.until(lambda: one.view.state == "up" and not one.replicas)
            assert id not in str(machine.containers())
            assert await one.until_ready() != id
            assert await one.answers()
        assert machine.containers() == []


@pytest.mark.usefixtures("restarts")
async def test_the_engine_of_a_host_dies(machine: Machine, place: Place) -> None:
    """Replicas serve on without their engine and nothing is started; the host is used again when
    its engine is back."""
    with pool_settings() as settings:
        async with house(settings, place) as one:
            await one.until_ready()
            one.define("other")
            before = names(machine)
            await asyncio.to_thread(machine.dockerd.kill)
            other = asyncio.create_task(one.manager.warm("default/other@1"))
            await one.until(lambda: one.view.reason)
            assert one.view.state == "up"
            assert one.manager.engine_down == ""
            assert await one.answers()
            await asyncio.to_thread(machine.dockerd.start)
            assert (await other).outcome == "ready"
            assert not one.view.reason
            assert before.items() < names(machine).items()


async def test_the_disk_of_a_host_is_full(machine: Machine, place: Place) -> None:
    """A start that has no room says which host and which folder; what runs there serves on."""
    with pool_settings() as settings:
        async with house(settings, place) as one:
            await one.until_ready()
            (Path(place.folder) / "weights.bin").write_bytes(os.urandom(1000))
            one.define("large")
            free = await asyncio.to_thread(machine.fill_disk, 10)
            try:
                failed = await one.manager.warm("default/large@1")
                assert await one.answers()
            finally:
                await asyncio.to_thread(free)
            assert failed.outcome == "failed"
            assert "no space on gpu2 for weights.bin" in failed.reason
            assert f"{machine.home}/.fngate/" in failed.reason
            one.manager.retry("default/large@1")
            assert (await one.manager.warm("default/large@1")).outcome == "ready"


async def test_an_image_is_sent_once_for_starts_together(
    machine: Machine, place: Place, engine: str
) -> None:
    """Two starts that need the same image, which the host lacks, wait for one transfer. A later
    manager knows that the image is there."""
    size = 5 * 2**20
    with connected(engine) as client, pool_settings() as settings:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            member = tarfile.TarInfo("weights")
            member.size = size
            tar.addfile(member, io.BytesIO(os.urandom(size)))
        client.api.import_image_from_data(file.getvalue(), "fngate-other-hosts", "test")
        image = client.images.get("fngate-other-hosts:test").id
        try:
            async with house(settings, place) as one:
                before = one.view.transferred_bytes
                there = one.manager._hosts.fleet.get(HOST)
                async with asyncio.TaskGroup() as group:
                    for _ in range(2):
                        group.create_task(there.engine.send(image, "test"))
                assert size <= one.view.transferred_bytes - before < 2 * size
                assert image in one.view.images
            async with house(settings, place) as one:
                assert image in one.view.images
                there = one.manager._hosts.fleet.get(HOST)
                with connected(machine.engine_url) as own:
                    [tag] = own.images.get(image).tags
                    assert tag.endswith(f":{image[7:]}.{there.owner}")
                    await there.files.unpin_others(())
                    assert not own.images.list(filters={"reference": tag})
        finally:
            client.images.remove(image, force=True)


async def test_unknown_peers_at_the_control_socket_are_refused(
    machine: Machine, place: Place
) -> None:
    """A HELLO with an unknown token, and what is no HELLO, end the connection at once."""
    with pool_settings() as settings:
        async with house(settings, place) as one:
            there = one.manager._hosts.fleet.get(HOST)
            path = f"{machine.seen_here}{machine.home}/.fngate/{there.owner}/control/ctl.sock"
            stated = {"version": VERSION, "pid": 1, "bound": "", "phases": {}, "dial": 1}
            hello = json.dumps({"token": "0" * 64, **stated}).encode()
            for said in (
                b"".join(map(bytes, pack(Kind.HELLO, body=hello))),
                b"GET / HTTP/1.1\r\n\r\n" * 9,
            ):
                with closing(socket.socket(socket.AF_UNIX)) as stranger:
                    stranger.settimeout(20)
                    stranger.connect(path)
                    stranger.sendall(said)
                    assert await asyncio.to_thread(stranger.recv, 100) == b""
            await one.until_ready()


FORGED = """
for number in $(seq {many}); do : > file-$number; done
ln -s {victim} folder; ln -s {victim}/kept data.sock; ln -s .. up; mkfifo pipe; : > -rf; : > 'a
b'
"""


async def test_a_forged_data_folder_is_removed_without_following_links(
    machine: Machine, place: Place
) -> None:
    """Whatever a replica's user has put into its data folder goes, and nothing besides; in a sealed
    folder that user can change nothing."""
    with pool_settings() as settings:
        async with house(settings, place) as one:
            there = one.manager._hosts.fleet.get(HOST)
            base = machine.home / ".fngate" / there.owner
            folder = base / "data/aaaa0001"
            victim = machine.home / "victim"
            inside = "setpriv --reuid=10001 --regid=10001 --clear-groups"

            def forge(script: str) -> None:
                machine.run("sh", "-c", f"cd {folder} && exec {inside} sh -c {quote(script)}")

            await asyncio.to_thread(machine.run, "install", "-d", "-o", WORKER, str(victim))
            await asyncio.to_thread(machine.run, "touch", f"{victim}/kept")
            folders = HostFolders(HOST, there.connection.run, PurePosixPath(base))
            # The removal of leftovers would take this folder for one.
            await one.until(lambda: not any("leftovers" in t.get_name() for t in all_tasks()))
            await folders.create("aaaa0001", b"{}")
            await asyncio.to_thread(forge, FORGED.format(many=MANY, victim=victim))
            await folders.seal("aaaa0001")
            for change in ("rm data.sock", ": > more", "mv pipe data.sock"):
                with pytest.raises(subprocess.CalledProcessError):
                    await asyncio.to_thread(forge, change)
            await folders.remove("aaaa0001")
            assert "aaaa0001" not in await folders.ids()
            left = await asyncio.to_thread(machine.run, "ls", str(victim))
            assert left == "kept\n"


async def test_files_are_there_ahead_of_need(machine: Machine, place: Place) -> None:
    """The files of a function are sent before it is called, and those that nothing needs any more
    go when the cache is over its limit."""
    with pool_settings() as settings:
        async with house(settings, place) as one:
            (Path(place.folder) / "weights.bin").write_bytes(os.urandom(3 * 2**20))
            one.define("ahead", files="ahead", file_hosts=1)
            await one.until(lambda: one.view.cached_mib > 3)
            assert not one.replicas
            one.manager.remove("default/ahead@1")
            one.manager.define_host(structs.replace(one.host, files_mib=1))
            await one.until(lambda: one.view.cached_mib < 1)
    assert machine.containers() == []


async def test_a_function_runs_on_a_gpu_of_another_host(machine: Machine, place: Place) -> None:
    """The agent reports the GPU, and a replica is placed on it."""
    with pool_settings() as settings:
        async with house(settings, place) as one:
            await one.until(lambda: one.view.gpus == 2)
            device = f"{HOST}/{GPU.uuid}"
            [shown] = [each for each in one.manager.occupancies() if each.device.id == device]
            assert shown.device.memory_mib > 20_000
            ids = (f"{HOST}/{gpu.uuid}" for gpu in (GPU, SECOND))
            link = Link(*ids, Ancestor.SINGLE, has_nvlink=True, has_peer_access=True)
            assert shown.device.links == (link,)
            (Path(place.folder) / "handler.py").write_text(HANDLER)
            model = ModelSpec("seen@1", handler="handler.py", inputs={"x": InputRule("json")})
            one.define("seen", model, device_kind="cuda")
            key = "default/seen@1"
            warmed = await one.manager.warm(key)
            assert warmed.outcome == "ready", one.manager.decisions(key)
            [replica] = [each for each in one.manager.replicas() if each.pool == key]
            [placed] = replica.devices
            outcome = await one.call(key, b'{"inputs": {"x": "!"}}')
            assert isinstance(outcome, Delivered), outcome
            assert placed.removeprefix(f"{HOST}/").encode() + b"!" in bytes(outcome.body)
    assert machine.containers() == []


async def test_a_function_runs_on_both_gpus_of_another_host(machine: Machine, place: Place) -> None:
    """A replica on two GPUs gets them from the engine there, and is ended on both."""
    with pool_settings() as settings:
        async with house(settings, place) as one:
            await one.until(lambda: one.view.gpus == 2)
            (Path(place.folder) / "handler.py").write_text(HANDLER)
            model = ModelSpec("both@1", handler="handler.py", inputs={"x": InputRule("json")})
            one.define("both", model, device_kind="cuda", count=2)
            key = "default/both@1"
            warmed = await one.manager.warm(key)
            assert warmed.outcome == "ready", one.manager.decisions(key)
            [replica] = [each for each in one.manager.replicas() if each.pool == key]
            assert replica.devices == (f"{HOST}/{GPU.uuid}", f"{HOST}/{SECOND.uuid}")
            outcome = await one.call(key, b'{"inputs": {"x": "!"}}')
            assert isinstance(outcome, Delivered), outcome
            assert f"{GPU.uuid},{SECOND.uuid}!".encode() in bytes(outcome.body)
            taken = {each.device.id: each.state for each in one.manager.occupancies()}
            assert [taken[device] for device in replica.devices] == ["taken", "taken"]
    assert machine.containers() == []
