"""What a report says."""

from __future__ import annotations

from tests.chaos.ledger import VIOLATIONS_MAX, Ledger


def test_what_does_not_hold_is_told() -> None:
    """Everything is kept; what differs in the request's number only is printed once."""
    ledger = Ledger("x", {"requests": 2})
    ledger.require(True, "never")
    before = ledger.lines()
    ledger.require(False, "f #1: 503 {}")
    ledger.violated("f #2: 503 {}")

    assert before == ["== x: holds", "   requests: 2"]
    assert ledger.lines() == [
        "== x: 2 VIOLATIONS",
        "   requests: 2",
        "   VIOLATION f #1: 503 {} (2 times)",
    ]
    assert ledger.to_json()["violations"] == ["f #1: 503 {}", "f #2: 503 {}"]


def test_a_report_has_an_end() -> None:
    """Of very many violations the first are kept."""
    ledger = Ledger("x")
    for number in range(VIOLATIONS_MAX + 1):
        ledger.violated(str(number))

    assert len(ledger.violations) == VIOLATIONS_MAX
