"""Tests of the gateway's own pages on a function's host."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from gateway.pages.entering import (
    CLOSED_HEADERS,
    ENTER_HEADERS,
    ENTER_PAGE,
    LEAVE_HEADERS,
    LEAVE_PAGE,
    PATH_MAX,
    check_entering,
    check_path,
    closed_page,
    is_ours,
)
from registry.errors import BadRequest, ForeignOrigin


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/.fngate", True),
        (b"/.fngate/", True),
        (b"/.fngate/enter", True),
        (b"/.fngate/x/../../y", True),
        (b"/.fngate?x", True),
        (b"/.fngatex", False),
        (b"/%2efngate/enter", False),
        (b"//.fngate/enter", False),
        (b"/x/.fngate/enter", False),
        (b"/", False),
        (b"/fn/web/.fngate", False),
    ],
)
def test_the_gateways_own_paths(path: bytes, expected: bool) -> None:
    """As they are sent: everything else is the function's server's."""
    assert is_ours(path) is expected


@pytest.mark.parametrize(
    ("page", "headers"), [(ENTER_PAGE, ENTER_HEADERS), (LEAVE_PAGE, LEAVE_HEADERS)]
)
def test_a_page_runs_its_own_script_only(page: bytes, headers: dict[str, str]) -> None:
    """The policy names the digest of the one script, and allows nothing else but its request."""
    policy = headers["Content-Security-Policy"]
    (script,) = re.findall(rb"<script>(.*)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()

    assert policy.split("; ") == [
        "default-src 'none'",
        f"script-src 'sha256-{digest}'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    for one in (headers, CLOSED_HEADERS):
        assert one["Cache-Control"] == "no-store"
        assert one["Referrer-Policy"] == "no-referrer"
    assert "script-src" not in CLOSED_HEADERS["Content-Security-Policy"]


def test_the_page_for_a_missing_key_names_the_command() -> None:
    """A visitor learns how to get in."""
    assert b"<code>fnctl open jupyter</code>" in closed_page("jupyter")
    assert b"<b>" not in closed_page("<b>")


@pytest.mark.parametrize("path", ["/", "/lab?reset", "/a//b", "/%2F%00", "/x#y", "/" + "a" * 2047])
def test_a_path_to_open(path: str) -> None:
    """Anything on the function's host."""
    assert check_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        *("", "lab", "//evil.example", "/\\evil.example", "/a\\b", "/a b", "/a\nb", "/\x00", "/ä"),
        *("https://evil.example", "javascript:1", "/.fngate/enter", "/" + "a" * PATH_MAX),
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    """Other hosts, and the page that takes tickets."""
    with pytest.raises(BadRequest, match="path: expected a path"):
        check_path(path)


@pytest.mark.parametrize(
    ("origin", "site", "is_secure"),
    [
        ("http://web.localhost:8080", None, False),
        ("http://web.localhost:8080", "same-origin", False),
        ("https://WEB.localhost:8080", "same-origin", True),
    ],
)
def test_a_ticket_comes_from_the_page_of_its_host(
    origin: str, site: str | None, is_secure: bool
) -> None:
    """The origin's scheme decides about the cookie's name."""
    assert check_entering(origin, site, "web.localhost:8080") is is_secure


@pytest.mark.parametrize(
    ("origin", "site"),
    [
        (None, None),
        ("null", None),
        ("", None),
        ("http://localhost:8080", "same-site"),
        ("http://other.localhost:8080", None),
        ("http://web.localhost:8080", "same-site"),
        ("http://web.localhost:8080", "cross-site"),
        ("http://web.localhost:8080", "none"),
    ],
)
def test_a_ticket_from_elsewhere_is_refused(origin: str | None, site: str | None) -> None:
    """Nobody else signs a visitor in, and a form of another page does not either."""
    with pytest.raises(ForeignOrigin):
        check_entering(origin, site, "web.localhost:8080")
