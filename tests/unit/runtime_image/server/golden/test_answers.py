"""What is read from a stranger's answer."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest

from runtime_image.contract.samples import PROMPT_MAX, TOKENS_MAX, VECTOR_MAX, Picture
from runtime_image.server.golden.answers import BODY_MAX, PARTS_MAX, read_answer
from runtime_image.server.golden.png import SIGNATURE
from tests.support.golden import chunk, head, png

JSON = "application/json"
HUGE = SIGNATURE + head(8192, 8192) + chunk(b"IDAT", zlib.compress(bytes(2**20)))
CHAT = {
    "choices": [
        {
            "message": {"content": "one two"},
            "logprobs": {
                "content": [
                    {
                        "token": "one",
                        "logprob": -0.5,
                        "top_logprobs": [{"token": "one", "logprob": -0.5}],
                    },
                    {"token": " two", "logprob": -1, "top_logprobs": None},
                ]
            },
        }
    ],
    "prompt_logprobs": [
        None,
        {"17": {"logprob": -2.0, "decoded_token": "a"}, "3": {"logprob": -1.0}},
    ],
}
ECHO = {
    "choices": [
        {
            "text": "a b one",
            "logprobs": {
                "tokens": ["a", " b", " one"],
                "token_logprobs": [None, -2.5, -0.25],
                "top_logprobs": [None, {" b": -2.5}, {" one": -0.25, " 1": -3}],
            },
        }
    ],
    "usage": {"prompt_tokens": 2},
}


def read(document: Any, status: int = 200) -> Any:
    """Read a JSON document."""
    return read_answer(status, f"{JSON}; charset=utf-8", json.dumps(document).encode())


def test_a_chat_has_tokens_and_a_prompt() -> None:
    """As vLLM and llama.cpp answer: each prompt's first member is the token's own."""
    found = read(CHAT)

    assert (found.status, found.content_type) == (200, JSON)
    assert (found.tokens, found.token_logprobs) == (("one", " two"), (-0.5, -1.0))
    assert found.alternatives == ({"one": -0.5}, {})
    assert (found.prompt, found.text) == ((-2.0,), "one two")


def test_an_echoed_completion_is_cut_where_the_prompt_ends() -> None:
    """Its first token has no logarithm."""
    found = read(ECHO)

    assert (found.prompt, found.token_logprobs) == ((-2.5,), (-0.25,))
    assert (found.tokens, found.alternatives) == ((" one",), ({" one": -0.25, " 1": -3.0},))


def test_a_completion_without_echo_has_only_tokens() -> None:
    """A server may ignore `echo`."""
    plain = {"tokens": ["one"], "token_logprobs": [-0.25], "top_logprobs": None}
    found = read({"choices": [{"text": "one", "logprobs": plain}], "usage": {"prompt_tokens": 9}})

    assert (found.prompt, found.tokens, found.token_logprobs) == ((), ("one",), (-0.25,))


def test_embeddings_and_pictures_are_read() -> None:
    """Of a list the first item; a picture plain or in base64."""
    picture = png(2, 1, bytes([1, 2, 3, 4, 5, 6]))
    encoded = base64.b64encode(picture).decode()

    assert read({"data": [{"embedding": [1, -0.5]}]}).vector == (1.0, -0.5)
    pixels = Picture(2, 1, 3, base64.b64encode(bytes([1, 4, 2, 5, 3, 6])).decode())
    assert read({"data": [{"b64_json": encoded}]}).pixels == pixels
    assert read_answer(200, "image/png", picture).pixels == pixels


def test_a_large_picture_has_some_of_its_pixels() -> None:
    """1024 x 1024, of which every 65th is compared: they lie in all columns and rows."""
    side, found = 1024, {}
    for place in (0, 65, 64, 65 * 16_000):
        samples = bytearray(side * side * 3)
        samples[3 * place + 1] = 9
        body = png(side, side, bytes(samples))
        found[place] = read_answer(200, "image/png", body).pixels
        encoded = base64.b64encode(body).decode()
        assert read({"data": [{"b64_json": encoded}]}).pixels == found[place]

    kept = {place: base64.b64decode(one.samples) for place, one in found.items() if one}
    assert {len(one) for one in kept.values()} == {3 * 16_132}
    greens = {place: one.find(9) - 16_132 for place, one in kept.items()}
    assert greens == {0: 0, 65: 1, 64: -16_133, 65 * 16_000: 16_000}


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"choices": {}},
        {"choices": [3]},
        {"choices": [{"logprobs": {"content": [{"token": "a", "logprob": True}]}}]},
        {"choices": [{"logprobs": {"content": [{"token": "a", "logprob": 10**400}]}}]},
        {"choices": [{"logprobs": {"tokens": [], "token_logprobs": [-1]}}]},
        {"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": [None]}}]},
        {"choices": [{"prompt_logprobs": [None, {}]}]},
        {"choices": [{"prompt_logprobs": [None, {"1": {"logprob": "x"}}]}]},
        {"data": [{"embedding": ["x"]}]},
        {"data": [{"embedding": [0.5] * (VECTOR_MAX + 1)}]},
        {"data": [{"b64_json": "AAAA"}]},
        {"data": [{"b64_json": "\u00e9"}]},
        {"data": [{"b64_json": base64.b64encode(HUGE).decode()}]},
    ],
)
def test_other_forms_are_left_out(document: Any) -> None:
    """Nothing in them is trusted, and nothing raises."""
    found = read(document)

    assert (found.prompt, found.token_logprobs, found.vector, found.pixels) == ((), (), (), None)
    assert found.digest


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices": [{"text": "a", "x": NaN',
        b"[" * 5000,
        b'{"choices": [{"text": "a"}], "x": [' + b"1," * PARTS_MAX + b"1]}",
        (b'{"choices": [{"text": "' + b"a" * BODY_MAX + b'"}]}')[:BODY_MAX],
        b'{"a":' * 49_000,
        b"9" * BODY_MAX,
        b"\xff\xfe",
    ],
)
def test_what_is_too_large_or_broken_is_not_parsed(body: bytes) -> None:
    """Only its bytes can be compared."""
    found = read_answer(200, JSON, body)

    assert found.text == ""
    assert len(found.digest) == 64


def test_long_answers_are_cut() -> None:
    """What is kept of a sample has bounds of its own."""
    token = {"token": "a" * 1000, "logprob": -1.0}
    long = {
        "choices": [{"message": {"content": "x" * 9000}, "logprobs": {"content": [token] * 900}}],
        "prompt_logprobs": [None, *[{"1": {"logprob": -1}}] * 3000],
    }
    found = read(long)

    assert (len(found.tokens), len(found.prompt)) == (TOKENS_MAX, PROMPT_MAX)
    assert (len(found.text), len(found.tokens[0])) == (4096, 100)
