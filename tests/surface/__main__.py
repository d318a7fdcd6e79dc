"""Command that prints the surface, or with --write saves it to its file."""

from __future__ import annotations

import sys

from tests.surface.document import FILE, document

if "--write" in sys.argv[1:]:
    FILE.write_text(document(), "utf-8")
else:
    sys.stdout.write(document())
