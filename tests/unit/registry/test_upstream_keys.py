"""Tests of the keys that the gateway sends to functions' servers."""

from __future__ import annotations

import pytest

from registry.upstream_keys import VALUE_MAX, UpstreamKey, UpstreamKeys, key_of


def test_subscribers_are_told_of_changes_only() -> None:
    """An equal key changes nothing; a removed one is told without its value, once."""
    keys, told = UpstreamKeys(), []
    end = keys.subscribe(lambda key, is_kept: told.append((key, is_kept)))
    one, new = UpstreamKey("k", "a"), UpstreamKey("k", "b")

    for key in (one, UpstreamKey("k", "a"), new):
        keys.put(key)
    assert keys.find("k") == new
    assert (keys.find("other"), keys.find("k", "elsewhere")) == (None, None)
    keys.remove("k")
    keys.remove("k")
    assert told == [(one, True), (new, True), (UpstreamKey("k"), False)]
    assert keys.all() == ()

    end()
    keys.put(one)
    assert len(told) == 3


def test_no_text_has_a_value() -> None:
    """Whatever is logged of a key does not tell it."""
    key = key_of("k", "s3cret")

    assert key.value == "s3cret"
    assert "s3cret" not in f"{key} {key!r} {UpstreamKeys()!r}"


@pytest.mark.parametrize("value", ["sk-1", "!~" * (VALUE_MAX // 2)])
def test_visible_characters_are_a_key(value: str) -> None:
    """Any of them, up to the limit."""
    assert key_of("k", value) == UpstreamKey("k", value)


@pytest.mark.parametrize(
    "value", ["", "a b", "a\r\nX-Evil: 1", "a\n", "é", "\x7f", "a\t", "x" * 4097]
)
def test_what_no_header_may_have_is_no_key(value: str) -> None:
    """It would change the request's head. The problem does not quote it."""
    key = key_of("k", value)

    assert key.value == ""
    assert key.problem == (
        "secret k is no key: expected 1 to 4096 visible ASCII characters without spaces"
    )
