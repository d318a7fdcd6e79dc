from __future__ import annotations

from admin.cli.live.state import FunctionChanges


def test_only_what_changed_is_told() -> None:
    """First everything, then what is other than before, then who is gone."""
    changes = FunctionChanges()
    a, b = {"name": "a", "held": 0}, {"name": "b", "held": 0}

    told = [
        changes.since({"b": b, "a": a}),
        changes.since({"b": dict(b), "a": a}),
        changes.since({"b": {**b, "held": 1}}),
        changes.since({}),
    ]

    assert told == [
        [a, b],
        [],
        [{"name": "b", "held": 1}, {"name": "a", "state": "gone"}],
        [{"name": "b", "state": "gone"}],
    ]
