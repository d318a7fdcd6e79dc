"""Tests of decompressing request bodies."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.http.decompression import MEMBERS_MAX, STEP, Inflater, Inflation, encoding_of
from registry.errors import BadRequest, BodyTooLarge, UnsupportedEncoding

TEXT = b"the quick brown fox " * 40_000


def bare(data: bytes) -> bytes:
    """Return deflate data without the zlib wrapper."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def inflated(body: bytes, encoding: str) -> bytes:
    inflater, out = Inflater(body, encoding), b""
    while not inflater.is_done:
        piece = inflater.step()
        assert len(piece) <= STEP
        out += piece
    return out


@pytest.mark.parametrize(
    ("packed", "encoding"),
    [
        (gzip.compress(TEXT), "gzip"),
        (gzip.compress(TEXT[:7]) + gzip.compress(b"") + gzip.compress(TEXT[7:]), "gzip"),
        (zlib.compress(TEXT), "deflate"),
        (bare(TEXT), "deflate"),
        (gzip.compress(TEXT, 0), "gzip"),
    ],
)
def test_both_codings_in_all_their_forms(packed: bytes, encoding: str) -> None:
    """Several gzip members (RFC 1952, 2.2) and deflate with or without zlib wrapper are decoded."""
    assert inflated(packed, encoding) == TEXT


@pytest.mark.parametrize(
    ("packed", "encoding"),
    [
        (b"no gzip", "gzip"),
        (gzip.compress(TEXT)[:-1], "gzip"),
        (gzip.compress(TEXT) + b"more", "gzip"),
        (gzip.compress(b"") * (MEMBERS_MAX + 1), "gzip"),
        (zlib.compress(TEXT)[:-5], "deflate"),
        (bare(TEXT)[:-5], "deflate"),
    ],
)
def test_broken_data_is_refused(packed: bytes, encoding: str) -> None:
    """Truncated data, trailing data and too many members are refused."""
    with pytest.raises(BadRequest, match="the body cannot be read: it"):
        inflated(packed, encoding)


def test_the_names_of_codings() -> None:
    """At most one coding is accepted; its name is case-insensitive."""
    assert [encoding_of(v) for v in ([], [""], ["identity"], ["GZip"], ["deflate"])] == [
        "",
        "",
        "",
        "gzip",
        "deflate",
    ]
    for values in (["br"], ["x-gzip"], ["gzip, gzip"], ["gzip", "gzip"], ["foo"]):
        with pytest.raises(UnsupportedEncoding) as refused:
            encoding_of(values)
        assert refused.value.detail == {"accepted": ["gzip", "deflate"]}


def no_room(_most: int) -> None:
    """Provide no memory: bodies are in buffers."""


async def test_a_bomb_is_inflated_no_further_than_the_limit() -> None:
    """Inflating stops at the limit, and other bodies get their turn between two steps."""
    inflation = Inflation(ThreadPoolExecutor(1))
    counted: list[int] = []
    bomb = gzip.compress(bytes(300 * STEP))
    try:
        with pytest.raises(BodyTooLarge):
            await inflation.inflate(bomb, "gzip", 3 * STEP, counted.append, no_room)
        assert counted == [STEP] * 3

        small = gzip.compress(b"small")
        ends: list[str] = []

        async def one(name: str, body: bytes) -> None:
            await inflation.inflate(body, "gzip", 300 * STEP, lambda _count: None, no_room)
            ends.append(name)

        await asyncio.gather(one("bomb", bomb), one("small", small))
        assert ends == ["small", "bomb"]
    finally:
        inflation.close()


async def test_the_byte_counter_can_stop_inflation() -> None:
    """An error of the counter (no memory for the next piece) ends inflation and reaches the
    caller."""
    inflation = Inflation(ThreadPoolExecutor(1))

    def full(_count: int) -> None:
        raise BadRequest("no room")

    try:
        with pytest.raises(BadRequest, match="no room"):
            await inflation.inflate(gzip.compress(bytes(STEP)), "gzip", STEP, full, no_room)
    finally:
        inflation.close()
