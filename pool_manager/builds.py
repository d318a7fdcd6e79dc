"""Builds that callers wait for: models compiled in the background on spare devices.

A build is a pool with one replica of the role "build". Its key is the revision's with a suffix, so
that the pool that serves is another one.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pool_manager.core import commands
from pool_manager.core.pool import Pool
from pool_manager.metrics import reason_in
from pool_manager.waiters import KILLED, STOPPING
from registry.errors import BuildFailed, BuildGivenUp, Conflict, ShuttingDown
from registry.model.bundles import BundleFile
from runtime_image.contract.compiled import BuildDescribed, CompiledModel

SUFFIX: Final = "-build"
BUILDS_MAX: Final = 64
"""Max builds that run or wait for a device."""
BUILT: Final = "built"
WHY_NOT: Final = "why_not_built"
PARITY: Final = "parity"
"""Keys of a build's report: the fetched model or None, the reason, and the parity of outputs."""
DISK_FULL: Final = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
"""Substrings of the reasons of builds, of their starts too, that found no room for a file."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Compiled model that was fetched from a build.

    `described` has known keys only; its numbers and texts are within limits. `files` are those of
    `compiled`, in the same order, stored; their paths begin with the folder of compiled files.
    Files without an owner are swept: the caller records them.
    """

    described: BuildDescribed
    compiled: CompiledModel
    files: tuple[BundleFile, ...]


@dataclass(frozen=True, slots=True)
class Built:
    """A finished build, and the id of the device that the model was compiled on."""

    fetched: Fetched
    device: str

    @property
    def described(self) -> BuildDescribed:
        """The description as checked."""
        return self.fetched.described

    @property
    def compiled(self) -> CompiledModel:
        """The compiled model."""
        return self.fetched.compiled

    @property
    def files(self) -> tuple[BundleFile, ...]:
        """Its files, stored."""
        return self.fetched.files


@dataclass(frozen=True, slots=True)
class RunningBuild:
    """A build in progress. `key` is that of the revision's pool, `begun_s` the Unix time of the
    request. `replica`, `device` and `host` are "" while it waits for a device; `waits_for` says why
    it does, "" once it has one."""

    key: str
    begun_s: float
    replica: str
    device: str
    host: str
    waits_for: str


@dataclass(frozen=True, slots=True)
class _Pending:
    begun_s: float
    answer: asyncio.Future[Built]


class PendingBuilds:
    """Builds by the key of the revision's pool. `wall` returns Unix seconds."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._pending: dict[str, _Pending] = {}
        self._closed = False

    async def wait(
        self, key: str, begin: Callable[[], None], remove: Callable[[str], None]
    ) -> Built:
        """Call `begin`, which requests the build of a pool, wait for its end, then remove its pool.

        Raises Conflict if a build of the pool is in progress or too many are, BuildGivenUp,
        BuildFailed (with `detail["parity"]` if outputs were compared), ShuttingDown. There is no
        time limit here: the wait for a device has none, and the core limits the build.
        """
        if self._closed:
            raise ShuttingDown(STOPPING)
        if key in self._pending:
            raise Conflict(f"a build of {key} is in progress")
        if len(self._pending) >= BUILDS_MAX:
            raise Conflict(f"expected at most {BUILDS_MAX} builds at once, one more was requested")
        answer: asyncio.Future[Built] = asyncio.get_running_loop().create_future()
        self._pending[key] = _Pending(self._wall(), answer)
        try:
            begin()
            return await answer
        finally:
            del self._pending[key]
            remove(f"{key}{SUFFIX}")

    def end(self, command: commands.EndBuild) -> None:
        """Finish the wait for a build."""
        pending = self._pending.get(command.key.removesuffix(SUFFIX))
        if pending is None or pending.answer.done():
            return
        why_not = command.reason or command.report.get(WHY_NOT, "")
        fetched = command.report.get(BUILT)
        if not why_not and isinstance(fetched, Fetched):
            pending.answer.set_result(Built(fetched, command.device))
            return
        why_not = why_not or "it reported no compiled model"
        is_given_up = command.outcome == "given_up" or may_succeed_again(command.stage, why_not)
        kind = BuildGivenUp if is_given_up else BuildFailed
        detail = {PARITY: parity} if (parity := command.report.get(PARITY)) else {}
        logs = {"log_tail": list(command.log_tail)}
        pending.answer.set_exception(kind(why_not, detail=detail, admin_detail=logs))

    def running(self, pools: Mapping[str, Pool]) -> list[RunningBuild]:
        """Return every build; `pools` are the core's by key."""
        return [
            _running(key, one.begun_s, pools.get(f"{key}{SUFFIX}"))
            for key, one in self._pending.items()
        ]

    def close(self) -> None:
        """End every wait with ShuttingDown; later waits end at once."""
        self._closed = True
        for one in self._pending.values():
            if not one.answer.done():
                one.answer.set_exception(ShuttingDown(STOPPING))


def may_succeed_again(stage: str, reason: str) -> bool:
    """Whether a build that ended for this reason may succeed another time: it ran out of memory or
    of disk, or it was killed from outside."""
    if reason_in(reason) == "memory" or any(text in reason for text in DISK_FULL):
        return True
    return not stage and reason.startswith(KILLED)


def _running(key: str, begun_s: float, pool: Pool | None) -> RunningBuild:
    replica = next(iter(pool.replicas.values()), None) if pool is not None else None
    if replica is None:
        waits_for = pool.blocked if pool is not None else ""
        return RunningBuild(key, begun_s, "", "", "", waits_for or "it is about to be placed")
    return RunningBuild(key, begun_s, replica.id, replica.first_device, replica.host, "")
