"""The engine's API off the event loop: calls with a time limit, errors with their remedy."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException, NotFound

from pool_manager.calls import BlockingCalls
from pool_manager.drivers.docker.spec import CONFIGURE, GENERATE
from registry.errors import DriverError, EngineDown

RESTART: Final = "sudo systemctl restart docker"

_MEANINGS: Final = (
    ("no such image", "build it: fnctl image build cpu, or gpu"),
    ("unknown runtime specified", CONFIGURE),
    ("could not select device driver", CONFIGURE),
    ("unresolvable cdi devices", GENERATE),
    ("driver not loaded", "load the NVIDIA driver: sudo modprobe nvidia, or reboot"),
    ("no space left on device", "free some: docker system prune"),
    ("docker-init", "install it: sudo apt-get install tini, or docker-ce of Docker itself"),
    ("bind source path does not exist", "the engine must run on this very machine"),
    ("minimum memory limit", "give the function more memory: --memory MIB"),
    ("range of cpus", "raise FN_CPU_SLOTS: each slot has its part of the cores"),
)
"""What an engine's message contains, in lower case, and what mends it."""
_UNREACHABLE: Final = (
    ("permission denied", "sudo usermod -aG docker $USER, then log in again"),
    ("no such file", "sudo systemctl start docker, or name its socket: FN_DOCKER_HOST"),
    ("connection refused", RESTART),
    ("too many open files", "raise the limit on open files of the server: ulimit -n"),
)
_NO_WAY: Final = ("unknown runtime specified", "could not select device driver", "cdi")
"""Messages that say that a GPU cannot be asked for in this way; another may work."""


ENGINE_ERRORS: Final = (DockerException, requests.exceptions.RequestException)
"""All that docker-py raises for what the engine does."""
T = TypeVar("T")
CALLS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class Times:
    """How long things may take, and what is waited for, in seconds.

    A start (`start_s`) waits for others that the engine makes at the same time; everything else
    has `call_s`. After a model is bound its limits wait `limit_after_s` for the first answer; a
    spent holder is replaced when the start that it was for has had the cores for itself
    (`refill_after_s`).
    """

    call_s: float = 30.0
    start_s: float = 60.0
    limit_after_s: float = 0.5
    limit_retry_s: float = 1.0
    refill_after_s: float = 2.0
    connect_s: float = 10.0
    reconnect_s: float = 0.5
    close_s: float = 5.0


class Engine:
    """The engine at `url` ("unix:///var/run/docker.sock").

    Starts have threads of their own, as many as starts may be made at once, so that nothing
    quick waits behind them. Every method raises `DriverError`, or `EngineDown`.
    """

    def __init__(self, url: str, starts_at_once: int, times: Times) -> None:
        """Connects. Raises EngineDown."""
        self._times = times
        self._calls = _Channel(url, times.call_s, CALLS_AT_ONCE)
        self._starts = _Channel(url, times.start_s, starts_at_once)

    async def call(self, doing: str, work: Callable[[docker.APIClient], T]) -> T:
        """What `work` gives; `doing` names it in errors, as "remove a container"."""
        return await self._calls.run(doing, work)

    async def start(self, doing: str, work: Callable[[docker.APIClient], T]) -> T:
        """As `call`, for what starts containers."""
        return await self._starts.run(doing, work)

    def close(self) -> None:
        """Give the threads back. Blocks while calls in progress end, for a bounded time: what an
        engine that hangs still keeps waiting then is left to itself."""
        deadline_s = time.monotonic() + self._times.close_s
        for channel in (self._starts, self._calls):
            channel.close()
        for channel in (self._starts, self._calls):
            channel.join(deadline_s)


class _Channel:
    """A client of the engine, and the threads that use it."""

    def __init__(self, url: str, timeout_s: float, at_once: int) -> None:
        self._url, self._timeout_s, self._at_once = url, timeout_s, at_once
        self._client = connect(url, timeout_s, at_once)
        self._users: Counter[docker.APIClient] = Counter()
        self._lock = threading.Lock()
        """Guards `_client` and `_users`."""
        self._connecting = threading.Lock()
        self._threads = BlockingCalls("docker calls", threads=at_once)
        self._is_closed = False

    async def run(self, doing: str, work: Callable[[docker.APIClient], T]) -> T:
        """`work` on a thread, where docker-py's own time limit ends it."""
        if self._is_closed:
            raise DriverError(f"cannot {doing}: the driver is closed")
        try:
            return await self._threads.run(self._do, work)
        except ENGINE_ERRORS as error:
            raise translate(error, doing) from error

    def _do(self, work: Callable[[docker.APIClient], T]) -> T:
        """Do `work`; once more if the engine came back as another version. Blocking."""
        with self._leased() as client:
            try:
                return work(client)
            except (DriverError, *ENGINE_ERRORS) as error:
                if not speaks_another_version(error):
                    raise
            with self._connecting:  # one thread connects for all that met the change
                if client is self._client:
                    fresh = connect(self._url, self._timeout_s, self._at_once)
                    with self._lock:
                        self._client = fresh
        with self._leased() as client:
            return work(client)

    @contextlib.contextmanager
    def _leased(self) -> Iterator[docker.APIClient]:
        """The client of now. One that was replaced is closed by its last user."""
        with self._lock:
            client = self._client
            self._users[client] += 1
        try:
            yield client
        finally:
            with self._lock:
                self._users[client] -= 1
                is_last = not self._users[client] and client is not self._client
                if not self._users[client]:
                    del self._users[client]
            if is_last:
                client.close()

    def close(self) -> None:
        self._is_closed = True
        self._threads.close()

    def join(self, deadline_s: float) -> None:
        self._threads.join(deadline_s)
        self._client.close()


def connect(url: str, timeout_s: float, at_once: int = 1) -> docker.APIClient:
    """A client that speaks the newest version both know. Blocking. Raises EngineDown."""
    try:
        _knock(url, timeout_s)
        return docker.APIClient(
            base_url=url, version="auto", timeout=timeout_s, max_pool_size=at_once
        )
    except (OSError, *ENGINE_ERRORS) as error:
        raise translate(error, f"reach the engine at {url}") from error


def _knock(url: str, timeout_s: float) -> None:
    """Raises OSError where nobody listens: docker-py would not close the socket it tried with."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout_s)
        sock.connect(url.removeprefix("unix://"))


def translate(error: Exception, doing: str) -> DriverError:
    """Our error for one of docker-py's; `doing` is what was tried, as "start a container"."""
    if isinstance(error, APIError):
        said = str(error.explanation or error)
        return DriverError(f"cannot {doing}: the engine says: {said}{_mending(said, _MEANINGS)}")
    if isinstance(error, requests.exceptions.Timeout):
        return EngineDown(f"cannot {doing}: the engine gave no answer in time; {RESTART}")
    said = _innermost(error)
    return EngineDown(f"cannot {doing}: {said}{_mending(said, _UNREACHABLE)}")


def is_no_way(error: DriverError) -> bool:
    """Whether the engine knows no such way of asking for a GPU."""
    said = error.message.lower()
    return any(part in said for part in _NO_WAY)


def is_too_large(error: DriverError) -> bool:
    """Whether it takes more already than it is now to be limited to (cgroup v1; under version 2
    the kernel itself ends it)."""
    said = error.message.lower()
    return "unable to set memory limit" in said or "device or resource busy" in said


def speaks_another_version(error: Exception) -> bool:
    """Whether the engine refused the version of its API that it was spoken to in."""
    said = error.message if isinstance(error, DriverError) else str(error)
    return "client version" in said and "supported API version" in said


def is_gone(error: Exception) -> bool:
    """Whether what was asked for does not exist."""
    return isinstance(error, NotFound)


def is_conflict(error: Exception) -> bool:
    """Whether the state of what was asked for forbids it: it does not run, or is being removed."""
    return isinstance(error, APIError) and error.status_code == requests.codes.conflict


def _mending(said: str, meanings: tuple[tuple[str, str], ...]) -> str:
    text = said.lower()
    return next((f"; {todo}" for part, todo in meanings if part in text), "")


def _innermost(error: BaseException) -> str:
    """What the system itself said, below the layers that only pass it on."""
    seen = error
    while True:
        below = seen.__cause__ or seen.__context__
        if below is None:
            break
        seen = below
    return str(seen) or type(seen).__name__
