"""Documents for readers: form, and commands that a test runs or that state why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from registry.errors import BadManifest
from registry.manifest.document import parse_manifest
from tests.support.document_runs import ROOT, documents
from tests.support.documents import PROMPT, blocks, steps

README = ROOT / "README.md"
LINES_MAX = 200
COLUMNS_MAX = 120
MANIFESTS_MIN = 7
RUN_MIN = 100
"""Min number of commands and files that are run in all documents; fewer means some were lost by
mistake."""


def name(path: Path) -> str:
    """Return a document's path in the repository."""
    return path.relative_to(ROOT).as_posix()


def wide_lines(text: str) -> list[str]:
    """Return lines over the limit, except tables, output and addresses, which cannot be broken."""
    output = {
        number
        for block in blocks(text)
        for number, line in enumerate(block.lines, block.line + 2)
        if not line.startswith(PROMPT)
    }
    return [
        line
        for number, line in enumerate(text.split("\n"), 1)
        if len(line) > COLUMNS_MAX and number not in output and not line.startswith(("|", "["))
    ]


@pytest.mark.parametrize("path", documents(), ids=name)
def test_every_command_is_run_or_says_why_not(path: Path) -> None:
    """A block with commands is ```console and run, or the comment above states why it is not."""
    found = blocks(path.read_text("utf-8"))

    assert [block.line + 1 for block in found if block.is_unexplained] == []
    assert [
        b.line + 1 for b in found if b.kind in {"not run", "file", "measured"} and not b.argument
    ] == []


@pytest.mark.parametrize("path", documents(), ids=name)
def test_lines_are_short(path: Path) -> None:
    """Text and commands fit into 120 columns."""
    assert wide_lines(path.read_text("utf-8")) == []


def test_every_whole_manifest_of_a_server_is_accepted() -> None:
    """A function.toml of a server that a document shows whole is one that a deploy accepts."""
    shown = [
        (f"{name(path)}:{block.line + 1}", "\n".join(block.lines))
        for path in documents()
        for block in blocks(path.read_text("utf-8"))
        if {"schema = 1", "[server]"} <= {*block.lines}
    ]
    refused = {}
    for where, text in shown:
        try:
            parse_manifest(text, ["app.py"])
        except BadManifest as error:
            refused[where] = str(error)

    assert len(shown) >= MANIFESTS_MIN
    assert refused == {}


@pytest.mark.parametrize("path", sorted(ROOT.glob("functions/*/function.toml")), ids=name)
def test_every_example_is_accepted(path: Path) -> None:
    """Each folder of functions/ has a manifest that a deploy accepts, under the folder's name, and
    a README.md that begins with the name."""
    folder = path.parent
    files = [one.relative_to(folder).as_posix() for one in folder.rglob("*") if one.is_file()]

    assert parse_manifest(path.read_text("utf-8"), files).name == folder.name
    assert (folder / "README.md").read_text("utf-8").startswith(f"# {folder.name}\n")


def test_most_commands_are_run() -> None:
    """The list of commands is not empty by mistake."""
    assert sum(len(steps(path.read_text("utf-8"))) for path in documents()) >= RUN_MIN


def test_the_readme_is_short_and_in_order() -> None:
    """README.md begins with what fngate is; the sections follow in the order that readers need."""
    text = README.read_text("utf-8")
    order = [
        "# fngate",
        "dashboard-dark.png",
        "<!-- comparison -->",
        "$ make run",
        "$ make test",
        "$ curl -s http://127.0.0.1:8080/fn/",
        "$ fnctl deploy",
        "$ fnctl serve --driver docker",
        "CHANGELOG.md",
        "(LICENSE)",
    ]

    places = [text.find(part) for part in order]

    assert min(places) >= 0
    assert places == sorted(places)
    assert len(text.splitlines()) <= LINES_MAX


def test_the_start_page_names_every_page() -> None:
    """docs/index.md links to each tutorial and guide."""
    text = (ROOT / "docs" / "index.md").read_text("utf-8")
    linked = set(re.findall(r"\]\(([\w/-]+\.md)", text))
    pages = {name(path).removeprefix("docs/") for path in documents()}
    named = {page for page in pages if page.startswith(("tutorials/", "guides/"))}

    assert len(named) >= 10
    assert named <= linked
