"""The public surface (used by clients, scripts, data folders and dashboards) changes only on
purpose."""

from __future__ import annotations

import difflib

import pytest

from tests.surface.document import FILE, WRITE, document


@pytest.mark.slow
def test_the_surface_is_as_it_is_written_down() -> None:
    """The text generated from the code equals the committed one."""
    written, now = FILE.read_text("utf-8").splitlines(), document().splitlines()
    changes = difflib.unified_diff(written, now, "written down", "as it is now", n=2, lineterm="")

    shown = "\n".join(changes)

    assert not shown, f"the surface has changed; if that is meant, `{WRITE}`:\n{shown}"
