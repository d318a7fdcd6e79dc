"""Facts that only a running server shows, from the committed text of the public surface.

`tests/test_surface.py` compares that text with a server; reading it here takes no second.
"""

from __future__ import annotations

from tests.surface.document import FILE


def section(name: str) -> list[str]:
    """The lines of one section of the surface."""
    _, found, rest = FILE.read_text("utf-8").partition(f"\n[{name}]\n")
    if not found:
        raise ValueError(f"the surface has no section {name}")
    return rest.partition("\n\n")[0].splitlines()
