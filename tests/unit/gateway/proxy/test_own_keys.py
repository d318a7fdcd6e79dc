"""Keys of this server are found in the fields of a request, wherever they stand."""

from __future__ import annotations

from base64 import b64encode

import pytest

from gateway.proxy.fields import Fields, parse_fields
from gateway.proxy.own_keys import CANDIDATES_MAX, find_keys

KEY = b"fn_" + b"k" * 43
OTHER = b"fn_" + b"o" * 43
TOKEN = b"a-token-that-somebody-wrote"
KEYS = {KEY.decode(), TOKEN.decode()}


def fields(*lines: bytes) -> Fields:
    """Return the fields of these lines."""
    return parse_fields(b"\r\n".join((*lines, b"", b"")), 0, 200)


def basic(text: bytes) -> bytes:
    """Return the value of a field of the scheme Basic."""
    return b64encode(text).rstrip(b"=")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        *((b"%b: %b" % (name, KEY), KEY) for name in (b"X-Api-Key", b"api-key", b"X-Any", b"x.y")),
        *(
            (b"Authorization: %b%b" % (scheme, KEY), KEY)
            for scheme in (b"Token ", b"bearer  ", b"")
        ),
        (b"Authorization: Basic " + basic(b"u:" + KEY), basic(b"u:" + KEY)),
        (b"Authorization: basic " + basic(KEY + b":"), basic(KEY + b":")),
        (b"Authorization: Basic " + basic(KEY), basic(KEY)),
        (b"Authorization: Basic " + basic(b"u:a:%b." % KEY), basic(b"u:a:%b." % KEY)),
        (b"Authorization: Basic " + basic(b"ab:" + KEY) + b"A", basic(b"ab:" + KEY) + b"A"),
        (b"Authorization: Basic -" + basic(KEY), b"-" + basic(KEY)),
        (b"Authorization: Basic\t" + basic(b"u:" + TOKEN), basic(b"u:" + TOKEN)),
        (b"Authorization: Basic %b= x" % basic(b"u:" + TOKEN), basic(b"u:" + TOKEN) + b"= x"),
        (b"X-Api-Key: " + TOKEN, TOKEN),
        (b"X.Api%Key: " + TOKEN, TOKEN),
        (b"x_api_key: " + TOKEN, TOKEN),
        (b"Authorization: Bearer " + TOKEN, TOKEN),
        (b"Authorization: Basic " + basic(b"u:" + TOKEN), basic(b"u:" + TOKEN)),
        (b"Cookie: a=1; b=%b; c=2" % KEY, KEY),
        (b"Sec-WebSocket-Protocol: chat, key." + KEY, KEY),
        (b"Referer: http://a/?key=%b&b" % KEY, KEY),
        (b"X-Any: fn_fn_%b-x" % KEY, KEY),
        (b"X-Any: %b,%b" % (OTHER, KEY), KEY),
        (b"X-Any: " + OTHER, None),
        (b"X-Any: " + TOKEN, None),
        (b"X-Any: " + KEY[:-1], None),
        (b"X-Api-Key:", None),
        (b"Authorization: Basic ", None),
        (b"Authorization: Basic !", None),
        (b"Authorization: Basic eDp5", None),
    ],
)
def test_what_is_a_key(line: bytes, found: bytes | None) -> None:
    """A valid key in any field, and in one for credentials the admin token in any form; texts that
    only look like keys are the function's."""
    got = find_keys(fields(b"Host: a", line, b"X-B: c"), KEYS.__contains__)

    assert got == (frozenset() if found is None else frozenset({found}))


def test_the_number_of_lookups_is_bounded() -> None:
    """A head full of texts like keys costs no more hashes; no field with one is then forwarded."""
    asked: list[str] = []

    def is_key(text: str) -> bool:
        asked.append(text)
        return False

    most = b" ".join(b"fn_%043d" % number for number in range(CANDIDATES_MAX))
    assert find_keys(fields(b"X-A: " + most), is_key) == frozenset()
    assert len(asked) == CANDIDATES_MAX
    assert find_keys(fields(b"X-A: " + most, b"X-B: " + KEY), is_key) == frozenset({b"fn_"})
    assert find_keys(fields(b"X-A: " + b"fn_" * 10_000), is_key) == frozenset({b"fn_"})
    assert len(asked) == CANDIDATES_MAX


def test_many_texts_hide_no_credential() -> None:
    """With more texts like keys than are looked up, no field for credentials is forwarded either:
    one may hold the admin token, or a key in base64."""
    most = b" ".join(b"fn_%043d" % number for number in range(CANDIDATES_MAX + 1))
    coded = b"Basic " + basic(b"u:" + KEY)

    found = find_keys(fields(b"X-A: " + most, b"Authorization: " + coded), KEYS.__contains__)

    assert any(text in coded for text in found)


def test_usual_credentials_are_far_from_too_many() -> None:
    """A function gets its callers' own credentials, in all the fields that clients use at once."""
    names = (b"Authorization", b"X-Authorization", b"X-Api-Key", b"X-Auth-Token", b"X-Token")
    lines = [b"%b: Basic %b" % (name, b64encode(b"user-%b:word" % name)) for name in names]

    assert find_keys(fields(*lines), KEYS.__contains__) == frozenset()
