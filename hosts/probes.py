"""Probes of a host: its SSH server's settings, disk, container engine and NVIDIA software.

OpenSSH says "open failed" and nothing more for a socket that is absent, closed, or forbidden by any
of six settings. The setting is found by what works beside it: a command, SFTP, a socket forwarded
from the host, one forwarded to it, and a forwarded TCP port.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import platform
import secrets
import shlex
from collections.abc import Awaitable
from typing import Any, Final

import asyncssh

from hosts.checks import Check
from hosts.commands import CommandSession, start_command
from hosts.errors import Unreachable
from hosts.findings import LOGINS, SESSIONS, Engine, EngineState, Findings, Gpus, judge
from hosts.link import Link, Timing
from hosts.login import LoggedIn, Login, log_in
from registry.tasks import Tasks

EXAMINE_S: Final = 90.0
"""Max seconds of all checks."""
STEP_S: Final = 10.0
"""Max seconds of one request of a check."""
ENGINE_S: Final = 10.0
"""Max seconds of an answer of the engine."""
SMI_S: Final = 30.0
"""Max seconds of nvidia-smi, which wakes all GPUs."""
ANSWER_MAX: Final = 1024 * 1024
"""Max bytes of an answer of the engine."""
CLOSED_PORT: Final = 1
"""TCP port of the host itself on which nothing listens (tcpmux)."""
NO_SMI: Final = 127
CARDS: Final = "/sys/bus/pci/devices"
"""Folder with a folder for each PCI device: its vendor and its class, as Linux shows them."""
NO_DRIVER: Final = (
    "for d in {cards}/*; do"
    """ case "$(cat "$d/vendor" "$d/class" 2>/dev/null | tr -d '\\n')" in"""
    " 0x10de0x03*) echo card;; esac;"
    f" done; exit {NO_SMI}"
)
"""Script without nvidia-smi: a line for each display controller (0x03) of NVIDIA (0x10de)."""
SMI: Final = (
    "command -v nvidia-smi >/dev/null || {{ {no_driver}; }};"
    " nvidia-smi --query-gpu=name,driver_version --format=csv,noheader"
)
TOOLKIT: Final = "nvidia-container-runtime-hook nvidia-container-runtime nvidia-ctk"
"""Programs of which the NVIDIA container toolkit has at least one."""
SOCKET_STATES: Final = {
    1: EngineState.ABSENT,
    2: EngineState.FORBIDDEN,
    0: EngineState.STOPPED,
}
"""State of a socket that cannot be connected to, by the exit status of a command."""
ERRORS: Final = (OSError, asyncssh.Error, asyncssh.ChannelListenError)


async def examine(login: Login, engine: str) -> list[Check]:
    """Log in and return all checks of a host whose container engine has the socket `engine`.

    Raises Unreachable if the login fails or the connection breaks.
    """
    there = await log_in(login)
    tasks = Tasks("ssh:check")
    try:
        link = Link(there, tasks, str(login.target), Timing())
        async with asyncio.timeout(EXAMINE_S):
            checks = judge(await _findings(link, login, engine))
        if link.is_lost:
            raise Unreachable(f"the connection to {login.target} broke: {there.reason_lost()}")
    except TimeoutError as error:
        raise Unreachable(f"{login.target} is too slow: {EXAMINE_S:g} s for its checks") from error
    finally:
        await tasks.close()
        await there.close()
    return checks


async def _findings(link: Link, login: Login, engine: str) -> Findings:
    user = str(link.there.connection.get_extra_info("username"))
    found = Findings(engine=engine, user=user, machine=platform.machine())
    await _commands(link, found)
    await _files(link, found)
    await _forwarding(link, found)
    found.sessions = await _sessions(link, found)
    await _engine(link, found)
    if found.has_commands_beside_sftp:
        found.gpus = await _gpus(link)
    found.logins, found.login_error = await _logins(login)
    return found


async def _commands(link: Link, found: Findings) -> None:
    """Run a command whose output shows that this command ran and no other."""
    word = secrets.token_hex(8)
    try:
        done = await link.run(f"echo {word}", timeout_s=STEP_S)
    except OSError as error:
        found.command_error = _text(error)
        return
    output = done.stdout.decode("utf-8", "replace").strip()
    found.runs_commands = output == word
    found.is_noisy = not found.runs_commands and word in output
    found.command_error = (
        "" if found.runs_commands else done.text().replace(word, "") or "no output"
    )


async def _files(link: Link, found: Findings) -> None:
    try:
        async with asyncio.timeout(STEP_S):
            sftp = await link.sftp()
            found.home = str(await sftp.realpath("."))
            found.has_sftp = True
    except ERRORS as error:
        found.sftp_error = _text(error)
        return
    await _space(link, found, found.home)


async def _space(link: Link, found: Findings, folder: str) -> None:
    with contextlib.suppress(*ERRORS):
        async with asyncio.timeout(STEP_S):
            space = await (await link.sftp()).statvfs(folder)
            found.free[folder] = space.bavail * space.frsize


async def _forwarding(link: Link, found: Findings) -> None:
    """Forward a socket of the host to here, and connect to that very socket from here.

    It is in a folder of the home folder, as those of replicas, else in /tmp. A host where it could
    not be removed is not tried.
    """
    if not found.has_sftp and not found.runs_commands:
        return
    name = f".fngate-check-{secrets.token_hex(8)}"
    folder = f"{found.home}/{name}"
    if found.has_sftp:
        found.home_error = await _error(_make_folder(link, folder))
    if not found.has_sftp or found.home_error:
        folder = f"/tmp/{name}"  # noqa: S108 - the name is a secret
        if found.has_sftp:
            await _error(_make_folder(link, folder))
    path = f"{folder}/s" if found.has_sftp else folder
    try:
        await _forward(link, found, path)
    finally:  # also if the checks are cancelled: they leave nothing on a host that answers
        if found.has_sftp:
            await _error(_remove_folder(link, folder))
    if not found.forwards_there:
        found.forwards_there = await _connects(link, found.engine)
    found.forbids_tcp = await _forbids_tcp(link)


async def _forward(link: Link, found: Findings, path: str) -> None:
    connection = link.there.connection
    try:
        async with asyncio.timeout(STEP_S):
            listener = await connection.create_unix_server(_Refusing, path, encoding=None)
    except ERRORS:
        return
    found.forwards_here = True
    found.forwards_there = await _connects(link, path)
    listener.close()
    if not found.has_sftp:
        with contextlib.suppress(OSError):
            await link.run(f"rm -f {path}", timeout_s=STEP_S)


async def _make_folder(link: Link, folder: str) -> None:
    await (await link.sftp()).mkdir(folder, asyncssh.SFTPAttrs(permissions=0o700))


async def _remove_folder(link: Link, folder: str) -> None:
    sftp = await link.sftp()
    with contextlib.suppress(asyncssh.SFTPNoSuchFile):
        await sftp.remove(f"{folder}/s")
    await sftp.rmdir(folder)


async def _error(step: Awaitable[None]) -> str:
    """Return why a step failed, "" if it did not."""
    try:
        async with asyncio.timeout(STEP_S):
            await step
    except ERRORS as error:
        return _text(error)
    return ""


class _Refusing(asyncssh.SSHUNIXSession[bytes]):
    """Accepts a connection and closes it."""

    def connection_made(self, chan: asyncssh.SSHUNIXChannel[bytes]) -> None:
        chan.close()


async def _connects(link: Link, path: str) -> bool:
    try:
        transport = await link.dial(path, asyncio.Protocol())
    except OSError:
        return False
    transport.abort()
    return True


async def _forbids_tcp(link: Link) -> bool:
    """Whether TCP ports may not be forwarded either. A closed port is another error."""
    try:
        async with asyncio.timeout(STEP_S):
            channel, _ = await link.there.connection.create_connection(
                asyncssh.SSHTCPSession, "127.0.0.1", CLOSED_PORT, encoding=None
            )
        channel.abort()
    except asyncssh.ChannelOpenError as error:
        return error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED
    except ERRORS:
        return True
    return False


async def _sessions(link: Link, found: Findings) -> int:
    """Return how many sessions the server allows at the same time, at most SESSIONS."""
    opened: list[CommandSession] = []
    held = int(found.has_sftp)
    with contextlib.suppress(*ERRORS):
        async with asyncio.timeout(STEP_S):
            while held + len(opened) < SESSIONS:
                session = CommandSession()
                await start_command(link.there.connection, "cat", session)
                opened.append(session)
    for session in opened:
        session.abandon()
    return held + len(opened)


async def _engine(link: Link, found: Findings) -> None:
    """Ask the container engine for its version and runtimes."""
    try:
        version = await _http_json(link, found.engine, "/version")
        info = await _http_json(link, found.engine, "/info")
    except ConnectionRefusedError:
        found.container_engine = Engine(await _socket_state(link, found))
        return
    except (OSError, ValueError) as error:
        found.container_engine = Engine(EngineState.OPEN, error=_text(error))
        return
    runtimes = info.get("Runtimes")
    engine = Engine(
        EngineState.OPEN,
        version=str(version.get("Version", "?")),
        api=str(version.get("ApiVersion", "?")),
        machine=str(info.get("Architecture", "?")),
        folder=str(info.get("DockerRootDir", "")),
        has_nvidia=isinstance(runtimes, dict) and "nvidia" in runtimes,
    )
    found.container_engine = engine
    if found.has_sftp and engine.folder.startswith("/"):
        await _space(link, found, engine.folder)


async def _socket_state(link: Link, found: Findings) -> EngineState:
    """Return why the engine's socket cannot be connected to."""
    path = shlex.quote(found.engine)
    try:
        done = await _shell(link, f"test -S {path} || exit 1; test -w {path} || exit 2", STEP_S)
    except OSError:
        return EngineState.UNKNOWN
    if not found.runs_commands:
        return EngineState.UNKNOWN
    return SOCKET_STATES.get(done.exit_status, EngineState.UNKNOWN)


async def _gpus(link: Link) -> Gpus:
    try:
        no_driver = NO_DRIVER.format(cards=shlex.quote(CARDS))
        done = await _shell(link, SMI.format(no_driver=no_driver), SMI_S)
        if done.exit_status == NO_SMI:
            return Gpus(cards=done.stdout.count(b"card"))
        if done.exit_status:
            return Gpus(error=f"nvidia-smi: {done.text() or f'exit status {done.exit_status}'}")
        programs = " || ".join(f"command -v {name}" for name in TOOLKIT.split())
        toolkit = await _shell(link, programs, STEP_S)
    except OSError as error:
        return Gpus(error=f"nvidia-smi: {_text(error)}")
    names = done.stdout.decode("utf-8", "replace").strip().splitlines()
    return Gpus(found=tuple(names), has_toolkit=not toolkit.exit_status)


async def _shell(link: Link, script: str, timeout_s: float) -> Any:
    """Run a script by sh, whatever the login's shell is."""
    return await link.run(f"sh -c {shlex.quote(script)}", timeout_s=timeout_s)


async def _logins(login: Login) -> tuple[int, str]:
    """Return how many of LOGINS logins at the same time succeed, and the first error."""
    opened: list[LoggedIn] = []
    errors: list[str] = []

    async def one() -> None:
        try:
            opened.append(await log_in(login))
        except Unreachable as error:
            errors.append(str(error))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(LOGINS):
                group.create_task(one())
    finally:
        for there in opened:
            there.abort()
    return len(opened), errors[0] if errors else ""


def _text(error: BaseException) -> str:
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else repr(error))


class _Answer(asyncio.Protocol):
    """Collects an HTTP answer until its connection is closed; `done` has it, or an OSError."""

    def __init__(self) -> None:
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._data = bytearray()

    def data_received(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > ANSWER_MAX:
            self._end(OSError(f"expected at most {ANSWER_MAX} bytes from the engine, got more"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def _end(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if error is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(bytes(self._data))


async def _http_json(link: Link, path: str, resource: str) -> dict[str, Any]:
    """Return an object from the engine. HTTP/1.0, so that the end of the stream is that of the
    body. Raises OSError or ValueError."""
    answer = _Answer()
    transport = await link.dial(path, answer)
    try:
        async with asyncio.timeout(ENGINE_S):
            transport.write(f"GET {resource} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
            whole = await answer.done
    except TimeoutError as error:
        raise TimeoutError(f"{resource}: no answer within {ENGINE_S:g} s") from error
    finally:
        transport.abort()
    head, _, body = whole.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].decode("latin-1")
    if " 200 " not in f"{status} ":
        raise ValueError(f"{resource}: expected status 200, got {status!r}")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{resource}: expected JSON, got something else: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{resource}: expected an object, got {type(found).__name__}")
    return found
