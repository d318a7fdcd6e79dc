"""Lists the generated files that are out of date, or with --write writes them."""

from __future__ import annotations

import sys

from tests.reference.documents import outdated, pages

wanted = pages()
for path in outdated(wanted):
    if "--write" in sys.argv[1:]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], "utf-8")
    sys.stdout.write(f"{path}\n")
