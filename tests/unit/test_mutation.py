"""Mutants change what decides, and their runs are told apart."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.__main__ import report
from tests.mutation.mutants import all_of, changes, choose, mutated

ROOT = Path(__file__).parents[2]
CORE, DISPATCH = "pool_manager/core", "gateway/dispatch"


def changed(text: str) -> list[str]:
    """What `text` becomes by each of its changes."""
    count = len(list(changes(ast.parse(text))))
    return [ast.unparse(mutated(text, number)) for number in range(count)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a < b", ["a <= b", "a >= b"]),
        ("a is b in c", ["a is not b in c", "a is b not in c"]),
        ("a and b", ["a or b"]),
        ("x if a else y", ["x if not a else y"]),
        ("[a for a in b if not a]", ["[a for a in b if a]"]),
        ("a + b", ["a - b"]),
        ("a -= b", ["a += b"]),
        ("f(True, 2)", ["f(False, 2)", "f(True, 3)", "f(True, 1)"]),
        ("max(a, key=f)", ["min(a, key=f)"]),
        ("def f():\n    return a", ["def f():\n    return None"]),
        ("def f():\n    a.b = c", ["def f():\n    pass"]),
        ("for a in b:\n    continue", []),
        ("def f():\n    a = c\n    g()", ["def f():\n    a = c\n    pass"]),
        ("A = B | C", []),
        ("def f(a: int | None) -> X[1]: ...", []),
        ("assert a < b", []),
        ("'a' + b", []),
        ("if TYPE_CHECKING:\n    a = 1", []),
    ],
)
def test_a_change_is_one_decision(text: str, expected: list[str]) -> None:
    """Each place is changed alone; annotations, assertions and texts are left as they are."""
    assert changed(text) == expected


def test_a_moved_module_keeps_its_mutants(tmp_path: Path) -> None:
    """The choice depends on the seed and on what is changed; a higher count only adds mutants."""
    for checkout, name in (("before", "a/b.py"), ("after", "c.py")):
        path = tmp_path / checkout / CORE / name
        path.parent.mkdir(parents=True)
        path.write_text("def f(a, b):\n    return a < b or a + 1 == b\n")
    before, after = ({m.key for m in all_of(tmp_path / c, CORE, 13)} for c in ("before", "after"))
    three, five = (choose(tmp_path / "after", [CORE], 13, count) for count in (3, 5))

    assert before == after
    assert five[:3] == three
    assert choose(tmp_path / "after", [CORE], 14, 3) != three


@pytest.mark.slow
def test_runs_are_told_apart_and_resumed(tmp_path: Path) -> None:
    """A noticed change is killed, one that no test sees survives, and neither runs again."""
    files = {
        f"{CORE}/limits.py": "def full(n, most):\n    return n > most\n",
        f"{DISPATCH}/order.py": "def first(a):\n    return min(a)\n\n\nUNUSED = 2\n",
        f"tests/unit/{CORE}/test_limits.py": "def test_it():\n    import pool_manager.core\n",
        f"tests/unit/{DISPATCH}/test_order.py": (
            "from gateway.dispatch.order import first\n\n\n"
            "def test_it():\n    assert first([1, 2]) == 1\n"
        ),
        "tests/property/test_machine.py": "def test_it(): ...\n",
        "tests/property/test_dispatcher.py": "def test_it(): ...\n",
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--import-mode=importlib'\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    results = tmp_path / "results.jsonl"
    command = [sys.executable, "-m", "tests.mutation", "--json", str(results), str(tmp_path)]
    before = sorted(tmp_path.rglob("*"))
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    written = results.read_text()
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    outcomes = {
        (record["file"], record["after"]): record["result"]
        for record in map(json.loads, written.splitlines()[1:])
    }

    assert outcomes == {
        (f"{CORE}/limits.py", "n >= most"): "survived",
        (f"{CORE}/limits.py", "n <= most"): "survived",
        (f"{CORE}/limits.py", "return None"): "survived",
        (f"{DISPATCH}/order.py", "max(a)"): "killed",
        (f"{DISPATCH}/order.py", "return None"): "killed",
        (f"{DISPATCH}/order.py", "1"): "survived",
        (f"{DISPATCH}/order.py", "3"): "survived",
    }
    assert (results.read_text(), second) == (written, first)
    assert [path for path in sorted(tmp_path.rglob("*")) if path != results] == before


def test_a_report_counts_by_folder() -> None:
    """A mutant that never ends counts as killed; a survivor is shown with its place."""
    common = {"before": "a < b", "after": "a <= b", "cpu_s": 1.0, "wall_s": 30.0, "line": 7}
    records = [
        {**common, "folder": CORE, "file": f"{CORE}/a.py", "result": result}
        for result in ("killed", "killed", "timeout", "survived")
    ]
    lines = report(records).splitlines()

    assert lines[1].split() == [CORE, "4", "2", "1", "1", "75.0%"]
    assert lines[2].split() == [DISPATCH, "0", "0", "0", "0", "-"]
    assert lines[-1] == f"{CORE}/a.py:7: a < b -> a <= b"
