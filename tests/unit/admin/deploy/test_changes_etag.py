"""Tags of a function's settings."""

from __future__ import annotations

import pytest

from admin.deploy.changes import check_match, etag
from registry.errors import FnError, PreconditionFailed, PreconditionRequired
from registry.model import Scaling
from tests.support.nouns import function

TAG = etag(function())


def test_a_tag_is_as_lasting_as_what_it_names() -> None:
    """The same for the same; another for other settings and for other traffic."""
    assert etag(function()) == TAG
    assert TAG[0] == TAG[-1] == '"'
    assert len({TAG, etag(function(scaling=Scaling(1))), etag(function(revision=2))}) == 3


@pytest.mark.parametrize("header", [TAG, "*", f'"a", {TAG}', f"W/{TAG} , {TAG}"])
def test_a_match_may_be_one_of_several_or_any(header: str) -> None:
    """What RFC 9110 allows in If-Match."""
    check_match(header, function())


@pytest.mark.parametrize(
    ("header", "error", "text"),
    [
        (None, PreconditionRequired, "needs the header If-Match"),
        ("", PreconditionFailed, "digits has changed since it was read"),
        (f"W/{TAG}", PreconditionFailed, f"expected If-Match {TAG}, got W/"),
        (TAG.strip('"'), PreconditionFailed, "expected If-Match"),
    ],
)
def test_another_tag_is_none(header: str | None, error: type[FnError], text: str) -> None:
    """No tag, a weak one, one without its quotes: each is told with what was expected."""
    with pytest.raises(error) as refused:
        check_match(header, function())

    assert text in refused.value.message
