"""The navigation of the site: the end of mkdocs.yml, written from the pages that are there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

MARK: Final = "\n# Below: written by `make reference`, in the order of docs/index.md.\n"
FOLDERS: Final = {
    "Tutorials": "tutorials",
    "How-to guides": "guides",
    "Reference": "reference",
    "Explanation": "explanation",
}


def configuration(text: str, docs: Path, generated: Iterable[Path]) -> str:
    """mkdocs.yml with the navigation of the pages below `docs`; `generated` are pages that may not
    be written yet. Raises ValueError where `text` has no MARK, or a page no section."""
    head, mark, _ = text.partition(MARK)
    if not mark:
        raise ValueError(f"mkdocs.yml has no line {MARK.strip()!r}")
    made = [path.relative_to(docs).as_posix() for path in generated]
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    return f"{head}{mark}{_navigation(pages.union(made), [*_order(docs / 'index.md'), *made])}"


def _navigation(pages: set[str], order: list[str]) -> str:
    def rank(page: str) -> tuple[bool, int, str]:
        place = order.index(page) if page in order else len(order)
        return not page.endswith("/index.md"), place, page

    tops = {*FOLDERS.values()}
    lost = sorted(one for one in pages if "/" in one and one.partition("/")[0] not in tops)
    if lost:
        raise ValueError(f"{', '.join(lost)} is in no section of the site")
    lines = ["nav:"]
    lines += ["  - Home: index.md"] if "index.md" in pages else []
    for title, folder in FOLDERS.items():
        inside = sorted((one for one in pages if one.startswith(f"{folder}/")), key=rank)
        lines += [f"  - {title}:", *(f"      - {one}" for one in inside)] if inside else []
    lines += [
        f"  - {_title(one)}: {one}" for one in sorted(pages) if "/" not in one and one != "index.md"
    ]
    return "\n".join(lines) + "\n"


def _title(page: str) -> str:
    return page.removesuffix(".md").replace("-", " ").capitalize()


def _order(index: Path) -> list[str]:
    """The pages that a start page links to, in its order."""
    text = index.read_text("utf-8") if index.exists() else ""
    return re.findall(r"\]\(([\w./-]+\.md)", text)
