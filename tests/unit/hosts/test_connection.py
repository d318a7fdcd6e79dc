"""Tests of a connection that is kept up: logins, breaks, commands and its end."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from hosts import connection as module
from hosts.connection import HostConnection
from hosts.errors import ConnectionLost, Unreachable
from hosts.link import COMMANDS_MAX, Timing
from hosts.login import LoggedIn, Login, Target
from registry.tasks import Tasks
from tests.support.operator import until
from tests.support.sshd import SFTP, Sshd
from tests.unit.hosts.conftest import FAST, WAIT_S, FarServer

pytestmark = pytest.mark.slow


class Attempts:
    """Records the waits that a connection computes, and makes them short."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.failures: list[int] = []
        self.enough = asyncio.Event()
        self._most = most
        monkeypatch.setattr(module, "back_off_s", self._wait_s)

    def _wait_s(self, first_s: float, max_s: float, failures: int, chance: float) -> float:
        self.failures.append(failures)
        if len(self.failures) >= self._most:
            self.enough.set()
            return WAIT_S
        return 0.0


async def test_failures_in_a_row_are_counted(
    login: Login, far: Sshd, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each failed login lengthens the wait, and waiting callers get the reason."""
    far.stop()
    attempts = Attempts(monkeypatch, 4)
    there = HostConnection(login, tasks, name="gpu2")
    there.open()
    await asyncio.wait_for(attempts.enough.wait(), WAIT_S)

    with pytest.raises(Unreachable, match=r"gpu2: .* cannot be reached by SSH: "):
        await there.wait_up(0.01)
    await there.close()

    assert attempts.failures == [0, 1, 2, 3]
    assert there.reason == "closed"


async def test_a_steady_connection_begins_a_new_row(
    login: Login, far: Sshd, tasks: Tasks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only a connection that stood for `steady_s` forgets the failures before it."""
    far.stop()
    attempts = Attempts(monkeypatch, 100)
    there = HostConnection(login, tasks, name="gpu2", timing=Timing(steady_s=0.0))
    there._timing = Timing(steady_s=1e9)
    there.open()
    await until(lambda: len(attempts.failures) > 2)
    far.start(SFTP)
    await there.wait_up(WAIT_S)
    before = len(attempts.failures)
    far.stop()
    await until(lambda: len(attempts.failures) > before)
    there._timing = Timing(steady_s=0.0)
    await until(lambda: attempts.failures[-1] == 0)
    await there.close()

    assert attempts.failures[before] == before


@pytest.mark.parametrize("kind", ["changed host key", "wrong user key"])
async def test_refused_keys_are_not_tried_again_soon(
    login: Login, far: Sshd, tasks: Tasks, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """One attempt, then a long wait: repeated ones would have the machine shut out."""
    other = far.make_key("other")
    if kind == "changed host key":
        far.know(other)
        text = "has CHANGED.*may be intercepted"
    else:
        login = Login(login.target, other, login.known_hosts)
        text = "accepts none of your SSH keys"
    attempts = Attempts(monkeypatch, 2)
    there = HostConnection(login, tasks, name="gpu2", timing=Timing(back_off_s=0.0))
    there.open()
    await asyncio.sleep(0)
    await until(lambda: there.reason != "not connected yet")

    with pytest.raises(Unreachable, match=text):
        await there.wait_up(0.3)
    await there.close()

    assert len(attempts.failures) == 1


async def test_an_unexpected_error_is_a_failed_login(
    login: Login, far: Sshd, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What asyncssh raises for a defect of its own or of the server does not end the tries."""
    errors = [KeyError("a defect")]
    log_in = module.log_in

    async def failing(*arguments: Any, **options: Any) -> LoggedIn:
        if errors:
            raise errors.pop()
        return await log_in(*arguments, **options)

    monkeypatch.setattr(module, "log_in", failing)
    there = HostConnection(login, tasks, name="gpu2", timing=FAST)
    there.open()
    with capture_logs() as logged:
        await there.wait_up(WAIT_S)
    await there.close()

    assert [line["event"] for line in logged] == ["an SSH connection failed", "no SSH connection"]
    assert logged[1]["reason"] == "KeyError: 'a defect'"


async def test_a_break_has_its_reason_at_once(connection: HostConnection, far: Sshd) -> None:
    """Who meets it first, as a transfer does, says no less than `on_down`."""
    assert connection._link is not None
    lost = connection._link.there.host_keys.lost
    far.stop()
    await lost.wait()

    with pytest.raises(ConnectionLost, match=r"no SSH connection to gpu2: .+"):
        await connection.sftp()


@pytest.mark.parametrize("error", [AssertionError, AttributeError])
async def test_a_break_while_a_channel_opens_is_an_error_of_the_host(
    connection: HostConnection, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """asyncssh then fails an assertion, or finds no session; callers know nothing but OSError."""
    assert connection._link is not None
    there = connection._link.there.connection

    async def breaking(*_arguments: Any, **_options: Any) -> None:
        there.abort()
        raise error

    for method in ("create_unix_connection", "create_session"):
        monkeypatch.setattr(there, method, breaking)

    with pytest.raises(ConnectionLost):
        await connection.dial("/nowhere", asyncio.Protocol())
    with pytest.raises(ConnectionLost):
        await connection.run("true", timeout_s=WAIT_S)


async def test_a_break_is_reported_and_followed_by_a_login(
    login: Login, far: Sshd, tasks: Tasks, tmp_path: Path
) -> None:
    """on_up comes after each login, on_down with the reason of each break."""
    events: list[str] = []

    async def up() -> None:
        events.append(f"up {there.generation} {there.is_up}")

    there = HostConnection(
        login,
        tasks,
        name="gpu2",
        on_up=up,
        on_down=lambda reason: events.append(f"down {there.is_up} {bool(reason)}"),
        jitter_s=0.01,
        timing=FAST,
    )
    there.open()
    await until(lambda: len(events) == 1)
    first_rtt_s = there.rtt_s
    far.stop()
    far.start(SFTP)
    await until(lambda: len(events) == 3)
    await there.close()

    assert events[:3] == ["up 1 True", "down False True", "up 2 True"]
    assert 0 < first_rtt_s < 1
    assert not there.is_up


async def test_an_owner_that_fails_gets_a_new_login(login: Login, tasks: Tasks) -> None:
    """If on_up raises, the connection is closed with that reason and opened again."""
    reasons: list[str] = []
    calls = 0

    async def up() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ValueError("no such folder")

    there = HostConnection(login, tasks, name="gpu2", on_up=up, on_down=reasons.append, timing=FAST)
    there.open()
    await until(lambda: calls == 2)
    await there.close()

    assert reasons[0] == "ValueError: no such folder"


async def test_a_silent_link_is_found_by_keepalives(
    login: Login, far: Sshd, tasks: Tasks, server: FarServer
) -> None:
    """SIGSTOP of sshd stands for a link that swallows all packets: no side closes anything."""
    reasons: list[str] = []
    there = HostConnection(
        login, tasks, name="gpu2", on_down=reasons.append, timing=Timing(keepalive_s=0.1)
    )
    there.open()
    await there.wait_up(WAIT_S)
    lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    class Near(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            lost.set_result(exc)

    await there.dial(server.path, Near())
    far.freeze()

    assert isinstance(await asyncio.wait_for(lost, WAIT_S), ConnectionLost)
    await until(lambda: bool(reasons))
    assert "keepalive" in reasons[0]
    await there.close()


async def test_two_sessions_are_enough(
    login: Login, far: Sshd, tasks: Tasks, tmp_path: Path
) -> None:
    """SFTP takes one; the other is shared by all commands, one after the other."""
    far.stop()
    far.start("MaxSessions 2", SFTP)
    there = HostConnection(login, tasks, name="gpu2", timing=FAST)
    there.open()
    await there.wait_up(WAIT_S)

    done = await asyncio.gather(
        *(there.run(f"echo {n}", timeout_s=WAIT_S) for n in range(3 * COMMANDS_MAX))
    )
    for n in range(20):
        assert (await there.run(f"exit {n}", timeout_s=WAIT_S)).exit_status == n
    names = await (await there.sftp()).listdir(str(tmp_path))
    await there.close()

    assert [int(one.stdout) for one in done] == list(range(3 * COMMANDS_MAX))
    assert "ssh" in names


async def test_commands_have_limits(connection: HostConnection) -> None:
    """Input, both outputs, statuses and signals; endless and hanging commands end."""
    done = await connection.run("cat; echo wrong >&2; exit 3", timeout_s=WAIT_S, input=b"in")
    assert (done.exit_status, done.stdout, done.stderr) == (3, b"in", b"wrong\n")
    assert done.text() == "wrong"
    assert (await connection.run("kill -9 $$", timeout_s=WAIT_S)).exit_status == -1
    with pytest.raises(OSError, match="expected at most 1048576 bytes of output"):
        await connection.run("yes", timeout_s=WAIT_S)
    with pytest.raises(TimeoutError):
        await connection.run("sleep 1000", timeout_s=0.1)
    assert (await connection.run("echo well", timeout_s=WAIT_S)).stdout == b"well\n"


async def test_a_command_on_a_broken_connection_is_lost(
    connection: HostConnection, far: Sshd, tmp_path: Path
) -> None:
    """It raises ConnectionLost: whether it ended is not known."""
    command = f"touch {tmp_path}/started; exec sleep 1000"
    running = asyncio.ensure_future(connection.run(command, timeout_s=WAIT_S))
    await until((tmp_path / "started").exists)

    far.stop()

    with pytest.raises(ConnectionLost):
        await running


async def test_sftp_is_opened_again_after_its_end(connection: HostConnection, far: Sshd) -> None:
    """The server's SFTP process may die alone."""
    first = await connection.sftp()
    first.exit()
    await first.wait_closed()
    await until(lambda: connection._link is not None and connection._link._sftp is None)

    second = await connection.sftp()

    assert second is not first
    assert await second.realpath(".")


async def test_a_close_ends_all_that_is_open(
    login: Login, tasks: Tasks, server: FarServer, tmp_path: Path
) -> None:
    """No task, descriptor or file stays, whatever was in use; all waits end."""
    there = HostConnection(login, tasks, name="gpu2")
    there.open()
    await there.wait_up(WAIT_S)
    before = len(os.listdir("/proc/self/fd"))
    ends: list[Exception | None] = []

    class Near(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            ends.append(exc)

    accepted: asyncio.Queue[object] = asyncio.Queue()
    await there.listen(str(tmp_path / "ctl.sock"), accepted.put_nowait)
    await there.forward(tmp_path / "local.sock", server.path)
    for _ in range(10):
        (await there.dial(server.path, Near())).write(bytes(2**22))
    _, writer = await asyncio.open_unix_connection(tmp_path / "local.sock")
    command = f"touch {tmp_path}/started; exec sleep 1000"
    running = asyncio.ensure_future(there.run(command, timeout_s=WAIT_S))
    await until((tmp_path / "started").exists)

    await there.close()
    await there.close()

    with pytest.raises((ConnectionLost, asyncio.CancelledError)):
        await running
    writer.transport.abort()
    await server.close()
    await until(lambda: len(os.listdir("/proc/self/fd")) < before)
    assert len(ends) == 10
    assert "local.sock" not in os.listdir(tmp_path)
    with pytest.raises(ConnectionLost, match="closed"):
        await there.dial(server.path, Near())


@pytest.mark.parametrize("turns", range(8))
async def test_a_close_during_a_failing_login_ends(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """The cancellation counts in whichever turn of the loop it meets the failure of the lookup."""
    loop = asyncio.get_running_loop()
    lookup: asyncio.Future[object] = loop.create_future()
    asked = asyncio.Event()

    async def getaddrinfo(*_args: object, **_kwargs: object) -> object:
        asked.set()
        return await lookup

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    there = HostConnection(Login(Target("gpu2.test")), tasks, name="gpu2", jitter_s=0)
    there.open()
    await asyncio.wait_for(asked.wait(), WAIT_S)

    lookup.set_exception(socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
    for _ in range(turns):
        await asyncio.sleep(0)

    async with asyncio.timeout(WAIT_S):
        await there.close()
