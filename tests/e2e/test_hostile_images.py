"""Tests of a hostile image as a function: its attacks fail, or end nobody but itself.

TABLE has an attack per row, run inside of one container; LIES are wrong answers. The neighbour, an
image with a secret, is called during each attack and afterwards, and so is the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pool_manager.drivers.docker.spec import SERVER, SIDECAR
from tests.chaos.footprint import memory_kib
from tests.support.container_server import ContainerServer, until
from tests.support.doses import IS_FULL, amount
from tests.support.hostile_images import (
    CAP_MIB,
    IDS,
    SECRET,
    Attacked,
    attacked_server,
    said,
)

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(120)]

RSS_GROWTH_MAX_MIB = 48
LOG_MAX = 2 * 2**20
NOFILE_MAX = 65_536
MARK = "fngate-test-survivor"
CUT = 0
"""Status of an answer whose body does not end as it should."""
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[31mred"
FORGED = (
    '{"event": "deployed", "level": "critical", "logger": "forged"}',
    "fngate sidecar: forged",
    ESCAPES,
    "2026-11-23T08:00:00.000000000Z forged",
)


@dataclass(frozen=True)
class Row:
    """An attack, what it tries and what must happen. `holds` checks what it has told."""

    name: str
    tries: str
    must: str
    attack: str
    holds: Callable[[Any], bool]
    order: dict[str, Any] = field(default_factory=dict)


def refused(tried: dict[str, dict[str, str]]) -> bool:
    """Whether every attempt was refused."""
    got = {name: one["got"] for name, one in tried.items() if "got" in one}
    assert got == {}
    return bool(tried)


def hoarded(kind: str, most: int) -> Callable[[Any], bool]:
    return lambda told: told["taken"][kind][0] <= most


FOLDERS = (
    *("/", "/etc", "/home", "/root", "/run", "/usr", "/var/tmp", "/attack", "/dev", "/dev/pts"),
    *("/proc", "/sys", "/sys/fs/cgroup"),
)
TABLE = (
    Row(
        "escapes",
        "mount, remount, chroot, namespaces, devices, modules, kexec, BPF, userfaultfd, keys, perf,"
        " sysrq, core pattern, host name, files of the host",
        "refused",
        "escapes",
        refused,
        {"secret": "/etc/hostname-of-the-host"},
    ),
    Row(
        "privileges",
        "setns, pivot_root, umount, reboot, clock, real time, links, routes, others' sockets,"
        " /proc/sys, /sys, /etc/hosts, vsock",
        "refused",
        "privileged",
        refused,
    ),
    Row(
        "standing",
        "capabilities, new privileges, no seccomp filter",
        "none, none, a filter",
        "standing",
        lambda told: (
            {told["status"][name] for name in told["status"] if name.startswith("Cap")}
            == {"0" * 16}
            and (told["status"]["NoNewPrivs"], told["status"]["Seccomp"]) == ("1", "2")
            and told["ids"] == [IDS[0]] * 3 + [IDS[1]] * 3
            and told["limits"]["core"] == [0, 0]
        ),
    ),
    Row(
        "setuid",
        "a program of root with the setuid bit",
        "its own user stays",
        "setuid",
        lambda told: told == [str(one) for one in IDS],
    ),
    Row(
        "interfaces",
        "look for a way out",
        "loopback only, no route, no abstract socket",
        "interfaces",
        lambda told: told == {"interfaces": ["lo"], "routes": [], "abstract": []},
    ),
    Row(
        "processes",
        "look for others",
        "its own only",
        "around",
        lambda told: told["processes"] == ["/sbin/docker-init", "python3"],
    ),
    Row(
        "files opened",
        "open files without end",
        "an error at the limit",
        "open",
        lambda told: told["opened"] < NOFILE_MAX and told["refused"] == errno.EMFILE,
    ),
    Row(
        "threads",
        "start threads without end",
        "refused at the limit of processes",
        "threads",
        lambda told: 1000 < told < 4096,
        {"most": 5000},
    ),
    Row(
        "zombies",
        "leave ended processes to others",
        "reaped by the container's init",
        "zombies",
        lambda told: told == 0,
        {"count": 300},
    ),
    Row(
        "shared memory",
        "fill /dev/shm",
        "64 MiB",
        "fill",
        lambda told: told == {"mib": 64, "refused": errno.ENOSPC},
        {"folder": "/dev/shm"},
    ),
    Row(
        "a volume",
        "fill a VOLUME that has another spelling",
        "the size in `writable`, in memory",
        "fill",
        lambda told: told == {"mib": 8, "refused": errno.ENOSPC},
        {"folder": "/data"},
    ),
    *(
        Row(
            f"disk: {folder}",
            "fill the disk",
            "read-only",
            "fill",
            lambda told: told["mib"] == 0 and told["refused"] in (errno.EACCES, errno.EROFS,
                                                                  errno.ENOENT, errno.EPERM),
            {"folder": folder},
        )
        for folder in FOLDERS
    ),
    Row(
        "unread bytes",
        "fill connections to itself",
        "small buffers",
        "unread",
        lambda kib: kib < 1100,
        {"connections": 40},
    ),
    *(
        Row(
            f"hoard: {kind}",
            f"take {kind} without end",
            f"at most {most}",
            "hoard",
            hoarded(kind, most),
            {"kinds": [kind]},
        )
        for kind, most in (
            ("keys", 0),
            ("message queues", 0),
            ("POSIX timers", 1024),
            ("waiting signals", 1024),
            ("descriptors in flight", NOFILE_MAX),
            ("inotify", 1000),
        )
    ),
    Row("the whole CPU", "use all CPU time", "others are served", "spin",
        lambda told: told == "spun", {"seconds": amount(0.5, 3)}),
)  # fmt: skip


@pytest.fixture(scope="module")
def server(
    engine: str, runtime_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ContainerServer]:
    with attacked_server(tmp_path_factory.mktemp("hostile"), engine, runtime_image) as made:
        yield made


@pytest.fixture
async def attacked(server: ContainerServer) -> AsyncIterator[Attacked]:
    async with server.session() as http:
        made = Attacked(server, http)
        assert (await made.get()).status == 200
        yield made
        await made.check()


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
async def test_an_attack_is_refused_or_bounded(attacked: Attacked, row: Row) -> None:
    """What must happen is said in its row; the replica answers afterwards, too."""
    before = said(await attacked.get())

    told = said(await attacked.attack(row.attack, **row.order))

    assert row.holds(told), told
    assert said(await attacked.get()) == before


LIES = {
    # Nothing of a head that is wrong reaches the client.
    **dict.fromkeys(
        (
            *("garbage", "nothing", "half-a-head", "no-status", "version-9", "two-lengths"),
            *("length-and-chunks", "minus-length", "odd-coding", "space-before-colon", "folded"),
            *("nul", "bare-cr", "switch", "fields", "endless-head", "endless-line"),
            *("endless-100", "endless-103"),
        ),
        502,
    ),
    "second-answer": 200,
    "cookies": 200,
    "redirect": 302,
    # The head was right: the end of the connection says that the body is not whole.
    **dict.fromkeys(
        (*("bad-chunk", "huge-chunk", "a-terabyte", "endless-trailers", "endless-extension"),),
        CUT,
    ),
}
"""Wrong answers, and the status that the client gets."""
SILENCES = {"never": 504, "never-a-word": 504, "never-the-rest": CUT, "never-the-head": 504}
"""Answers that never end, one for each slot of the replica."""


async def test_a_lie_is_one_exchanges_only(attacked: Attacked) -> None:
    """Of a wrong answer the client gets an error or a cut; all of them together leave the next
    answers right and the server's memory as it was."""
    before, instance = rss_mib(attacked), said(await attacked.get())

    async with attacked.beside_calls():
        got = [attacked.get(f"lie/{lie}", allow_redirects=False) for lie in LIES]
        met = dict(zip(LIES, await asyncio.gather(*got), strict=True))

    assert {lie: one.status for lie, one in met.items()} == LIES
    assert met["second-answer"].body == b"first"
    assert met["redirect"].headers["Location"] == "/fn/hostile/lie/redirect"
    assert "example.com" not in str(met["cookies"].headers)
    assert [said(await attacked.get()) for _ in range(3)] == [instance] * 3
    assert rss_mib(attacked) < before + RSS_GROWTH_MAX_MIB


def rss_mib(attacked: Attacked) -> float:
    """Return the server's resident memory."""
    process = attacked.server.process
    assert process is not None
    return memory_kib(process.pid, "Rss") / 1024


async def test_slots_that_are_never_given_back_are_taken(attacked: Attacked) -> None:
    """Exchanges without an answer in all slots of the replica end in time, and a call that waits
    for a slot is answered."""
    async with attacked.beside_calls(), asyncio.TaskGroup() as group:
        held = [group.create_task(attacked.get(f"lie/{one}")) for one in SILENCES]
        waits = group.create_task(attacked.get())

    assert [(await one).status for one in held] == list(SILENCES.values())
    assert (await waits).status == 200


async def test_the_host_cannot_be_reached(
    attacked: Attacked, server: ContainerServer, engine: str
) -> None:
    """Neither its ports on any address, nor its abstract sockets, the engine, cloud metadata, or
    the world."""
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as abstract:
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        abstract.bind(f"\0fngate-test-{server.name}")
        abstract.listen()
        ports = [int(server.url.rpartition(":")[2]), listener.getsockname()[1]]
        hosts = {"127.0.0.1", "172.17.0.1", "169.254.169.254", "192.168.0.1", *addresses()}
        knocked = await attacked.attack(
            "knock", addresses=[(host, port) for host in sorted(hosts) for port in ports]
        )
        ways = await attacked.attack(
            "ways_out",
            port=ports[0],
            abstract=f"fngate-test-{server.name}",
            engine=engine.removeprefix("unix://"),
        )

    assert refused(said(knocked))
    assert refused(said(ways))


def addresses() -> set[str]:
    """Return the IPv4 addresses of this machine, as the routing table has them."""
    lines = Path("/proc/net/fib_trie").read_text().splitlines()
    pairs = itertools.pairwise(lines)
    return {line.split()[-1] for line, under in pairs if "/32 host LOCAL" in under}


async def test_nothing_of_others_shows(attacked: Attacked, server: ContainerServer) -> None:
    """No listener but its own, no path of the server's folders, no variable or secret of others,
    and no file of the sidecar."""
    paths = ["/run/fngate", "/model", "/var/run/docker.sock", "/run/docker.sock", str(server.data)]

    around = said(await attacked.attack("around", paths=paths))

    assert around["listeners"] == [8000]
    assert around["reserved"] == "8000"
    assert around["exists"] == []
    shown = str([around[key] for key in ("unix", "mounts", "group", "variables")])
    assert str(server.data) not in shown
    assert SECRET not in shown
    assert not any(name.startswith("FNGATE") for name in around["variables"])
    [neighbour] = [attacked.parts("web")[SERVER]]
    assert f"TOKEN={SECRET}" in neighbour["Config"]["Env"]


async def test_its_ports_are_its_own_affair(attacked: Attacked) -> None:
    """While it holds every port that the sidecar's connections could have, or has closed its
    listener, calls wait and are answered."""
    instance, sidecar = said(await attacked.get()), attacked.pids[SIDECAR]

    taken = said(await attacked.attack("ports", seconds=0.5))
    calls = [said(await attacked.get()) for _ in range(2)]
    await attacked.attack("deafen", seconds=0.5)
    calls += [said(await attacked.get()) for _ in range(2)]

    assert "got" in taken["below 1024"]
    assert taken["its own again"] == {"refused": "EADDRINUSE"}
    assert taken["taken"] > 5000
    assert calls == [instance] * 4
    assert attacked.pids[SIDECAR] == sidecar


async def test_its_output_is_bounded_and_harmless(
    attacked: Attacked, server: ContainerServer
) -> None:
    """A flood stays within the limit on disk, both the engine's files and ours. Forged lines are
    lines of its own log; escape sequences reach no terminal."""
    before = rss_mib(attacked)
    assert said(await attacked.attack("talk", seconds=amount(0.5, 30))) > 100
    await attacked.attack("lines", lines=FORGED)

    logs = server.fnctl("logs", "hostile")
    path = Path(attacked.parts()[SERVER]["LogPath"])
    kept = sum(one.stat().st_size for one in path.parent.glob(f"{path.name}*"))
    own = sum(one.stat().st_size for one in (server.data / "logs").rglob("*.log"))

    assert kept < LOG_MAX
    assert own < 2 * LOG_MAX
    assert "\x1b" not in logs.stdout
    assert "\x07" not in logs.stdout
    assert "fngate sidecar: forged" in logs.stdout
    assert not [line for line in server.log if "forged" in line]
    assert rss_mib(attacked) < before + RSS_GROWTH_MAX_MIB


async def test_its_last_words_are_harmless(attacked: Attacked, server: ContainerServer) -> None:
    """It ends with escape sequences and forged lines: its answer is cut, the verbs show the words
    without escapes, and the next call gets another replica."""
    met = await attacked.attack("lines", lines=FORGED, code=3)

    # The answer is cut at once; the end of the container is known a little later.
    why = partial(server.fnctl, "why", "hostile")
    until(lambda: "exited with code 3" in why().stdout, "the end and its exit code in fnctl why")
    told = [why(), server.fnctl("show", "hostile")]

    assert met.status == CUT
    assert all("\x1b" not in one.stdout + one.stderr for one in told)
    assert not [line for line in server.log if "forged" in line]
    assert (await attacked.get()).status == 200


BOMBS: dict[str, dict[str, Any]] = {
    "memory": {},
    "keep_full": {"folder": "/tmp"},
    "shared_memory": {"mib": 4 * CAP_MIB},
    "kill_all": {},
}


@pytest.mark.parametrize("attack", amount(("keep_full",), tuple(BOMBS)))
async def test_its_death_is_its_own(attacked: Attacked, attack: str) -> None:
    """Memory of any kind ends at its cap: its answer is cut, the next call gets another
    replica."""
    before, sidecars = rss_mib(attacked), attacked.parts("web")[SIDECAR]["Id"]
    replica = attacked.parts()[SERVER]["Id"]

    met = await attacked.attack(attack, **BOMBS[attack])

    assert met.status == CUT
    await asyncio.to_thread(until, lambda: not lives(attacked, replica), "it lives on")
    assert (await attacked.get()).status == 200
    assert attacked.parts("web")[SIDECAR]["Id"] == sidecars
    assert rss_mib(attacked) < before + RSS_GROWTH_MAX_MIB


def lives(attacked: Attacked, container: str) -> bool:
    """Return whether a container is there."""
    return container in [one["Id"] for one in attacked.server.everything()]


@pytest.mark.skipif(not IS_FULL, reason="4,096 processes take a while")
async def test_processes_are_counted(attacked: Attacked) -> None:
    """A fork bomb ends at the limit of processes or of memory."""
    met = await attacked.attack("forks")

    assert met.status in (200, CUT)


async def test_nothing_outlives_its_stop(attacked: Attacked, server: ContainerServer) -> None:
    """It ignores TERM and HUP, names SIGSTOP as its stop signal, has a child in a session of its
    own without a variable, and has stopped itself: its function's removal ends all of it."""
    mark = f"{MARK}-{server.name}"
    await attacked.attack("survive", mark=mark)
    assert marked(mark)
    async with attacked.beside_calls(), asyncio.TaskGroup() as group:
        stopped = group.create_task(attacked.post("attack/hold_all", {}))
        done = await asyncio.to_thread(server.fnctl, "rm", "hostile", "--yes")
        await asyncio.to_thread(until, lambda: not attacked.parts(), "a part of it is still there")

    assert done.returncode == 0, done.stderr
    assert not marked(mark)
    assert (await stopped).status == CUT


def marked(mark: str) -> list[str]:
    """Return the command lines on this machine that contain a mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in (text := path.read_bytes()):
                found.append(re.sub(r"\0", " ", text.decode()))
    return found
