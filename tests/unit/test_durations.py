"""Times of test files are compared by their part of a run, and only great growth fails."""

from __future__ import annotations

import tomllib

import pytest

from tests.durations import KNOWN, Run, growths, read_known, read_run, text, updated

KNOWN_S = {"a": 30.0, "b": 30.0, "c": 40.0, "d": 1.0}


def run(*failed: str, **seconds: float) -> Run:
    return Run(seconds, frozenset(failed))


@pytest.mark.parametrize(
    ("now", "found"),
    [
        pytest.param(run(a=90, b=90, c=120, d=3), [], id="a busy machine slows all"),
        pytest.param(run(a=30, b=5, c=7, d=0.2), [], id="a quick one helps no file that waits"),
        pytest.param(run(a=40, b=30, c=40, d=1), [("a", False)], id="a third more is said"),
        pytest.param(run(a=80, b=60, c=80, d=2), [("a", False)], id="a third more, half as quick"),
        pytest.param(run(a=110, b=30, c=40, d=1), [("a", True)], id="more than twice fails"),
        pytest.param(run(a=45, b=30, c=40, d=1), [("a", False)], id="half as much again is said"),
        pytest.param(run(a=30, b=30, c=40, d=9), [], id="a short file may take what it likes"),
        pytest.param(run(a=30, b=30, c=40, d=59), [("d", False)], id="below 60 s nothing fails"),
        pytest.param(run(a=30, b=30, c=40, d=65), [("d", True)], id="above 60 s it does"),
        pytest.param(run(a=30, b=30, c=40, e=500), [], id="a new file"),
        pytest.param(run("a", a=300, b=30, c=40, d=1), [], id="a test that failed took its time"),
        pytest.param(run(a=90, d=1), [], id="a part of the suite"),
        pytest.param(run(), [], id="nothing"),
    ],
)
def test_growth_is_measured_by_the_part_of_a_run(now: Run, found: list[tuple[str, bool]]) -> None:
    """What slows all files alike is no growth, and neither is what cannot be compared."""
    assert [(one.path, one.is_failing) for one in growths(KNOWN_S, now)] == found


def test_a_report_is_read() -> None:
    """Times are added by file; a failed test, or one with an error at its end, marks its file."""
    report = """<testsuites><testsuite>
        <testcase classname="tests.unit.test_a" time="1.5"/>
        <testcase classname="tests.unit.test_a.TestIt" time="2"><skipped/></testcase>
        <testcase classname="tests.test_b" time="1"><failure/></testcase>
        <testcase classname="functions.echo.test_c" time="1"><error/></testcase>
    </testsuite></testsuites>"""

    a, b, c = "tests/unit/test_a.py", "tests/test_b.py", "functions/echo/test_c.py"
    assert read_run(report) == Run({a: 3.5, b: 1, c: 1}, frozenset({b, c}))


def test_times_are_taken_over() -> None:
    """A run replaces what it measured; files that are gone, failed or short are not kept."""
    now = run("c", a=29.96, c=99, e=0.1, f=7)
    found = updated(KNOWN_S, now, dict.fromkeys("acdef", True))

    assert found == {"a": 30.0, "c": 40.0, "d": 1.0, "f": 7}
    assert tomllib.loads(text(found)) == found


def test_the_known_times_are_in_order() -> None:
    """The file is what the tool writes."""
    assert KNOWN.read_text("utf-8") == text(read_known())
