"""Tests of the house rules: each reports violations with their line, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support import rules
from tests.support.rules import Source

Rule = Callable[[Source], list[str]]


def source(text: str, path: str = "gateway/a.py") -> Source:
    return Source(path, dedent(text))


BREAKING: list[tuple[Rule, str, int]] = [
    (rules.long_file, "x = 1\n" * (rules.FILE_LINES_MAX + 1), 1),
    (rules.long_functions, "def f():\n" + "    x = 1\n" * 60, 1),
    (rules.long_functions, "def f():  # longer because \n" + "    x = 1\n" * 60, 1),
    (rules.long_functions, "class A:\n  async def f():\n" + "    x = 1\n" * 60, 2),
    (rules.waiting, "async def f(): pass", 1),
    (rules.waiting, "import asyncio\nlock = asyncio.Lock()", 2),
    (rules.waiting, "from threading import RLock", 1),
    (rules.silent_tests, "def test_it(): pass", 1),
    (rules.silent_tests, "class TestIt:\n  async def test_it(self): pass", 2),
    (rules.sleeps, "import time\ntime.sleep(0.1)", 2),
    (rules.sleeps, "from asyncio import sleep\nasync def f():\n  await sleep(1)", 3),
    (rules.sleeps, "asyncio.sleep(delay)", 1),
    (rules.sleeps, "asyncio.sleep(delay=1)", 1),
    (rules.spawns, "asyncio.create_task(f())", 1),
    (rules.spawns, "loop.create_task(f())", 1),
    (rules.spawns, "from asyncio import gather", 1),
    (rules.environment, "import os\nos.environ['A']", 2),
    (rules.environment, "os.getenv('A')", 1),
    (rules.environment, "from os import environ", 1),
    (rules.statuses, "web.Response(status=404)", 1),
    (rules.statuses, "raise web.HTTPNotFound", 1),
    (rules.statuses, "response.set_status(503)", 1),
    (rules.statuses, "http.HTTPStatus.NOT_FOUND", 1),
]

KEEPING: list[tuple[Rule, str]] = [
    (rules.long_file, "x = 1\n" * rules.FILE_LINES_MAX),
    (rules.long_functions, "def f():\n" + "    x = 1\n" * 59),
    (rules.long_functions, 'def f():\n    """A\n    B"""\n' + "    x = 1\n" * 59),
    (rules.long_functions, "def f():  # longer because flat\n" + "    x = 1\n" * 60),
    (rules.waiting, "def f(locked): return locked"),
    (rules.silent_tests, 'def test_it():\n    """It holds."""'),
    (rules.silent_tests, "def build(): pass"),
    (rules.sleeps, "await_ = asyncio.sleep(0)"),
    (
        rules.spawns,
        "async def f():\n  async with asyncio.TaskGroup() as group:\n    group.create_task(g())",
    ),
    (rules.environment, "settings.environ"),
    (rules.statuses, "web.Response(status=200)"),
    (rules.statuses, "Replica(status='ready')"),
    (rules.vague_name, ""),
]


@pytest.mark.parametrize(("rule", "text", "line"), BREAKING)
def test_a_violation_is_reported_with_its_line(rule: Rule, text: str, line: int) -> None:
    """A violation causes one complaint, with path and line."""
    complaints = rule(source(text))

    assert len(complaints) == 1
    assert complaints[0].startswith(f"gateway/a.py:{line}: ")


@pytest.mark.parametrize(("rule", "text"), KEEPING)
def test_allowed_code_has_no_complaint(rule: Rule, text: str) -> None:
    """Allowed code causes no complaint."""
    assert rule(source(text)) == []


@pytest.mark.parametrize("path", ["gateway/utils.py", "admin/common/keys.py"])
def test_a_vague_name_is_reported(path: str) -> None:
    """File names and folder names both count."""
    assert len(rules.vague_name(source("", path))) == 1


def test_a_full_folder_takes_no_further_file() -> None:
    """`__init__` and the files of other folders do not count."""
    most = rules.FOLDER_FILES_MAX
    full = [source("", f"gateway/{number}.py") for number in range(most)]
    beside = [source("", "gateway/__init__.py"), source("", "gateway/http/a.py")]

    assert rules.full_folders([*full, *beside]) == []
    assert rules.full_folders([*full, *beside, source("", "gateway/b.py")]) == [
        f"gateway:1: {most + 1} files"
    ]


def test_a_folder_without_tests_is_named() -> None:
    """The tests of a folder are at its path below `tests/unit`, in any file there or below."""
    sources = [source("", path) for path in ("gateway/a.py", "gateway/http/app.py")]
    tests = [source("", "tests/unit/gateway/http/fast/test_front.py")]

    assert rules.untested_folders(sources, tests) == []
    assert rules.untested_folders([*sources, source("", "admin/x.py")], tests) == [
        "admin:1: no tests/unit/admin"
    ]
    assert rules.untested_folders(sources, [source("", "tests/unit/gateway/conftest.py")]) == [
        "gateway:1: no tests/unit/gateway",
        "gateway/http:1: no tests/unit/gateway/http",
    ]


def test_a_missing_folder_has_no_files(tmp_path: Path) -> None:
    """Files of existing folders are listed, sorted, with their path from the root."""
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "z.py").write_text("")
    (tmp_path / "b" / "a.py").write_text("x = 1")

    assert rules.read(tmp_path, ["a", "b"]) == [Source("b/a.py", "x = 1"), Source("b/z.py", "")]
