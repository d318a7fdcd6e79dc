"""Tests of the error classes."""

from __future__ import annotations

from collections.abc import Iterator

from registry import errors
from registry.errors import FnError


def tree(root: type[FnError]) -> Iterator[type[FnError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


def test_codes_are_distinct() -> None:
    """No two error classes share a code, because clients identify errors by it."""
    codes = [error.code for error in tree(FnError)]

    assert len(set(codes)) == len(codes)


def test_the_fields_of_an_error() -> None:
    """Message, estimate and both details are kept as given, and are empty by default."""
    bare = errors.QueueFull("full")
    full = errors.QueueFull("full", retry_after_s=2, detail={"a": 1}, admin_detail={"b": 2})

    assert (
        str(bare),
        bare.message,
        bare.retry_after_s,
        bare.detail,
        bare.admin_detail,
    ) == ("full", "full", None, {}, {})
    assert (full.retry_after_s, full.detail, full.admin_detail) == (2, {"a": 1}, {"b": 2})
