"""Tests of the search for smuggling: without a gateway in between, it finds everything."""

from __future__ import annotations

from random import Random

import pytest

from tests.chaos.fuzzed_servers import Scene, batch
from tests.chaos.ledger import Ledger
from tests.support import faulty_server
from tests.support.odd_http import odd_answer, odd_request, smuggled, token, tokens

COUNT = 80


def test_only_whole_tokens_count() -> None:
    """A token is found with its connection's number, a changed one is none."""
    own = token(17, 2).encode()

    assert list(tokens(b"x" + own + b"y" + smuggled(token(3, 0)))) == [(17, False), (3, True)]
    assert list(tokens(own.replace(b"k17", b"k1"))) == []


def test_equal_seeds_give_equal_messages() -> None:
    """A printed seed repeats the messages, and most messages differ."""
    requests = [odd_request(Random(seed), "t") for seed in range(200)]
    answers = [odd_answer(Random(seed), "t") for seed in range(200)]

    assert requests == [odd_request(Random(seed), "t") for seed in range(200)]
    assert answers == [odd_answer(Random(seed), "t") for seed in range(200)]
    assert len(set(requests)) > 150
    assert len({data for data, _ in answers}) > 150


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_a_proxy_that_forwards_everything_is_caught() -> None:
    """Where every byte reaches the server and the client, the scenario reports malformed and
    smuggled requests, and answers that are no HTTP."""
    with faulty_server.running("--prefix", "/fn/web") as port:
        scene = Scene(port, 1, Ledger("no gateway"), answer_s=0.5)
        await batch(scene, scene.requests, range(COUNT))
        await batch(scene, scene.answers, range(COUNT))

    found = "\n".join(scene.ledger.violations)
    assert "malformed request" in found
    assert "smuggled" in found
    assert "no HTTP" in found
