"""The documentation site builds without a warning and loads nothing from other hosts."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.links import FENCE

ROOT = Path(__file__).parent.parent
CONFIGURATION = (ROOT / "mkdocs.yml").read_text("utf-8")
PAGES = sorted((ROOT / "docs").rglob("*.md"))
ITEM = re.compile(r"(?:[-*+]|\d+\.) ")
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""Elements and attributes whose target a browser fetches by itself."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built in a temporary folder."""
    if importlib.util.find_spec("zensical") is None:
        if os.environ.get("FN_CI"):
            pytest.fail("zensical is missing: .ci/run installs the extra docs")
        pytest.skip("zensical is missing: make docs installs it")
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    shutil.copytree(ROOT / "docs", folder / "docs")
    command = [Path(sys.executable).with_name("zensical"), "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, re.sub(r"\x1b\[[\d;]*m", "", done.stdout)
    return folder / "site"


def test_fonts_are_the_systems() -> None:
    """No web font is configured, and a page has a light and a dark scheme."""
    assert "  font: false\n" in CONFIGURATION
    assert {"default", "slate"} <= {*re.findall(r"scheme: (\w+)", CONFIGURATION)}


def test_every_page_is_built(built: Path) -> None:
    """Each document below docs/ is a page of the site."""
    documents = {path.relative_to(ROOT / "docs") for path in PAGES}

    assert [one for one in documents if not (built / one.with_suffix(".html")).exists()] == []


def test_the_site_loads_nothing_from_other_hosts(built: Path) -> None:
    """Scripts, styles, fonts and images are files of the site."""
    pages, styles = [*built.rglob("*.html")], [*built.rglob("*.css")]
    outside = {url for page in pages for url in loaded(page) if "//" in url}
    outside |= {
        url
        for style in styles
        for url in re.findall(
            r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]+)", style.read_text()
        )
    }

    assert outside == set()
    assert pages
    assert styles


def test_no_page_is_drawn_by_a_script() -> None:
    """Diagrams are files, because the theme would fetch Mermaid from another host."""
    assert [page.name for page in PAGES if "```mermaid" in page.read_text("utf-8")] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_list_is_one_on_the_site_too(path: Path) -> None:
    """GitHub starts a list anywhere; the site needs an empty line before it."""
    lines = FENCE.sub("", path.read_text("utf-8")).splitlines()
    glued = [
        line
        for before, line in pairwise(lines)
        if ITEM.match(line)
        and before.strip()
        and not (ITEM.match(before) or re.match(r"\s|[#>|]", before))
    ]

    assert glued == []


def loaded(page: Path) -> list[str]:
    """Return the addresses that a browser fetches to show a page."""
    found = []

    class Elements(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            url = dict(attrs).get(LOADED.get(tag, ""))
            if url and dict(attrs).get("rel") not in ("canonical", "next", "prev"):
                found.append(url)

    Elements().feed(page.read_text("utf-8"))
    return found
