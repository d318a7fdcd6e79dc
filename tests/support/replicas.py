"""Replicas for tests: launched as the manager launches them, called as a gateway calls them."""

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
from pool_manager.driver import Driver
from pool_manager.gpus.occupancy import GpuOccupancy
from pool_manager.ports import Binding, Gpus
from pool_manager.replicas.launcher import Launcher
from pool_manager.replicas.relay import Wiring
from pool_manager.settings import PoolSettings
from registry.model import Bundle, BundleFile
from registry.tasks import Tasks
from runtime_image.contract.link import VERSION, Flag, Kind
from runtime_image.contract.model import ModelSpec
from runtime_image.link.frames import Frame, pack
from runtime_image.link.meta import RequestMeta, pack_request
from runtime_image.link.stream import FrameStream, open_stream

E = TypeVar("E", bound=events.Event)

KEY = "default/digits@1"
OUTPUT_S = 60.0
ROW = b'{"inputs": {"x": [[1, 2, 3, 4]]}}'
"""A request that the usual model of `tests.support.models` answers."""
NO_BUNDLE = Bundle("", ())


@contextmanager
def pool_settings(**changes: Any) -> Iterator[PoolSettings]:
    """Settings whose folders are short enough for socket paths and gone afterwards."""
    with TemporaryDirectory(prefix="fn-", ignore_cleanup_errors=True) as name:
        root = Path(name)
        folders = {"run_dir": root / "r", "model_dir": root / "m", "log_dir": root / "l"}
        yield PoolSettings(**{**folders, **changes})


def binding(spec: ModelSpec | None = None, **changes: Any) -> Binding:
    """A revision of the function digits; a model file unless `spec` says otherwise."""
    spec = spec or ModelSpec("digits@1", model="add_one.onnx")
    return Binding(spec, NO_BUNDLE, "default", "digits", 1, **changes)


class ModelFolder:
    """Bundles out of one folder: every replica gets all its files, hard-linked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def materialise(
        self, bundle: Bundle, target: Path, prepared: Collection[BundleFile] = ()
    ) -> None:
        """Whatever the bundle says."""
        self._link(target)

    async def keep(self, size: int, parts: AsyncIterator[bytes | bytearray]) -> str:
        """In the same folder, by the hash."""
        data = b"".join([bytes(part) async for part in parts])
        sha256 = hashlib.sha256(data).hexdigest()
        (self._folder / sha256).write_bytes(data)
        return sha256

    def _link(self, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            os.link(path, target / path.name)


class Stage:
    """A launcher over one driver; what it feeds the machine is kept in order.

    `bind` is answered to a greeting at once, as the machine does.
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
        wiring = Wiring(self._emit, GpuOccupancy(driver, gpus), turn=turn)
        self.launcher = Launcher(
            settings, driver, ModelFolder(models), wiring, self.tasks, time.monotonic
        )
        self._bindings: dict[str, Binding] = {}
        self._standbys: set[str] = set()
        self.exits: list[tuple[str, str]] = []
        self._exit_came = asyncio.Event()
        driver.exits.subscribe(self._on_exit)

    def launch(self, id: str, bound: Binding | None = None, *, role: Any = "serve") -> None:
        """Start a replica, to be bound when it greets."""
        self._bindings[id] = bound or binding()
        self.launcher.launch(Launch(id, KEY, "cpu:0", role, {}), self._bindings[id], "cpu")

    async def standby(self, id: str) -> events.Greeted:
        """Start a replica without a model and wait until it greets."""
        self._standbys.add(id)
        self.launcher.launch(Launch(id, "", "", "standby", {}), None, "cpu")
        return await self.next(events.Greeted, id)

    def expect(self, id: str, bound: Binding) -> None:
        """Have a replica bound when it greets next."""
        self._bindings[id] = bound

    def assign(self, id: str, bound: Binding | None = None, *, role: Any = "serve") -> None:
        """Give a standby its model."""
        self._bindings[id] = bound or binding()
        command = Assign(id, KEY, "cpu:0", role, {"place": 1.5})
        self.launcher.assign(command, self._bindings[id], "cpu")

    async def ready(
        self, id: str, bound: Binding | None = None, *, role: Any = "serve"
    ) -> events.Loaded:
        """Start a replica and wait until it has loaded."""
        self.launch(id, bound, role=role)
        return await self.next(events.Loaded, id)

    async def next(self, kind: type[E], id: str = "") -> E:
        """The next event of that kind, of replica `id` if given; that a replica is lost while
        something else of it is waited for is an error."""
        while True:
            event = await self.events.get()
            if id and getattr(event, "id", "") != id:
                continue
            if isinstance(event, kind):
                return event
            assert not isinstance(event, events.Lost), event

    async def exit(self, id: str) -> str:
        """How a replica ended, as its driver told: replicas end in any order."""
        while id not in (told := dict(self.exits)):
            self._exit_came.clear()
            await self._exit_came.wait()
        return told[id]

    async def output(self, function: str, end: bytes) -> bytes:
        """What the only replica of a function has written, once it ends with `end`: an engine
        passes it on a moment later."""
        async with asyncio.timeout(OUTPUT_S):
            while True:
                [(_, output)] = await self.launcher.output.kept(function)
                if output.endswith(end):
                    return output

    async def link(self, id: str) -> GatewayLink:
        """A gateway's link to a replica that has loaded."""
        link = GatewayLink()
        await link.open(self.launcher.folders.data_socket(id))
        return link

    async def release(self, id: str) -> None:
        """End a replica and wait until nothing of it is left."""
        self.launcher.release(id)
        await self.released(id)

    async def released(self, id: str) -> None:
        """Wait until nothing of a replica is left; how it was lost meanwhile is passed over."""
        while not isinstance(event := await self.events.get(), events.Released) or event.id != id:
            pass

    def forget(self, id: str) -> None:
        """Somebody else looks after this replica from now on."""
        del self._bindings[id]

    async def abandon(self) -> None:
        """Go without a word, as a server that is killed: the replicas stay."""
        self._bindings.clear()
        self._standbys.clear()
        await self.close()

    async def close(self) -> None:
        """Release every replica there is."""
        for id in self._bindings.keys() | self._standbys:
            await self.release(id)
        await self.launcher.read_ahead.close()
        await self.tasks.close()
        await self.driver.close()

    def _on_exit(self, id: str, how: str) -> None:
        self.exits.append((id, how))
        self._exit_came.set()

    def _emit(self, event: events.Event) -> None:
        self.events.put_nowait(event)
        if isinstance(event, events.Greeted) and not event.loaded and event.id in self._bindings:
            self.launcher.bind(Bind(event.id, KEY), self._bindings[event.id])


class GatewayLink:
    """One data link. Frames that came are kept in order of arrival."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[Frame] = asyncio.Queue(1000)
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._stream: FrameStream | None = None

    async def open(self, path: Path) -> None:
        """Connect, and wait for the replica's HELLO."""
        self._stream = await open_stream(
            str(path), self.frames.put_nowait, self.lost.set_result, "test gateway"
        )
        self.send(pack(Kind.HELLO, aux=VERSION))
        self.hello: dict[str, Any] = json.loads((await self.next(Kind.HELLO)).body)

    def send(self, frame: list[bytes | bytearray | memoryview]) -> None:
        """Send any frame."""
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
        """The next frame of one of these kinds; STARTED and WINDOW are skipped unless asked for."""
        while True:
            frame = await self.frames.get()
            if frame.kind in kinds:
                return frame
            assert frame.kind in (Kind.STARTED, Kind.WINDOW), frame

    async def answers(self, count: int) -> dict[int, Frame]:
        """The next `count` frames that settle a request, by its id."""
        settling = (Kind.RESPONSE, Kind.FAILED, Kind.NOT_STARTED, Kind.CANCELLED)
        frames = [await self.next(*settling) for _ in range(count)]
        return {frame.id: frame for frame in frames}

    async def call(self, id: int, body: bytes = ROW, **options: Any) -> Frame:
        """One request and the frame that settles it."""
        self.request(id, body, **options)
        return (await self.answers(1))[id]

    async def close(self) -> None:
        """End the link and wait until it has ended."""
        assert self._stream is not None
        self._stream.abort("closed")
        await asyncio.wait([self.lost])


def ids(frame: Frame) -> list[int]:
    """The requests a STARTED frame names."""
    return list(struct.unpack(f"<{len(frame.body) // 4}I", frame.body))
