"""A fake replica without a model or a server: its life and its control link."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from registry.tasks import Tasks
from runtime_image.contract import server as servers
from runtime_image.contract import signature as signatures
from runtime_image.contract.compiled import (
    CompiledModel,
    UpgradeRequest,
    UpgradeResult,
    compiled_from_json,
)
from runtime_image.contract.control import (
    CONTROL_SOCKET,
    BindRequest,
    Hello,
    Loaded,
    LoadFailed,
    ReplicaRecord,
    Report,
)
from runtime_image.contract.link import BUSY_MASK, VERSION, Kind
from runtime_image.contract.model import PREPARES, ModelSpec
from runtime_image.contract.rows import PROOF
from runtime_image.contract.server import ServerSpec
from runtime_image.contract.signature import Signature
from runtime_image.link.frames import Frame, FrameReader, LinkError, pack
from runtime_image.link.handshake import greet, read_bind
from runtime_image.link.socket_end import SocketEnd
from tests.support.fake_driver.build import KEY, FakeBuild
from tests.support.fake_driver.service import FakeService, Phase, Script, Sleep
from tests.support.fake_driver.sidecar import FakeSidecar

CRASHED: Final = "crashed"
EXITED: Final = "exited with code 0"

Spec = ModelSpec | ServerSpec
Greeting = tuple[FrameReader, int, list[Frame]]


class _Crash(Exception):
    """The script makes this replica crash here."""


class FakeReplica:
    """Replica that speaks the real link over the sockets in `run_dir` and follows `script`.

    `crashes(phase)` is called in each phase and returns whether this replica crashes there.
    """

    def __init__(
        self,
        record: ReplicaRecord,
        run_dir: Path,
        script: Script,
        crashes: Callable[[Phase], bool],
        sleep: Sleep,
    ) -> None:
        self._record = record
        self._was_standby = record.role == "standby"
        self._path = str(run_dir / CONTROL_SOCKET)
        self._script = script
        self._crashes = crashes
        self._sleep = sleep
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(f"fake replica {record.id}")
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._bound: asyncio.Future[Spec] = self._loop.create_future()
        self._link: SocketEnd | None = None
        self._listener: socket.socket | None = None
        self._service: FakeService | FakeSidecar | None = None

    async def live(self) -> str:
        """Run from launch to end; return the description of the exit."""
        work = self._tasks.spawn("life", self._work())
        try:
            await asyncio.wait([work, self._ended], return_when=asyncio.FIRST_COMPLETED)
            return self._ended.result() if self._ended.done() else work.result()
        finally:
            # A KILL may arrive while the replica ends by itself; it cancels these waits.
            try:
                await self._tasks.close()
                if self._service is not None:
                    await self._service.close()
            finally:
                self._close_sockets()

    def terminate(self) -> None:
        """Handle TERM: finish running requests, hand back waiting ones, then exit. A sidecar shuts
        its exchanges."""
        if isinstance(self._service, FakeService):
            self._service.drain(hand_back=True)
        else:
            self._end(EXITED)

    async def _work(self) -> str:
        try:
            await self._pass("start", self._script.start_s)
            await self._greet()
            spec = await self._bound
            await self._pass("load", self._script.load_s)
            await self._settle(spec)
        except _Crash:
            return CRASHED
        except (LinkError, OSError) as error:
            return f"exited with code 1: {error}"
        return EXITED

    async def _pass(self, phase: Phase, seconds: float) -> None:
        await self._sleep(seconds)
        if self._crashes(phase):
            raise _Crash
        if self._script.hang_at == phase:
            await asyncio.Event().wait()

    async def _greet(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(self._path)
            reader, descriptor, frames = await self._exchange(sock)
        except BaseException:
            sock.close()
            raise
        self._listener = socket.socket(fileno=descriptor)
        self._listener.setblocking(False)
        self._link = SocketEnd(sock, reader)
        self._loop.add_reader(sock, self._readable)
        for frame in frames:
            self._handle(frame)

    async def _exchange(self, sock: socket.socket) -> Greeting:
        """Exchange the handshake. `greet` blocks, so it runs in a thread, which can only be stopped
        by shutting the socket down."""
        greeting = self._loop.run_in_executor(None, greet, sock, self._hello())
        try:
            return await asyncio.shield(greeting)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            await asyncio.wait([greeting])
            if greeting.exception() is None:
                os.close(greeting.result()[1])
            raise

    def _hello(self) -> Hello:
        return {
            "token": self._record.token,
            "version": VERSION,
            "pid": os.getpid(),
            "features": [],
            "dial": 1,
            "bound": self._record.bound,
            "phases": self._phases(),
        }

    def _phases(self) -> dict[str, float]:
        if self._was_standby:
            return dict(self._record.phases)
        start_ms = self._script.start_s * 1e3
        return {**self._record.phases, "start": start_ms, "import": 0.0}

    async def _settle(self, spec: Spec) -> None:
        """Report the result of loading, then serve until drained. A trial or a refused load waits
        for its release."""
        if self._script.refuse_load:
            stage = "start" if isinstance(spec, ServerSpec) else "load"
            failure: LoadFailed = {"stage": stage, "reason": self._script.refuse_load}
            self._send(Kind.LOAD_FAILED, json.dumps(failure).encode())
        elif self._record.role == "trial":
            self._send_loaded(spec, 0, asdict(self._report(spec)))
        elif self._record.role == "build" and isinstance(spec, ModelSpec):
            assert self._listener is not None
            refusal = self._script.refuse_build
            work = partial(self._pass, "build", self._script.build_s)
            self._send_loaded(spec, 0, {PREPARES: True})
            await FakeBuild(self._listener, spec, work=work, refusal=refusal).serve()
        else:
            service = self._serve(spec)
            self._send_loaded(spec, service.limit, None)
            await service.drained.wait()
            return
        await asyncio.Event().wait()

    def _serve(self, spec: Spec) -> FakeService | FakeSidecar:
        service = self._service = self._make_service(spec)
        self._tasks.spawn("accept", service.accept())
        self._tasks.spawn("run", self._run(service))
        return service

    def _make_service(self, spec: Spec) -> FakeService | FakeSidecar:
        assert self._listener is not None
        run = partial(self._pass, "run", self._script.run_s)

        def first_run(us: int) -> None:
            self._send(Kind.FIRST_RUN, aux=us)

        if isinstance(spec, ModelSpec):
            return FakeService(
                self._listener, self._script, spec.revision, run=run, first_run=first_run
            )
        return FakeSidecar(
            self._listener,
            spec,
            run=self._run_exchange,
            first_run=first_run,
            not_idle=lambda ms: self._send(Kind.NOT_IDLE, aux=ms),
        )

    async def _run_exchange(self) -> None:
        try:
            await self._pass("run", self._script.run_s)
        except _Crash:
            self._end(CRASHED)
            await asyncio.Event().wait()

    async def _run(self, service: FakeService | FakeSidecar) -> None:
        try:
            await service.work()
        except _Crash:
            self._end(CRASHED)

    def _send_loaded(self, spec: Spec, limit: int, report: dict[str, Any] | None) -> None:
        loaded: Loaded = {
            "revision": spec.revision,
            "limit": limit,
            "marks_started": True,
            "phases": {**self._phases(), "bind": 0.0, "load": self._script.load_s * 1e3},
            "memory_mib": self._script.memory_mib,
            "session": "original" if isinstance(spec, ModelSpec) else "none",
        }
        if isinstance(spec, ModelSpec) and spec.compiled is not None:
            result = self._use_compiled(spec.compiled)
            loaded["session"] = "original" if result["reason"] else "compiled"
            loaded["not_compiled"] = result["reason"]
        if report is not None:
            loaded["report"] = report
        self._send(Kind.LOADED, json.dumps(loaded).encode())

    def _use_compiled(self, compiled: CompiledModel) -> UpgradeResult:
        reason = self._script.refuse_compiled
        if not reason and compiled.key != KEY:
            reason = f"another key: compiled for {compiled.key}, this replica is {KEY}"
        return {"session": "original" if reason else "compiled", "reason": reason}

    def _report(self, spec: Spec) -> Report:
        script = self._script
        if isinstance(spec, ServerSpec):
            return Report(
                signature=signatures.to_json(Signature("http", (), ())),
                load_ms=script.load_s * 1e3,
                memory_mib=script.memory_mib,
                latency_ms={},
                batchable=False,
                why_not="",
                batch_max=1,
                profiled=True,
                sample_outputs={"requests": []},
            )
        return Report(
            signature=signatures.to_json(script.signature),
            load_ms=script.load_s * 1e3,
            memory_mib=script.memory_mib,
            latency_ms={str(rows): script.run_s * 1e3 for rows in {1, script.batch}},
            batchable=script.batch > 1,
            why_not="" if script.batch > 1 else "the fake driver's script says batch 1",
            batch_max=script.batch,
            profiled=True,
            proof=PROOF,
            compared=script.batch > 1,
            contention=script.contention,
        )

    def _readable(self) -> None:
        assert self._link is not None
        try:
            frames = self._link.receive()
            for frame in frames or ():
                self._handle(frame)
        except LinkError as error:
            self._end(f"exited with code 1: {error}")
            return
        if frames is None:
            self._end("exited: its manager is gone")

    def _handle(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.PING:
                busy_s = self._service.busy_s if self._service else 0.0
                runs = self._service.report() if isinstance(self._service, FakeService) else b""
                self._send(Kind.PONG, runs, aux=int(busy_s * 1e3) & BUSY_MASK)
            case Kind.BIND:
                self._bind(*self._read_bind(frame))
            case Kind.DRAIN:
                self._drain(frame.aux)
            case Kind.QUIESCE if isinstance(self._service, FakeSidecar):
                self._service.quiesce()
            case Kind.RESUME if isinstance(self._service, FakeSidecar):
                self._service.resume()
            case Kind.UPGRADE if isinstance(self._service, FakeService):
                request: UpgradeRequest = json.loads(frame.body)
                result = self._use_compiled(compiled_from_json(request["compiled"]))
                self._send(Kind.UPGRADED, json.dumps(result).encode())
            case Kind.BATCHING_OFF:
                pass  # it has no real batches to stop
            case _:
                raise LinkError(f"unexpected {frame.kind.name} on the control link")

    def _read_bind(self, frame: Frame) -> tuple[BindRequest, Spec]:
        if self._record.engine != servers.ENGINE:
            return read_bind(frame)
        request: BindRequest = json.loads(frame.body)
        return request, servers.from_json(request["spec"])

    def _bind(self, request: BindRequest, spec: Spec) -> None:
        if self._bound.done():
            return
        self._record = replace(
            self._record, role=request["role"], bound=request["bound"], phases=request["phases"]
        )
        self._bound.set_result(spec)

    def _drain(self, if_idle_ms: int) -> None:
        if self._service is None:
            self._end(EXITED)
            return
        if isinstance(self._service, FakeSidecar):
            self._service.drain(if_idle_ms)
            return
        idle_ms = int(self._service.idle_s * 1e3)
        if idle_ms < if_idle_ms:
            self._send(Kind.NOT_IDLE, aux=idle_ms)
        else:
            self._service.drain(hand_back=False)

    def _send(self, kind: Kind, body: bytes = b"", *, aux: int = 0) -> None:
        """Send a frame. Control frames are few and small, so the socket buffer always has room."""
        if self._link is not None:
            self._link.send(pack(kind, body=body, aux=aux))
            with contextlib.suppress(LinkError):  # `_readable` handles the end of the link
                self._link.flush()

    def _end(self, how: str) -> None:
        if not self._ended.done():
            self._ended.set_result(how)

    def _close_sockets(self) -> None:
        if self._link is not None:
            self._loop.remove_reader(self._link.sock)
            self._link.close()
        if self._listener is not None:
            self._listener.close()
