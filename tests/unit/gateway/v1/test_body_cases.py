"""The table of bodies at /v1, as they are read and written anew."""

from __future__ import annotations

import json

import pytest

from gateway.v1.endpoints import ENDPOINTS
from gateway.v1.scanning import scan
from gateway.v1.writing import upstream_body
from registry.errors import BadRequest
from registry.model.servers import ModelApi
from tests.support.body_cases import SERVED, BodyCase, body_cases
from tests.support.scans import run

CASES = body_cases()
CHAT = ENDPOINTS[b"/chat/completions"]
PASSED = [case for case in CASES if not case.refused]
REFUSED = [case for case in CASES if case.refused]


@pytest.mark.parametrize("case", PASSED, ids=lambda case: case.name)
def test_a_body_that_a_server_may_answer_passes(case: BodyCase) -> None:
    """Its model is found, and nothing but the model's name and the options of a stream changes."""
    found = run(scan(case.body))
    assert (found.model, found.is_stream) == (case.model, case.is_stream)
    as_sent = b"".join(upstream_body(found, CHAT, ModelApi(usage="as_sent")).pieces)
    was, given = (json.loads(one, parse_int=len) for one in (case.body, as_sent))
    assert repr(given) == repr(was)  # NaN is not equal to itself
    sent = b"".join(upstream_body(found, CHAT, ModelApi(served_model=SERVED)).pieces)
    assert sent == case.edited
    assert run(scan(sent)).model == SERVED


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_a_body_without_one_model_is_refused(case: BodyCase) -> None:
    """The refusal says what was expected, in characters that a terminal may show."""
    with pytest.raises(BadRequest) as refusal:
        run(scan(case.body))
    assert case.refused in refusal.value.message
    assert refusal.value.message.isprintable()
    assert (refusal.value.detail or {}).get("param") == case.param


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.is_cut], ids=lambda case: case.name
)
def test_a_body_that_is_cut_anywhere_is_refused(case: BodyCase) -> None:
    """No beginning of a body is a body."""
    for end in range(len(case.body)):
        with pytest.raises(BadRequest, match=r"expected (a JSON object|UTF-8)"):
            run(scan(case.body[:end]))
