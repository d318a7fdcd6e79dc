"""Access to the engine's API outside the event loop: calls with a time limit, errors with a
remedy."""

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
    ("no space left on device", "free disk space: docker system prune"),
    ("docker-init", "install it: sudo apt-get install tini, or docker-ce of Docker itself"),
    ("bind source path does not exist", "the engine must see the files of the server's machine"),
    ("no command specified", "the image names no program: give its words after --"),
    ("unable to find user", "name a user of the image by numbers: server.user"),
    ("minimum memory limit", "give the function more memory: --memory MIB"),
    ("range of cpus", "raise FN_CPU_SLOTS: each slot has its share of the cores"),
)
"""Substrings of the engine's messages, in lower case, and the remedy."""
_UNREACHABLE: Final = (
    ("permission denied", "sudo usermod -aG docker $USER, then log in again"),
    ("no such file", "sudo systemctl start docker, or name its socket: FN_DOCKER_HOST"),
    ("connection refused", RESTART),
    ("too many open files", "raise the limit on open files of the server: ulimit -n"),
)
_NO_WAY: Final = ("unknown runtime specified", "could not select device driver", "cdi")
"""Substrings of messages which mean that a GPU cannot be requested in this way; another way may
work."""


ENGINE_ERRORS: Final = (DockerException, requests.exceptions.RequestException)
"""All errors that docker-py raises for failures of the engine."""
T = TypeVar("T")
CALLS_AT_ONCE: Final = 8
SAID_MAX: Final = 1000
"""Max characters shown of the engine's message, which may quote an image: the name of its user or
of its program has no limit."""


@dataclass(frozen=True, slots=True)
class Times:
    """Time limits and delays in seconds.

    A start has `start_s`, because it waits for other concurrent starts of the engine; every other
    call has `call_s`. After a model is bound, its limits are set `limit_after_s` later, to let the
    first answer pass. A used holder is replaced after `refill_after_s`, to leave the cores to the
    start that used it.
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
    """Client of the engine at `url` ("unix:///var/run/docker.sock").

    Starts have separate threads, one for each concurrent start, so that quick calls do not wait
    behind them. Every method raises `DriverError`, or `EngineDown`.
    """

    def __init__(self, url: str, starts_at_once: int, times: Times) -> None:
        """Connect to the engine. Raises EngineDown."""
        self._times = times
        self._calls = _Channel(url, times.call_s, CALLS_AT_ONCE)
        self._starts = _Channel(url, times.start_s, starts_at_once)

    async def call(self, doing: str, work: Callable[[docker.APIClient], T]) -> T:
        """Run `work` and return its result; `doing` names it in errors, e.g. "remove a
        container"."""
        return await self._calls.run(doing, work)

    async def start(self, doing: str, work: Callable[[docker.APIClient], T]) -> T:
        """As `call`, for work that starts containers."""
        return await self._starts.run(doing, work)

    def close(self) -> None:
        """End the threads. Blocks until calls in progress have ended, for a bounded time: calls
        that hang longer are abandoned."""
        deadline_s = time.monotonic() + self._times.close_s
        for channel in (self._starts, self._calls):
            channel.close()
        for channel in (self._starts, self._calls):
            channel.join(deadline_s)


class _Channel:
    """A docker-py client and the threads that use it."""

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
        """Run `work` in a thread; docker-py's own time limit ends it."""
        if self._is_closed:
            raise DriverError(f"cannot {doing}: the driver is closed")
        try:
            return await self._threads.run(self._do, work)
        except ENGINE_ERRORS as error:
            raise translate(error, doing) from error

    def _do(self, work: Callable[[docker.APIClient], T]) -> T:
        """Run `work`; again if the engine was replaced by another version. Blocking."""
        with self._leased() as client:
            try:
                return work(client)
            except (DriverError, *ENGINE_ERRORS) as error:
                if not speaks_another_version(error):
                    raise
            with self._connecting:  # one thread reconnects for all that noticed the change
                if client is self._client:
                    fresh = connect(self._url, self._timeout_s, self._at_once)
                    with self._lock:
                        self._client = fresh
        with self._leased() as client:
            return work(client)

    @contextlib.contextmanager
    def _leased(self) -> Iterator[docker.APIClient]:
        """Yield the current client. A replaced client is closed by its last user."""
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
    """Return a client that speaks the newest API version known to both sides. Blocking. Raises
    EngineDown."""
    try:
        _knock(url, timeout_s)
        return docker.APIClient(
            base_url=url, version="auto", timeout=timeout_s, max_pool_size=at_once
        )
    except (OSError, *ENGINE_ERRORS) as error:
        raise translate(error, f"reach the engine at {url}") from error


def _knock(url: str, timeout_s: float) -> None:
    """Raise OSError if the socket does not accept connections. Without this check docker-py would
    leak the socket of the failed connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout_s)
        sock.connect(url.removeprefix("unix://"))


def translate(error: Exception, doing: str) -> DriverError:
    """Return the DriverError for an error of docker-py; `doing` is the failed action, e.g. "start a
    container"."""
    if isinstance(error, APIError):
        said = str(error.explanation or error)
        mending = _mending(said, _MEANINGS)
        return DriverError(f"cannot {doing}: the engine says: {_shortened(said)}{mending}")
    if isinstance(error, requests.exceptions.Timeout):
        return EngineDown(f"cannot {doing}: the engine gave no answer in time; {RESTART}")
    said = _innermost(error)
    return EngineDown(f"cannot {doing}: {said}{_mending(said, _UNREACHABLE)}")


def _shortened(said: str) -> str:
    """Return a message without the middle of a long one: the cause is at the end."""
    if len(said) <= SAID_MAX:
        return said
    return f"{said[: SAID_MAX // 2]} ... {said[-SAID_MAX // 2 :]}"


def is_no_way(error: DriverError) -> bool:
    """Whether the engine does not support this way of requesting a GPU."""
    said = error.message.lower()
    return any(part in said for part in _NO_WAY)


def is_too_large(error: DriverError) -> bool:
    """Whether a container already takes more memory than its new limit (cgroup v1 only; under
    cgroup v2 the kernel kills it)."""
    said = error.message.lower()
    return "unable to set memory limit" in said or "device or resource busy" in said


def speaks_another_version(error: Exception) -> bool:
    """Whether the engine refused the client's API version."""
    said = error.message if isinstance(error, DriverError) else str(error)
    return "client version" in said and "supported API version" in said


def is_gone(error: Exception) -> bool:
    """Whether the requested object does not exist."""
    return isinstance(error, NotFound)


def is_conflict(error: Exception) -> bool:
    """Whether the state of the requested object forbids the call: it does not run, or is being
    removed."""
    return isinstance(error, APIError) and error.status_code == requests.codes.conflict


def _mending(said: str, meanings: tuple[tuple[str, str], ...]) -> str:
    text = said.lower()
    return next((f"; {todo}" for part, todo in meanings if part in text), "")


def _innermost(error: BaseException) -> str:
    """Return the message of the innermost error, below the layers that only pass it on."""
    seen = error
    while True:
        below = seen.__cause__ or seen.__context__
        if below is None:
            break
        seen = below
    return str(seen) or type(seen).__name__
