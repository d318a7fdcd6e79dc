"""Replicas for tests: launched as by the manager, called as by a gateway."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import struct
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from pool_manager.core import events
from pool_manager.core.commands import Assign, Bind, Launch
from pool_manager.core.start_queue import Rank, StartPriority
from pool_manager.driver import Driver, Exit
from pool_manager.fleet import Fleet
from pool_manager.gpus.occupancy import GpuOccupancy
from pool_manager.hosts.local import LocalHost
from pool_manager.ports import Binding, Bundles, Gpus
from pool_manager.replicas.launcher import Launcher
from pool_manager.replicas.relay import Wiring
from pool_manager.replicas.run_folders import RunFolders
from pool_manager.settings import PoolSettings
from registry.errors import StoreUnavailable
from registry.model.bundles import Bundle, BundleFile
from registry.tasks import Tasks
from runtime_image.contract.link import VERSION, Flag, Kind
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.server import ServerSpec
from runtime_image.link.frames import Frame, pack
from runtime_image.link.meta import RequestMeta, pack_request
from runtime_image.link.stream import FrameStream, connect

E = TypeVar("E", bound=events.Event)

KEY = "default/digits@1"
OUTPUT_S = 60.0
ROW = b'{"inputs": {"x": [[1, 2, 3, 4]]}}'
"""A request for the usual model of `tests.support.models`."""
NO_BUNDLE = Bundle("", ())


@contextmanager
def pool_settings(**changes: Any) -> Iterator[PoolSettings]:
    """Return settings with temporary folders short enough for socket paths."""
    with TemporaryDirectory(prefix="fn-", ignore_cleanup_errors=True) as name:
        root = Path(name)
        folders = {"run_dir": root / "r", "model_dir": root / "m", "log_dir": root / "l"}
        yield PoolSettings(**{**folders, **changes})


def binding(spec: ModelSpec | ServerSpec | None = None, **changes: Any) -> Binding:
    """Return a binding of the function digits, with a model file unless `spec` says otherwise."""
    spec = spec or ModelSpec("digits@1", model="add_one.onnx")
    return Binding(spec, NO_BUNDLE, "default", "digits", 1, **changes)


class ModelFolder:
    """Model source that hard-links all files of one folder for every replica."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def materialise(
        self, bundle: Bundle, target: Path, prepared: Collection[BundleFile] = ()
    ) -> None:
        """Link all files into `target`, whatever the bundle lists."""
        self._link(target)

    async def add(self, files: Collection[BundleFile], target: Path) -> None:
        """Link these files into `target`; the folder has them by their hashes."""
        for file in files:
            path = target / file.path
            path.parent.mkdir(exist_ok=True)
            path.unlink(missing_ok=True)
            try:
                os.link(self.path(file.sha256), path)
            except FileNotFoundError:
                raise StoreUnavailable(f"{file.path}: its blob is missing") from None

    def path(self, sha256: str) -> Path:
        """Return the file with this content."""
        for path in self._folder.iterdir():
            if hashlib.sha256(path.read_bytes()).hexdigest() == sha256:
                return path
        return self._folder / sha256

    def bundle(self) -> Bundle:
        """Return a bundle of all files."""
        files = []
        for path in sorted(self._folder.iterdir()):
            data = path.read_bytes()
            files.append(BundleFile(path.name, len(data), hashlib.sha256(data).hexdigest()))
        digest = hashlib.sha256(repr(files).encode()).hexdigest()
        return Bundle(digest, tuple(files))

    async def keep(self, size: int, parts: AsyncIterator[bytes | bytearray]) -> str:
        """Store prepared parts in the same folder, named by their hash."""
        data = b"".join([bytes(part) async for part in parts])
        sha256 = hashlib.sha256(data).hexdigest()
        (self._folder / sha256).write_bytes(data)
        return sha256

    def _link(self, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            os.link(path, target / path.name)


class Latest:
    """The bundles that a stage has at present: a test may replace them."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage.bundles, name)


class Stage:
    """A launcher over one driver. Events for the machine are queued in order.

    A replica that connects is bound at once, as the machine does it.
    """

    def __init__(
        self,
        settings: PoolSettings,
        driver: Driver,
        models: Path,
        gpus: Gpus | None = None,
        turn: Callable[[str], StartPriority] = lambda _id: StartPriority(Rank.WAITER, 0.0),
    ) -> None:
        self.settings = settings
        self.driver = driver
        self.tasks = Tasks("stage")
        self.events: asyncio.Queue[events.Event] = asyncio.Queue(1000)
        self.bundles: Bundles = ModelFolder(models)
        folders = RunFolders(settings, for_others=driver.processes.has_other_users)
        self.host = LocalHost(settings, driver, Latest(self), folders, gpus)
        self.fleet = Fleet(self.host)
        wiring = Wiring(self._emit, GpuOccupancy(self.fleet.of), turn=turn)
        self.launcher = Launcher(settings, self.fleet, folders, wiring, self.tasks, time.monotonic)
        self._bindings: dict[str, Binding] = {}
        self._standbys: set[str] = set()
        self.exits: list[tuple[str, str]] = []
        self._exit_came = asyncio.Event()
        driver.exits.subscribe(self._on_exit)

    def launch(
        self,
        id: str,
        bound: Binding | None = None,
        *,
        role: Any = "serve",
        gpus: tuple[str, ...] = (),
    ) -> None:
        """Start a replica, to be bound once it connects, on a CPU slot unless `gpus` are given."""
        self._bindings[id] = bound or binding()
        command = Launch(id, KEY, gpus or ("cpu:0",), role, {})
        self.launcher.launch(command, self._bindings[id], "cuda" if gpus else "cpu")

    async def standby(self, id: str) -> events.Greeted:
        """Start a standby and wait until it connects."""
        self._standbys.add(id)
        self.launcher.launch(Launch(id, "", (), "standby", {}), None, "cpu")
        return await self.next(events.Greeted, id)

    def expect(self, id: str, bound: Binding) -> None:
        """Register the binding for a replica's next connection."""
        self._bindings[id] = bound

    def assign(self, id: str, bound: Binding | None = None, *, role: Any = "serve") -> None:
        """Assign a model to a standby."""
        self._bindings[id] = bound or binding()
        command = Assign(id, KEY, ("cpu:0",), role, {"place": 1.5})
        self.launcher.assign(command, self._bindings[id], "cpu")

    async def ready(
        self, id: str, bound: Binding | None = None, *, role: Any = "serve"
    ) -> events.Loaded:
        """Start a replica and wait until it has loaded."""
        self.launch(id, bound, role=role)
        return await self.next(events.Loaded, id)

    async def next(self, kind: type[E], id: str = "") -> E:
        """Return the next event of that kind, optionally of replica `id`. The loss of that replica
        fails the test unless a loss is expected."""
        while True:
            event = await self.events.get()
            if id and getattr(event, "id", "") != id:
                continue
            if isinstance(event, kind):
                return event
            assert not isinstance(event, events.Lost), event

    async def exit(self, id: str) -> str:
        """Return how a replica ended, as reported by the driver. Replicas may end in any order."""
        while id not in (told := dict(self.exits)):
            self._exit_came.clear()
            await self._exit_came.wait()
        return told[id]

    async def output(self, function: str, end: bytes) -> bytes:
        """Return the output of a function's only replica once it ends with `end`; an engine
        forwards output with a delay."""
        async with asyncio.timeout(OUTPUT_S):
            while True:
                [(_, output)] = await self.launcher.output.kept(function)
                if output.endswith(end):
                    return output

    async def link(self, id: str) -> GatewayLink:
        """Open a gateway's link to a loaded replica."""
        link = GatewayLink()
        await link.open(self.launcher.folders.data_socket(id))
        return link

    async def release(self, id: str) -> None:
        """End a replica and wait until it is released."""
        self.launcher.release(id)
        await self.released(id)

    async def released(self, id: str) -> None:
        """Wait until a replica is released; skip its loss."""
        while not isinstance(event := await self.events.get(), events.Released) or event.id != id:
            pass

    def forget(self, id: str) -> None:
        """Hand over a replica: `close` will not release it."""
        del self._bindings[id]

    async def abandon(self) -> None:
        """Stop without releasing, as a killed server does: the replicas keep running."""
        self._bindings.clear()
        self._standbys.clear()
        await self.close()

    async def close(self) -> None:
        """Release every replica."""
        for id in self._bindings.keys() | self._standbys:
            await self.release(id)
        await self.tasks.close()
        await self.host.close()

    def _on_exit(self, id: str, end: Exit) -> None:
        self.exits.append((id, end.how))
        self._exit_came.set()

    def _emit(self, event: events.Event) -> None:
        self.events.put_nowait(event)
        if isinstance(event, events.Greeted) and not event.loaded and event.id in self._bindings:
            self.launcher.bind(Bind(event.id, KEY), self._bindings[event.id])


class GatewayLink:
    """One data link. Received frames are queued in order of arrival."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[Frame] = asyncio.Queue(1000)
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._stream: FrameStream | None = None

    async def open(self, path: Path) -> None:
        """Connect and wait for the replica's HELLO."""
        receivers = (self.frames.put_nowait, self.lost.set_result)
        self._stream = FrameStream(*receivers, "test gateway")
        await connect(self._stream, str(path))
        self.send(pack(Kind.HELLO, aux=VERSION))
        self.hello: dict[str, Any] = json.loads((await self.next(Kind.HELLO)).body)

    def send(self, frame: list[bytes | bytearray | memoryview]) -> None:
        """Send a frame."""
        assert self._stream is not None
        self._stream.send(frame)

    def request(
        self,
        id: int,
        body: bytes = ROW,
        *,
        content_type: str = "application/json",
        timeout_s: float = 60.0,
        alone: bool = False,
    ) -> None:
        """Send a request."""
        meta = pack_request(RequestMeta(content_type, "", -1, ""))
        flags = Flag.ALONE if alone else 0
        self.send(pack(Kind.REQUEST, id, body, meta=meta, flags=flags, aux=round(timeout_s * 1000)))

    async def next(self, *kinds: Kind) -> Frame:
        """Return the next frame of one of these kinds. STARTED and WINDOW are skipped unless
        listed."""
        while True:
            frame = await self.frames.get()
            if frame.kind in kinds:
                return frame
            assert frame.kind in (Kind.STARTED, Kind.WINDOW), frame

    async def answers(self, count: int) -> dict[int, Frame]:
        """Return the next `count` frames that settle a request, by request id."""
        settling = (Kind.RESPONSE, Kind.FAILED, Kind.NOT_STARTED, Kind.CANCELLED)
        frames = [await self.next(*settling) for _ in range(count)]
        return {frame.id: frame for frame in frames}

    async def call(self, id: int, body: bytes = ROW, **options: Any) -> Frame:
        """Send one request; return the frame that settles it."""
        self.request(id, body, **options)
        return (await self.answers(1))[id]

    async def close(self) -> None:
        """Close the link and wait for its end."""
        assert self._stream is not None
        self._stream.abort("closed")
        await asyncio.wait([self.lost])


def ids(frame: Frame) -> list[int]:
    """Return the request ids in a STARTED frame."""
    return list(struct.unpack(f"<{len(frame.body) // 4}I", frame.body))
