"""Tests of the checks of a host, on real SSH servers with the settings that a host may have."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import pwd
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hosts import probes
from hosts.checks import Check
from hosts.errors import SHOWN_MAX, Unreachable
from hosts.findings import Engine, EngineState, Findings, Gpus, judge
from hosts.login import Login, parse_target
from hosts.probes import examine
from tests.support.fleet.fleet import Fleet, open_fleet
from tests.support.fleet.host import WORKER, Plan
from tests.support.operator import until
from tests.support.sshd import SFTP, Sshd, needs_sshd

ENGINE = "/var/run/docker.sock"
GOOD = {"Version": "24.0.7", "ApiVersion": "1.43", "Architecture": platform.machine()}
MIB = 2**20
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """Return a server that each test starts with its settings."""
    needs_sshd()
    running = Sshd(tmp_path_factory.mktemp("sshd") / "ssh")
    yield running
    running.stop()


@pytest.fixture
def start(server: Sshd) -> Iterator[Callable[..., Login]]:
    """Return a function that starts the server with some settings."""

    def started(*settings: str, sftp: bool = True) -> Login:
        server.start(*settings, *([SFTP] if sftp else []))
        return Login(parse_target(server.target), server.identity, server.known_hosts)

    yield started
    server.stop()


def http(answer: dict[str, Any]) -> bytes:
    return b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(answer).encode()


@asynccontextmanager
async def stand_in(folder: Path, answer: bytes | Answer) -> AsyncIterator[str]:
    """Serve an engine's socket; each request gets `answer`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            if callable(answer):
                await answer(reader, writer)
            else:
                writer.write(answer)
            writer.close()

    path = str(folder / "engine.sock")
    server = await asyncio.start_unix_server(serve, path)
    try:
        yield path
    finally:
        server.close()


async def failing(login: Login, folder: Path, answer: bytes | Answer | None = None) -> list[Check]:
    """Return the checks that fail on a host with a good engine, or one that sends `answer`."""
    async with stand_in(folder, http(GOOD) if answer is None else answer) as engine:
        return [one for one in await examine(login, engine) if one.level != "ok"]


def folders_of_checks() -> set[str]:
    """Return the names of folders in the home folder and in /tmp that checks have made."""
    folders = ("/tmp", pwd.getpwuid(os.geteuid()).pw_dir)
    names = {name for folder in folders for name in os.listdir(folder)}
    return {name for name in names if name.startswith(".fngate-check-")}


FORWARDING = "SSH forwarding of sockets"
NO_FILES = ["home folder", "disk"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "names", "mends"),
    [
        ("MaxSessions 1", ["SSH sessions"], "MaxSessions 10"),
        (
            "MaxSessions 0",
            ["SSH commands", "SFTP", FORWARDING, "SSH sessions", *NO_FILES],
            "MaxSessions 10",
        ),
        ("MaxStartups 2", ["SSH logins"], "MaxStartups 10:30:100"),
        ("AllowStreamLocalForwarding no", [FORWARDING], "AllowStreamLocalForwarding yes"),
        ("AllowStreamLocalForwarding local", [FORWARDING], "AllowStreamLocalForwarding yes"),
        ("AllowStreamLocalForwarding remote", [FORWARDING], "AllowStreamLocalForwarding yes"),
        ("AllowTcpForwarding no", [FORWARDING], "AllowTcpForwarding yes"),
        ("AllowTcpForwarding local", [FORWARDING], "AllowTcpForwarding yes"),
        ("AllowTcpForwarding remote", [FORWARDING], "AllowTcpForwarding yes"),
        ("PermitOpen none", [FORWARDING], "PermitOpen any"),
        ("PermitOpen 127.0.0.1:22", [FORWARDING], "PermitOpen any"),
        ("DisableForwarding yes", [FORWARDING], "DisableForwarding no"),
        (
            "ForceCommand /bin/false",
            ["SSH commands", "SFTP", FORWARDING, *NO_FILES],
            "no ForceCommand",
        ),
        ("ForceCommand internal-sftp", ["SSH commands"], "no ForceCommand"),
        ("", ["SFTP", *NO_FILES], "Subsystem sftp internal-sftp"),
    ],
)
async def test_each_setting_is_named_with_its_remedy(
    start: Callable[..., Login], tmp_path: Path, setting: str, names: list[str], mends: str
) -> None:
    """Exactly the checks that a setting breaks fail; the first one has the line that fixes it."""
    login = start(*filter(None, [setting]), sftp=bool(setting))

    found = await failing(login, tmp_path)

    assert [one.name for one in found] == names
    assert mends in found[0].todo
    assert "/etc/ssh/sshd_config: " in found[0].todo
    assert "systemctl reload ssh" in found[0].todo


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["StreamLocalBindUnlink yes", "MaxSessions 2", "PermitTTY no"])
async def test_settings_that_do_no_harm_pass(
    start: Callable[..., Login], tmp_path: Path, setting: str
) -> None:
    """Nothing fails, and no file of the check is left in the home folder or in /tmp."""
    before = folders_of_checks()
    assert await failing(start(setting), tmp_path) == []

    await until(lambda: folders_of_checks() <= before)  # checks of other tests end, too


@pytest.mark.slow
async def test_cancelled_checks_leave_nothing(
    start: Callable[..., Login], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user may leave, or the server may end, while the checks of a host run."""
    before = folders_of_checks()
    connecting = asyncio.Event()

    async def never(*_arguments: Any) -> bool:
        connecting.set()
        return await asyncio.Event().wait()

    monkeypatch.setattr(probes, "_connects", never)
    checks = asyncio.create_task(failing(start(), tmp_path))
    await connecting.wait()
    assert folders_of_checks() - before
    checks.cancel()
    with pytest.raises(asyncio.CancelledError):
        await checks

    await until(lambda: folders_of_checks() <= before)


@pytest.mark.slow
async def test_a_key_without_forwarding_is_reported(
    start: Callable[..., Login], tmp_path: Path
) -> None:
    """The remedy names the file of keys, too."""
    login = start(f"AuthorizedKeysFile {tmp_path}/keys")
    assert login.identity is not None
    public = login.identity.with_suffix(".pub").read_text()
    (tmp_path / "keys").write_text(f"restrict {public}")

    [check] = await failing(login, tmp_path)

    assert check.name == FORWARDING
    assert "~/.ssh/authorized_keys: restrict,port-forwarding" in check.todo


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (http({**GOOD, "ApiVersion": "1.40"}), "API 1.40"),
        (http({**GOOD, "Architecture": "riscv64"}), "riscv64"),
        (http({**GOOD, "Version": "\x1b[31m" + "x" * MIB}), "expected at most 1048576 bytes"),
        (http({**GOOD, "ApiVersion": "9" * 9000}), "API 999"),
        (b"HTTP/1.1 500 Oops\r\n\r\n", "expected status 200, got 'HTTP/1.1 500 Oops'"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 500_000, "expected JSON"),
        (b"HTTP/1.1 200 OK\r\n\r\n[]", "expected an object, got list"),
        (b"", "expected status 200, got ''"),
    ],
)
async def test_an_engine_that_answers_wrong_fails(
    start: Callable[..., Login], tmp_path: Path, answer: bytes, found: str
) -> None:
    """Old, foreign and hostile engines fail, with a short printable text."""
    [check] = await failing(start(), tmp_path, answer)

    assert check.name == "container engine"
    assert found in check.found
    assert check.found.isprintable()
    assert len(check.found) <= SHOWN_MAX


@pytest.mark.slow
async def test_an_endless_engine_is_cut_off(start: Callable[..., Login], tmp_path: Path) -> None:
    """Of an endless answer little more than the limit is taken, and never held."""
    sent = 0

    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while sent < 1024 * MIB:
            writer.write(b"[" * MIB)
            await writer.drain()
            sent += MIB

    [check] = await failing(start(), tmp_path, endless)

    assert "expected at most 1048576 bytes" in check.found
    assert sent < 16 * MIB


@pytest.mark.slow
async def test_a_silent_engine_is_given_up(
    start: Callable[..., Login], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that takes requests and never answers fails in limited time."""
    login = start()
    async with stand_in(tmp_path, http(GOOD)) as engine:
        assert await examine(login, engine)
    (tmp_path / "engine.sock").unlink(missing_ok=True)
    released = asyncio.Event()

    async def silent(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await released.wait()

    monkeypatch.setattr(probes, "ENGINE_S", 0.1)
    [check] = await failing(login, tmp_path, silent)
    released.set()

    assert check.found == "/version: no answer within 0.1 s"
    assert check.todo == "systemctl restart docker"


@pytest.mark.slow
async def test_endless_output_of_a_command_ends(
    start: Callable[..., Login], tmp_path: Path
) -> None:
    """A host whose every command writes without end is reported, not read to the end."""
    found = await failing(start("ForceCommand yes"), tmp_path)

    assert found[0].name == "SSH commands"
    assert "expected at most 1048576 bytes" in found[0].found


@pytest.mark.slow
async def test_an_absent_or_silent_socket_is_reported(
    start: Callable[..., Login], tmp_path: Path
) -> None:
    """No socket, and one on which nothing listens, have a text and a remedy each."""
    login = start()
    engine = str(tmp_path / "engine.sock")

    absent = (await examine(login, engine))[-2]
    server = await asyncio.start_unix_server(lambda _, __: None, engine)
    server.close()
    stopped = (await examine(login, engine))[-2]

    assert absent.found == f"there is no socket {engine}"
    assert "install Docker" in absent.todo
    assert stopped.found == f"nothing listens on {engine}"
    assert stopped.todo == "systemctl enable --now docker"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "runtimes", "is_ok", "found"),
    [
        ("echo 'NVIDIA H100, 550.54'", {"nvidia": {}}, True, "NVIDIA H100, 550.54"),
        ("echo 'NVIDIA H100, 550.54'", {}, False, "no NVIDIA container toolkit for NVIDIA H100"),
        ("echo 'Driver mismatch'; exit 18", {}, False, "nvidia-smi: Driver mismatch"),
        ("exec sleep 1000", {}, False, "nvidia-smi: no answer in time"),
        ("exec yes", {}, False, "nvidia-smi: expected at most 1048576 bytes"),
    ],
)
async def test_nvidia_software_is_judged(
    start: Callable[..., Login],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    runtimes: dict[str, Any],
    is_ok: bool,
    found: str,
) -> None:
    """Driver, toolkit and an nvidia-smi that fails, hangs or never ends."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    if "sleep" in script:
        monkeypatch.setattr(probes, "SMI_S", 0.5)
    login = start(f"SetEnv HOME={tmp_path} PATH={program.parent}:/usr/bin:/bin")

    async with stand_in(tmp_path, http({**GOOD, "Runtimes": runtimes})) as engine:
        check = (await examine(login, engine))[-1]

    assert (check.name, check.level) == ("NVIDIA", "ok" if is_ok else "fail")
    assert found in check.found


@pytest.mark.slow
async def test_a_host_that_breaks_off_is_unreachable(
    start: Callable[..., Login], server: Sshd, tmp_path: Path
) -> None:
    """A connection that breaks in the middle is no finding about the host's settings."""

    async def broken(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        server.stop()

    with pytest.raises(Unreachable):
        await failing(start(), tmp_path, broken)


@pytest.mark.slow
async def test_all_checks_together_have_a_limit(
    start: Callable[..., Login], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that is slow in each step is given up as a whole."""
    monkeypatch.setattr(probes, "EXAMINE_S", 0.2)
    released = asyncio.Event()

    async def silent(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await released.wait()

    with pytest.raises(Unreachable, match=r"too slow: 0\.2 s"):
        await failing(start(), tmp_path, silent)
    released.set()


@pytest.mark.slow
async def test_a_shell_that_writes_at_its_start_is_reported(
    start: Callable[..., Login], tmp_path: Path
) -> None:
    """Text of ~/.bashrc before a command's output spoils what is read from it."""
    login = start("ForceCommand echo Welcome; $SSH_ORIGINAL_COMMAND")

    found = await failing(login, tmp_path)

    assert found[0].found == "the shell writes at its start: Welcome"
    assert "~/.bashrc" in found[0].todo


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "found", "remedy"),
    [
        ((), "no NVIDIA driver: CPU slots only", ""),
        ((("0x8086", "0x030000"), ("0x10de", "0x040300")), "no NVIDIA driver", ""),
        (
            (("0x10de", "0x030200"), ("0x10de", "0x030000"), ("0x10de", "0x040300")),
            "2 NVIDIA cards without a driver: CPU slots only",
            "apt-get install nvidia-driver",
        ),
    ],
)
async def test_cards_without_a_driver_are_reported(
    start: Callable[..., Login],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    devices: tuple[tuple[str, str], ...],
    found: str,
    remedy: str,
) -> None:
    """A host with a card but no driver passes, since it may be that of a screen; the line that
    makes its GPUs usable is there. A card's sound device, and other makers' cards, do not count."""
    cards = tmp_path / "pci devices"
    for number, (vendor, kind) in enumerate(devices):
        (cards / str(number)).mkdir(parents=True)
        (cards / str(number) / "vendor").write_text(f"{vendor}\n")
        (cards / str(number) / "class").write_text(f"{kind}\n")
    monkeypatch.setattr(probes, "CARDS", str(cards))
    login = start(f"SetEnv HOME={tmp_path} PATH=/usr/bin:/bin")

    async with stand_in(tmp_path, http(GOOD)) as engine:
        check = (await examine(login, engine))[-1]

    assert (check.name, check.level) == ("NVIDIA", "ok")
    assert found in check.found
    assert remedy in check.todo
    assert bool(check.todo) == bool(remedy)


def good() -> Findings:
    return Findings(
        engine=ENGINE,
        user="ann",
        machine="x86_64",
        runs_commands=True,
        has_sftp=True,
        home="/home/ann",
        free={"/home/ann": 100 * 2**30},
        forwards_there=True,
        forwards_here=True,
        sessions=5,
        container_engine=Engine(EngineState.OPEN, api="1.43", machine="x86_64"),
    )


def test_a_good_host_passes_all() -> None:
    """No finding, no remedy."""
    assert all(check.level == "ok" and not check.todo for check in judge(good()))


@pytest.mark.parametrize(
    ("name", "value", "check", "remedy"),
    [
        ("home", "/mnt/" + "x" * 80, "home folder", "usermod --move-home --home /home/ann ann"),
        ("home_error", "Permission denied", "home folder", "chown"),
        ("free", {"/home/ann": 2**40, "/var/lib/docker": 2**30}, "disk", "/var/lib/docker: docker"),
        ("free", {"/\x1b[2J" + "x" * 9000: 2**30}, "disk", "free at least 2 GiB in / [2Jxxx"),
        ("container_engine", Engine(), "container engine", "usermod --append --groups docker ann"),
        (
            "container_engine",
            Engine(EngineState.ABSENT),
            "container engine",
            "name its socket: --docker-socket",
        ),
        ("gpus", Gpus(error="\x1b[2Jlost"), "NVIDIA", "reinstall"),
    ],
)
def test_findings_are_judged(name: str, value: object, check: str, remedy: str) -> None:
    """Findings that a test's machine cannot have fail the check that they concern."""
    found = good()
    setattr(found, name, value)

    [failed] = [one for one in judge(found) if one.level != "ok"]

    assert failed.name == check
    assert remedy in failed.todo
    assert (failed.found + failed.todo).isprintable()
    assert len(failed.todo) <= SHOWN_MAX


@pytest.mark.parametrize(
    ("engine", "found", "remedy"),
    [
        (Engine(EngineState.FORBIDDEN), "toolkit is installed is not known", "first mend"),
        (Engine(EngineState.OPEN, error="no answer"), "is not known", "first mend"),
        (
            Engine(EngineState.OPEN, version="24", api="1.43", machine="x86_64"),
            "no NVIDIA container toolkit for H100, 550",
            "apt-get install nvidia-container-toolkit",
        ),
    ],
)
def test_a_toolkit_is_missing_only_if_the_engine_says_so(
    engine: Engine, found: str, remedy: str
) -> None:
    """Its programs may lie outside of PATH, where only the engine's runtimes show it."""
    check = judge(replace(good(), container_engine=engine, gpus=Gpus(("H100, 550",))))[-1]

    assert (check.name, check.level) == ("NVIDIA", "fail")
    assert found in check.found
    assert remedy in check.todo


def test_a_silent_shell_is_reported() -> None:
    """Of /bin/false comes no output, as of a ForceCommand: both are named."""
    found = replace(good(), runs_commands=False, command_error="no output")

    failed = next(one for one in judge(found) if one.level != "ok")

    assert failed.name == "SSH commands"
    assert "no ForceCommand" in failed.todo
    assert "usermod --shell /bin/sh ann" in failed.todo


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Return a host with a real engine, and a login that is not root."""
    with open_fleet(Plan(user=WORKER, sshd=("MaxSessions 2", SFTP))) as running:
        yield running


@pytest.mark.docker
@pytest.mark.slow
async def test_a_machine_with_an_engine_is_examined(fleet: Fleet) -> None:
    """A real host without GPUs passes; a closed engine, a full disk and a dead engine fail."""
    host = fleet.first
    login = Login(parse_target(host.address), host.identity, fleet.known_hosts)

    async def bad() -> list[Check]:
        return [one for one in await examine(login, ENGINE) if one.level != "ok"]

    assert await bad() == []

    host.run("chmod", "600", ENGINE)
    [closed] = await bad()
    host.run("chmod", "660", ENGINE)
    free = host.fill_disk(leave_mib=500)
    [full] = await bad()
    free()
    assert await bad() == []

    assert closed.found == f"{WORKER} may not connect to {ENGINE}"
    assert closed.todo == f"usermod --append --groups docker {WORKER}"
    assert full.name == "disk"
    assert "docker image prune" in full.todo
