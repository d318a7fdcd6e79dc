"""Tests of what invoking reads of a head."""

from __future__ import annotations

import pytest

from gateway.http.head import Head, make_head
from registry.errors import BadRequest
from runtime_image.link.meta import RequestMeta


def head(ref: str = "digits", **headers: str) -> Head:
    """A head with these headers; names with _ for -."""
    named = {name.replace("_", "-").lower(): value for name, value in headers.items()}
    return make_head(ref, "localhost", lambda name: named.get(name.lower()))


def test_the_name_is_the_ref_without_its_revision() -> None:
    """digits@3 is a revision of digits."""
    assert (head("digits@3").name, head("digits").name) == ("digits", "digits")


def test_what_travels_to_the_replica() -> None:
    """Three headers, empty where they are not there."""
    full = head(content_type="a/b", accept="c/d", inference_header_content_length="7")
    assert full.meta() == RequestMeta("a/b", "c/d", 7, "")
    assert head().meta() == RequestMeta("", "", -1, "")


@pytest.mark.parametrize("length", ["-1", "x", "9" * 12, "1 "])
def test_a_length_that_is_none(length: str) -> None:
    """The error names the header and what came."""
    with pytest.raises(BadRequest, match="Inference-Header-Content-Length: expected a number"):
        head(inference_header_content_length=length).meta()
