"""Tests of stand-in hosts: each is a machine of its own, and none leaves anything behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import docker
import pytest

from tests.support.engine import base_image, connected
from tests.support.fleet.fleet import Fleet, open_fleet
from tests.support.fleet.host import PREFIX, WORKER, Host, Plan
from tests.support.leaks import Leaks
from tests.support.nvml.board import Gpu
from tests.support.own_engine import await_condition, make_root
from tests.support.sshd import SFTP

pytestmark = [pytest.mark.docker, pytest.mark.slow]

GPU = Gpu("GPU-a")
AHEAD_S = 120.0
DELAY_S = 0.1
PLANS = (
    Plan(is_relayed=True),
    Plan(user=WORKER, sshd=("MaxSessions 2", SFTP), gpus=(GPU,), clock_s=AHEAD_S, disk_mib=2048),
)
PROBE = """
import ctypes, json, time
count = ctypes.c_uint()
try:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInitWithFlags(0)
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
except OSError:
    pass
print(json.dumps([count.value, time.time(), time.monotonic()]))
"""
ABANDON = """
import sys, time
from tests.support.fleet.fleet import open_fleet
from tests.support.fleet.host import Plan
with open_fleet(Plan(is_relayed=True)) as fleet:
    print(fleet.hosts[0].root, fleet.hosts[0].ip, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Fleet]:
    with open_fleet(*PLANS) as fleet:
        yield fleet


@pytest.fixture
def restarts(leaks: Leaks) -> None:
    """Accept new processes and pipes of hosts that the module ends."""
    for text in ("nsenter", "unshare", "python", "pipe:"):
        leaks.exclude(text, reason="of a host, which outlives the test")


def login(host: Host, fleet: Fleet) -> asyncssh.SSHClientConnection:
    return asyncssh.connect(
        host.ip,
        username=host.plan.user,
        client_keys=[str(host.identity)],
        known_hosts=str(fleet.known_hosts),
        config=None,
    )


def probe(host: Host, **options: object) -> tuple[int, float, float]:
    """Return what a container sees: number of GPUs, wall clock, monotonic clock."""
    command = ["python3", "-I", "-c", PROBE]
    options |= {"network_mode": "none", "read_only": True, "user": "10001", "remove": True}
    with connected(host.engine_url) as client:
        said = client.containers.run(base_image(), command, **options)
    count, wall_s, monotonic_s = json.loads(said)
    return count, wall_s, monotonic_s


def left(root: Path) -> list[str]:
    """Return mounts, loop devices and cgroups of the host at `root`."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    loops = subprocess.run(["losetup"], check=True, capture_output=True, text=True).stdout
    return [
        *(line for line in [*mounts, *loops.splitlines()] if str(root) in line),
        *map(str, Path("/sys/fs/cgroup").glob(f"**/{root.name}")),
    ]


async def test_each_host_is_a_machine_of_its_own(hosts: Fleet) -> None:
    """A login finds its own name, user, home and disk, and its own engine at the usual socket."""
    command = "hostname; id -un; pwd; df --output=size -m . | tail -1; docker info -f '{{.ID}}'"
    said = []
    for host in hosts.hosts:
        async with login(host, hosts) as connection:
            done = await connection.run(command, check=True)
        said.append(str(done.stdout).split())

    (name, user, home, size, engine), (name_2, user_2, home_2, size_2, engine_2) = said
    assert (name, user, home) == ("gpu2", "root", "/home/root")
    assert (name_2, user_2, home_2) == ("gpu3", WORKER, "/home/worker")
    assert int(size_2) < 2048 < int(size) <= 8192
    assert engine != engine_2


async def test_its_sshd_has_the_settings_of_the_plan(hosts: Fleet) -> None:
    """With MaxSessions 2, a third session is refused."""
    async with login(hosts["gpu3"], hosts) as connection:
        for _ in range(2):
            await connection.create_process("cat")
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.create_process("cat")


async def test_a_killed_connection_ends_and_the_listener_goes_on(
    hosts: Fleet, restarts: None
) -> None:
    """Connections end at once; a new login works, also after a restart of the listener."""
    host = hosts["gpu3"]
    async with login(host, hosts) as connection:
        assert host.kill_sessions() > 0
        await connection.wait_closed()
    async with login(host, hosts) as connection:
        host.sshd.kill_listener()
        assert (await connection.run("echo alive")).stdout == "alive\n"
        host.sshd.start(*host.plan.sshd)
        async with login(host, hosts) as other:
            assert (await other.run("echo new")).stdout == "new\n"


def test_containers_see_gpus_and_the_hosts_clock(hosts: Fleet) -> None:
    """Only a container that was given a GPU finds the driver; the monotonic clock is true."""
    host = hosts["gpu3"]
    host.load(base_image())
    gpu = docker.types.DeviceRequest(driver="nvidia", count=-1, capabilities=[["gpu"]])

    before_s, began_s = time.time(), time.monotonic()
    (count, wall_s, monotonic_s), (without, _, _) = (
        probe(host, device_requests=[gpu]),
        probe(host),
    )
    after_s, ended_s = time.time(), time.monotonic()

    assert (count, without) == (1, 0)
    assert before_s <= wall_s - AHEAD_S <= after_s
    assert began_s <= monotonic_s <= ended_s


def test_a_full_disk_refuses_and_is_freed(hosts: Fleet) -> None:
    """On a full disk nothing can be written, until it is freed."""
    host = hosts["gpu3"]
    write = ("dd", "if=/dev/zero", "of=/home/worker/written", "bs=1M", "count=8", "status=none")
    free = host.fill_disk()
    with pytest.raises(subprocess.CalledProcessError):
        host.run(*write)
    free()
    host.run(*write)


async def test_the_relay_delays_drops_and_cuts(hosts: Fleet) -> None:
    """Delay holds for each direction, loss is the share that was set, and a cut link is silent."""
    host = hosts["gpu2"]
    host.link.set(delay_s=DELAY_S)
    began = time.monotonic()
    with socket.create_connection((host.ip, 22), 10):
        assert 2 * DELAY_S <= time.monotonic() - began < 10 * DELAY_S

    host.link.set(delay_s=0.0)
    for break_link in (host.link.cut, host.link.half_open):
        break_link()
        with pytest.raises(TimeoutError):
            socket.create_connection((host.ip, 22), 0.3)
        host.link.heal()
        socket.create_connection((host.ip, 22), 10).close()

    before = host.link.set(loss=0.5)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(400):
            sender.sendto(b"x", (host.ip, 9))

    def dropped() -> int:
        now = host.link.set()
        count = sum(now.values()) - sum(before.values())
        return int(now["dropped"] - before["dropped"]) if count >= 400 else 0

    await_condition(lambda: dropped() > 0, "the packets did not arrive")
    assert 100 < dropped() < 300
    host.link.set(loss=0.0)


async def test_a_power_cut_ends_all_but_the_disk(hosts: Fleet, restarts: None) -> None:
    """Processes, sockets and the link end at once; files and images are there after the start."""
    host = hosts["gpu2"]
    host.load(base_image())
    host.run("touch", "/home/root/kept")
    with connected(host.engine_url) as client:
        client.containers.run(base_image(), ["sleep", "600"], network_mode="none", detach=True)
    host.stop()
    assert left(host.root) == []
    with pytest.raises(TimeoutError):
        socket.create_connection((host.ip, 22), 0.3)

    host.start()

    assert host.run("ls", "/home/root") == "kept\n"
    assert [one["State"] for one in host.containers()] == ["exited"]
    async with login(host, hosts) as connection:
        await connection.run("true", check=True)


def test_nothing_is_left_of_a_killed_test_process(tmp_path: Path) -> None:
    """All but the folder ends with the process; the next one removes the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", ABANDON],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    assert process.stdout is not None
    root, ip = process.stdout.readline().decode().split()
    process.send_signal(signal.SIGKILL)
    process.communicate()

    make_root(PREFIX).rmdir()

    assert not Path(root).exists()
    # The kernel detaches the disk once nothing holds it, some time after the process has ended.
    await_condition(lambda: left(Path(root)) == [], "something is left")
    # As are the links of its network namespaces.
    route = ["ip", "route", "get", ip]
    await_condition(
        lambda: (
            "fnf" not in subprocess.run(route, check=False, capture_output=True, text=True).stdout
        ),
        "a link is left",
    )
