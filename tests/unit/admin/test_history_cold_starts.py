"""How long the next cold start takes."""

from __future__ import annotations

import pytest

from admin.history import ALPHA, DEFAULT_OVERHEAD_MS, POOLS_MAX, ColdStarts, Prior
from registry.model import ColdStart

KEY = "default/digits@1"
PRIOR = Prior("cpu", 30.0)


def cold_start(
    total_ms: float,
    number: int = 1,
    kind: str = "cpu",
    outcome: str = "ready",
    **phases: float,
) -> ColdStart:
    """A receipt; with a phase `start` no standby was there."""
    return ColdStart("default", "digits", number, "r1", kind, 0.0, total_ms, dict(phases), outcome)


def past(*records: ColdStart) -> ColdStarts:
    """What these cold starts leave behind."""
    made = ColdStarts()
    for record in records:
        made.add(record)
    return made


def test_before_the_first_cold_start_the_trial_is_asked() -> None:
    """Loading takes as long as it did there, all else as long as is usual anywhere."""
    expected = past().expected(KEY, PRIOR)

    assert expected.samples == 0
    assert expected.p10_s * 1e3 == pytest.approx(30 + DEFAULT_OVERHEAD_MS[True])
    assert expected.p90_s * 1e3 == pytest.approx(30 + DEFAULT_OVERHEAD_MS[False])
    assert past().median_ms(KEY, PRIOR, by_standby=True) == 30 + DEFAULT_OVERHEAD_MS[True]
    assert past().median_ms(KEY, PRIOR, by_standby=False) == 30 + DEFAULT_OVERHEAD_MS[False]


def test_neighbours_tell_what_is_usual_here() -> None:
    """How long processes take to start on this host is the same for all models; how long another
    model took to load, or its predecessor to go, says nothing."""
    known = past(
        cold_start(900.0, 2, start=200.0, load=5000.0, evict=700.0, bind=10.0),
        cold_start(900.0, 3, kind="cuda", start=9000.0),
    )

    assert known.median_ms(KEY, PRIOR, by_standby=False) == pytest.approx(240.0, rel=ALPHA)
    assert known.median_ms(KEY, PRIOR, by_standby=True) == 30 + DEFAULT_OVERHEAD_MS[True]
    assert known.expected(KEY, PRIOR).samples == 0


def test_its_own_past_goes_before_all_else() -> None:
    """Median and slow tenth of what was measured; failed starts say nothing."""
    known = past(*(cold_start(ms, start=1.0) for ms in [100.0] * 5 + [200.0] * 4 + [900.0] * 2))
    known.add(cold_start(60_000.0, outcome="failed: no memory"))

    expected = known.expected(KEY, PRIOR)

    assert expected.samples == 11
    assert expected.p10_s == pytest.approx(0.1, rel=ALPHA)
    assert expected.p50_s == pytest.approx(0.2, rel=ALPHA)
    assert expected.p90_s == pytest.approx(0.9, rel=ALPHA)


def test_the_short_way_is_what_nine_of_ten_take_at_least() -> None:
    """A single start by a standby keeps anybody from being told that it will take too long."""
    known = past(*[cold_start(400.0, start=300.0)] * 30, cold_start(20.0))

    expected = known.expected(KEY, PRIOR)

    assert expected.p10_s == pytest.approx(0.02, rel=ALPHA)
    assert expected.p50_s == pytest.approx(0.4, rel=ALPHA)
    assert expected.samples == 31


def test_standbys_are_told_apart() -> None:
    """What is next to happen is what is told, not a mean of what is not."""
    known = past(cold_start(400.0, start=250.0), cold_start(50.0))

    assert known.median_ms(KEY, PRIOR, by_standby=True) == pytest.approx(50.0, rel=ALPHA)
    assert known.median_ms(KEY, PRIOR, by_standby=False) == pytest.approx(400.0, rel=ALPHA)


def test_one_way_says_something_of_the_other() -> None:
    """A standby saves the start of a process and its imports."""
    launched = {"start": 100.0, "import": 150.0}
    anew = past(cold_start(400.0, **launched))
    woken = past(cold_start(50.0))
    woken_here = past(cold_start(50.0), cold_start(900.0, 2, **launched))

    def of(known: ColdStarts, *, by_standby: bool) -> float:
        return known.median_ms(KEY, PRIOR, by_standby=by_standby)

    assert of(anew, by_standby=True) == pytest.approx(150.0, abs=(400 + 250) * ALPHA)
    assert of(woken, by_standby=False) == pytest.approx(450.0, rel=ALPHA)
    assert of(woken_here, by_standby=False) == pytest.approx(300.0, rel=ALPHA)


def test_the_last_device_kind_counts() -> None:
    """A revision that has moved to a GPU is expected there."""
    known = past(cold_start(9000.0), cold_start(100.0, kind="cuda"))

    assert known.expected(KEY, PRIOR).samples == 1
    assert known.expected(KEY, PRIOR).p90_s == pytest.approx(0.1, rel=ALPHA)


def test_the_table_tells_of_every_phase() -> None:
    """Per way and phase, in the order of the phases; what is no phase of ours is left out."""
    known = past(
        cold_start(400.0, start=300.0, load=100.0, nonsense=1.0), cold_start(50.0, load=50.0)
    )

    table = known.table(KEY)

    assert [(row["device_kind"], row["standby"], row["samples"]) for row in table] == [
        ("cpu", False, 1),
        ("cpu", True, 1),
    ]
    assert list(table[0]["phases"]) == ["start", "load"]
    assert table[0]["phases"]["start"]["p90_ms"] == pytest.approx(300.0, rel=ALPHA)
    assert table[1]["total"]["p50_ms"] == pytest.approx(50.0, rel=ALPHA)
    assert known.table("default/other@1") == []


def test_revisions_remembered_are_bounded() -> None:
    """However many revisions there ever were, the oldest make room."""
    known = past(*(cold_start(100.0, number) for number in range(1, POOLS_MAX + 2)))

    assert known.expected(KEY, PRIOR).samples == 0
    assert known.expected("default/digits@2", PRIOR).samples == 1
    assert known.expected(f"default/digits@{POOLS_MAX + 1}", PRIOR).samples == 1


def test_a_replica_that_lies_about_its_phases_misleads_nobody_else() -> None:
    """No phase took longer than all of its cold start."""
    known = past(cold_start(900.0, 2, start=200.0, bind=1e9))

    assert known.median_ms(KEY, PRIOR, by_standby=False) <= 30 + 200 + 900 * (1 + ALPHA)
