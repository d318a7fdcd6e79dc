"""Tests of the cookie that stands for a key on a function's own host."""

from __future__ import annotations

import pytest

from gateway.pages.cookies import (
    LIFETIME_S,
    RENEWED_S,
    TRIED_MAX,
    Found,
    Sent,
    find_values,
    forget_cookie,
    make_value,
    read_value,
    renewal,
    set_cookie,
)

SECRET = bytes(range(32))
NOW = 1_800_000_000
VALUE = make_value(SECRET, "0123456789ab", "jupyter", NOW + LIFETIME_S).encode()


def test_a_cookie_stands_for_its_key() -> None:
    """Until it expires, and not in that second."""
    for now in (NOW, NOW + LIFETIME_S - 0.01):
        assert read_value(SECRET, VALUE, "jupyter", now) == Found("0123456789ab", NOW + LIFETIME_S)
    assert read_value(SECRET, VALUE, "jupyter", NOW + LIFETIME_S) is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"..",
        VALUE + b"A",
        VALUE[:-1],
        b"0123456789ac" + VALUE[12:],
        VALUE.replace(b".6b", b".7b", 1),
        VALUE[:-3] + b"A=",
        VALUE.replace(b".", b"\x00", 1),
        b"x" * 10_000,
    ],
)
def test_a_changed_cookie_is_none(value: bytes) -> None:
    """Another key, another time, and anything malformed."""
    assert value != VALUE
    assert read_value(SECRET, value, "jupyter", NOW) is None


def test_a_cookie_is_of_one_function_and_one_secret() -> None:
    """Also between names of which one begins with the other; an empty secret signs nothing."""
    for name in ("other", "jupyte", "jupyter-2", ""):
        assert read_value(SECRET, VALUE, name, NOW) is None
    assert read_value(SECRET[::-1], VALUE, "jupyter", NOW) is None
    empty = make_value(b"", "0123456789ab", "jupyter", NOW + 9).encode()
    assert read_value(b"", empty, "jupyter", NOW) is None


@pytest.mark.parametrize(
    ("cookies", "found"),
    [
        (b"", []),
        (b"a=b; c=d", []),
        (b"fngate=1", [b"1"]),
        (b"a=b;fngate = 1 ; c=fngate", [b"1"]),
        (b"fngate=1; __Host-fngate=2; fngate=3", [b"2", b"1", b"3"]),
        (b"xfngate=1; fngate2=2; FNGATE=3", []),
        (b"fngate", [b""]),
        (b"; ".join([b"fngate=x"] * 100), [b"x"] * TRIED_MAX),
    ],
)
def test_cookies_are_found_by_their_names(cookies: bytes, found: list[bytes]) -> None:
    """The one that only this host can have set comes first, and few are tried."""
    assert [sent.value for sent in find_values(cookies)] == found


def test_their_names_tell_the_scheme() -> None:
    """A cookie is renewed by the name that the browser has it by."""
    found = find_values(b"fngate=1; __Host-fngate=2")
    assert found == [Sent(b"2", is_secure=True), Sent(b"1", is_secure=False)]


def test_the_attributes() -> None:
    """Host-only, unreadable for scripts, and under https with the prefix that enforces it."""
    assert set_cookie("v", is_secure=False) == (
        "fngate=v; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax"
    )
    assert set_cookie("v", is_secure=True) == (
        "__Host-fngate=v; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax; Secure"
    )
    assert forget_cookie(is_secure=True) == (
        "__Host-fngate=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax; Secure"
    )
    assert forget_cookie(is_secure=False) == "fngate=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax"


@pytest.mark.parametrize("is_secure", [False, True])
def test_a_cookie_is_renewed_by_its_use(is_secure: bool) -> None:
    """In its last six hours, for the same key and function, from then on."""
    found, due_s = Found("0123456789ab", NOW), NOW - RENEWED_S
    for early in (NOW - LIFETIME_S, due_s):
        assert renewal(SECRET, found, "jupyter", early, is_secure=is_secure) == ""
    for now in (due_s + 0.5, NOW - 0.5):
        value = make_value(SECRET, "0123456789ab", "jupyter", int(now) + LIFETIME_S)
        expected = set_cookie(value, is_secure=is_secure)
        assert renewal(SECRET, found, "jupyter", now, is_secure=is_secure) == expected
