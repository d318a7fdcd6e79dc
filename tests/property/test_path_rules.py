"""Path rules: matching agrees with a plain definition, and no spelling avoids a denied path."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from registry.errors import FnError
from registry.model.servers import PathRules
from registry.path_rules import CompiledPaths, matches, normalise, parse_rule
from tests.support.doses import amount

words = st.text("ab/", max_size=6)
patterns = st.lists(words, min_size=1, max_size=4).map("*".join)
paths = st.text("ab/", max_size=10).map(lambda text: re.sub("//+", "/", "/" + text).encode())
odd_paths = st.lists(
    st.sampled_from(["/", "a", "b", ".", "..", ";", ";x", "%2e", "%61", "%2F", "%25", "//", "%"]),
    max_size=8,
).map(lambda parts: ("/" + "".join(parts)).encode())


@given(pattern=patterns, path=paths)
@settings(max_examples=amount(300, 4_000), deadline=None)
def test_matching_agrees_with_a_regular_expression(pattern: str, path: bytes) -> None:
    """`*` is any characters, everything else is itself."""
    text = "/" + re.sub("//+", "/", pattern).lstrip("/")
    expected = re.fullmatch(".*".join(map(re.escape, text.split("*"))), path.decode(), re.DOTALL)

    assert matches(parse_rule(text), b"GET", path) is (expected is not None)


@given(path=odd_paths)
@settings(max_examples=amount(300, 4_000), deadline=None)
def test_normalised_paths_are_plain(path: bytes) -> None:
    """No empty segment, no dot segment and no parameter is left."""
    for cuts in (True, False):
        segments = normalise(path, cuts_parameters=cuts).split(b"/")
        assert segments[0] == b""
        assert not {b"", b".", b".."} & {*segments[1:-1]}
        assert segments[-1] not in (b".", b"..")
        assert not cuts or b";" not in b"".join(segments)


def readings(path: bytes) -> set[bytes]:
    """Return what servers of several kinds take a path for."""
    found = {path}
    for _ in range(3):
        found |= {re.sub(rb";[^/]*", b"", one) for one in found}
        found |= {re.sub(rb"//+", b"/", one) for one in found}
        found |= {one.replace(b"%61", b"a").replace(b"%2F", b"/") for one in found}
        found |= {re.sub(rb"\A//+[^/]*", b"", one) or b"/" for one in found}
        found |= {one.replace(b"%2e", b".").replace(b"%25", b"%") for one in found}
        found |= {re.sub(rb"/\.(?=/|$)", b"", one) for one in found}
        found |= {re.sub(rb"/[^/]+/\.\.(?=/|$)", b"", one, count=1) for one in found}
    return found


@given(path=odd_paths, tail=st.sampled_from([b"", b"/", b"/x"]))
@settings(max_examples=amount(400, 4_000), deadline=None)
def test_no_spelling_avoids_a_denied_path(path: bytes, tail: bytes) -> None:
    """What any kind of server takes for a denied path is denied or refused."""
    denied = CompiledPaths(PathRules(deny=("/a", "/b/*")))
    try:
        denied.judge(b"GET", path + tail)
    except FnError:
        return
    for reading in readings(path + tail):
        assert reading not in (b"/a", b"/a/")
        assert not reading.startswith(b"/b/")


@given(path=odd_paths, tail=st.sampled_from([b"", b"/", b"/x"]))
@settings(max_examples=amount(400, 4_000), deadline=None)
def test_no_spelling_avoids_a_slot(path: bytes, tail: bytes) -> None:
    """What is free is taken for something else by no kind of server."""
    free = CompiledPaths(PathRules(free=("/b", "/b/*")))
    if free.judge(b"GET", path + tail).is_free:
        for reading in readings(path + tail):
            plain = normalise(reading, cuts_parameters=False)
            assert plain == b"/b" or plain.startswith(b"/b/")
