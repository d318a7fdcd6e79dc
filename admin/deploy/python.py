"""Packages of Python functions: a lock for each revision, and the folder that it names."""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import structlog

from admin.deploy.environments import EnvironmentView, Naming, check_removal, match, views
from admin.deploy.operations import Phase
from admin.deploy.plan import Plan
from admin.deploy.python_files import calls_at_once, read_files
from admin.store import Store
from admin.text import size
from environments.folders import (
    RESOLVE,
    Environments,
    EnvironmentSettings,
    environment_name,
)
from environments.interpreters import Interpreter, Interpreters, find_interpreters
from environments.lock import Lock, lock_key, read_lock
from environments.needs import Needs, read_needs
from environments.programs import Limits, Program, Progress, Work, WorkCancelled, run
from environments.uv import find_uv
from environments.wheels import FOLDER as WHEELS
from environments.wheels import read_wheels
from registry.bundles.paths import make_bundle
from registry.catalog import Deployed
from registry.errors import (
    Conflict,
    EnvironmentRefused,
    FnError,
    NoRoom,
    StoreUnavailable,
    Unknown,
)
from registry.model.bundles import Bundle
from registry.model.operations import Operation
from registry.model.revisions import Revision
from registry.model.servers import PythonSettings
from registry.tasks import Tasks

log = structlog.get_logger()
T = TypeVar("T")

LOCK: Final = "lock"
ENVIRONMENT: Final = "environment"
"""Phases of a deploy: versions are chosen, and packages installed."""
STEP: Final = 5
"""Percent between two published phases."""
RETRY_S: Final = 5.0
RESTORE_S: Final = 3600.0
PROBE_S: Final = 10.0
_PROBE: Final = (
    "import sys; sys.path.insert(0, sys.argv[1])\n"
    "from runtime_image.server.namespaces import isolate\n"
    "sys.exit(bool(isolate('egress', 0).files))"
)
"""Whether servers get mounts of their own, asked in a process that may enter them."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a lock is made from. `wheels` is a folder with the bundle's own, None without any."""

    needs: Needs
    interpreter: Interpreter
    wheels: Path | None
    key: str


class PythonPackages:
    """Locks and environments of all revisions and of running deploys. Slow work runs in threads,
    one piece at a time."""

    def __init__(
        self, store: Store, root: Path, settings: EnvironmentSettings, pythons: tuple[str, ...]
    ) -> None:
        """`pythons` are the interpreters that functions may run with. Raises StoreUnavailable."""
        self._store = store
        self._environments = Environments(root, settings)
        self._root = root
        self._pythons = pythons
        self._interpreters: Interpreters | None = None
        self._is_protected: bool | None = None
        self._tasks = Tasks("environments")
        self._alone = asyncio.Lock()
        self._held: dict[str, tuple[str, PythonSettings]] = {}
        """Function, and its lock and environment, of running deploys, by operation."""
        self._building = ""
        """Name of the environment that is being built."""
        self._restoring: dict[str, asyncio.Task[FnError | None]] = {}
        """Missing environments that are being built, by name."""

    async def close(self) -> None:
        """End the builds that no operation waits for."""
        await self._tasks.close()

    def check(self, draft: Plan) -> None:
        """Raise BadNeeds or EnvironmentRefused for a draft whose packages cannot be had.
        Asks no index. Blocking."""
        if (python := _of(draft.revision)) is not None:
            find_uv()
            self._needs(draft, python)

    async def prepared(self, draft: Plan, operation: Operation, phase: Phase) -> Plan:
        """Return a draft with the lock and the environment of its packages, which are kept until
        `release` at least. `phase` gets the progress. Raises what `Environments` raises; a
        cancelled caller ends the work."""
        python = _of(draft.revision)
        if python is None:
            return draft
        async with self._alone:
            await phase(LOCK)
            draft = await asyncio.to_thread(self._with_concurrency, draft)
            with self._scratch() as scratch:
                wanted = await asyncio.to_thread(self._wanted, draft, python, scratch)
                known = await self._store.locks.find(wanted.key)
                lock = read_lock(known) if known else await self._resolve(wanted, phase)
                owner = "" if await asyncio.to_thread(self._protects) else draft.function.name
                name = environment_name(lock, owner)
                digest = await self._store.locks.put(lock.key, lock.text)
                python = replace(python, lock=digest, environment=name)
                self._held[operation.id] = draft.function.name, python
                await self._ensure(lock, wanted.interpreter, wanted.wheels, owner, phase)
        server = draft.revision.server
        assert server is not None
        revision = replace(draft.revision, server=replace(server, python=python))
        return replace(draft, revision=revision)

    def release(self, operation: str) -> None:
        """Hold nothing more for an ended deploy: from now on only revisions do."""
        self._held.pop(operation, None)

    async def restore(self, deployed: Deployed, seconds: float) -> bool:
        """Build the environment of a revision if it is gone; wait up to `seconds`. Return whether
        it was gone.

        Raises NoRoom if it takes longer, and then the work goes on; or the error of the build.
        """
        python = _of(deployed.revision)
        if python is None or await asyncio.to_thread(self._is_there, python.environment):
            return False
        task = self._restoring.get(python.environment)
        if task is None:
            log.info("packages are installed again", revision=deployed.revision.ref)
            task = self._tasks.spawn(f"install {deployed.revision.ref}", self._restored(deployed))
            self._restoring[python.environment] = task
            task.add_done_callback(lambda _: self._restoring.pop(python.environment, None))
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            raise NoRoom(
                f"the packages of {deployed.revision.ref} are still being installed",
                retry_after_s=RETRY_S,
            )
        if (error := task.result()) is not None:
            raise error
        return True

    def restore_all(self, restored: Callable[[Deployed], object]) -> None:
        """Begin to build what the revisions with traffic lack, as after the restore of a backup;
        `restored` is called with each that has it again."""
        self._tasks.spawn("install what is gone", self._restore_all(restored))

    async def _restore_all(self, restored: Callable[[Deployed], object]) -> None:
        for deployed in list(self._store.catalog.all()):
            try:
                if await self.restore(deployed, RESTORE_S):
                    restored(deployed)
            except FnError as error:
                ref = deployed.revision.ref
                log.warning("packages cannot be installed", revision=ref, reason=error.message)

    async def sweep(self, now_s: float) -> None:
        """Remove locks and environments that no revision and no running deploy names; of the
        latter those that none has named for a day. What killed builds have left goes, too. Never
        raises: what cannot be removed now is removed next time."""
        named = self._named(())
        try:
            if self._alone.locked():  # a lock that is being stored has no holder yet
                return
            async with self._alone:
                await self._store.locks.keep_only({one.lock for one in named.values()})
                await asyncio.to_thread(self._sweep, set(named), now_s)
        except (FnError, OSError) as error:
            log.warning("unused packages are kept for now", reason=str(error))

    async def views(self, running: Collection[str]) -> list[EnvironmentView]:
        """Return all environments, the one that was needed last first, missing ones last. `running`
        are the keys of the revisions with replicas. Raises StoreUnavailable."""
        named, building = self._named(running), self._building
        found = await asyncio.to_thread(self._environments.listed)
        there, locks = {one.name for one in found}, {}
        for name in named.keys() - there:
            with contextlib.suppress(Unknown, EnvironmentRefused):  # removed meanwhile
                locks[name] = read_lock(await self._store.locks.text(named[name].lock))
        return views(found, locks, named, building)

    async def remove(self, text: str, running: Collection[str]) -> EnvironmentView:
        """Remove the environment that a text means (`match`), and return it; what only old
        revisions name is installed again when one gets the traffic. Raises Unknown, Conflict,
        StoreUnavailable."""
        async with self._free():
            all = {one.name: one for one in await self.views(running) if one.found}
            name = match(all, text)
            check_removal(name, all[name].naming)
            await asyncio.to_thread(self._environments.remove, name)
            return all[name]

    async def prune(self) -> list[EnvironmentView]:
        """Remove all environments that no revision and no running deploy names; return them.
        Raises Conflict, StoreUnavailable."""
        async with self._free():
            named = self._named(())
            gone = await asyncio.to_thread(
                self._environments.remove_unused, set(named), math.inf, 0.0
            )
            return views(gone, {}, {}, "")

    @contextlib.asynccontextmanager
    async def _free(self) -> AsyncIterator[None]:
        """Begin no build meanwhile. Raises Conflict while one runs, which may take long."""
        if self._alone.locked():
            text = "packages are being installed: try again when they are"
            raise Conflict(text, retry_after_s=RETRY_S)
        async with self._alone:
            yield

    def _named(self, running: Collection[str]) -> dict[str, Naming]:
        """Return what names environments, by their names; `running` as in `views`."""
        named: dict[str, Naming] = {}
        with_traffic = {one.revision.key for one in self._store.catalog.all()}
        for one in self._store.catalog.every():
            python, revision = _of(one.revision), one.revision
            if python is None or not python.environment:
                continue
            naming = named.setdefault(python.environment, Naming(python.lock))
            naming.revisions.append(revision.ref)
            if revision.key in with_traffic or revision.key in running:
                naming.live.append(revision.ref)
        for name, python in self._held.values():
            naming = named.setdefault(python.environment, Naming(python.lock))
            naming.live.append(name)
        for naming in named.values():
            naming.revisions.sort()
            naming.live.sort()
        return named

    def _sweep(self, named: set[str], now_s: float) -> None:
        for name in named:
            self._environments.use(name, now_s)
        self._environments.remove_unused(named, now_s)
        self._environments.clean()

    def _is_there(self, name: str) -> bool:
        return self._environments.read(name) is not None

    def _protects(self) -> bool:
        """Return whether servers cannot write to packages that they share."""
        if self._is_protected is None:
            with tempfile.TemporaryDirectory() as folder:
                code = [sys.executable, "-I", "-c", _PROBE, str(Path(__file__).parents[2])]
                ended = run(Program(code, Path(folder)), Limits(PROBE_S), Work())
            self._is_protected = ended.code == 0
            if not self._is_protected:
                log.warning("functions can write to their packages, and get copies of their own")
        return self._is_protected

    def _needs(self, draft: Plan, python: PythonSettings) -> tuple[Needs, Interpreter]:
        files = read_files(draft.bundle, self._store.blobs, python.needs, draft.revision.handler)
        needs = read_needs(files, python.needs)
        return needs, self._found().choose(python.version, needs.requires_python)

    def _found(self) -> Interpreters:
        """Return the interpreters, each of which is asked once."""
        if self._interpreters is None:
            self._interpreters = find_interpreters(self._pythons)
        return self._interpreters

    def _wanted(self, draft: Plan, python: PythonSettings, scratch: Path) -> _Wanted:
        needs, interpreter = self._needs(draft, python)
        wheels = self._lay_out(draft.bundle, scratch)
        own = read_wheels(wheels) if wheels else ()
        return _Wanted(needs, interpreter, wheels, lock_key(needs, interpreter, own))

    def _lay_out(self, bundle: Bundle, scratch: Path) -> Path | None:
        """Return a folder with the wheels of a bundle, None without any."""
        own = [file for file in bundle.files if file.path.startswith(f"{WHEELS}/")]
        if not own:
            return None
        self._store.blobs.materialise(make_bundle(own), scratch)
        return scratch / WHEELS

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(prefix=RESOLVE, dir=self._root))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _with_concurrency(self, draft: Plan) -> Plan:
        """Return the draft with the number of calls at once that its handler says, unless the
        request names one. Blocking."""
        exchange, python = draft.function.exchange, _of(draft.revision)
        is_named = draft.names_concurrency or not draft.revision.handler
        if is_named or exchange is None or python is None:
            return draft
        found = 2 * python.batch_max or calls_at_once(
            draft.bundle, self._store.blobs, draft.revision.handler
        )
        function = replace(draft.function, exchange=replace(exchange, concurrency=found))
        return replace(draft, function=function)

    async def _resolve(self, wanted: _Wanted, phase: Phase) -> Lock:
        needs, interpreter, wheels = wanted.needs, wanted.interpreter, wanted.wheels
        return await _followed(
            self._tasks,
            lambda work: self._environments.resolve(needs, interpreter, work, wheels=wheels),
            LOCK,
            phase,
        )

    async def _ensure(
        self, lock: Lock, interpreter: Interpreter, wheels: Path | None, owner: str, phase: Phase
    ) -> None:
        await phase(ENVIRONMENT)
        if await asyncio.to_thread(self._environments.find, lock, owner) is None:
            at_least = "at least " if lock.unsized else ""
            count = len(lock.packages)
            await phase(f"{ENVIRONMENT} {count} packages, {at_least}{size(lock.size)} to load")

        def ensure(work: Work) -> None:
            self._environments.ensure(lock, interpreter, work, wheels=wheels, owner=owner)
            self._environments.trim_cache()

        self._building = environment_name(lock, owner)
        try:
            await _followed(self._tasks, ensure, ENVIRONMENT, phase)
        finally:
            self._building = ""

    async def _restored(self, deployed: Deployed) -> FnError | None:
        """Build the environment of a revision; return the error if that fails."""
        server = deployed.revision.server
        assert server is not None
        assert server.python is not None
        python, owner = server.python, server.python.environment.partition(".")[2]
        try:
            lock = read_lock(await self._store.locks.text(python.lock))
            async with self._alone:
                with self._scratch() as scratch:
                    bundle = self._store.bundles[deployed.revision.bundle]
                    wheels = await asyncio.to_thread(self._lay_out, bundle, scratch)
                    found = await asyncio.to_thread(self._found)
                    interpreter = found.choose(lock.python)
                    await self._ensure(lock, interpreter, wheels, owner, _unseen)
        except FnError as error:
            return error
        except OSError as error:
            return StoreUnavailable(str(error))
        return None


def _of(revision: Revision) -> PythonSettings | None:
    return revision.server.python if revision.server is not None else None


async def _unseen(_phase: str) -> None:
    """Publish nothing: no operation follows."""


async def _followed(tasks: Tasks, action: Callable[[Work], T], name: str, phase: Phase) -> T:
    """Run `action` in a thread and publish its progress; a cancelled caller ends it, and waits for
    its end."""
    loop, news = asyncio.get_running_loop(), asyncio.Queue[str | None]()
    latest = [""]

    def told(progress: Progress) -> None:
        if (text := _text(name, progress)) != latest[0]:
            latest[0] = text
            loop.call_soon_threadsafe(news.put_nowait, text)

    work = Work(told)

    async def outcome() -> T | Exception:
        try:
            return await asyncio.to_thread(action, work)
        except (FnError, OSError, WorkCancelled) as error:
            return error
        finally:
            work.cancelled.set()  # the thread goes on if this task is cancelled
            news.put_nowait(None)

    task = tasks.spawn(name, outcome())
    try:
        while (text := await news.get()) is not None:
            await phase(text)
    except asyncio.CancelledError:
        work.cancelled.set()
        await asyncio.wait({task})
        raise
    found: T | Exception = task.result()
    if isinstance(found, Exception):
        raise found
    return found


def _text(name: str, progress: Progress) -> str:
    """Return a progress as a phase, in steps of STEP percent."""
    if not progress.total:
        return f"{name} {progress.phase}"
    percent = min(100, progress.done * 100 // progress.total) // STEP * STEP
    is_bytes = progress.phase in ("load", "resolve")
    total = size(progress.total) if is_bytes else f"{progress.total} files"
    return f"{name} {progress.phase} {percent} % of {total}"
