"""Which answers may be sent again from a template."""

from __future__ import annotations

import pytest

from gateway.proxy.known_answers import is_repeatable
from gateway.proxy.response_head import parse_response_head


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"Date: x", True),
        (b"X-Location: http://127.0.0.1:8000/x", True),
        (b"Location: http://127.0.0.1:8000/x", False),
        (b"content-location: /x", False),
    ],
)
def test_answers_with_urls_are_not_repeated(line: bytes, expected: bool) -> None:
    """The port of another replica would be rewritten, or that of this one would not."""
    head = parse_response_head(b"HTTP/1.1 201 Created\r\n%b\r\n\r\n" % line, b"POST")

    assert is_repeatable(head) is expected
