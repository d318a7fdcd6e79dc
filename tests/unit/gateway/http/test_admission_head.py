"""Tests of what invoking reads of a head."""

from __future__ import annotations

import pytest

from gateway.http.admission import NOT_CORRELATED, Correlation, Head, correlate, make_head
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


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("given", "kept"),
    [("a", "a"), ("A.b-3_c", "A.b-3_c"), ("x" * 128, "x" * 128), ("x" * 129, "")]
    + [(bad, "") for bad in ("", "a b", "a/b", "a\r\nb", "\u00e4", "a\n", '"a"')],
)
def test_a_request_id_that_may_stand_anywhere_is_kept(given: str, kept: str) -> None:
    """In headers, in JSON, in lines of logs."""
    named = {"X-Request-Id": given}
    assert correlate(named.get) == Correlation(kept, "")


def test_a_trace_is_kept_if_it_is_one() -> None:
    """Beside an id or alone."""
    assert correlate({"traceparent": PARENT}.get) == Correlation("", PARENT)
    both = {"traceparent": "nonsense", "X-Request-Id": "a"}
    assert correlate(both.get) == Correlation("a", "")


def test_most_requests_are_not_correlated() -> None:
    """One object for all of them."""
    assert correlate({"Accept": "a/b"}.get) is NOT_CORRELATED
