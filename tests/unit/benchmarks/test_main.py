"""Command line of the benchmarks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks import suite
from benchmarks.__main__ import main

FOLDER = Path(suite.__file__).parent


def test_every_benchmark_has_its_name() -> None:
    """The names that `make bench` runs are those of the modules."""
    assert sorted(suite.NAMES) == sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))


@pytest.mark.parametrize("name", suite.NAMES)
def test_every_benchmark_says_what_it_measures(name: str) -> None:
    """Each module's docstring is its headline, `measure` builds its tables, and the README explains
    it."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text())

    assert ast.get_docstring(tree)
    assert "measure" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert f"`{name}`" in (FOLDER.parent / "README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["plain", "plane"], "got 'plane'"),
        (["--rounds", "0"], "expected 1 to 1000, got '0'"),
        (["--rounds", "many"], "got 'many'"),
    ],
)
def test_bad_words_are_refused_before_anything_runs(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An invalid argument is refused with the expected and the actual value before anything
    runs."""
    with pytest.raises(SystemExit) as end:
        main(arguments)

    assert end.value.code == 2
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert captured.out == ""
