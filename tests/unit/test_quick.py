"""The edit loop runs what a change touches, the closest first, as far as the time goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quick import BESIDE, Choice, chosen, importers

ROOT = Path(__file__).parents[2]
UNIT = "tests/unit/pool_manager"
TESTS = {
    f"{UNIT}/core/test_placement.py": "from pool_manager.core import placement",
    f"{UNIT}/core/test_placement_hosts.py": "from pool_manager.core.placement import A",
    f"{UNIT}/core/test_pool.py": "from pool_manager.core import pool\nimport pool_manager.ports",
    f"{UNIT}/test_reports_journal.py": "from pool_manager.reports import (\n    A,\n    B,\n)",
    f"{UNIT}/test_usage.py": "from tests.support import play",
    "tests/property/test_placement.py": "from tests.support.play import Play",
    "tests/property/test_machine.py": "",
    "tests/test_links.py": "",
    "tests/test_map.py": "",
    "tests/test_architecture.py": "",
}


def choose(*changed: str, budget_s: float = 100.0, **seconds: float) -> Choice:
    known = {
        path: seconds[path.split("/")[-1][5:-3]]
        for path in TESTS
        if path.split("/")[-1][5:-3] in seconds
    }
    return chosen(changed, TESTS, importers(TESTS), known, budget_s)


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        pytest.param(f"{UNIT}/test_usage.py", [f"{UNIT}/test_usage.py"], id="a test: itself"),
        pytest.param(
            "pool_manager/core/placement.py",
            [
                f"{UNIT}/core/test_placement.py",
                f"{UNIT}/core/test_placement_hosts.py",
                "tests/property/test_machine.py",
                "tests/property/test_placement.py",
                "tests/test_architecture.py",
            ],
            id="a module: its mirror files, then what belongs beside, then the house rules",
        ),
        pytest.param(
            "pool_manager/reports/journal.py",
            [f"{UNIT}/test_reports_journal.py", "tests/test_architecture.py"],
            id="a folder's name may be in the file's",
        ),
        pytest.param(
            "pool_manager/ports.py",
            [
                f"{UNIT}/core/test_pool.py",
                f"{UNIT}/test_reports_journal.py",
                f"{UNIT}/test_usage.py",
                "tests/test_architecture.py",
            ],
            id="without a mirror file: who imports it, then the nearest folder with tests",
        ),
        pytest.param(
            "pool_manager/reports.py",
            [f"{UNIT}/test_reports_journal.py", "tests/test_architecture.py"],
            id="a mirror file may have more words",
        ),
        pytest.param(
            "pool_manager/gpus/absent.py",
            [
                f"{UNIT}/test_reports_journal.py",
                f"{UNIT}/test_usage.py",
                "tests/test_architecture.py",
            ],
            id="that nobody imports: the folder alone",
        ),
        pytest.param(
            "tests/support/play.py",
            [
                f"{UNIT}/test_usage.py",
                "tests/property/test_placement.py",
                "tests/test_architecture.py",
            ],
            id="a helper of tests: who imports it, unit tests first",
        ),
        pytest.param(
            f"{UNIT}/core/conftest.py",
            [
                f"{UNIT}/core/test_placement.py",
                f"{UNIT}/core/test_placement_hosts.py",
                f"{UNIT}/core/test_pool.py",
            ],
            id="fixtures: the folder",
        ),
        pytest.param(
            "docs/guides/access.md", ["tests/test_links.py"], id="a document: those of documents"
        ),
        pytest.param("functions/echo/handler.py", [], id="what has no tests here"),
    ],
)
def test_a_change_has_its_tests(changed: str, tests: list[str]) -> None:
    """Tests are found by name, by import and by a table."""
    found = choose(changed)

    assert sorted(found.run) == sorted(tests)
    assert found.left == ()


def test_the_closest_tests_get_the_time() -> None:
    """Over all changed files closer tests come first. One that is too long is left out and named,
    and a shorter one behind it still runs."""
    found = choose(
        "pool_manager/core/placement.py",
        f"{UNIT}/test_usage.py",
        budget_s=10,
        placement=80,
        placement_hosts=4,
        usage=2,
        machine=1,
        architecture=1,
    )

    assert found.run == (
        f"{UNIT}/core/test_placement_hosts.py",
        f"{UNIT}/test_usage.py",
        "tests/property/test_machine.py",
        "tests/test_architecture.py",
    )
    assert found.left == (f"{UNIT}/core/test_placement.py", "tests/property/test_placement.py")


def test_the_table_has_only_what_is_there() -> None:
    """Each path of the table begins the name of a file or folder, and each test exists."""
    starts = [path for path in BESIDE if not [*ROOT.glob(f"{path.rstrip('/')}*")]]
    tests = {f"tests/{one}" for several in BESIDE.values() for one in several}

    assert starts == []
    assert [one for one in sorted(tests) if not (ROOT / one).is_file()] == []
