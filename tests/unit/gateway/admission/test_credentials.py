"""Tests of what a request brings to say who sends it."""

from __future__ import annotations

import pytest

from gateway.admission.credentials import (
    DIRECT,
    Credential,
    Realm,
    bearer_of,
    passed_on_by,
    read_credential,
)

HEADERS = {
    "Authorization": "Bearer fn_a",
    "Fn-Key": "fn_b",
    "Cookie": "fngate=x",
    "Via": "1.1 edge",
}


@pytest.mark.parametrize(
    ("authorization", "secret"),
    [
        (None, None),
        ("", ""),
        ("Bearer", ""),
        ("Bearer ", ""),
        ("Basic fn_key", ""),
        ("fn_key", ""),
        ("Bearer fn_key", "fn_key"),
        ("bearer  fn_key ", "fn_key"),
    ],
)
def test_only_a_bearer_key_is_a_key(authorization: str | None, secret: str | None) -> None:
    """The scheme counts in any case, and spaces around the key do not (RFC 9110, 11.1)."""
    assert bearer_of(authorization) == secret


@pytest.mark.parametrize(
    ("host", "names", "passed_on"),
    [
        ("127.0.0.1:8080", ["Host", "Accept", "X-Request-Id", "Origin"], ""),
        ("[::1]", [], ""),
        ("web.localhost:8080", [], ""),
        (None, ["user-agent"], ""),
        ("localhost", ["Accept", "forwarded"], "forwarded"),
        ("localhost", ["X-Forwarded-For"], "X-Forwarded-For"),
        ("localhost", ["x-forwarded-made-up"], "x-forwarded-made-up"),
        ("localhost", ["X-REAL-IP"], "X-REAL-IP"),
        (None, ["via"], "via"),
        ("gpu.example", [], "Host: gpu.example"),
        ("localhost.example", [], "Host: localhost.example"),
        ("", [], "Host: "),
    ],
)
def test_what_shows_a_proxy(host: str | None, names: list[str], passed_on: str) -> None:
    """The fields that proxies add, in any case, and a host that is not of loopback."""
    assert passed_on_by(host, names) == passed_on


def test_a_realm_reads_the_fields_that_count_there() -> None:
    """Fn-Key, cookies and the keys of a protocol are for requests that go on to a server."""
    read = read_credential(HEADERS.get, "localhost", HEADERS, Realm.SERVERS, ("fn_c",))

    assert read == Credential("fn_a", "fn_b", ("fn_c",), b"fngate=x", "Via")
    assert read.secrets == {"fn_a", "fn_b", "fn_c"}
    for realm in (Realm.CALLS, Realm.ADMIN):
        other = read_credential(HEADERS.get, "localhost", HEADERS, realm)
        assert other == Credential("fn_a", passed_on="Via")
    assert read_credential({}.get, None, ()) == DIRECT
