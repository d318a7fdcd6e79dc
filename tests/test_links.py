"""Links of all documents. Web addresses of other hosts are not requested."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.links import targets, wrong

ROOT = Path(__file__).parent.parent
PLACES = ("*.md", "docs/**/*.md", "functions/*/README.md", "benchmarks/**/*.md", "*/**/design.md")
DOCUMENTS = sorted(
    {
        path
        for place in PLACES
        for path in ROOT.glob(place)
        if not {".venv", "node_modules"} & {*path.parts}
    }
)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_link_is_dead(path: Path) -> None:
    """Relative links name existing files and headings; all others are web addresses."""
    found = {one: wrong(path, one, ROOT) for one in targets(path.read_text("utf-8"))}

    assert {one: why for one, why in found.items() if why} == {}


def test_the_documents_are_found() -> None:
    """The list of documents is not empty by mistake."""
    names = {path.relative_to(ROOT).as_posix() for path in DOCUMENTS}

    assert {"README.md", "ARCHITECTURE.md", "docs/upgrade.md", "benchmarks/README.md"} <= names


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A small repository: README.md, and a page of the site with headings."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# Top\n\n## A & b\n")
    text = "# Page\n\n## `FN_PORT`\n\n## A & b\n\n## Same\n\n## Same\n\n```\n## No heading\n```\n"
    (tmp_path / "docs" / "page.md").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("docs/page.md", ""),
        ("docs/page.md#fn_port", ""),
        ("docs/page.md#same-1", ""),
        ("docs/page.md#a--b", ""),
        ("#top", ""),
        ("docs/page.md#no-heading", "no such heading"),
        ("docs/none.md", "no such file"),
        ("/docs/page.md", "an absolute path"),
        ("https://example.org/a#b", ""),
        ("https://nowhere", "no web address"),
        ("ftp://example.org", "the scheme ftp"),
        ("mailto:a@example.org", ""),
    ],
)
def test_a_link_of_a_document(site: Path, target: str, why: str) -> None:
    """A link is checked by file and by heading, by GitHub's rule."""
    assert wrong(site / "README.md", target, site) == why


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("page.md#fn_port", ""),
        ("page.md#a--b", "no such heading"),
        ("page.md#a-b", "no such heading"),
        ("page.md#same-1", "no such heading"),
        ("../README.md", "the site has no such page: name the file in `code`"),
    ],
)
def test_a_link_of_a_page(site: Path, target: str, why: str) -> None:
    """An anchor between pages of the site must exist on GitHub and on the site."""
    assert wrong(site / "docs" / "page.md", target, site) == why


def test_links_inside_code_are_none() -> None:
    """Links in code blocks, inline code and comments are ignored; those of images, references and
    HTML are not."""
    text = (
        "[a](a.md) `[b](b.md)` ![c](c.svg)\n\n```sh\n[d](d.md)\n```\n<!-- [e](e.md) -->\n"
        '[f]: f.md\n<img src="g.png">\n[![h](h.svg)](i.md "title")\n'
    )

    assert list(targets(text)) == ["a.md", "c.svg", "f.md", "g.png", "h.svg", "i.md"]
