"""The public surface (used by clients, scripts, data folders and dashboards) changes only on
purpose."""

from __future__ import annotations

import difflib

import pytest

from tests.surface import wire
from tests.surface.document import FILE, WRITE, document


@pytest.mark.slow
def test_the_surface_is_as_it_is_written_down() -> None:
    """The text generated from the code equals the committed one."""
    written, now = FILE.read_text("utf-8").splitlines(), document().splitlines()
    changes = difflib.unified_diff(written, now, "written down", "as it is now", n=2, lineterm="")

    shown = "\n".join(changes)

    assert not shown, f"the surface has changed; if that is meant, `{WRITE}`:\n{shown}"


def test_messages_of_gateways_change_with_their_version() -> None:
    """The messages of this version are those that were written down for it."""
    wire.check_version(FILE.read_text("utf-8"), "\n".join(wire.gateways()))


@pytest.mark.parametrize(
    ("before", "after", "is_refused"),
    [
        ("1 aa", "1 aa", False),
        ("1 aa", "1 bb", True),
        ("1 aa", "2 bb", False),
        ("1 aa", "2 aa", False),
    ],
)
def test_another_shape_needs_another_version(before: str, after: str, is_refused: bool) -> None:
    """A digest belongs to one version; `make surface` refuses to write another one for it."""
    surfaces = [f"[gateways]\n{wire.PROTOCOL} {one}\nmore" for one in (before, after)]
    if not is_refused:
        wire.check_version(*surfaces)
        return
    with pytest.raises(ValueError, match=r"raise VERSION in admin/workers/messages\.py"):
        wire.check_version(*surfaces)
