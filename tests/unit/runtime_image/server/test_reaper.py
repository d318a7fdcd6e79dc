"""The first process of a PID namespace: starts a server, tells its exit, and ends with it."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import NoReturn

import pytest

from runtime_image.proc import read_stat
from runtime_image.server import libc, reaper
from runtime_image.server.namespaces import in_child
from runtime_image.server.reaper import Reaper

REFUSED = in_child(partial(libc.unshare, libc.CLONE_NEWPID))
OWN_PIDS = pytest.mark.skipif(bool(REFUSED), reason=f"PID namespaces are refused: {REFUSED}")
LIMIT_MS = 30_000


def ends(fd: int) -> bool:
    """Wait until a descriptor is readable."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(LIMIT_MS))


@pytest.fixture
def start() -> Iterator[Callable[[Callable[[], NoReturn]], Reaper]]:
    """`reaper.start` for a subreaper; the reapers are ended and reaped."""
    made: list[Reaper] = []

    def begin(server: Callable[[], NoReturn]) -> Reaper:
        made.append(reaper.start(server))
        return made[-1]

    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
    yield begin
    for one in made:
        one.sock.close()
        os.waitpid(one.pid, 0)
    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 0)


def pause() -> NoReturn:
    """Do nothing, for ever."""
    while True:
        signal.pause()


def kill_self() -> NoReturn:
    """End by a signal."""
    os.kill(os.getpid(), signal.SIGUSR1)
    os._exit(0)


def look() -> NoReturn:
    """End with code 5 if this is the second process of its namespace, and the first one's child."""
    os._exit(5 if (os.getpid(), os.getppid()) == (2, 1) else 6)


@OWN_PIDS
@pytest.mark.parametrize(("server", "code"), [(look, 5), (kill_self, -signal.SIGUSR1)])
def test_the_exit_of_the_server_is_told(
    start: Callable[[Callable[[], NoReturn]], Reaper], server: Callable[[], NoReturn], code: int
) -> None:
    """Its pid stays its own until then; afterwards nothing is left, and the reaper ends."""
    made = start(server)
    end = os.pidfd_open(made.pid)
    try:
        assert ends(made.sock.fileno())
        stat = read_stat(f"/proc/{made.server}")
        assert stat is not None
        assert (stat.state, stat.parent) == (b"Z", made.pid)

        assert made.take_exit() == code

        assert ends(end)
    finally:
        os.close(end)


@OWN_PIDS
def test_the_server_ends_with_its_reaper(
    start: Callable[[Callable[[], NoReturn]], Reaper],
) -> None:
    """The exit then is that of a kill."""
    made = start(pause)
    end = os.pidfd_open(made.server)
    try:
        os.kill(made.pid, signal.SIGTERM)  # ignored
        os.kill(made.pid, signal.SIGKILL)

        assert ends(end)
        assert ends(made.sock.fileno())
        assert made.take_exit() == -signal.SIGKILL
    finally:
        os.close(end)


@OWN_PIDS
def test_a_closed_socket_ends_all(start: Callable[[Callable[[], NoReturn]], Reaper]) -> None:
    """The sidecar's death also shows there, before its signal is set."""
    made = start(look)
    end = os.pidfd_open(made.pid)
    try:
        assert ends(made.sock.fileno())
        made.sock.close()

        assert ends(end)
    finally:
        os.close(end)


def test_a_refused_namespace_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is left."""

    def refuse(_: int) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(libc, "unshare", refuse)
    launched = []
    fork = os.fork

    def counted() -> int:
        launched.append(fork())
        return launched[-1]

    monkeypatch.setattr(os, "fork", counted)
    with pytest.raises(OSError, match="PID namespace of the server cannot be created"):
        reaper.start(pause)

    assert len(launched) == 1
    with pytest.raises(ChildProcessError):
        os.waitpid(launched[0], 0)


def test_a_reaper_that_ends_before_it_has_read_everything_was_killed() -> None:
    """Its end is reported by the kernel as a reset connection, which counts as SIGKILL."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.send(b"1")
        theirs.close()

        assert Reaper(1, 2, ours).take_exit() == -signal.SIGKILL
