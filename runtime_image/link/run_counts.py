"""Body of a PONG: successful runs of a replica by the rows of their batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from runtime_image.contract.link import RUN_COUNT, RUN_NUMBER_MAX, RUN_SIZES_MAX
from runtime_image.link.frames import LinkError


class RunCount(NamedTuple):
    """Successful runs with `rows` rows, 0 for all sizes without an entry of their own, and their
    total nanoseconds."""

    rows: int
    runs: int
    input_ns: int
    infer_ns: int
    output_ns: int


def pack_runs(counts: Iterable[RunCount]) -> bytes:
    """Encode the body; entries by rising rows, numbers up to RUN_NUMBER_MAX."""
    return b"".join([RUN_COUNT.pack(*one) for one in counts])


def unpack_runs(data: bytes | bytearray) -> list[RunCount]:
    """Parse the body. Raises LinkError unless its entries are complete, in order and in range."""
    if len(data) % RUN_COUNT.size or len(data) > RUN_COUNT.size * (RUN_SIZES_MAX + 1):
        raise LinkError(f"malformed PONG: {len(data)} bytes")
    counts = [RunCount(*numbers) for numbers in RUN_COUNT.iter_unpack(data)]
    before = -1
    for one in counts:
        if one.rows <= before:
            raise LinkError(f"malformed PONG: {one.rows} rows after {before}")
        if not one.runs or max(one[1:]) > RUN_NUMBER_MAX:
            raise LinkError(f"malformed PONG: numbers {one[1:]} of {one.rows} rows")
        before = one.rows
    return counts
