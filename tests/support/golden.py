"""Golden samples, and PNG files by hand for those that are pictures."""

from __future__ import annotations

import struct
import zlib

from registry.builds import DeviceType
from registry.model.hosts import LOCAL_HOST
from registry.model.profiles import Golden
from runtime_image.contract.samples import (
    Answer,
    GoldenPlan,
    GoldenRule,
    GoldenSample,
    SampleRequest,
)
from runtime_image.server.golden.png import SIGNATURE


def chunk(kind: bytes, content: bytes) -> bytes:
    """Return a chunk of a PNG file."""
    return struct.pack(">I", len(content)) + kind + content + bytes(4)


def head(width: int, height: int, *, depth: int = 8, colour: int = 2, interlace: int = 0) -> bytes:
    """Return the first chunk of a PNG file."""
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace))


def png(width: int, height: int, samples: bytes, *, kind: int = 0) -> bytes:
    """Return a PNG file of RGB samples, whose rows have a filter of this kind."""
    stride = 3 * width
    rows, above = bytearray(), bytes(stride)
    for begin in range(0, len(samples), stride):
        row = samples[begin : begin + stride]
        rows.append(kind)
        guessed = (_guess(kind, row, above, i) for i in range(stride)) if kind else bytes(stride)
        rows += bytes((one - guess) % 256 for one, guess in zip(row, guessed, strict=True))
        above = row
    packed = zlib.compress(bytes(rows))
    return SIGNATURE + head(width, height) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def _guess(kind: int, row: bytes, above: bytes, i: int) -> int:
    left = row[i - 3] if i >= 3 else 0
    corner, up = above[i - 3] if i >= 3 else 0, above[i]
    nearest = min((left, up, corner), key=lambda one: abs(left + up - corner - one))
    return (0, left, up, (left + up) // 2, nearest)[kind]


def golden(plan: GoldenPlan | None, host: str = LOCAL_HOST) -> Golden:
    """Return a golden sample that a trial on a CPU slot has learnt."""
    request = SampleRequest("/up", golden=True)
    answer = Answer(200, "text/plain", digest="d" * 64)
    sample = GoldenSample(request, GoldenRule.BYTES, answer, 3.0)
    return Golden(sample, plan or GoldenPlan(request), DeviceType(host))
