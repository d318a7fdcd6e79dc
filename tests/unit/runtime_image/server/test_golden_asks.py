"""Golden samples of a real small server: learnt by a trial, asked later."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime_image.contract.samples import (
    GoldenPlan,
    GoldenRule,
    GoldenSample,
    Sampled,
    SampleRequest,
    SampleVerdict,
    golden_from_json,
)
from runtime_image.contract.server import ServerSpec
from runtime_image.replica.loop import Loop
from runtime_image.server import golden_asks, trial
from runtime_image.server.connecting import Server
from runtime_image.server.golden_asks import GoldenAsks, asked
from runtime_image.server.trial import learn_golden
from tests.support.chat_server import running

API = GoldenPlan(base="/v1", model="m")


@contextmanager
def chatting(*options: str) -> Iterator[Server]:
    """A server with OpenAI's API."""
    with running(*options) as port:
        yield Server(port, None, is_shared=False)


@contextmanager
def scripted(answer: Callable[[int, bytes], bytes], *, keeps: bool = False) -> Iterator[Server]:
    """A server whose answer follows from the number of the connection and from its request. With
    `keeps` the client ends the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            number = 0
            while True:
                peer, _ = listener.accept()
                with peer:
                    data = peer.recv(65536)
                    if not data:
                        return
                    peer.sendall(answer(number, data))
                    if keeps:
                        peer.recv(1)
                number += 1

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        try:
            yield Server(port, None, is_shared=False)
        finally:
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join()


def answered(body: bytes, status: str = "200 OK", kind: str = "text/plain") -> bytes:
    """Return an answer."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def told(server: Server, plan: GoldenPlan = API, start_ms: float = 1e6) -> dict[str, Any]:
    """Return what a trial reports; its start has taken so long that any answer is quick."""
    return learn_golden(ServerSpec("a@1", ("x",), golden_plan=plan), server, Path(), start_ms)


def learnt(server: Server, plan: GoldenPlan = API) -> GoldenSample:
    """Return the golden sample of a trial."""
    return golden_from_json(told(server, plan)["golden"])


def verdict_of(sample: GoldenSample, server: Server, *, waits: bool = False) -> tuple[str, str]:
    """Ask a golden sample."""
    found = asked(sample, server, Path(), waits=waits)
    return found["verdict"], found["reason"]


def test_a_model_is_compared_by_the_numbers_of_a_whole_prompt(tmp_path: Path) -> None:
    """A server that answers otherwise later is wrong, and right when it is itself again."""
    switch = tmp_path / "switch"
    with chatting("--corrupt", str(switch)) as server:
        sample = learnt(server)
        assert (sample.rule, sample.request.path) == (GoldenRule.LOGPROBS, "/v1/completions")
        assert len(sample.answer.prompt) > 40
        assert len(sample.answer.tokens) == 4

        assert verdict_of(sample, server) == (SampleVerdict.RIGHT, "")
        switch.touch()
        verdict, reason = verdict_of(sample, server)
        assert verdict == SampleVerdict.WRONG
        assert "log probabilities of the prompt" in reason
        switch.unlink()
        assert verdict_of(sample, server) == (SampleVerdict.RIGHT, "")


def test_a_server_without_endpoints_has_none() -> None:
    """Each path is asked once."""
    with chatting("--base", "/api") as server:
        assert told(server) == {
            "no_golden": "/v1/completions: expected 200, got 404;"
            " /v1/chat/completions: expected 200, got 404; /v1/embeddings: expected 200, got 404"
        }


def test_nothing_is_asked_without_a_plan() -> None:
    """As of functions without [openai]."""
    spec = ServerSpec("a@1", ("x",))

    assert learn_golden(spec, Server(1, None, is_shared=False), Path(), 1.0) == {}


@pytest.mark.parametrize(
    ("answer", "told_by"),
    [
        (lambda _, __: answered(b"ok"), GoldenRule.BYTES),
        (lambda n, _: answered(b"%d" % n), GoldenRule.STATUS),
        (
            lambda n, _: answered(b'{"id": %d, "choices": [{"text": "a b"}]}' % n),
            GoldenRule.TEXT,
        ),
        (lambda _, __: answered(b'{"data": [{"embedding": [1, 2]}]}'), GoldenRule.EMBEDDING),
    ],
)
def test_a_marked_sample_is_compared_by_what_it_is(
    answer: Callable[[int, bytes], bytes], told_by: GoldenRule
) -> None:
    """Nobody says which rule it is."""
    with scripted(answer) as server:
        plan = GoldenPlan(SampleRequest("/up", golden=True))
        sample = learnt(server, plan)

        assert sample.rule is told_by
        assert verdict_of(sample, server)[0] == SampleVerdict.RIGHT


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda n, _: answered(b"", "200 OK" if n else "201 Created"), "had different answers"),
        (lambda _, __: answered(b"", "404 Not Found"), "status 404"),
        (lambda _, __: b"nonsense\r\n\r\n", "expected an answer, got"),
        (lambda _, __: answered(b"abc")[:-1], "expected an answer, got"),
    ],
)
def test_a_sample_that_cannot_be_learnt_says_why(
    answer: Callable[[int, bytes], bytes], reason: str
) -> None:
    """The trial goes on without one."""
    with scripted(answer) as server:
        found = told(server, GoldenPlan(SampleRequest("/up", golden=True)))

    assert [*found] == ["no_golden"]
    assert reason in found["no_golden"]


def test_a_slow_sample_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take 250 ms, or 5 % of the start."""
    monkeypatch.setattr("runtime_image.contract.samples.BUDGET_MS", 0.0)
    with scripted(lambda _, __: answered(b"ok")) as server:
        plan = GoldenPlan(SampleRequest("/up", golden=True))
        slow = told(server, plan, start_ms=0.0)
        quick = told(server, plan, start_ms=1e6)

    assert "more than 0 ms (250 ms, or 5 % of the start)" in slow["no_golden"]
    assert 0 < quick["golden"]["usual_ms"] < 5e4


def test_a_trial_gives_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a time of its own for the golden sample."""
    monkeypatch.setattr(trial, "GOLDEN_TRIAL_S", 0.0)
    with chatting() as server:
        assert "expected an end within 0 s" in told(server)["no_golden"]


def test_another_text_is_wrong_the_second_time() -> None:
    """Where two words are as likely, either may come once."""
    texts = [b"a"] * 3 + [b"b", b"a", b"b", b"b"]

    def answer(number: int, _: bytes) -> bytes:
        return answered(b'{"choices": [{"text": "%b"}]}' % texts[number])

    with scripted(answer) as server:
        sample = learnt(server, GoldenPlan(SampleRequest("/up", golden=True)))

        assert verdict_of(sample, server) == (SampleVerdict.RIGHT, "")
        assert verdict_of(sample, server) == (SampleVerdict.WRONG, "expected 'a', got 'b'")


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
def test_a_refusal_for_now_says_nothing(status: str) -> None:
    """The server has too much to do."""
    with scripted(lambda n, _: answered(b"", status) if n > 2 else answered(b"ok")) as server:
        sample = learnt(server, GoldenPlan(SampleRequest("/up", golden=True)))

        assert verdict_of(sample, server)[0] == SampleVerdict.NONE


def test_a_stream_without_an_end_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is shut in time, which is no end of it."""
    monkeypatch.setattr(trial, "GOLDEN_TRIAL_S", 0.3)
    with scripted(lambda _, __: b"HTTP/1.1 200 OK\r\n\r\nbegun", keeps=True) as server:
        found = told(server, GoldenPlan(SampleRequest("/up", golden=True)))

    assert "no whole answer within 0.3" in found["no_golden"]


def hanging() -> tuple[socket.socket, Server]:
    """A server that accepts and never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, Server(listener.getsockname()[1], None, is_shared=False)


@pytest.mark.parametrize(
    ("waits", "verdict"), [(False, SampleVerdict.NO_ANSWER), (True, SampleVerdict.NONE)]
)
def test_no_answer_in_time(monkeypatch: pytest.MonkeyPatch, *, waits: bool, verdict: str) -> None:
    """Behind a busy slot it may come later."""
    monkeypatch.setattr("runtime_image.contract.samples.LIMIT_S", 0.2)
    with chatting() as server:
        sample = replace(learnt(server), usual_ms=1.0)
    listener, hung = hanging()
    with closing(listener):
        assert verdict_of(sample, hung, waits=waits)[0] == verdict
    assert verdict_of(sample, hung)[0] == SampleVerdict.NO_ANSWER


class Asks:
    """Asks of one server in a loop that the test turns."""

    def __init__(self, sample: GoldenSample | None, server: Server) -> None:
        self.loop = Loop(time.monotonic)
        self.asks = GoldenAsks(self.loop, sample, server, Path())
        self.found: list[Sampled] = []

    def begin(self) -> None:
        """Ask."""
        self.asks.begin(self._done, waits=False)

    def turn(self) -> None:
        """Turn the loop until one more answer has come."""
        before = len(self.found)
        while len(self.found) == before:
            self.loop._turn()

    def _done(self, found: Sampled) -> None:
        self.found.append(found)


def test_one_ask_at_a_time() -> None:
    """A second order meanwhile shows nothing; the loop goes on."""
    with chatting() as server:
        caller = Asks(learnt(server), server)
        caller.begin()
        caller.begin()
        assert [one["verdict"] for one in caller.found] == [SampleVerdict.NONE]
        caller.turn()
        caller.begin()
        caller.turn()

    assert [one["verdict"] for one in caller.found[1:]] == [SampleVerdict.RIGHT] * 2
    caller.loop.close()


def test_a_defect_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ours, not of the server."""

    def broken(*_: Any, **__: Any) -> Sampled:
        raise RuntimeError("ours")

    monkeypatch.setattr(golden_asks, "asked", broken)
    with chatting() as server:
        caller = Asks(learnt(server), server)
        caller.begin()
        caller.turn()

    assert caller.found[0]["verdict"] == SampleVerdict.NONE
    assert "ours" in caller.found[0]["reason"]
    caller.loop.close()


def test_without_a_golden_sample_there_is_no_verdict() -> None:
    """As of a replica on another type of device."""
    caller = Asks(None, Server(1, None, is_shared=False))
    caller.begin()

    assert caller.found[0]["verdict"] == SampleVerdict.NONE
    caller.loop.close()
