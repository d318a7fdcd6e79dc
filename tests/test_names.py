"""Documents name only settings, verbs and metrics that exist, and each of these is documented in
the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from admin.cli.main import app
from admin.settings import Settings
from registry.manifest.schema import Document
from tests.reference.manifest import TABLES
from tests.reference.markdown import described
from tests.reference.recorded import section
from tests.support.families import families

ROOT = Path(__file__).parent.parent
SETTINGS = described(Settings)
KEYS = {
    f"{kind.__name__}.{name}": text
    for kind in (Document, *(table for _, table in TABLES.values()))
    for name, text in described(kind).items()
}
OTHERS = {*section("variables"), "FN_CI", "FN_FULL", "FN_TEST_TORCH_PYTHON"}
VARIABLES = OTHERS | {f"FN_{name.upper()}" for name in SETTINGS}
METRICS = {one.name for one in families()} | {name for one in families() for name in one.samples}
VERBS = {*typer.main.get_group(app).commands}
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md")),
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name != "upgrade.md"),
]
"""Documents about the present version; the others name things of earlier versions."""


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_documented(name: str) -> None:
    """The string below a field is its documentation."""
    assert SETTINGS[name].endswith(".")


@pytest.mark.parametrize("name", KEYS)
def test_every_manifest_key_is_documented(name: str) -> None:
    """The string below a field is its documentation."""
    assert KEYS[name].endswith(".")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_names_only_existing_things(path: Path) -> None:
    """Variables, metrics and verbs in a document exist; the reference lists all of them."""
    text = path.read_text("utf-8")
    variables = {*re.findall(r"\bFN_[A-Z_]*[A-Z]\b(?![*…])", text)}
    metrics = {*re.findall(r"\bfngate_[a-z_]*[a-z]\b(?![*…])", text)}
    commands = {*re.findall(r"(?:`|\$ )fnctl (?:--[\w-]+ [^\s`]+ )?([a-z]+)", text)}

    assert variables - VARIABLES == set()
    assert metrics - METRICS == set()
    assert commands - VERBS == set()


def test_names_are_found() -> None:
    """The lists above are not empty by mistake."""
    assert len(METRICS) >= 35
    assert len(VERBS) >= 10
    assert len(VARIABLES) >= 30
    assert len(DOCUMENTS) >= 5
