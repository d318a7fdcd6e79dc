from __future__ import annotations

from admin.cli.live.state import ActivityEntry, activity_entry, name, seconds


def test_a_decision_is_told_as_it_stands() -> None:
    """Its text, for the function it was made for."""
    data = {"function": "digits", "revision": "digits@1", "at_s": 5.0, "text": "wants 1"}

    assert activity_entry("decision", data) == ActivityEntry(5.0, "decision", "digits", "wants 1")


def test_a_cold_start_says_how_long_it_took() -> None:
    """One that did not end well is bad news."""
    data = {"name": "digits", "number": 3, "device_kind": "cpu", "at_s": 5.0, "total_ms": 140}

    good = activity_entry("cold_start", {**data, "outcome": "ready"})
    bad = activity_entry("cold_start", {**data, "outcome": "failed"})

    text = "revision 3 ready after 140 ms on cpu"
    assert good == ActivityEntry(5.0, "cold start", "digits", text)
    assert bad is not None
    assert bad.is_bad


def test_an_operation_is_told_by_its_phase_or_its_end() -> None:
    """A deploy that failed says why."""
    data = {"name": "digits", "id": "o", "kind": "deploy", "created_s": 1.0}

    running = activity_entry("operation", {**data, "state": "running", "phase": "trial"})
    failed = activity_entry(
        "operation", {**data, "state": "failed", "ended_s": 2.0, "error": {"detail": "no file"}}
    )

    assert running == ActivityEntry(1.0, "operation", "digits", "deploy: trial", False, "o")
    assert failed == ActivityEntry(2.0, "operation", "digits", "deploy failed: no file", True, "o")


def test_errors_alike_are_counted() -> None:
    """Three of one kind are one line."""
    data = {
        "function": "a",
        "code": "poison",
        "detail": "dead",
        "replica": "r1",
        "at_s": 1,
        "count": 3,
    }

    assert activity_entry("error", data) == ActivityEntry(
        1.0, "error", "a", "3 x poison: dead (r1)", True
    )


def test_a_strangers_text_is_one_short_line() -> None:
    """It cannot steer the terminal, break the line or fill the memory."""
    told = activity_entry("decision", {"function": "a\x1b", "text": "x\n\x1b[2J" + "y" * 1000})

    assert told is not None
    assert told.function == "a�"
    assert told.text.startswith("x �[2J")
    assert len(told.text) == 300


def test_what_only_changes_the_state_is_no_happening() -> None:
    """Nor is a kind of event that nobody knows."""
    assert activity_entry("functions", {"items": []}) is None
    assert activity_entry("weather", {}) is None


def test_a_number_that_is_none_is_nought() -> None:
    """A server may leave out what it does not know."""
    assert (seconds(None), seconds("x"), seconds(2)) == (0.0, 0.0, 2.0)
    assert name({"name": "a"}) == "a"
