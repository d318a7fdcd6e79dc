"""Framing of bodies: the same end and the same content, however the bytes arrive."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.proxy.fields import Malformed
from gateway.proxy.framing import LAST_CHUNK, ChunkedBody, Data, LengthBody, encode_chunk
from tests.support.doses import amount
from tests.support.odd_http import chunked, odd_answer

contents = st.binary(max_size=400)
cuts = st.lists(st.integers(1, 40), max_size=60)


def pieces(raw: bytes, sizes: list[int]) -> Iterator[bytes]:
    """Return `raw` in pieces of these sizes, the rest at once."""
    for size in sizes:
        yield raw[:size]
        raw = raw[size:]
    yield raw


def feed_pieces(framer: ChunkedBody | LengthBody, parts: Iterator[bytes]) -> tuple[int, bytes]:
    """Return the bytes that belong to the body, and its content. Raises Malformed."""
    taken, content = 0, list[Data]()
    for part in parts:
        count = framer.feed(part, content)
        taken += count
        if count < len(part):
            assert framer.is_complete
            break
    return taken, b"".join(content)


@given(seed=st.integers(), content=contents, rest=st.binary(max_size=20), sizes=cuts)
@settings(max_examples=amount(200, 2000), deadline=None)
def test_chunks_are_framed_however_they_arrive(
    seed: int, content: bytes, rest: bytes, sizes: list[int]
) -> None:
    """The body ends before the bytes of the next message."""
    raw = chunked(Random(seed), content)

    assert feed_pieces(ChunkedBody(), pieces(raw + rest, sizes)) == (len(raw), content)


@given(content=contents, rest=st.binary(max_size=20), sizes=cuts)
@settings(max_examples=amount(100, 2000), deadline=None)
def test_lengths_are_framed_however_they_arrive(
    content: bytes, rest: bytes, sizes: list[int]
) -> None:
    """The body ends before the bytes of the next message."""
    framer = LengthBody(len(content))

    assert feed_pieces(framer, pieces(content + rest, sizes)) == (len(content), content)
    assert framer.is_complete


@given(parts=st.lists(contents, max_size=8))
@settings(max_examples=amount(100, 2000), deadline=None)
def test_encoded_chunks_are_decoded(parts: list[bytes]) -> None:
    """Encoding and framing are inverse."""
    raw = b"".join(map(encode_chunk, parts)) + LAST_CHUNK

    assert feed_pieces(ChunkedBody(), iter([raw])) == (len(raw), b"".join(parts))


def verdict(raw: bytes, sizes: list[int]) -> tuple[int, bytes] | None:
    """Return the end and content of a chunked body that arrives in pieces, None if malformed."""
    framer = ChunkedBody()
    try:
        found = feed_pieces(framer, pieces(raw, sizes))
    except Malformed:
        return None
    return found if framer.is_complete else None


@given(seed=st.integers(), noise=st.binary(max_size=4), at=st.integers(0, 600), sizes=cuts)
@settings(max_examples=amount(400, 4_000), deadline=None)
def test_cuts_do_not_change_the_verdict(seed: int, noise: bytes, at: int, sizes: list[int]) -> None:
    """Malformed bodies are refused at any cut of the reads, and accepted ones are the same."""
    random = Random(seed)
    raw = odd_answer(random, "t")[0].partition(b"\r\n\r\n")[2][:1000]
    raw = raw if random.random() < 0.5 else chunked(random, b"hello world" * random.randrange(9))
    raw = raw[:at] + noise + raw[at + len(noise) * random.randrange(2) :]

    whole = verdict(raw, [])
    assert verdict(raw, sizes) == whole
    assert verdict(raw, [1] * len(raw)) == whole
