"""The replica's data plane over real sockets."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runtime_image.contract.link import VERSION, Flag, Kind, NotStarted
from runtime_image.contract.model import InputRule, ModelSpec
from runtime_image.engines.loading import load_engine
from runtime_image.link.frames import pack
from runtime_image.link.meta import unpack_answer
from runtime_image.replica import serving as servings
from runtime_image.replica.loop import Loop
from runtime_image.replica.serving import EXIT_STUCK, Serving
from runtime_image.replica.worker import Worker
from tests.support import models
from tests.support.blocking import ROW, BlockingLink, in_loop, turning

JSON_RULES = {"x": InputRule("json")}


class Gated:
    """A model whose runs wait at a gate; like a handler it cannot be stopped."""

    def __init__(self, folder: Path) -> None:
        inner = load_engine(SPEC, folder, device_kind="cpu", threads=1)
        self.signature = inner.signature
        self.began = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self._inner = inner

    def ticket(self) -> Any:
        return self._inner.ticket()

    def run(self, inputs: dict[str, Any], ticket: Any) -> dict[str, Any]:
        self.began.release()
        assert self.gate.acquire(timeout=30)
        return self._inner.run(inputs, ticket)

    def stop(self, ticket: Any) -> None:
        self._inner.stop(ticket)


SPEC = ModelSpec("digits@1", model="add_one.onnx", batch_max=1)


class Rig:
    """A serving engine at a listener; links to it are closed with it."""

    def __init__(self, folder: Path, engine: Any, spec: ModelSpec) -> None:
        self.engine = engine
        self.first_runs: list[int] = []
        self.mixed: list[str] = []
        self.gone: list[int] = []
        self.loop = Loop(time.monotonic)
        self.worker = Worker()
        self.listener = socket.socket(socket.AF_UNIX)
        self.path = str(folder / "s")
        self.listener.bind(self.path)
        self.listener.listen(100)
        self.serving = Serving(
            self.loop,
            self.worker,
            self.listener,
            engine,
            spec,
            on_first_run=self.first_runs.append,
            on_rows_mixed=self.mixed.append,
            on_exit=self._go,
        )
        self.loop.turn_end = self.serving.turn_end
        self.ended = threading.Event()
        self._links: list[BlockingLink] = []

    def link(self) -> BlockingLink:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self.path)
        self._links.append(BlockingLink(sock))
        return self._links[-1]

    def drain(self, **how: bool) -> None:
        in_loop(self.loop, lambda: self.serving.drain(**how))

    def close(self) -> None:
        for end in self.serving._links.values():
            end.close()
        for link in self._links:
            link.close()
        self.listener.close()

    def _go(self, exit_code: int) -> None:
        self.gone.append(exit_code)
        self.loop.stop()
        self.ended.set()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models.add_one(tmp_path)
    return tmp_path


def serve(folder: Path, engine: Any = None, spec: ModelSpec = SPEC) -> Iterator[Rig]:
    made = engine or load_engine(spec, folder, device_kind="cpu", threads=1)
    rig = Rig(folder, made, spec)
    with turning(rig.loop, rig.worker):
        yield rig
        if isinstance(made, Gated):
            made.gate.release(100)
    rig.close()


@pytest.fixture
def rig(folder: Path) -> Iterator[Rig]:
    yield from serve(folder)


@pytest.fixture
def gated(folder: Path) -> Iterator[Rig]:
    """A rig whose runs wait until the test opens the gate."""
    yield from serve(folder, Gated(folder))


def test_hello_states_what_is_served(rig: Rig) -> None:
    """HELLO is answered with the revision and the max number of concurrent requests."""
    assert rig.link().hello() == {"revision": "digits@1", "limit": 2}


def test_another_version_is_refused(rig: Rig) -> None:
    """A gateway of another link version loses its link; others are unaffected."""
    old, other = rig.link(), rig.link()

    old.send(Kind.HELLO, aux=VERSION + 1)

    with pytest.raises(EOFError):
        old.next()
    assert other.hello()


def test_a_request_is_answered(rig: Rig) -> None:
    """STARTED comes first, then the answer with its times. The first run is marked and reported
    once."""
    link = rig.link()

    link.request(5)
    started, answer = link.next(), link.next()
    link.request(6)
    frames = [link.next(), link.next()]

    assert (started.kind, bytes(started.body)) == (Kind.STARTED, struct.pack("<I", 5))
    assert (answer.kind, answer.id, answer.flags) == (Kind.RESPONSE, 5, Flag.FIRST)
    assert json.loads(answer.body)["outputs"] == {"y": [[2, 3, 4, 5]]}
    assert unpack_answer(answer.meta).rows == 1
    assert (frames[1].kind, frames[1].flags) == (Kind.RESPONSE, 0)
    assert rig.first_runs == [unpack_answer(answer.meta).compute_us]


def test_a_bad_request_gets_its_reason(rig: Rig) -> None:
    """An invalid request gets code and text; the link stays open."""
    link = rig.link()

    link.request(1, body=b"{}")
    failed = link.next(Kind.FAILED)

    assert json.loads(failed.body)["code"] == "bad_input"
    assert link.hello()


def test_more_than_the_limit_is_handed_back(gated: Rig) -> None:
    """With two requests owed the third is not started, and its link gets WINDOW once there is
    room."""
    one, other = gated.link(), gated.link()
    one.request(1, 2)
    one.next(Kind.STARTED)
    other.request(1)

    refused = other.next(Kind.NOT_STARTED)
    gated.engine.gate.release()
    answer = one.answer()
    room = other.next(Kind.WINDOW)

    assert (refused.id, refused.aux) == (1, NotStarted.FULL)
    assert (answer.kind, answer.id, room.id) == (Kind.RESPONSE, 1, 0)


def test_an_id_in_use_ends_the_link(gated: Rig) -> None:
    """A second request with an id in use is a protocol violation."""
    link = gated.link()
    link.request(1, 1)

    with pytest.raises(EOFError):
        link.last()


@pytest.mark.parametrize("kind", [Kind.PING, Kind.RESPONSE, Kind.BIND])
def test_a_frame_of_another_link_ends_this_one(rig: Rig, kind: Kind) -> None:
    """A kind that does not belong on a data link is a protocol violation."""
    link = rig.link()

    link.send(kind)

    with pytest.raises(EOFError):
        link.next()


def test_a_waiting_request_is_cancelled_at_once(gated: Rig) -> None:
    """Cancelling a waiting request frees its place at once."""
    link = gated.link()
    link.request(1, 2)
    link.next(Kind.STARTED)

    link.send(Kind.CANCEL, 2)

    assert link.next(Kind.CANCELLED).id == 2


def test_a_running_request_is_cancelled_when_it_ends(gated: Rig) -> None:
    """A cancelled running request is never answered, even if its run cannot be stopped."""
    link = gated.link()
    link.request(1)
    link.next(Kind.STARTED)

    link.send(Kind.CANCEL, 1)
    link.hello()
    gated.engine.gate.release()

    assert link.next(Kind.CANCELLED).id == 1


def test_cancelling_nothing_is_harmless(rig: Rig) -> None:
    """Cancelling an unknown id does nothing: the answer may have been on its way."""
    link = rig.link()

    link.send(Kind.CANCEL, 99)

    assert link.hello()


def test_a_lost_gateway_frees_its_requests(gated: Rig) -> None:
    """The requests of a lost link do not block others."""
    gone, other = gated.link(), gated.link()
    gone.request(1, 2)
    gone.next(Kind.STARTED)
    gone.close()
    gated.engine.gate.release(3)

    other.hello()
    while True:
        other.request(7)
        frame = other.next()
        if frame.kind is not Kind.NOT_STARTED:
            break
        other.next(Kind.WINDOW)

    assert frame.kind is Kind.STARTED
    assert other.next(Kind.RESPONSE).id == 7


def test_a_drain_finishes_what_was_accepted(gated: Rig) -> None:
    """On a drain every link learns the last id that will be answered; later requests are not
    started."""
    one, other = gated.link(), gated.link()
    one.request(1, 2)
    other.hello()
    one.next(Kind.STARTED)

    gated.drain()
    goodbyes = [one.next(Kind.GOAWAY).aux, other.next(Kind.GOAWAY).aux]
    one.request(3)
    refused = one.next(Kind.NOT_STARTED)
    gated.engine.gate.release(2)
    answers = [one.next() for _ in range(3)]

    assert goodbyes == [2, 0]
    assert (refused.id, refused.aux) == (3, NotStarted.DRAINING)
    assert sorted((frame.kind, frame.id) for frame in answers) == [
        (Kind.RESPONSE, 1),
        (Kind.RESPONSE, 2),
        (Kind.STARTED, 0),
    ]
    assert gated.ended.wait(30)
    assert gated.gone == [0]


def test_a_drain_may_hand_back_waiting_requests(gated: Rig) -> None:
    """With the hand-back flag only the current run is finished."""
    link = gated.link()
    link.request(1, 2)
    link.next(Kind.STARTED)

    gated.drain(hand_back=True)
    link.next(Kind.GOAWAY)
    handed_back = link.next(Kind.NOT_STARTED)
    gated.engine.gate.release()

    assert (handed_back.id, handed_back.aux) == (2, NotStarted.DRAINING)
    assert link.next(Kind.RESPONSE).id == 1
    assert gated.ended.wait(30)


def test_a_link_made_during_a_drain_gets_goaway(gated: Rig) -> None:
    """A link made during a drain gets GOAWAY, once per HELLO."""
    busy = gated.link()
    busy.request(1)
    busy.next(Kind.STARTED)
    gated.drain()
    gated.drain()
    busy.next(Kind.GOAWAY)

    late = gated.link()
    late.hello()

    assert late.next(Kind.GOAWAY).aux == 0
    gated.engine.gate.release()
    assert busy.next(Kind.RESPONSE).id == 1


def test_a_large_answer_is_written_before_the_end(tmp_path: Path) -> None:
    """A draining replica exits once the last byte is written, not once the last run ends."""
    (tmp_path / "large.py").write_text("def predict(inputs, ctx): return {'y': 'z' * 4_000_000}\n")
    spec = ModelSpec("digits@1", handler="large.py", inputs=JSON_RULES)
    for rig in serve(tmp_path, spec=spec):
        link = rig.link()
        link.request(1)
        link.next(Kind.STARTED)
        rig.drain()

        frames = [link.next(), link.next()]

        assert {frame.kind for frame in frames} == {Kind.GOAWAY, Kind.RESPONSE}
        assert max(len(frame.body) for frame in frames) > 4_000_000
        assert rig.ended.wait(30)


def test_links_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One link over the maximum is closed at once."""
    monkeypatch.setattr(servings, "LINKS_MAX", 1)
    first = rig.link()
    first.hello()
    second = rig.link()

    with pytest.raises((EOFError, ConnectionError)):
        second.hello()
    assert first.hello()


def test_a_stuck_run_is_answered(gated: Rig) -> None:
    """A stuck run times out its late request, hands back what waits and ends the replica; a lost
    gateway does not prevent this."""
    link, gone = gated.link(), gated.link()
    gone.hello()
    link.request(1, 2)
    link.next(Kind.STARTED)
    assert gated.engine.began.acquire(timeout=30)

    def give_up() -> None:
        run = gated.serving._execution._current
        assert run is not None
        run.why_stopped = "timeout"
        gone.close()
        gated.serving._links[2].send(pack(Kind.WINDOW))
        gated.serving._on_stuck(run)

    in_loop(gated.loop, lambda: None)
    in_loop(gated.loop, give_up)

    answers = {frame.id: frame for frame in (link.next(), link.next())}
    assert json.loads(answers[1].body)["code"] == "execution_timeout"
    assert (answers[2].kind, answers[2].aux) == (Kind.NOT_STARTED, NotStarted.DRAINING)
    assert gated.gone == [EXIT_STUCK]


def test_a_stuck_batch_is_handed_back(tmp_path: Path) -> None:
    """In a stuck batch the late request is unknown, so all are handed back to run alone
    elsewhere."""
    models.add_one(tmp_path)
    engine = Gated(tmp_path)
    spec = ModelSpec("digits@1", model="add_one.onnx", batch_max=2)
    for rig in serve(tmp_path, engine, spec):
        link = rig.link()
        link.request(1, 2)
        link.next(Kind.STARTED)
        assert engine.began.acquire(timeout=30)
        in_loop(rig.loop, lambda: None)

        run = rig.serving._execution._current
        assert run is not None
        in_loop(rig.loop, partial(rig.serving._on_stuck, run))

        frames = [link.next(Kind.NOT_STARTED), link.next(Kind.NOT_STARTED)]
        assert [frame.aux for frame in frames] == [NotStarted.BATCH_TIMEOUT] * 2


def test_a_stuck_repeated_run_is_handed_back(tmp_path: Path) -> None:
    """A stuck rerun had less than its timeout, so its request is handed back instead of timing
    out."""
    models.add_one(tmp_path)
    engine = Gated(tmp_path)
    for rig in serve(tmp_path, engine, SPEC):
        link = rig.link()
        link.request(1)
        link.next(Kind.STARTED)
        assert engine.began.acquire(timeout=30)
        in_loop(rig.loop, lambda: None)

        run = rig.serving._execution._current
        assert run is not None
        run.alone_s, run.why_stopped = 1.0, "timeout"
        in_loop(rig.loop, partial(rig.serving._on_stuck, run))

        assert link.next(Kind.NOT_STARTED).aux == NotStarted.BATCH_TIMEOUT


def test_the_late_request_of_a_batch_is_handed_back(gated: Rig) -> None:
    """The late request of a batch is handed back, to be sent again alone."""
    link = gated.link()
    link.request(1)
    link.next(Kind.STARTED)
    assert gated.engine.began.acquire(timeout=30)

    def hand_back() -> None:
        [job] = gated.serving.intake.owed.values()
        gated.serving._emit(job, NotStarted.BATCH_TIMEOUT)

    in_loop(gated.loop, hand_back)

    assert link.next(Kind.NOT_STARTED).aux == NotStarted.BATCH_TIMEOUT
    assert in_loop(gated.loop, lambda: not gated.serving.intake.owed)


def test_short_runs_are_not_marked(folder: Path) -> None:
    """Inline runs send no STARTED; `marks_started` tells the gateway."""
    spec = ModelSpec("digits@1", model="add_one.onnx", batch_max=4, inline=True)
    for rig in serve(folder, spec=spec):
        link = rig.link()
        link.request(1, 2, body=ROW)

        assert not rig.serving.marks_started
        assert [link.next().kind, link.next().kind] == [Kind.RESPONSE, Kind.RESPONSE]
