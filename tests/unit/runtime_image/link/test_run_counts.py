"""The body of a PONG, also from hostile replicas."""

from __future__ import annotations

import random

import pytest

from runtime_image.contract.link import RUN_COUNT, RUN_NUMBER_MAX, RUN_SIZES_MAX
from runtime_image.link.frames import LinkError
from runtime_image.link.run_counts import RunCount, pack_runs, unpack_runs

MOST = RUN_NUMBER_MAX


def test_counts_survive_the_link() -> None:
    """What a replica packs is what its manager reads, up to the limits."""
    counts = [RunCount(0, 1, 0, 0, 0), RunCount(2**32 - 1, MOST, MOST, MOST, MOST)]
    assert unpack_runs(pack_runs(counts)) == counts
    assert unpack_runs(b"") == []


HOSTILE = {
    "cut off": pack_runs([RunCount(1, 1, 1, 1, 1)])[:-1],
    "too many": pack_runs([RunCount(rows, 1, 1, 1, 1) for rows in range(RUN_SIZES_MAX + 2)]),
    "twice the same size": pack_runs([RunCount(1, 1, 1, 1, 1)] * 2),
    "falling sizes": pack_runs([RunCount(2, 1, 1, 1, 1), RunCount(1, 1, 1, 1, 1)]),
    "no runs": pack_runs([RunCount(1, 0, 1, 1, 1)]),
    "too many runs": pack_runs([RunCount(1, MOST + 1, 1, 1, 1)]),
    "too long": pack_runs([RunCount(1, 1, 1, 1, 2**64 - 1)]),
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_malformed_body_is_refused(body: bytes) -> None:
    """A replica that breaks the format ends its link, and nothing of it is counted."""
    with pytest.raises(LinkError, match="malformed PONG"):
        unpack_runs(body)


def test_random_bytes_are_refused_or_in_range() -> None:
    """No body makes the parser raise anything but LinkError, or return numbers out of range."""
    chance = random.Random(18)
    for _ in range(2000):
        body = chance.randbytes(RUN_COUNT.size * chance.randrange(4) + chance.choice((0, 0, 1)))
        if chance.random() < 0.5:  # small numbers are more often valid
            body = bytes(byte if place % 8 == 4 else 0 for place, byte in enumerate(body))
        try:
            counts = unpack_runs(body)
        except LinkError:
            continue
        assert all(one.runs and max(one[1:]) <= MOST for one in counts)
