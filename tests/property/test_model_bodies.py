"""No server reads another model than the one that the gateway has found in a body to /v1.

Bodies are generated with all that is usual, odd and hostile; Python's own parsers say what they
mean. A body that the gateway passes on means one model to each of them.
"""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import pytest

from gateway.v1.endpoints import ENDPOINTS
from gateway.v1.multipart import scan_multipart
from gateway.v1.scanning import run, scan
from gateway.v1.splicing import upstream_body
from registry.errors import BadRequest
from registry.model import ModelApi
from tests.support.doses import amount
from tests.support.odd_bodies import form_models_of, models_of, odd_form, odd_json

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SERVED = ModelApi(served_model="served/model")
CHAT = ENDPOINTS[b"/chat/completions"]
AUDIO = ENDPOINTS[b"/audio/transcriptions"]


def _kind(text: str) -> str:
    """Return the beginning of a refusal, which a terminal may show."""
    assert text.isprintable()
    return text[:40]


def test_json_bodies() -> None:
    """A body that passes is JSON with the one model, and with the server's name after the splice;
    all other members stay as they are."""
    told: Counter[str] = Counter()
    for number in range(amount(6_000, 100_000)):
        body = odd_json(Random(f"json/{number}"))
        try:
            scanned = run(scan(body))
        except BadRequest as error:
            told[_kind(error.message)] += 1
            continue
        told["passed"] += 1
        sent = upstream_body(body, scanned, CHAT, SERVED).body
        assert models_of(body) == {scanned.model}, number
        assert models_of(sent) == {SERVED.served_model}, number
        was, given = (json.loads(one, parse_int=len, parse_constant=str) for one in (body, sent))
        assert given.pop("model") == SERVED.served_model, number
        assert was.pop("model") == scanned.model, number
        options = was.get("stream_options")
        if scanned.is_stream and (options is None or isinstance(options, dict)):
            was["stream_options"] = {**(options or {}), "include_usage": True}
        assert given == was, number
    assert told["passed"] > told.total() / 8
    assert len(told) > 8


def test_forms() -> None:
    """A body that passes is a form with the one model; only the model's value changes."""
    told: Counter[str] = Counter()
    for number in range(amount(6_000, 100_000)):
        body, kind = odd_form(Random(f"form/{number}"))
        try:
            scanned = run(scan_multipart(body, kind))
        except BadRequest as error:
            told[_kind(error.message)] += 1
            continue
        told["passed"] += 1
        begin, end = scanned.values["model"]
        sent = upstream_body(body, scanned, AUDIO, SERVED).body
        assert sent == body[:begin] + SERVED.served_model.encode() + body[end:], number
        assert form_models_of(body, kind) == [scanned.model], number
        assert form_models_of(sent, kind) == [SERVED.served_model], number
    assert told["passed"] > told.total() / 8
    assert len(told) > 8
