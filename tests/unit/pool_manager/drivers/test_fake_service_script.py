"""How fake replicas behave."""

from __future__ import annotations

from typing import Any

import pytest

from pool_manager.drivers.fake_service import Script


def test_a_plain_script_has_no_fault() -> None:
    """Without a word everything works at once."""
    script = Script()

    assert (script.start_s, script.load_s, script.run_s, script.batch) == (0.0, 0.0, 0.0, 1)
    assert (script.crash_at, script.hang_at, script.refuse_load, script.fail_run) == (
        None,
        None,
        "",
        "",
    )
    assert script.signature.kind == "json"


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("crash_at", "lunch", "crash_at: expected None or one of start, load, run, got 'lunch'"),
        ("hang_at", "", "hang_at: expected None or one of start, load, run, got ''"),
        ("load_s", -1.0, "load_s: expected at least 0, got -1.0"),
        ("batch", 0, "batch: expected at least 1, got 0"),
        ("crash_count", -1, "crash_count: expected at least 0, got -1"),
    ],
)
def test_an_impossible_script_is_refused(field: str, value: Any, reason: str) -> None:
    """A value out of its range is named with what was expected."""
    with pytest.raises(ValueError, match=reason):
        Script(**{field: value})
