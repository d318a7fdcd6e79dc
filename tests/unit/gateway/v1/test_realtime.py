"""Tests of the heads of requests to /v1/realtime."""

from __future__ import annotations

import pytest

from gateway.v1.realtime import PARAMETERS_MAX, Offered, find_model, split_offer
from gateway.v1.scanning import MODEL_MAX
from registry.errors import BadRequest


@pytest.mark.parametrize(
    ("value", "keys", "others"),
    [
        (b"", (), ()),
        (b"realtime", (), (b"realtime",)),
        (
            b"realtime, openai-insecure-api-key.fn_a-B, openai-beta.realtime-v1",
            ("fn_a-B",),
            (b"realtime", b"openai-beta.realtime-v1"),
        ),
        (b"openai-insecure-api-key.a,\topenai-insecure-api-key.b", ("a", "b"), ()),
        (b"OpenAI-Insecure-API-Key.a", ("a",), ()),
        (b"openai-insecure-api-key.", ("",), ()),
        (b"openai-insecure-api-key", (), (b"openai-insecure-api-key",)),
        (b" , realtime ,, ", (), (b"realtime",)),
    ],
)
def test_offers(value: bytes, keys: tuple[str, ...], others: tuple[bytes, ...]) -> None:
    """Keys are taken out of the subprotocols, in whatever case their beginning is."""
    assert split_offer(value) == Offered(keys, others)


@pytest.mark.parametrize(
    ("query", "model", "changed"),
    [
        (b"model=web", "web", b"model=a%2Fb%20c%3A1%26"),
        (b"a=1&model=web&b=%3B", "web", b"a=1&model=a%2Fb%20c%3A1%26&b=%3B"),
        (b"&model=gpt%2Fsmall%3A1&", "gpt/small:1", b"&model=a%2Fb%20c%3A1%26&"),
        (b"%6dodel=web%401", "web@1", b"%6dodel=a%2Fb%20c%3A1%26"),
        (b"model=a=b", "a=b", b"model=a%2Fb%20c%3A1%26"),
        (b"model=%C3%BC+x", "ü x", b"model=a%2Fb%20c%3A1%26"),
        (b"models=1&modelx&model=web", "web", b"models=1&modelx&model=a%2Fb%20c%3A1%26"),
    ],
)
def test_the_model_of_a_query(query: bytes, model: str, changed: bytes) -> None:
    """All else stays as it was sent."""
    found = find_model(query)

    assert found.model == model
    assert found.text("") == query
    assert found.text("a/b c:1&") == changed


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (b"", "expected one model (/v1/realtime?model=NAME), got 0"),
        (b"intent=transcription", "got 0"),
        (b"model=a&model=b", "got 2"),
        (b"model=a&%6dodel=a", "got 2"),
        (b"model", "expected 1 to 256 characters, got 0"),
        (b"model=", "expected 1 to 256 characters, got 0"),
        (b"model=" + b"a" * (MODEL_MAX + 1), "got 257"),
        (b"model=%FF", "expected UTF-8"),
        (b"model=a;model=b", "expected no ;"),
        (b"model=a&x=1;y=2", "expected no ;"),
        (b"model=a&Model=b", "expected no member like `model`"),
        (b"model=a&model[]=b", "expected no member like `model`"),
        (b"a=1&" * PARAMETERS_MAX + b"model=a", "at most 100 parameters"),
    ],
)
def test_queries_that_name_no_model(query: bytes, said: str) -> None:
    """Or that two servers could read differently."""
    with pytest.raises(BadRequest) as caught:
        find_model(query)

    assert said in caught.value.message
