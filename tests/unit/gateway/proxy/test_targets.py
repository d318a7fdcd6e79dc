"""Targets of requests to functions."""

from __future__ import annotations

import pytest

from gateway.proxy.fields import parse_fields
from gateway.proxy.targets import (
    FunctionTarget,
    claimed_methods,
    claimed_paths,
    host_target,
    is_description,
    split_target,
)
from registry.errors import BadRequest


def split(target: bytes) -> FunctionTarget:
    """Split a target that belongs to a function."""
    found = split_target(target)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("target", "ref", "prefix", "path", "query", "upstream"),
    [
        (b"/fn/web", "web", b"/fn/web", b"", None, b"/"),
        (b"/fn/web/", "web", b"/fn/web", b"/", None, b"/"),
        (b"/fn/web?a=/b", "web", b"/fn/web", b"", b"a=/b", b"/?a=/b"),
        (b"/fn/web?", "web", b"/fn/web", b"", b"", b"/?"),
        (b"/fn/web/a?b?c", "web", b"/fn/web", b"/a", b"b?c", b"/a?b?c"),
        (b"/fn/web@3/a", "web@3", b"/fn/web@3", b"/a", None, b"/a"),
        (b"/fn/web%403/a", "web@3", b"/fn/web%403", b"/a", None, b"/a"),
        (b"/fn/w-1@12", "w-1@12", b"/fn/w-1@12", b"", None, b"/"),
        (b"/fn/w//a/../%2F%2e;x", "w", b"/fn/w", b"//a/../%2F%2e;x", None, b"//a/../%2F%2e;x"),
        (b"/fn/w/fn/v", "w", b"/fn/w", b"/fn/v", None, b"/fn/v"),
    ],
)
def test_a_target_is_split_after_the_name(
    target: bytes, ref: str, prefix: bytes, path: bytes, query: bytes | None, upstream: bytes
) -> None:
    """What follows the name is not decoded; an empty path becomes `/`, a query is kept."""
    found = split(target)

    assert (found.ref, found.prefix, found.path, found.query) == (ref, prefix, path, query)
    assert found.name == ref.partition("@")[0]
    assert found.upstream == upstream


@pytest.mark.parametrize(
    "target",
    [b"/", b"/fn", b"/fn/", b"/fn//web", b"/fn/?x", b"/FN/web", b"/fnx/web", b"//fn/web", b"/ui/"],
)
def test_other_targets_belong_to_no_function(target: bytes) -> None:
    """Only /fn/NAME does."""
    assert split_target(target) is None


@pytest.mark.parametrize(
    "segment",
    [
        *(b"Web", b"%77eb", b"1web", b"web-", b"web%2Fa", b"web;a", b"web@", b"web@0", b"web@03"),
        *(b"web@3@3", b"web%40", b"web%4003", b"web@1234567890", b".", b"..", b"w" * 64, b"web%20"),
    ],
)
@pytest.mark.parametrize("rest", [b"", b"/a", b"?q"])
def test_other_names_are_refused(segment: bytes, rest: bytes) -> None:
    """The name that is authorised is the name that is routed: nothing is decoded but one @."""
    with pytest.raises(BadRequest, match="/fn/NAME"):
        split_target(b"/fn/" + segment + rest)


def test_the_longest_name_is_accepted() -> None:
    """A name has up to 63 characters."""
    assert split(b"/fn/" + b"w" * 63).name == "w" * 63


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        (b"GET", b"/fn/web", True),
        (b"HEAD", b"/fn/web@3?x", True),
        (b"POST", b"/fn/web", False),
        (b"OPTIONS", b"/fn/web", False),
        (b"GET", b"/fn/web/", False),
        (b"GET", b"/fn/web/a", False),
    ],
)
def test_the_description_is_the_gateways_own(method: bytes, target: bytes, expected: bool) -> None:
    """GET and HEAD of the name itself are not forwarded."""
    assert is_description(method, split(target)) is expected


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", b"/", None),
        (b"/fn/web/x", b"/fn/web/x", None),
        (b"/a?b?c", b"/a", b"b?c"),
        (b"/a%2F..//b?", b"/a%2F..//b", b""),
    ],
)
def test_a_target_on_the_own_host(target: bytes, path: bytes, query: bytes | None) -> None:
    """All of it is the server's, unchanged."""
    found = host_target("web", target)

    assert found == FunctionTarget("web", "web", b"", path, query)
    assert found.upstream == target
    assert found.is_own_host
    assert not split(b"/fn/web/x").is_own_host


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b"", ()),
        (b"X-HTTP-Method-Override: delete\r\n", (b"DELETE",)),
        (
            b"X_HTTP_METHOD_OVERRIDE: PUT\r\nx-http-method: GET, DELETE\r\n",
            (b"PUT", b"GET", b"DELETE"),
        ),
        (b"X-Method-Override: PUT\r\nX-Method-Override: DELETE\r\n", (b"PUT", b"DELETE")),
        (b"X-HTTP-Method-Overrides: PUT\r\nMethod: PUT\r\n", ()),
    ],
)
def test_methods_that_a_request_claims(lines: bytes, expected: tuple[bytes, ...]) -> None:
    """In any case and spelling, all of them."""
    raw = lines + b"\r\n"

    assert claimed_methods(parse_fields(raw, 0, 9)) == expected


@pytest.mark.parametrize(
    "value",
    [
        *(b"/a/b", b"http://h/a/b?c", b"//h/a/b#c", b"http:/a/b", b"HTTP:a/b", b"http:///a/b"),
        *(b"////h/a/b", b"http:h/a/b", b"http:/h/a/b"),
        *(b"/a\t/b", b"ht\ttp://h/a/b", b"\\\\h\\a\\b", b"a/b", b"http://h/fn/web/a/b"),
        *(b"/fn/we%62/a/b", b"http:/fn/web/a/b"),
    ],
)
def test_a_second_path_is_found_in_each_form_of_a_url(value: bytes) -> None:
    """What any kind of server takes for the path is among the paths that are judged."""
    raw = b"Destination: %b\r\n\r\n" % value

    assert b"/a/b" in claimed_paths(parse_fields(raw, 0, 9), b"/fn/web")


def test_only_the_destination_names_a_second_path() -> None:
    """By the name that servers of the CGI family read; a colon within a name is no scheme's."""
    raw = b"X-Destination: /a\r\nDESTINATION: /x:y/b\r\n\r\n"

    assert claimed_paths(parse_fields(raw, 0, 9), b"") == (b"/x:y/b",)
