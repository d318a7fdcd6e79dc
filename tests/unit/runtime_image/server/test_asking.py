"""Hostile answers to a golden sample: each has an end, small memory, and a verdict."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from runtime_image.contract.samples import GoldenPlan, GoldenSample, SampleRequest, SampleVerdict
from runtime_image.contract.server import ServerSpec
from runtime_image.server import asking
from runtime_image.server.connecting import Server
from runtime_image.server.golden.answers import read_answer
from runtime_image.server.golden.png import SIGNATURE
from runtime_image.server.golden.rules import learn
from runtime_image.server.golden_asks import asked
from runtime_image.server.trial import learn_golden
from tests.support.golden import chunk, head

TICK_S = 0.001
MIB = 2**20
MEMORY_MAX = 40 * MIB
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
COUNT = 3


def completion(*logprobs: object) -> bytes:
    """Return a completion of as many tokens."""
    said = {"tokens": ["a"] * len(logprobs), "token_logprobs": logprobs}
    return json.dumps({"choices": [{"text": "a", "logprobs": said}]}).encode()


def whole(body: bytes, head: bytes = JSON) -> list[bytes]:
    """Return an answer with a length."""
    return [head + b"Content-Length: %d\r\n\r\n" % len(body) + body]


def picture(content: bytes, width: int = 1024, height: int = 1024) -> bytes:
    """Return an answer that is a PNG file with these compressed rows."""
    data = SIGNATURE + head(width, height) + chunk(b"IDAT", zlib.compress(content, 1))
    return json.dumps({"data": [{"b64_json": base64.b64encode(data).decode()}]}).encode()


RIGHT = completion(*[-0.5] * COUNT)
SAMPLE = learn(
    SampleRequest("/v1/completions", "POST", body="{}"),
    [read_answer(200, "application/json", RIGHT)] * 3,
    (1.0, 1.0, 1.0),
)


@contextmanager
def serving(answer: list[bytes] | Iterator[bytes], *, is_slow: bool = False) -> Iterator[Server]:
    """A server that sends these pieces to each client until it leaves; `is_slow`: a byte at a
    time."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            while True:
                peer, _ = listener.accept()
                with closing(peer), suppress(OSError):
                    if not peer.recv(65536):
                        return
                    for piece in answer:
                        if is_slow and has_left(peer):
                            break
                        peer.sendall(piece)
                    peer.shutdown(socket.SHUT_WR)
                    while peer.recv(65536):
                        pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Server(port, None, is_shared=False)
        finally:
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join()


def has_left(peer: socket.socket) -> bool:
    """Wait a moment for the end of a connection."""
    peer.settimeout(TICK_S)
    try:
        return not peer.recv(1)
    except TimeoutError:
        return False


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A golden sample counts as not answered after 0.3 s."""
    monkeypatch.setattr("runtime_image.contract.samples.LIMIT_S", 0.3)


ENDLESS: dict[str, Any] = {
    "a status line": repeat(b"HTTP/1.1 200 " + b"a" * 65536),
    "a head": iter([JSON, *repeat(b"X: y\r\n", 1_000_000)]),
    "a field": iter([JSON + b"X: ", *repeat(b"y" * 65536, 1000)]),
    "interim heads": repeat(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a size of a chunk": iter(
        [JSON + b"Transfer-Encoding: chunked\r\n\r\n", *repeat(b"1" * 65536, 99)]
    ),
    "no chunk": [JSON + b"Transfer-Encoding: chunked\r\n\r\n" + b"F" * 9 + b"\r\n"],
    "a wrong chunk": [JSON + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n"],
    "trailers": iter(
        [JSON + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", *repeat(b"X: y\r\n", 1_000_000)]
    ),
    "a body": iter([JSON + b"\r\n", *repeat(b"[" * 65536, 100_000)]),
    "a length": [JSON + b"Content-Length: 99999999999\r\n\r\n{}"],
}


@pytest.mark.parametrize("name", ENDLESS)
def test_an_answer_without_an_end_is_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up in time, or over its most bytes."""
    monkeypatch.setattr("runtime_image.contract.samples.LIMIT_S", 3.0)
    monkeypatch.setattr(asking, "ANSWER_MAX", 16 * MIB)
    with serving(ENDLESS[name]) as server:
        verdict, reason, peak = ask(SAMPLE, server)

    assert verdict == SampleVerdict.NO_ANSWER, reason
    assert peak < MEMORY_MAX


@pytest.mark.usefixtures("limit")
def test_a_byte_at_a_time_is_no_answer_in_time() -> None:
    """Each byte is in time, their end is not."""
    pieces = (bytes([one]) for one in whole(RIGHT + b" " * 100_000)[0])
    with serving(pieces, is_slow=True) as server:
        verdict, reason, _ = ask(SAMPLE, server)

    assert verdict == SampleVerdict.NO_ANSWER
    assert reason.startswith("POST /v1/completions: expected an answer, got")


DEEP = b"[" * 100_000 + b"]" * 100_000
MANY = completion(*[-0.5] * 1_000_000)
TOP = b'{"choices": [{"text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": [%b]}}]}'
WRONG: dict[str, list[bytes]] = {
    "a redirect": whole(RIGHT, b"HTTP/1.1 302 Found\r\nLocation: /v1/completions\r\n"),
    "another type": whole(RIGHT, b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"),
    "a long type": whole(RIGHT, b"HTTP/1.1 200 OK\r\nContent-Type: " + b"a" * 60_000 + b"\r\n"),
    "compressed": whole(gzip.compress(RIGHT), JSON + b"Content-Encoding: gzip\r\n"),
    "a bomb": whole(gzip.compress(bytes(100 * MIB), 9), JSON + b"Content-Encoding: gzip\r\n"),
    "NaN": whole(TOP % b"NaN"),
    "infinity": whole(TOP % b"-Infinity"),
    "over infinity": whole(TOP % b"-1e999"),
    "a huge number": whole(TOP % b"-1e308"),
    "a long number": whole(TOP % (b"-0." + b"3" * 4 * MIB)),
    "a long whole number": whole(TOP % (b"-" + b"3" * 4 * MIB)),
    "positive": whole(completion(*[1e300] * COUNT)),
    "a million numbers": whole(MANY),
    "nested": whole(DEEP),
    "nested within": whole(TOP % (b"[" * 40_000 + b"]" * 40_000)),
    "a negative count": whole(
        b'{"usage": {"prompt_tokens": -5}, ' + TOP[1:] % b"null, -0.5",
    ),
    "a huge count": whole(
        b'{"usage": {"prompt_tokens": %b}, ' % (b"9" * 4000) + TOP[1:] % b"null, -0.5",
    ),
    "no text": whole(b"\xff\xfe" * MIB),
    "a picture": whole(picture(bytes(1024 * 3073))),
    "a large picture": whole(picture(bytes(200 * MIB), 2**31 - 1, 2**31 - 1)),
    "a picture's bomb": whole(picture(bytes(200 * MIB))),
    "nothing": whole(b""),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_hostile_answer_is_wrong(name: str) -> None:
    """Nothing is unpacked or followed, and what is built has bounds."""
    with serving(WRONG[name]) as server:
        verdict, reason, peak = ask(SAMPLE, server)

    assert verdict == SampleVerdict.WRONG
    assert 0 < len(reason) <= 500
    assert peak < MEMORY_MAX


@pytest.mark.parametrize("name", ["nested", "a million numbers", "compressed", "a picture's bomb"])
def test_a_right_answer_after_a_hostile_one_is_right(name: str) -> None:
    """So one wrong answer ends no healthy server: a second one is asked for."""
    answers = iter([WRONG[name][0], *whole(RIGHT)])
    with serving(OneEach(answers)) as server:
        first, _, _ = ask(SAMPLE, server)
        second, reason, _ = ask(SAMPLE, server)

    assert (first, second, reason) == (SampleVerdict.WRONG, SampleVerdict.RIGHT, "")


def test_the_reasons_of_a_trial_are_short() -> None:
    """They are a part of its report, which is one message of at most 1 MiB."""
    with serving([b"\x00" * 60_000 + b"\r\n\r\n"]) as server:
        plan = GoldenPlan(base="/v1", model="m")
        report = learn_golden(ServerSpec("a@1", ("x",), golden_plan=plan), server, Path(), 1e6)

    assert "BadStatusLine" in report["no_golden"]
    assert len(json.dumps(report)) < 10_000


class OneEach:
    """A list of which each client gets one piece."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return iter([next(self._pieces)])


def ask(sample: GoldenSample, server: Server) -> tuple[str, str, int]:
    """Ask; return verdict, reason, and the bytes in use at the highest moment."""
    tracemalloc.start()
    try:
        found = asked(sample, server, Path(), waits=False)
        return found["verdict"], found["reason"], tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
