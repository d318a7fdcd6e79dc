"""Tests of when a model that was measured on a busy machine is measured again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from admin.deploy.remeasurement import (
    PAUSES_S,
    IdleMachine,
    begun,
    given_way,
    is_due,
    measured,
    remeasured,
)
from registry.model.profiles import Contention
from registry.model.revisions import Batching
from tests.support.nouns import profile, revision

NOW_S = 1e9


@pytest.mark.parametrize("attempts", range(len(PAUSES_S) + 3))
def test_attempts_end(attempts: int) -> None:
    """Pauses grow, and after the last one a busy measurement stays."""
    found = measured("busy", NOW_S, attempts)
    expected = NOW_S + PAUSES_S[attempts] if attempts < len(PAUSES_S) else 0.0
    assert found == Contention("busy", attempts, expected)
    assert measured("none", NOW_S, attempts).again_s == 0
    assert sorted(PAUSES_S) == list(PAUSES_S)


def test_attempts_of_killed_servers_end() -> None:
    """Servers that are killed during every measurement try as often as others."""
    found = replace(profile(), contention=measured("busy", NOW_S))
    tried, now_s = 0, NOW_S
    while is_due(revision(), found, now_s := now_s + max(PAUSES_S)):
        found, tried = begun(found, now_s), tried + 1
    assert tried == len(PAUSES_S)


def test_a_measurement_that_gave_way_does_not_count() -> None:
    """It is due again after a pause, however often it gives way."""
    found = replace(profile(), contention=measured("busy", NOW_S))
    for _ in range(20):
        found = given_way(begun(found, NOW_S), NOW_S)
    assert found.contention == measured("busy", NOW_S)


@pytest.mark.parametrize(
    ("contention", "mode", "is_expected"),
    [
        (Contention(), "auto", False),
        (Contention("none"), "auto", False),
        (Contention("busy", 0, NOW_S), "auto", True),
        (Contention("busy", 0, NOW_S + 1), "auto", False),
        (Contention("busy", 4, 0.0), "auto", False),
        (Contention("busy", 0, NOW_S), "off", False),
    ],
)
def test_what_is_due(contention: Contention, mode: str, is_expected: bool) -> None:
    """Only a busy measurement whose pause is over is due, and only where rows may be joined."""
    one = revision(batching=Batching(mode))  # type: ignore[arg-type]
    assert is_due(one, replace(profile(), contention=contention), NOW_S) is is_expected
    assert not is_due(one, None, NOW_S)


def test_what_serves_stays() -> None:
    """The times and the verdict are new; the prepared files stay, and memory never shrinks."""
    old = replace(profile(), batch_max=2, memory_mib=90.0, contention=Contention("busy", 1, 1.0))
    new = replace(
        profile(), batch_max=8, memory_mib=50.0, load_ms=9e9, contention=Contention("none")
    )
    found = remeasured(old, new, NOW_S)
    assert (found.batch_max, found.memory_mib) == (8, 90.0)
    assert (found.load_ms, found.prepared) == (old.load_ms, old.prepared)
    assert found.contention == Contention("none", 1)


def test_an_idle_machine_was_idle_for_long_enough() -> None:
    """One busy look begins the time anew."""
    machine = IdleMachine(30.0)
    assert not machine.look(0.0, is_idle=True)
    assert not machine.look(29.0, is_idle=True)
    assert machine.look(30.0, is_idle=True)
    assert not machine.look(35.0, is_idle=False)
    assert not machine.look(40.0, is_idle=True)
    assert machine.look(70.0, is_idle=True)
