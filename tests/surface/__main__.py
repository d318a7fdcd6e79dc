"""Prints the surface, or with --write puts it into its file."""

from __future__ import annotations

import sys

from tests.surface.document import FILE, document

if "--write" in sys.argv[1:]:
    FILE.write_text(document(), "utf-8")
else:
    sys.stdout.write(document())
