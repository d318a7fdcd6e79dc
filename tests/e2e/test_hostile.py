"""Tests of a hostile function in a container: its attacks fail and do not affect others."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pool_manager.drivers.docker.spec import UID
from pool_manager.drivers.uids import DEFAULT, parse_range
from tests.support.both_drivers import HOSTILE, Siege, besieged, siege
from tests.support.container_server import ContainerServer, until

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(120)]

RUN, MODEL = "/run/fngate", "/model"
FORKS_MAX = 256
TMPFS_MIB = 64
GROWTH_MAX_MIB = 32
WRITABLE = {
    # Present in every container: private and bounded, or without storage.
    *("/dev/full", "/dev/null", "/dev/random", "/dev/tty", "/dev/urandom", "/dev/zero"),
    *("/dev/pts/ptmx", "/dev/mqueue", "/dev/shm", "/tmp"),
    *("/proc/keys", "/proc/timer_list"),
    *("/proc/pressure/cpu", "/proc/pressure/io", "/proc/pressure/memory", "/proc/pressure/irq"),
    # Sockets to connect to; the folder itself is read-only.
    f"{RUN}/ctl.sock",
}
DEADLY: dict[str, dict[str, Any]] = {
    "memory": {},
    "keep_full": {"folder": "/tmp"},
    "dump": {},
    "kill_all": {},
    "close_all": {},
    "hold": {"seconds": 60},
    "ignore_term": {},
}
"""Attacks that end the replica, by its own action or the server's."""


@pytest.fixture(scope="module")
def server(
    engine: str, runtime_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ContainerServer]:
    with besieged("docker", tmp_path_factory.mktemp("hostile") / "data", engine, runtime_image) as (
        server
    ):
        assert isinstance(server, ContainerServer)
        yield server


@pytest.fixture
async def besieger(server: ContainerServer) -> Any:
    async with siege(server) as made:
        assert (await made.call()).said == "nothing"
        yield made
        assert (await made.call()).said == "nothing"
        assert list(server.complaints) == []


def got(said: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return the attempts that were not refused."""
    return {name: tried["got"] for name, tried in said.items() if "got" in tried}


async def test_there_is_no_network(besieger: Siege, server: ContainerServer, engine: str) -> None:
    """The container reaches neither the world nor the host, its ports, abstract sockets or
    engine."""
    with socket.socket(socket.AF_UNIX) as abstract:
        name = f"fngate-test-{server.name}"
        abstract.bind("\0" + name)
        abstract.listen()
        port = int(server.url.rpartition(":")[2])
        ways = await besieger.attack(
            "ways_out", port=port, abstract=name, engine=engine.removeprefix("unix://")
        )
    seen = (await besieger.attack("interfaces")).said

    assert len(ways.said) == 12
    assert got(ways.said) == {}
    assert seen == {"interfaces": ["lo"], "routes": [], "abstract": []}


async def test_nothing_of_the_host_can_be_read_or_changed(besieger: Siege, tmp_path: Path) -> None:
    """Every escape that needs a privilege is refused, by the kernel or by the seccomp filter."""
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    secret.chmod(0o644)

    said = (await besieger.attack("escapes", secret=str(secret))).said

    assert len(said) > 25
    assert got(said) == {}


async def test_it_has_no_privileges(besieger: Siege, server: ContainerServer, engine: str) -> None:
    """The process has no capabilities, no new privileges, a seccomp filter, its own user and no
    core dumps."""
    said = (await besieger.attack("standing")).said
    status = said["status"]

    assert {status[name] for name in status if name.startswith("Cap")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    [uid] = set(said["ids"])
    # A standby gets its name in the background.
    until(lambda: bool(server.containers("hostile")), "the replica's container has no name")
    [container] = server.containers("hostile").values()
    assert container["Config"]["Labels"][UID] == str(uid)
    assert uid in parse_range(DEFAULT)
    assert status["Groups"] in ("", str(uid))
    assert said["limits"] == {
        "core": [0, 0],
        "nofile": [4096, 4096],
        "sigpending": [1024, 1024],
        "msgqueue": [0, 0],
    }
    assert said["name"] == "fngate"
    told = json.loads(server.fnctl("doctor", "--engine", engine, "--json").stdout)["items"]
    [filtered] = [one["found"] for one in told if one["name"] == "replica filter"]
    assert filtered.startswith("Seccomp: 2 in ")
    kinds = {path: (kind, options.split(",")) for path, kind, options in said["mounts"]}
    for path in ("/", RUN, MODEL):
        assert "ro" in kinds[path][1], path
    assert kinds["/tmp"][0] == "tmpfs"
    assert {"nosuid", "nodev", "noexec"} <= {*kinds["/tmp"][1]}


async def test_it_sees_its_own_processes_only(besieger: Siege) -> None:
    """The process sees only its init and itself."""
    said = (await besieger.attack("processes")).said

    assert sorted(words.split()[0] for _, words in said.values()) == [
        "/sbin/docker-init",
        "python3",
    ]


async def test_there_is_next_to_nothing_to_write_to(besieger: Siege) -> None:
    """In the whole tree only two tmpfs folders, and devices without storage, are writable."""
    found = {*(await besieger.attack("writable")).said}

    assert found - WRITABLE == set()
    assert {"/tmp", "/dev/shm"} <= found


async def test_its_own_files_cannot_be_changed(besieger: Siege, server: ContainerServer) -> None:
    """The model's files, which other replicas share, the record and the sockets cannot be
    changed."""
    said = (await besieger.attack("tamper", run=RUN, model=MODEL)).said
    files = (await besieger.attack("files", folders=[RUN, MODEL])).said

    assert got(said) == {}
    assert files[MODEL] == sorted([path.name for path in HOSTILE.glob("*.py")])
    assert {*files[RUN]} <= {"ctl.sock", "data.sock", "replica.json", "replica.json.old"}


async def test_other_replicas_cannot_be_found(besieger: Siege, server: ContainerServer) -> None:
    """The host's paths of other replicas' models, records and sockets do not exist in the
    container."""
    [record] = [
        path for path in server.data.rglob("replica.json") if "default/digits@" in path.read_text()
    ]
    model = server.data / "replicas" / record.parent.name / "digits.onnx"
    assert model.exists()

    said = (await besieger.attack("files", paths=[str(record), str(model), str(server.data)])).said

    assert {tried["refused"] for tried in said.values()} == {"ENOENT"}


async def test_its_token_is_worth_nothing(besieger: Siege) -> None:
    """The token can be read, but allows neither a second greeting nor another owner of the
    socket."""
    said = (await besieger.attack("greet_again", run=RUN)).said

    assert said.pop("token") == 64
    assert got(said) == {}


async def test_signals_stay_inside(besieger: Siege) -> None:
    """The only other process is the container's init, which ignores signals without a handler."""
    await besieger.attack("signals")


async def test_processes_are_counted(besieger: Siege) -> None:
    """A fork bomb ends at the limit of processes; the replica may survive it or not."""
    met = await besieger.attack("forks")

    assert met.code in ("", "replica_died", "execution_timeout")
    if not met.code:
        assert met.said["made"] < FORKS_MAX
        assert met.said["refused"] == errno.EAGAIN


async def test_shared_memory_is_small(besieger: Siege) -> None:
    """/dev/shm is private and bounded, as is /tmp, which ends the replica when full."""
    said = (await besieger.attack("fill", folder="/dev/shm")).said

    assert said == {"mib": TMPFS_MIB, "refused": errno.ENOSPC}


@pytest.mark.parametrize("folder", ["/", "/var/tmp", "/var/log", "/home", RUN, MODEL, "/dev"])
async def test_the_disk_cannot_be_filled(besieger: Siege, folder: str) -> None:
    """No folder on the disk is writable."""
    said = (await besieger.attack("fill", folder=folder)).said

    assert said["mib"] == 0
    assert said["refused"] in (errno.EACCES, errno.EROFS)


@pytest.mark.parametrize("attack", DEADLY)
async def test_a_replicas_death_affects_no_other(
    besieger: Siege, server: ContainerServer, attack: str
) -> None:
    """After a replica's death its client gets a 502, the next call another replica, and the server
    is unaffected."""
    before_mib = besieger.rss_mib

    met = await besieger.attack(attack, **DEADLY[attack])

    assert (met.status, met.code) == (502, "replica_died"), met.body
    assert besieger.rss_mib < before_mib + GROWTH_MAX_MIB


async def test_memory_is_its_own(besieger: Siege, server: ContainerServer) -> None:
    """The kernel kills the replica at its memory cap; `why` and the client's error name the cap.

    If the engine reports it late, only the lost link is known, so the test tries again.
    """
    for _ in range(3):
        met = await besieger.attack("memory")
        cause = "was killed because it ran out of memory (its memory cap is 256 MiB)"
        is_told = cause in str(met.body)
        why = [entry["text"] for entry in server.fnctl_json("why", "hostile")["decisions"]]
        if is_told and any("ran out of memory" in text and "256 MiB" in text for text in why):
            return
    raise AssertionError((met.body, why[-6:]))


async def test_others_are_served_while_it_uses_its_whole_cpu(besieger: Siege) -> None:
    """A replica that uses its whole CPU share leaves other functions answered."""
    assert (await besieger.attack("spin", seconds=2)).said == "spun"


async def test_output_without_end_is_bounded(besieger: Siege, server: ContainerServer) -> None:
    """Of some hundred MB of output the limit is kept on disk, without control characters in
    `logs`."""
    before_mib = besieger.rss_mib
    lines = (await besieger.attack("talk", seconds=1)).said

    logs = server.fnctl("logs", "hostile")
    kept = sum(path.stat().st_size for path in (server.data / "logs").rglob("*.log"))

    assert lines > 1000
    assert "x" * 100 in logs.stdout
    assert "\x1b" not in logs.stdout
    assert kept < 16 * 2**20
    assert besieger.rss_mib < before_mib + GROWTH_MAX_MIB


async def test_a_deaf_replica_is_stopped(server: ContainerServer) -> None:
    """A replica that ignores TERM and its links is gone after the function's removal."""
    async with siege(server) as besieger:
        assert (await besieger.call()).said == "nothing"
        await besieger.attack("ignore_term")
    server.fnctl("sleep", "hostile")

    until(lambda: not server.containers("hostile-"), "a deaf replica is still there")
