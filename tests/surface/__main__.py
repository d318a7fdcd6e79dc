"""Command that prints the surface, or with --write saves it to its file."""

from __future__ import annotations

import sys

from tests.surface import wire
from tests.surface.document import FILE, document

if "--write" in sys.argv[1:]:
    written = document()
    wire.check_version(FILE.read_text("utf-8"), written)
    FILE.write_text(written, "utf-8")
else:
    sys.stdout.write(document())
