from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from admin.cli.top.terminal import KEYS_MAX, Keys

TYPED = b"q/\r\x7f\x15\x03\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[4~\x1b[1;5C "
NAMES = ["q", "/", "enter", "backspace", "clear", "interrupt", "up", "down"]
NAMES += ["page up", "page down", "home", "end", " "]


def test_keys_have_names() -> None:
    """A sequence that nobody knows is none."""
    assert Keys().feed(TYPED) == NAMES


@given(st.lists(st.integers(0, len(TYPED))))
def test_keys_may_come_in_pieces(cuts: list[int]) -> None:
    """Wherever a terminal or a network splits them."""
    keys, at = Keys(), [0, *sorted(cuts), len(TYPED)]

    found = [key for a, b in itertools.pairwise(at) for key in keys.feed(TYPED[a:b])]

    assert found == NAMES


def test_escape_alone_is_known_by_what_does_not_follow() -> None:
    """Or by what follows and is no sequence."""
    keys = Keys()

    assert keys.feed(b"\x1b") == []
    assert keys.flush() == ["escape"]
    assert keys.flush() == []
    assert keys.feed(b"\x1bw") == ["escape", "w"]


@given(st.binary(max_size=400))
def test_any_bytes_are_keys_or_nothing(data: bytes) -> None:
    """And never more than a reader would type."""
    found = Keys().feed(data)

    assert len(found) <= KEYS_MAX
    assert all(key.isprintable() for key in found)
