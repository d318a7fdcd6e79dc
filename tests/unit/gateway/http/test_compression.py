"""Tests of compressing answers."""

from __future__ import annotations

import asyncio
import gzip
import random
import threading
import zlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from gateway.http.compression import (
    IN_LOOP_MAX,
    SIZE_MIN,
    STEP,
    Deflater,
    compressed,
    requested_coding,
)
from gateway.http.decompression import Inflation, inflating_threads
from gateway.replies import Reply
from runtime_image.contract.link import Kind
from runtime_image.link.meta import pack_answer, unpack_answer
from tests.support.peers import ANSWER, Peer

if TYPE_CHECKING:
    from tests.unit.gateway.http.conftest import Front

TEXT = b"[0.25, 1.5, 3.125, 0.75], " * (5 * STEP // 52)
INFER = "/v2/models/digits/infer"


@pytest.mark.parametrize(
    ("values", "coding"),
    [
        ([], ""),
        ([""], ""),
        (["identity"], ""),
        (["gzip"], "gzip"),
        ([" Deflate "], "deflate"),
        (["gzip;q=0.5, identity;q=0"], "gzip"),
        (["gzip", "identity"], "gzip"),
        (["gzip, gzip"], "gzip"),
        (["deflate; q=1.0, gzip;q=0.000"], "deflate"),
        (["gzip, deflate"], ""),
        (["gzip", "deflate"], ""),
        (["gzip, deflate, br, zstd"], ""),
        (["*"], ""),
        (["gzip, *"], ""),
        (["br"], ""),
        (["gzip;q=0"], ""),
        (["gzip;q="], ""),
        ([",;=;,"], ""),
    ],
)
def test_only_one_named_coding_asks_for_compression(values: list[str], coding: str) -> None:
    """Several codings are the default of HTTP libraries and ask for nothing."""
    assert requested_coding(values) == coding


@pytest.mark.parametrize("size", [0, 1, STEP, len(TEXT)])
def test_both_codings_can_be_read(size: int) -> None:
    """Bodies are encoded in steps; deflate has zlib's wrapper (RFC 9110, 8.4.1.2)."""
    for encoding, read in (("gzip", gzip.decompress), ("deflate", zlib.decompress)):
        deflater, pieces = Deflater(memoryview(TEXT[:size]), encoding), []
        while not deflater.is_done:
            pieces.append(deflater.step())
        assert len(pieces) == max(1, -(-size // STEP))
        assert read(b"".join(pieces)) == TEXT[:size]


@pytest.fixture
async def inflation() -> AsyncIterator[Inflation]:
    """Threads of the test's own."""
    inflation = Inflation(inflating_threads())
    yield inflation
    inflation.close()


def reply(body: bytes, status: int = 200) -> Reply:
    return Reply(status, (("Content-Type", "application/json"),), body)


@pytest.mark.parametrize("size", [SIZE_MIN, IN_LOOP_MAX, IN_LOOP_MAX + 1])
async def test_answers_are_compressed(inflation: Inflation, size: int) -> None:
    """The coding and what it depends on are named; the other headers stay."""
    _, headers, body, _ = await compressed(reply(TEXT[:size]), "gzip", inflation)
    assert dict(headers) == {
        "Content-Type": "application/json",
        "Content-Encoding": "gzip",
        "Vary": "Accept-Encoding",
    }
    assert gzip.decompress(body) == TEXT[:size]


async def test_what_is_not_worth_it_stays(inflation: Inflation) -> None:
    """Short answers, and those that would become longer, have no coding; errors are untouched."""
    noise = random.Random(7).randbytes(IN_LOOP_MAX + 1)
    for body in (TEXT[: SIZE_MIN - 1], b"", noise):
        found = await compressed(reply(body), "deflate", inflation)
        assert found.body == body
        assert ("Vary", "Accept-Encoding") in found.headers
        assert "Content-Encoding" not in dict(found.headers)
    error = reply(TEXT, 500)
    assert await compressed(error, "gzip", inflation) is error


async def test_long_answers_are_compressed_in_threads(
    inflation: Inflation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop encodes short answers only, and each thread takes steps."""
    threads: list[threading.Thread] = []
    step = Deflater.step

    def noted(self: Deflater) -> bytes:
        threads.append(threading.current_thread())
        return step(self)

    monkeypatch.setattr(Deflater, "step", noted)
    await compressed(reply(TEXT[:IN_LOOP_MAX]), "gzip", inflation)
    assert threads == [threading.main_thread()]
    threads.clear()
    await compressed(reply(TEXT), "gzip", inflation)
    assert len(threads) == 3
    assert threading.main_thread() not in threads


def inferring(front: Front, body: bytes, **headers: str) -> asyncio.Task[Any]:
    """Start an inference while the test plays the replica."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return asyncio.create_task(front.ask("POST", INFER, body, named))


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_an_inference_may_be_compressed_both_ways(
    front: Front, peer: Peer, coding: str
) -> None:
    """Replicas get and send plain bodies; the length of the JSON part counts these."""
    packed = gzip.compress(b"{}1234") if coding == "gzip" else zlib.compress(b"{}1234")
    headers = {"Content-Encoding": coding, "Accept-Encoding": coding}
    call = inferring(front, packed, **headers, Inference_Header_Content_Length="2")
    request = await peer.next(Kind.REQUEST)
    octets = pack_answer(unpack_answer(ANSWER)._replace(content_type="application/octet-stream"))
    peer.answer(request.id, b"{}" + TEXT[:5000], aux=2, meta=octets)
    status, _, answered = await call

    assert (status, request.body) == (200, b"{}1234")
    assert answered["Content-Encoding"] == coding
    assert answered["Inference-Header-Content-Length"] == "2"
    assert int(answered["Content-Length"]) < 1000


@pytest.mark.parametrize(
    ("path", "coding"), [(INFER, "gzip, deflate"), ("/fn/digits", "gzip"), (INFER, "identity")]
)
async def test_other_answers_are_not_compressed(
    front: Front, peer: Peer, path: str, coding: str
) -> None:
    """Calls of /fn, and inferences whose client names several codings, get plain answers."""
    call = asyncio.create_task(front.ask("POST", path, b"{}", {"Accept-Encoding": coding}))
    peer.answer((await peer.next(Kind.REQUEST)).id, b"{}" + b" " * 4998)
    status, _, headers = await call

    assert (status, headers["Content-Length"]) == (200, "5000")
    assert not {"Content-Encoding", "Vary"} & headers.keys()
