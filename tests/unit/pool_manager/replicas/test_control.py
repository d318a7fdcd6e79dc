"""The manager's end of a control link, with the replica played by the test."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from structlog.testing import capture_logs

from pool_manager.core import events
from pool_manager.core.state import State
from pool_manager.replicas import connections
from pool_manager.replicas.connections import LocalConnections
from pool_manager.replicas.control import Control
from registry.tasks import Tasks
from runtime_image.contract.gpus import Reading as GpuReading
from runtime_image.contract.health import LEARNT_SECONDS, Learnt
from runtime_image.contract.link import CONTROL_MAX, HEADER, REFUTATION_MAX, Flag, Kind
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.parks import IDLE_LEAST, LifeCommand, life_of
from runtime_image.link.frames import LinkError
from runtime_image.link.handshake import greet, read_bind
from runtime_image.link.run_counts import RunCount
from tests.support.blocking import BlockingLink
from tests.support.greetings import HELLO, bind_request

ID = "aaaa0001"
LOADED = {"limit": 4, "marks_started": False, "memory_mib": 40.5, "phases": {"load": 2.0}}


class Rig:
    """A control link that listens; what it feeds and why it was lost are kept."""

    def __init__(self, folder: Path, *, is_server: bool = False) -> None:
        self.path = folder / "c"
        self.events: asyncio.Queue[events.Event] = asyncio.Queue()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._tasks = Tasks("rig")
        self._data = socket.socket(socket.AF_UNIX)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen()
        listener.setblocking(False)
        self.pongs: list[int] = []
        self.runs: list[RunCount] = []
        self.control = Control(
            ID,
            "secret",
            LocalConnections(listener, ID),
            self._data,
            self,
            is_server=is_server,
        )
        self._links: list[BlockingLink] = []

    def on_event(self, event: events.Event) -> None:
        self.events.put_nowait(event)

    def on_pong(self, id: str, busy_ms: int, runs: Sequence[RunCount]) -> None:
        self.pongs.append(busy_ms)
        self.runs += runs

    def on_link_lost(self, id: str, reason: str, *, is_its_fault: bool) -> None:
        self.lost.set_result(reason)

    def open(self, ping_s: float = 60.0) -> None:
        self.control.open(self._tasks, ping_s)

    def connect(self) -> BlockingLink:
        sock = socket.socket(socket.AF_UNIX)
        self._links.append(BlockingLink(sock))
        sock.connect(str(self.path))
        return self._links[-1]

    async def greet(self, **changes: Any) -> BlockingLink:
        """Connect and send HELLO as a replica. Raises LinkError if refused."""
        link = self.connect()
        hello: Any = {**HELLO, **changes}
        _, descriptor, _ = await asyncio.to_thread(greet, link.sock, hello)
        os.close(descriptor)
        return link

    async def greeted(self) -> BlockingLink:
        """A link that has been accepted."""
        link = await self.greet()
        assert isinstance(await self.events.get(), events.Greeted)
        return link

    async def close(self) -> None:
        self.control.close()
        await self._tasks.close()
        self._data.close()
        for link in self._links:
            link.close()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with TemporaryDirectory(prefix="fn-") as folder:
        made = Rig(Path(folder))
        yield made
        await made.close()


@pytest.fixture
async def sidecar() -> AsyncIterator[Rig]:
    """The control link of a server's replica."""
    with TemporaryDirectory(prefix="fn-") as folder:
        made = Rig(Path(folder), is_server=True)
        yield made
        await made.close()


async def read(link: BlockingLink, kind: Kind) -> Any:
    return await asyncio.to_thread(link.next, kind)


async def test_the_right_token_is_accepted(rig: Rig) -> None:
    """A HELLO with the right token becomes an event with the known, valid phases."""
    rig.open()

    await rig.greet(phases={"start": 1.23456, "import": 2, "lunch": 3, "bind": "x"})

    assert await rig.events.get() == events.Greeted(ID, {"start": 1.235, "import": 2.0})


async def test_the_gpus_of_a_replica_are_a_part_of_its_greeting(rig: Rig) -> None:
    """They are readings, and a HELLO with anything else is refused."""
    rig.open()

    with pytest.raises(LinkError, match="refused"):
        await rig.greet(gpus=[{"uuid": "a b"}])
    await rig.greet(dial=2, phases={}, gpus=[{"uuid": "GPU-a", "used_mib": 3}])

    gpus = (GpuReading("GPU-a", "", used_mib=3.0),)
    assert await rig.events.get() == events.Greeted(ID, {}, gpus=gpus)


@pytest.mark.parametrize("token", ["wrong", "", "s\u00e9cret", "\ud800"])
async def test_a_wrong_token_is_refused(rig: Rig, token: str) -> None:
    """A wrong token is refused and logged, and the real replica can still connect."""
    rig.open()

    with capture_logs() as logs, pytest.raises(LinkError, match="refused"):
        await rig.greet(token=token)

    assert [line["reason"] for line in logs] == ["wrong token"]
    assert await rig.greeted()


async def test_a_greeting_waits_for_a_descriptor(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a free descriptor, HELLO is accepted as soon as one is free; the log has one
    warning."""
    accept, failures = socket.socket.accept, [errno.EMFILE, errno.ENFILE]

    def accepted(listener: socket.socket) -> Any:
        if failures:
            raise OSError(failures.pop(), "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", accepted)
    monkeypatch.setattr(connections, "EXHAUSTED_S", 0.0)
    with capture_logs() as logs:
        rig.open()
        await rig.greeted()

    assert failures == []
    assert [entry["event"] for entry in logs] == ["a greeting has to wait"]


async def test_a_token_is_used_once(rig: Rig) -> None:
    """After HELLO no other process can connect."""
    rig.open()
    await rig.greeted()

    with pytest.raises(ConnectionRefusedError):
        rig.connect()


async def test_a_replica_that_served_before_is_taken_over(rig: Rig) -> None:
    """A replica that reports its loaded model emits Greeted and Loaded at once, and needs no
    listener."""
    rig.open()

    with pytest.raises(LinkError, match="with 0"):  # it has its data listener already
        await rig.greet(loaded=LOADED)

    assert await rig.events.get() == events.Greeted(ID, {"start": 1.5}, loaded=True)
    assert await rig.events.get() == events.Loaded(
        ID, 4, False, 40.5, {"load": 2.0}, is_unparkable=True
    )


async def test_a_replica_that_lies_about_itself_is_refused(rig: Rig) -> None:
    """A HELLO with a malformed `loaded` is refused and emits nothing."""
    rig.open()

    with capture_logs() as logs, pytest.raises(LinkError, match="refused"):
        await rig.greet(loaded={**LOADED, "limit": -1})

    assert logs[0]["reason"] == "malformed LOADED: limit -1"
    assert rig.events.empty()


async def test_a_replica_is_told_what_to_do(rig: Rig) -> None:
    """BIND contains the whole binding; DRAIN the required idle time in milliseconds."""
    rig.open()
    link = await rig.greeted()
    spec = ModelSpec("digits@1", model="model.onnx")
    request = bind_request(spec)

    rig.control.bind(request)
    rig.control.drain(1.5)
    rig.control.drain(None)
    bind = await read(link, Kind.BIND)
    kinds = [Kind.PING, Kind.DRAIN] * 2
    drains = [(await read(link, kind)).aux for kind in kinds]

    assert read_bind(bind) == (json.loads(json.dumps(request)), spec)
    assert drains == [0, 1500, 0, 0]


async def test_a_soft_drain_is_told_and_revoked(sidecar: Rig) -> None:
    """QUIESCE and RESUME have no content; RESUME, but not QUIESCE, is answered by NOT_IDLE."""
    sidecar.open()
    link = await sidecar.greeted()

    sidecar.control.quiesce()
    sidecar.control.resume()
    await read(link, Kind.PING)
    frames = [await read(link, kind) for kind in (Kind.QUIESCE, Kind.RESUME)]
    link.send(Kind.NOT_IDLE, aux=2000)

    assert [(frame.aux, bytes(frame.body)) for frame in frames] == [(0, b""), (0, b"")]
    assert await sidecar.events.get() == events.NotIdle(ID, 2.0)
    link.send(Kind.NOT_IDLE)
    assert await sidecar.lost == "unexpected NOT_IDLE"


async def test_what_was_learnt_is_sent(sidecar: Rig) -> None:
    """A sidecar of an earlier release may skip it, and nothing answers it."""
    sidecar.open()
    link = await sidecar.greeted()

    sidecar.control.keep_learnt(Learnt(60, 1.5, 7.0))
    frame = await read(link, Kind.LEARNT)

    assert (frame.flags, frame.aux) == (Flag.OPTIONAL, 60)
    assert LEARNT_SECONDS.unpack(frame.body) == (1.5, 7.0)


async def test_a_soft_drain_alone_is_not_refused(sidecar: Rig) -> None:
    """A sidecar that answers QUIESCE by NOT_IDLE breaks the protocol."""
    sidecar.open()
    link = await sidecar.greeted()
    sidecar.control.quiesce()

    link.send(Kind.NOT_IDLE)

    assert await sidecar.lost == "unexpected NOT_IDLE"


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        (Kind.LOADED, {**LOADED, "limit": 0}, "malformed LOADED: limit 0 of a server"),
        (Kind.BATCHING_OFF, {"reason": "rows"}, "unexpected BATCHING_OFF"),
        (Kind.QUIESCED, None, "unexpected QUIESCED on a control link"),
        (Kind.RESUME, None, "unexpected RESUME on a control link"),
    ],
)
async def test_a_sidecar_says_nothing_else(
    sidecar: Rig, kind: Kind, body: Any, reason: str
) -> None:
    """A server takes exchanges and has no batches; frames of other links are refused."""
    sidecar.open()
    link = await sidecar.greeted()

    link.send(kind, body=json.dumps(body).encode() if body else b"")

    assert await sidecar.lost == reason


async def test_a_servers_trial_has_no_exchanges(sidecar: Rig) -> None:
    """The trial of a server reports without taking exchanges."""
    sidecar.open()
    link = await sidecar.greeted()
    report = {"load_ms": 5.0, "sample_outputs": {"requests": [{"status": 200}]}}

    link.send(Kind.LOADED, body=json.dumps({**LOADED, "limit": 0, "report": report}).encode())

    loaded = await sidecar.events.get()
    assert isinstance(loaded, events.Loaded)
    assert loaded.report == report


async def test_nobody_is_told_before_the_greeting(rig: Rig) -> None:
    """Messages before HELLO are dropped."""
    rig.open()

    before = rig.control.is_greeted
    rig.control.drain(None)
    link = await rig.greeted()
    rig.control.bind(bind_request(ModelSpec("digits@1")))

    assert await read(link, Kind.BIND)
    assert (before, rig.control.is_greeted) == (False, True)


@pytest.mark.parametrize(
    ("kind", "body", "aux", "event"),
    [
        (
            Kind.LOADED,
            LOADED,
            0,
            events.Loaded(ID, 4, False, 40.5, {"load": 2.0}, is_unparkable=True),
        ),
        (
            Kind.LOADED,
            {**LOADED, "report": {"batchable": True}},
            0,
            events.Loaded(
                ID, 4, False, 40.5, {"load": 2.0}, {"batchable": True}, is_unparkable=True
            ),
        ),
        (
            Kind.LOAD_FAILED,
            {"stage": "sample", "reason": "x" * 5000},
            0,
            events.Lost(ID, "x" * 4000, stage="sample"),
        ),
        (Kind.NOT_IDLE, None, 1500, events.NotIdle(ID, 1.5)),
        (Kind.FIRST_RUN, None, 2500, events.FirstRun(ID, 2.5)),
    ],
)
async def test_frames_become_events(
    rig: Rig, kind: Kind, body: Any, aux: int, event: events.Event
) -> None:
    """Frames become events in seconds and milliseconds, with bounded values."""
    rig.open()
    link = await rig.greeted()
    rig.control.drain(1.0)

    link.send(kind, body=json.dumps(body).encode() if body else b"", aux=aux)

    assert await rig.events.get() == event


PROBED = {"path": "/health", "status": 404, "answer": "404 Not Found", "seconds": 12.5}


async def test_what_the_probes_of_a_start_meet_is_passed_on(sidecar: Rig) -> None:
    """Once a second at most, however often it comes; not after the start, nor from a model."""
    sidecar.open()
    link = await sidecar.greeted()

    for _ in range(3):
        link.send(Kind.PROBED, body=json.dumps(PROBED).encode())
    link.send(Kind.LOADED, body=json.dumps(LOADED).encode())

    event = events.Probed(ID, "/health", 404, "404 Not Found", 12.5)
    assert await sidecar.events.get() == event
    assert isinstance(await sidecar.events.get(), events.Loaded)
    with capture_logs():
        link.send(Kind.PROBED, body=json.dumps(PROBED).encode())
        assert await sidecar.lost == "unexpected PROBED"


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (None, Kind.PROBED),
        (None, Kind.PONG),
        (None, Kind.NOT_IDLE),
        (Kind.FIRST_RUN, Kind.FIRST_RUN),
        (Kind.LOADED, Kind.LOADED),
        (Kind.LOADED, Kind.LOAD_FAILED),
        (Kind.LOAD_FAILED, Kind.LOAD_FAILED),
        (Kind.LOAD_FAILED, Kind.LOADED),
    ],
)
async def test_what_nobody_asked_for_ends_the_link(
    rig: Rig, first: Kind | None, again: Kind
) -> None:
    """An unexpected or repeated frame ends the link, since each costs a task, a decision or a row
    on disk."""
    rig.open()
    link = await rig.greeted()

    with capture_logs():
        for kind in filter(None, (first, again)):
            link.send(kind, body=json.dumps(LOADED).encode())

        assert await rig.lost == f"unexpected {again.name}"
    assert rig.events.qsize() == (0 if first is None else 1)


async def test_a_statement_is_short(rig: Rig) -> None:
    """A frame that is too long ends the link at its header, before its body is read."""
    rig.open()
    link = await rig.greeted()

    with capture_logs():
        link.sock.sendall(HEADER.pack(CONTROL_MAX + 1, 0, Kind.LOADED, 0, 0, 0))

        assert "is over the limit" in await rig.lost


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        (Kind.LOADED, b"{", "malformed LOADED"),
        (Kind.LOADED, b"[]", "malformed LOADED: not an object"),
        (Kind.LOADED, b'{"limit": "2"}', "malformed LOADED: limit '2'"),
        (Kind.LOADED, b'{"limit": 65537}', "malformed LOADED: limit 65537"),
        (Kind.LOADED, b'{"limit": 2, "memory_mib": null}', "malformed LOADED: memory_mib None"),
        (Kind.LOAD_FAILED, b"\xff", "malformed LOAD_FAILED"),
        (Kind.REQUEST, b"", "unexpected REQUEST on a control link"),
    ],
)
async def test_a_broken_protocol_ends_the_link(
    rig: Rig, kind: Kind, body: bytes, reason: str
) -> None:
    """A malformed frame ends the link with the reason, since replicas may run foreign code."""
    rig.open()
    link = await rig.greeted()

    with capture_logs():
        link.send(kind, body=body)

        assert (await rig.lost).startswith(reason)
    assert rig.events.empty()


async def test_the_end_of_the_link_is_told(rig: Rig) -> None:
    """A replica that closes its link is lost."""
    rig.open()
    (await rig.greeted()).close()

    assert await rig.lost == "closed by the other side"


async def test_a_silent_replica_is_lost(rig: Rig) -> None:
    """A replica is lost after three unanswered PINGs."""
    rig.open(ping_s=0.0)
    link = await rig.greeted()

    assert await rig.lost == "did not answer 3 PINGs"
    assert [(await read(link, Kind.PING)).kind for _ in range(3)] == [Kind.PING] * 3


async def test_an_answer_starts_the_count_anew(rig: Rig) -> None:
    """An answer resets the count of missed PINGs."""
    rig.open()
    link = await rig.greeted()

    rig.control._ping()
    at_first = rig.control.is_answering
    for _ in range(2):
        rig.control._ping()
    late = rig.control.is_answering
    link.send(Kind.PONG)
    link.send(Kind.FIRST_RUN)
    await rig.events.get()
    assert (at_first, late, rig.control.is_answering) == (True, False, True)
    for _ in range(3):
        rig.control._ping()
    kept = not rig.lost.done()
    rig.control._ping()

    assert kept
    assert await rig.lost == "did not answer 3 PINGs"


async def test_an_answer_says_how_long_the_model_has_run(rig: Rig) -> None:
    """Each PONG is passed on, also the one of the PING sent before DRAIN."""
    rig.open()
    link = await rig.greeted()
    rig.control._ping()
    rig.control.drain(None)

    for busy_ms in (0, 4_000_000_000):
        link.send(Kind.PONG, aux=busy_ms)
    link.send(Kind.FIRST_RUN)
    await rig.events.get()

    assert rig.pongs == [0, 4_000_000_000]


async def test_closing_is_silent(rig: Rig) -> None:
    """Closing a link emits no events and reports no loss."""
    rig.open()
    link = await rig.greeted()

    rig.control.close()
    with pytest.raises(EOFError):
        await read(link, Kind.PING)

    assert not rig.lost.done()
    assert rig.events.empty()


async def test_a_refutation_is_told_once(rig: Rig) -> None:
    """A loaded replica may report a refutation once, with a reason of limited length; a second one
    ends the link."""
    rig.open()
    link = await rig.greeted()
    link.send(Kind.LOADED, body=json.dumps(LOADED).encode())
    await rig.events.get()

    link.send(Kind.BATCHING_OFF, body=json.dumps({"reason": "x" * 1000}).encode())
    told = await rig.events.get()
    link.send(Kind.BATCHING_OFF, body=b"{}")

    assert told == events.BatchingRefuted(ID, "x" * REFUTATION_MAX)
    assert "unexpected BATCHING_OFF" in await rig.lost


@pytest.mark.parametrize("body", [b"", b"[]", b"{"])
async def test_a_refutation_comes_after_loading(rig: Rig, body: bytes) -> None:
    """A refutation before loading ends the link."""
    rig.open()
    link = await rig.greeted()

    link.send(Kind.BATCHING_OFF, body=body)

    assert await rig.lost
    assert rig.events.empty()


async def test_a_replica_is_told_to_join_no_more(rig: Rig) -> None:
    """`stop_batching` sends a frame without a body."""
    rig.open()
    link = await rig.greeted()

    rig.control.stop_batching()

    assert (await read(link, Kind.BATCHING_OFF)).body == b""


async def test_an_earlier_refutation_is_told_with_the_greeting(rig: Rig) -> None:
    """A refutation reported to an earlier manager is repeated in HELLO."""
    rig.open()

    with pytest.raises(LinkError, match="with 0"):
        await rig.greet(loaded={**LOADED, "batching_off": "rows are lost"})

    await rig.events.get()
    loaded = await rig.events.get()
    assert isinstance(loaded, events.Loaded)
    assert loaded.refuted == "rows are lost"


async def test_a_golden_sample_is_asked_and_answered(sidecar: Rig) -> None:
    """One at a time; the answer goes to whoever asked."""
    sidecar.open()
    link = await sidecar.greeted()
    with pytest.raises(ConnectionError):
        await sidecar.control.sample()
    link.send(Kind.LOADED, body=json.dumps(LOADED).encode())
    await sidecar.events.get()

    asked = asyncio.ensure_future(sidecar.control.sample())
    await read(link, Kind.SAMPLE)
    with pytest.raises(ConnectionError):
        await sidecar.control.sample()
    found = {"verdict": "wrong", "ms": 12, "reason": "x" * 5000}
    link.send(Kind.SAMPLED, body=json.dumps(found).encode())

    assert await asked == {"verdict": "wrong", "ms": 12.0, "reason": "x" * 500}


async def test_the_end_of_a_link_answers_no_golden_sample(sidecar: Rig) -> None:
    """Nobody waits for what cannot come; an answer that is awaited no more is taken."""
    sidecar.open()
    link = await sidecar.greeted()
    link.send(Kind.LOADED, body=json.dumps(LOADED).encode())
    await sidecar.events.get()

    given_up = asyncio.ensure_future(sidecar.control.sample())
    await read(link, Kind.SAMPLE)
    given_up.cancel()
    link.send(Kind.SAMPLED, body=b'{"verdict": "right", "ms": 1}')
    link.send(Kind.FIRST_RUN)
    assert isinstance(await sidecar.events.get(), events.FirstRun)
    asked = asyncio.ensure_future(sidecar.control.sample())
    await read(link, Kind.SAMPLE)
    link.close()

    with pytest.raises(ConnectionError):
        await asked


@pytest.mark.parametrize(
    "body", [b"[]", b'{"verdict": "good", "ms": 1}', b'{"verdict": "right", "ms": "x"}']
)
async def test_a_malformed_verdict_ends_the_link(sidecar: Rig, body: bytes) -> None:
    """As one that nobody has asked for."""
    sidecar.open()
    link = await sidecar.greeted()
    link.send(Kind.LOADED, body=json.dumps(LOADED).encode())
    await sidecar.events.get()
    asked = asyncio.ensure_future(sidecar.control.sample())
    await read(link, Kind.SAMPLE)
    link.send(Kind.SAMPLED, body=body)

    assert "SAMPLED" in await sidecar.lost
    with pytest.raises(ConnectionError):
        await asked


async def test_an_unasked_verdict_ends_the_link(sidecar: Rig) -> None:
    """Every frame costs work."""
    sidecar.open()
    link = await sidecar.greeted()
    link.send(Kind.SAMPLED, body=b'{"verdict": "right", "ms": 1}')

    assert await sidecar.lost == "unexpected SAMPLED"


async def test_a_park_is_told_and_answered(sidecar: Rig) -> None:
    """The commands of a park go to the sidecar with their limits; what became of each is told."""
    sidecar.open()
    link = await sidecar.greeted()
    link.send(Kind.LOADED, body=json.dumps(LOADED).encode())
    await sidecar.events.get()

    sidecar.control.park(0.25, 20.0)
    frame = await read(link, Kind.PARK)
    assert (frame.aux, IDLE_LEAST.unpack(frame.body)) == (20_000, (250,))
    link.send(Kind.LIFE, body=json.dumps(life_of(LifeCommand.PARK, "", 1500.0)).encode())
    assert await sidecar.events.get() == events.ParkAnswered(ID, "", 1.5)
    sidecar.control.unpark(30.0)
    assert (await read(link, Kind.UNPARK)).aux == 30_000
    link.send(Kind.LIFE, body=json.dumps(life_of(LifeCommand.UNPARK, "no room", 2.0)).encode())
    assert await sidecar.events.get() == events.UnparkAnswered(ID, "no room", 0.002)
    sidecar.control.verify(40.0)
    assert (await read(link, Kind.VERIFY)).aux == 40_000
    link.send(Kind.LIFE, body=json.dumps(life_of(LifeCommand.VERIFY, "", 3.0)).encode())
    assert await sidecar.events.get() == events.Verified(ID, "")
    sidecar.control.park(0.0, 20.0)
    assert IDLE_LEAST.unpack((await read(link, Kind.PARK)).body) == (1,)
    link.send(Kind.NOT_IDLE, aux=500)
    assert await sidecar.events.get() == events.NotIdle(ID, 0.5)
    sidecar.control.park(None, 20.0)
    assert IDLE_LEAST.unpack((await read(link, Kind.PARK)).body) == (0,)


async def test_a_resume_may_be_answered_by_a_life(sidecar: Rig) -> None:
    """A sidecar whose engine sleeps says so, also over a link on which it was told nothing else."""
    sidecar.open()
    link = await sidecar.greeted()
    link.send(Kind.LOADED, body=json.dumps(LOADED).encode())
    await sidecar.events.get()

    sidecar.control.resume()
    await read(link, Kind.RESUME)
    link.send(Kind.LIFE, body=json.dumps(life_of(LifeCommand.PARK, "", 1500.0)).encode())

    assert await sidecar.events.get() == events.ParkAnswered(ID, "", 1.5)


@pytest.mark.parametrize(
    ("is_loaded", "is_asked", "body", "reason"),
    [
        (True, False, life_of(LifeCommand.VERIFY, "", 1.0), "unexpected LIFE"),
        (False, True, life_of(LifeCommand.VERIFY, "", 1.0), "unexpected LIFE"),
        (True, True, {"life": "asleep", "problem": "", "took_ms": 1.0}, "malformed LIFE: life"),
        (True, True, {"life": "ready", "problem": 1, "took_ms": 1.0}, "malformed LIFE: problem"),
        (True, True, {"life": "ready", "problem": "", "took_ms": -1.0}, "malformed LIFE: took_ms"),
        (True, True, {"life": "ready", "problem": ""}, "malformed LIFE: "),
    ],
)
async def test_a_life_that_is_not_due_ends_the_link(
    sidecar: Rig, is_loaded: bool, is_asked: bool, body: Any, reason: str
) -> None:
    """LIFE follows a command of this connection, and says what it can say."""
    sidecar.open()
    link = await sidecar.greeted()
    if is_loaded:
        link.send(Kind.LOADED, body=json.dumps(LOADED).encode())
        await sidecar.events.get()
    if is_asked:
        sidecar.control.verify(1.0)

    link.send(Kind.LIFE, body=json.dumps(body).encode())

    assert (await sidecar.lost).startswith(reason)


async def test_a_parked_replica_says_so_when_it_is_found(sidecar: Rig) -> None:
    """HELLO of a replica that sleeps says its life; one that is unknown is refused."""
    sidecar.open()
    with pytest.raises(LinkError, match="refused"):
        await sidecar.greet(bound="default/web@1", loaded={**LOADED, "life": "dozing"})

    told = {**LOADED, "life": "parked", "has_slept": True}
    with pytest.raises(LinkError, match="with 0"):  # it has its data listener already
        await sidecar.greet(bound="default/web@1", loaded=told)

    assert isinstance(await sidecar.events.get(), events.Greeted)
    found = await sidecar.events.get()
    assert isinstance(found, events.Loaded)
    assert (found.life, found.has_slept) == (State.PARKED, True)
