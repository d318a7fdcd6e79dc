"""The control link of a fake replica, with its manager played by the test."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from runtime_image.contract import signature as signatures
from runtime_image.contract.control import CONTROL_SOCKET, DATA_SOCKET, Hello, ReplicaRecord
from runtime_image.contract.link import Kind
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.signature import Signature, TensorSpec
from runtime_image.link.frames import Frame, pack
from runtime_image.link.reception import read_hello, welcome
from runtime_image.link.stream import FrameStream
from tests.support.fake_driver.replica import FakeReplica
from tests.support.fake_driver.service import Script
from tests.support.greetings import bind_request

SIGNATURE = Signature("tensors", (TensorSpec("x", "FP32", (-1, 4)),), ())


class Play:
    """Both listeners, the control link, and the replica's life as a task."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()
        self.crashed_at: list[str] = []
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._stream: FrameStream | None = None
        self._life: asyncio.Task[str] | None = None
        self._control, self._data = (self._listen(name) for name in (CONTROL_SOCKET, DATA_SOCKET))

    def _listen(self, name: str) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(self.run_dir / name))
        sock.listen()
        sock.setblocking(False)
        return sock

    def live(self, group: asyncio.TaskGroup, script: Script, role: Any = "serve") -> FakeReplica:
        bound, phases = ("", {}) if role == "standby" else ("default/digits@1", {"place": 1.5})
        record = ReplicaRecord(
            *("aaaa0001", "secret", role, "default", bound, "", ("cpu:0",), "cpu"),
            *("onnx", 1, 60.0, 0, 0.0, 1, phases),
        )
        self.replica = FakeReplica(record, self.run_dir, script, self._crashes, no_sleep)
        self._life = group.create_task(self.replica.live())
        return self.replica

    def _crashes(self, phase: str) -> bool:
        return phase in self.crashed_at

    async def greet(self) -> Hello:
        loop = asyncio.get_running_loop()
        sock, _ = await loop.sock_accept(self._control)
        hello = await read_hello(sock, 10)
        welcome(sock, self._data)
        _, self._stream = await loop.create_unix_connection(
            lambda: FrameStream(self.frames.put_nowait, self._lost.set_result, "manager"),
            sock=sock,
        )
        return hello

    def send(self, kind: Kind, body: bytes = b"", aux: int = 0) -> None:
        assert self._stream is not None
        self._stream.send(pack(kind, body=body, aux=aux))

    def bind(self, **changes: Any) -> None:
        request = bind_request(ModelSpec("digits@1"), **changes)
        self.send(Kind.BIND, json.dumps(request).encode())

    async def next(self, kind: Kind) -> Any:
        """The next frame's JSON body, or its aux where it has none."""
        frame = await self.frames.get()
        assert frame.kind is kind
        return json.loads(frame.body) if frame.body else frame.aux

    async def end(self) -> str:
        assert self._life is not None
        return await self._life

    def hang_up(self) -> None:
        assert self._stream is not None
        self._stream.abort("the manager ends")

    async def close(self) -> None:
        if self._stream is not None:
            self.hang_up()
            await asyncio.wait([self._lost])
        self._control.close()
        self._data.close()


async def no_sleep(seconds: float) -> None:
    await asyncio.sleep(0)


@pytest.fixture
async def play() -> AsyncIterator[Play]:
    with TemporaryDirectory(prefix="fn-") as run_dir:
        made = Play(Path(run_dir))
        yield made
        await made.close()


async def test_a_replica_greets_and_answers_pings(play: Play) -> None:
    """HELLO has the token and the binding; PINGs are answered before and after the bind."""
    async with asyncio.TaskGroup() as group:
        play.live(group, Script(start_s=2.0, hang_at="load"))
        hello = await play.greet()
        play.send(Kind.PING)
        before = await play.next(Kind.PONG)
        play.bind()
        play.send(Kind.PING)
        after = await play.next(Kind.PONG)
        play.send(Kind.DRAIN)
        end = await play.end()

    assert (hello["token"], hello["bound"]) == ("secret", "default/digits@1")
    assert hello["phases"] == {"place": 1.5, "start": 2000.0, "import": 0.0}
    assert (before, after) == (0, 0)
    assert end == "exited with code 0"


@pytest.mark.parametrize("role", ["serve", "trial"])
async def test_a_standby_becomes_what_it_is_bound_to(play: Play, role: str) -> None:
    """A standby connects unbound, and reports only phases that callers waited for."""
    async with asyncio.TaskGroup() as group:
        replica = play.live(group, Script(start_s=2.0), "standby")
        hello = await play.greet()
        play.bind(role=role, phases={"place": 4.0})
        loaded = await play.next(Kind.LOADED)
        again = replica._hello()
        replica.terminate()
        end = await play.end()

    assert (hello["bound"], hello["phases"]) == ("", {})
    assert again["bound"] == "default/digits@1"
    assert loaded["phases"] == {"place": 4.0, "bind": 0.0, "load": 0.0}
    assert (end, "report" in loaded) == ("exited with code 0", role == "trial")


async def test_a_loaded_replica_says_what_it_takes(play: Play) -> None:
    """LOADED has the revision, the limit of its batch, and the phases of its script."""
    async with asyncio.TaskGroup() as group:
        play.live(group, Script(load_s=3.0, batch=4))
        await play.greet()
        play.bind()
        loaded = await play.next(Kind.LOADED)
        play.send(Kind.DRAIN)
        end = await play.end()

    assert (loaded["revision"], loaded["limit"], loaded["marks_started"]) == ("digits@1", 8, True)
    assert loaded["phases"]["load"] == 3000.0
    assert "report" not in loaded
    assert end == "exited with code 0"


@pytest.mark.parametrize(("batch", "batchable"), [(1, False), (8, True)])
async def test_a_trial_reports_its_script(play: Play, batch: int, batchable: bool) -> None:
    """The report has the script's signature, times and batch."""
    async with asyncio.TaskGroup() as group:
        play.live(group, Script(run_s=0.5, signature=SIGNATURE, batch=batch), role="trial")
        await play.greet()
        play.bind(role="trial")
        report = (await play.next(Kind.LOADED))["report"]
        play.replica.terminate()

    assert report["signature"] == signatures.to_json(SIGNATURE)
    assert (report["batchable"], report["batch_max"]) == (batchable, batch)
    assert set(report["latency_ms"].values()) == {500.0}
    assert bool(report["why_not"]) is not batchable


async def test_a_refused_load_is_told(play: Play) -> None:
    """LOAD_FAILED has the script's reason, and the replica waits for its release."""
    async with asyncio.TaskGroup() as group:
        play.live(group, Script(refuse_load="no such opset"))
        await play.greet()
        play.bind()
        failed = await play.next(Kind.LOAD_FAILED)
        play.replica.terminate()

    assert failed == {"stage": "load", "reason": "no such opset"}


@pytest.mark.parametrize("phase", ["start", "load"])
async def test_a_crash_ends_it(play: Play, phase: str) -> None:
    """A scripted crash ends the replica without a message on the link."""
    play.crashed_at = [phase]
    async with asyncio.TaskGroup() as group:
        play.live(group, Script())
        if phase == "load":
            await play.greet()
            play.bind()
        end = await play.end()

    assert end == "crashed"
    assert play.frames.empty()


async def test_a_fresh_replica_is_not_idle_enough(play: Play) -> None:
    """A replica that was used more recently refuses a conditional drain, with its idle time."""
    async with asyncio.TaskGroup() as group:
        play.live(group, Script())
        await play.greet()
        play.bind()
        await play.next(Kind.LOADED)
        play.send(Kind.DRAIN, aux=3_600_000)
        idle_ms = await play.next(Kind.NOT_IDLE)
        play.replica.terminate()

    assert 0 <= idle_ms < 3_600_000


async def test_without_a_manager_it_ends(play: Play) -> None:
    """A fake replica ends with its link: it cannot outlive its manager's process."""
    async with asyncio.TaskGroup() as group:
        play.live(group, Script())
        await play.greet()
        play.hang_up()
        end = await play.end()

    assert end == "exited: its manager is gone"


async def test_a_broken_protocol_ends_it(play: Play) -> None:
    """An unexpected frame on the control link ends a fake replica."""
    async with asyncio.TaskGroup() as group:
        play.live(group, Script())
        await play.greet()
        play.send(Kind.REQUEST)
        end = await play.end()

    assert end == "exited with code 1: unexpected REQUEST on the control link"


async def test_nobody_to_greet_ends_it(play: Play, tmp_path: Path) -> None:
    """Without a manager's socket the replica exits with the system's reason."""
    play.run_dir = tmp_path
    async with asyncio.TaskGroup() as group:
        play.live(group, Script())
        end = await play.end()

    assert end.startswith("exited with code 1: [Errno 2]")


async def test_it_can_be_ended_while_it_greets(play: Play) -> None:
    """A replica whose HELLO is not answered can be ended without leaking its thread or socket."""
    async with asyncio.TaskGroup() as group:
        play.live(group, Script())
        sock, _ = await asyncio.get_running_loop().sock_accept(play._control)
        await read_hello(sock, 10)
        play.replica.terminate()
        end = await play.end()
        sock.close()

    assert end == "exited with code 0"
