"""What a host lacks: its SSH server's settings, disk, container engine and NVIDIA software.

OpenSSH says "open failed" and nothing more for a socket that is absent, closed, or forbidden by any
of six settings. The setting is found by what works beside it: a command, SFTP, a socket forwarded
from the host, one forwarded to it, and a forwarded TCP port.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shlex
import stat
from typing import Any, Final

import asyncssh

from hosts.errors import Unreachable
from hosts.findings import LOGINS, SESSIONS, Check, Engine, Findings, Gpus, judge
from hosts.link import Link, Timing
from hosts.login import LoggedIn, Login, log_in
from registry.tasks import Tasks

COMMAND_S: Final = 10.0
HTTP_S: Final = 10.0
HTTP_MAX: Final = 1024 * 1024
"""Max bytes of an answer of the engine."""
CLOSED_PORT: Final = 1
"""TCP port of the host itself on which nothing listens (tcpmux)."""
SHOWN_MAX: Final = 300
TOOLKIT: Final = "nvidia-container-runtime-hook nvidia-container-runtime nvidia-ctk"
"""Programs of which the NVIDIA container toolkit has at least one."""


async def examine(login: Login, engine: str) -> list[Check]:
    """Log in and return all checks of a host whose container engine has the socket `engine`.

    Raises Unreachable if the login fails.
    """
    there = await log_in(login)
    tasks = Tasks("ssh:check")
    try:
        link = Link(there, tasks, str(login.target), Timing())
        found = Findings(engine=engine, user=str(there.connection.get_extra_info("username")))
        await _commands(link, found)
        await _files(link, found)
        await _forwarding(link, found)
        found.sessions = await _sessions(link, found)
        found.container_engine = await _engine(link, found)
        if found.runs_commands:
            found.gpus = await _gpus(link)
        found.logins, found.login_error = await _logins(login)
    finally:
        await tasks.close()
        await there.close()
    return judge(found)


async def _commands(link: Link, found: Findings) -> None:
    """Run a command whose output shows that this command ran and no other."""
    word = secrets.token_hex(8)
    try:
        done = await link.run(f"echo {word}", timeout_s=COMMAND_S)
    except OSError as error:
        found.command_error = str(error)
        return
    found.runs_commands = not done.exit_status and done.stdout.strip() == word.encode()
    found.command_error = "" if found.runs_commands else done.text() or "no output"


async def _files(link: Link, found: Findings) -> None:
    try:
        async with asyncio.timeout(COMMAND_S):
            sftp = await link.sftp()
            found.has_sftp = True
            space = await sftp.statvfs(".")
            found.free_bytes = space.bavail * space.frsize
    except (OSError, asyncssh.Error) as error:
        found.sftp_error = str(error)


async def _forwarding(link: Link, found: Findings) -> None:
    """Forward a socket of the host to here, and connect to that very socket from here."""
    connection = link.there.connection
    path = f"/tmp/.fngate-check-{secrets.token_hex(8)}.sock"  # noqa: S108 - the name is a secret
    try:
        async with asyncio.timeout(COMMAND_S):
            listener = await connection.create_unix_server(_Refusing, path, encoding=None)
    except (OSError, asyncssh.Error):
        found.forwards_here = False
    else:
        found.forwards_here = True
        found.forwards_there = await _connects(link, path)
        listener.close()
        if found.has_sftp:
            with contextlib.suppress(OSError, asyncssh.Error):
                await (await link.sftp()).remove(path)
    if not found.forwards_there:
        found.forwards_there = await _connects(link, found.engine)
    found.forbids_tcp = await _forbids_tcp(connection)


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


async def _forbids_tcp(connection: asyncssh.SSHClientConnection) -> bool:
    """Whether TCP ports may not be forwarded either. A closed port is another error."""
    try:
        async with asyncio.timeout(COMMAND_S):
            _, writer = await connection.open_connection("127.0.0.1", CLOSED_PORT)
        writer.close()
    except asyncssh.ChannelOpenError as error:
        return error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED
    except (OSError, asyncssh.Error):
        return True
    return False


async def _sessions(link: Link, found: Findings) -> int:
    """Return how many sessions the server allows at the same time, at most SESSIONS."""
    opened: list[Any] = []
    held = int(found.has_sftp)
    try:
        async with asyncio.timeout(COMMAND_S):
            while held + len(opened) < SESSIONS:
                opened.append(await link.there.connection.create_process("cat", encoding=None))
    except (OSError, asyncssh.Error):
        pass
    finally:
        for process in opened:
            process.close()
    return held + len(opened)


async def _engine(link: Link, found: Findings) -> Engine:
    """Ask the container engine for its version and runtimes."""
    try:
        version = await _http_json(link, found.engine, "/version")
        info = await _http_json(link, found.engine, "/info")
    except ConnectionRefusedError:
        return Engine(exists=await _is_socket(link, found), is_open=False)
    except (OSError, ValueError) as error:
        return Engine(exists=True, is_open=True, error=str(error)[:SHOWN_MAX])
    runtimes = info.get("Runtimes")
    return Engine(
        exists=True,
        is_open=True,
        version=str(version.get("Version", ""))[:SHOWN_MAX],
        api=str(version.get("ApiVersion", ""))[:SHOWN_MAX],
        has_nvidia=isinstance(runtimes, dict) and "nvidia" in runtimes,
    )


async def _is_socket(link: Link, found: Findings) -> bool | None:
    """Whether the engine's socket exists, None if that cannot be known."""
    if not found.has_sftp:
        return None
    try:
        async with asyncio.timeout(COMMAND_S):
            attrs = await (await link.sftp()).stat(found.engine)
    except asyncssh.SFTPNoSuchFile:
        return False
    except (OSError, asyncssh.Error):
        return None
    return stat.S_ISSOCK(attrs.permissions or 0)


async def _gpus(link: Link) -> Gpus:
    try:
        names = "nvidia-smi --query-gpu=name,driver_version --format=csv,noheader"
        done = await link.run(
            f"command -v nvidia-smi >/dev/null || exit 127; {names}", timeout_s=3 * COMMAND_S
        )
        if done.exit_status == 127:
            return Gpus()
        if done.exit_status:
            return Gpus(error=done.text() or f"nvidia-smi ended with {done.exit_status}")
        shown = tuple(done.stdout.decode("utf-8", "replace")[:HTTP_MAX].strip().splitlines())
        programs = " || ".join(f"command -v {shlex.quote(name)}" for name in TOOLKIT.split())
        toolkit = await link.run(programs, timeout_s=COMMAND_S)
    except OSError as error:
        return Gpus(error=str(error))
    return Gpus(found=shown, has_toolkit=not toolkit.exit_status)


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
            await there.close()
    return len(opened), errors[0] if errors else ""


class _Answer(asyncio.Protocol):
    """Collects an HTTP answer until its connection is closed."""

    def __init__(self) -> None:
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._data = bytearray()

    def connection_made(self, transport: Any) -> None:
        self.transport: asyncio.Transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > HTTP_MAX:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done.done():
            return
        if exc is not None:
            self.done.set_exception(exc)
        else:
            self.done.set_result(bytes(self._data))


async def _http_json(link: Link, path: str, resource: str) -> dict[str, Any]:
    """Return an object from the engine. HTTP/1.0, so that the end of the stream is that of the
    body. Raises OSError or ValueError."""
    answer = _Answer()
    transport = await link.dial(path, answer)
    try:
        async with asyncio.timeout(HTTP_S):
            transport.write(f"GET {resource} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
            whole = await answer.done
    finally:
        transport.abort()
    head, _, body = whole.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].decode("latin-1")
    if " 200 " not in f"{status} ":
        raise ValueError(f"expected 200 for {resource}, got {status[:SHOWN_MAX]!r}")
    found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError(f"expected an object for {resource}, got {type(found).__name__}")
    return found
