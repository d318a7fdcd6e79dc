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
from gateway.v1.multipart import form_type, scan_multipart
from gateway.v1.scanning import scan
from gateway.v1.writing import upstream_body
from registry.errors import BadRequest
from registry.model.servers import ModelApi
from tests.support.doses import amount
from tests.support.form_readers import fields_of, is_like_model, names_of
from tests.support.odd_bodies import (
    MODEL,
    OddBody,
    client_form,
    form_models_of,
    models_of,
    mutated,
    odd_form,
    odd_json,
)
from tests.support.scans import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SERVED = ModelApi(served_model="served/model")
AS_SENT = ModelApi(usage="as_sent")
CHAT = ENDPOINTS[b"/chat/completions"]
AUDIO = ENDPOINTS[b"/audio/transcriptions"]


def _kind(text: str) -> str:
    """Return the beginning of a refusal, which a terminal may show."""
    assert text.isprintable()
    return text[:40]


def test_json_bodies() -> None:
    """A body that passes is JSON with the model that the gateway has found, for readers that take
    the last of repeated members. What is written for its server has that model alone, in every
    reading, and all other members as they were."""
    told: Counter[str] = Counter()
    for number in range(amount(6_000, 100_000)):
        body = odd_json(Random(f"json/{number}"))
        try:
            scanned = run(scan(body))
        except BadRequest as error:
            told[_kind(error.message)] += 1
            continue
        told["passed"] += 1
        as_sent = b"".join(upstream_body(scanned, CHAT, AS_SENT).pieces)
        sent = b"".join(upstream_body(scanned, CHAT, SERVED).pieces)
        assert models_of(as_sent) == {scanned.model}, number
        assert models_of(sent) == {SERVED.served_model}, number
        was, same, given = (
            json.loads(one, parse_int=len, parse_constant=str) for one in (body, as_sent, sent)
        )
        assert same == was, number
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
        begin, end = scanned.place
        sent = b"".join(upstream_body(scanned, AUDIO, SERVED).pieces)
        assert sent == body[:begin] + SERVED.served_model.encode() + body[end:], number
        assert form_models_of(body, kind) == [scanned.model], number
        assert form_models_of(sent, kind) == [SERVED.served_model], number
    assert told["passed"] > told.total() / 8
    assert len(told) > 8


def _read_alike(form: OddBody) -> str:
    """Return the model that the gateway finds in a form, and check that no other reader finds
    another one. Raises BadRequest for a form that the gateway refuses."""
    body, kind = form
    scanned = run(scan_multipart(body, kind))
    sent_type = form_type(kind)
    named = []
    for field in fields_of(body, sent_type.boundary):
        names = names_of(field.disposition)
        if names == {"model"}:
            named.append(field.value)
        else:
            assert not any(map(is_like_model, names)), field
    begin, end = scanned.place
    assert named == [body[begin:end]] == [scanned.model.encode()]
    assert form_models_of(body, sent_type.field()) == [scanned.model]
    return scanned.model


def test_forms_of_clients() -> None:
    """What clients write passes, and each reader finds the model that the gateway has found."""
    for number in range(amount(1_500, 50_000)):
        assert _read_alike(client_form(Random(f"client/{number}"))) == MODEL, number


REASONS = (
    *("Content-Type: expected", "Content-Type of model: expected", "Content-Disposition: expected"),
    *("Content-Transfer-Encoding of model: expected", "_charset_: expected", "model: expected"),
    *(
        "expected no member like `model`",
        "expected parameters as in RFC 9110",
        "the body: expected",
    ),
)
"""How refusals begin."""


def test_mutated_forms_of_clients() -> None:
    """A form that is spoilt is read alike by all readers, or refused for a stated reason."""
    told: Counter[str] = Counter()
    for number in range(amount(1_500, 50_000)):
        random = Random(f"mutated/{number}")
        form = mutated(random, client_form(random))
        try:
            _read_alike(form)
        except BadRequest as error:
            told[next(one for one in REASONS if error.message.startswith(one))] += 1
        else:
            told["passed"] += 1
    assert told["passed"] > told.total() / 8
    assert len(told) > 5
