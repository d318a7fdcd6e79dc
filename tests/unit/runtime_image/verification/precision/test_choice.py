"""The choice among measured candidates, branch by branch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runtime_image.contract.precision import CandidateName, Optimisation, Precision
from runtime_image.verification.precision.agreement import Agreement
from runtime_image.verification.precision.choice import (
    Choice,
    Measured,
    choose,
    row_of,
    share,
    why_not_offered,
    why_outside,
)
from runtime_image.verification.precision.columns import Column

COLUMN = Column("y", "column 3", 0.31, 0.23, 0.1, 0.45)
CONSTANT = Column("y", "", 0.002, 0.0, -0.01, None)
GOOD = Agreement(100, 0.9999, "y", 0.01, 1.0)
FASTER_ALONE = {1: 5.0}
SLOW = {1: 10.0, 8: 16.0}
"""The original's milliseconds: 10 for a row alone, 2 in runs of 8."""
FAST = {1: 5.0, 8: 8.0}


def one(name: CandidateName, latency_ms: dict[int, float] = SLOW, **fields: Any) -> Measured:
    defaults: dict[str, Any] = {"batchable": True, "agreement": GOOD}
    rounds_ms = {rows: [ms] for rows, ms in latency_ms.items()}
    return Measured(name, **{"rounds_ms": rounds_ms, **defaults, **fields})


ORIGINAL = one("original", agreement=None)


def chosen(*candidates: Measured, precision: Precision = "auto", **options: Any) -> Choice:
    original = options.pop("original", ORIGINAL)
    return choose(Optimisation(precision, 0.01), original, candidates, **options)


def test_auto_takes_a_faster_candidate() -> None:
    """The table says why the others are not served."""
    found = chosen(one("fp16"), one("int8", FAST))

    assert found.chosen == "int8"
    assert found.why_not == {
        "original": "int8 takes 1 ms for a row, the original 2 ms",
        "fp16": "a row takes 2 ms, with the original 2 ms: less than 10% is saved",
        "int8": "",
    }


@pytest.mark.parametrize(("ms", "name"), [(14.4, "int8"), (14.5, "original")])
def test_auto_needs_a_tenth(ms: float, name: str) -> None:
    """The measurement's noise is no reason to change answers."""
    found = chosen(one("int8", {1: 1.0, 8: ms}))

    assert found.chosen == name
    assert found.why_not[found.chosen] == ""
    assert all(reason for other, reason in found.why_not.items() if other != name)


@pytest.mark.parametrize(("ms", "name"), [(0.012, "original"), (0.002, "int8")])
def test_auto_needs_more_than_noise(ms: float, name: str) -> None:
    """A run of some microseconds varies by more than a tenth, and costs nothing beside a call."""
    tiny = one("original", {1: 0.026}, agreement=None, batchable=False)

    found = chosen(one("int8", {1: ms}), original=tiny)

    assert found.chosen == name
    if name == "original":
        assert "less than 0.02 ms of a run is saved" in found.why_not["int8"]


@pytest.mark.parametrize(
    ("name", "rounds_ms", "reason"),
    [
        ("int8", {1: [5.0, 15.0, 5.0, 15.0, 5.0]}, ""),
        ("original", {1: [9.1, 9.1, 9.1, 9.1, 9.1]}, "9.1 ms, with the original 10 ms: less than"),
        (
            "original",
            {1: [5.0, 9.9, 9.9, 9.9, 9.9]},
            "a row takes 5 ms, with the original 10 ms, but 99% of its time in the median of 5"
            " rounds: less than 10% is saved",
        ),
    ],
)
def test_auto_needs_the_gain_in_most_rounds(
    name: str, rounds_ms: dict[int, list[float]], reason: str
) -> None:
    """One lucky round is not enough, and slow rounds do not hide a gain."""
    original = one("original", {}, rounds_ms={1: [10.0, 10.0, 10.0, 10.0, 30.0]}, agreement=None)

    found = chosen(one("int8", {}, rounds_ms=rounds_ms), original=original)

    assert found.chosen == name
    assert reason in found.why_not["int8"]


def test_the_share_is_the_larger_of_two() -> None:
    """The ratio of the fastest rounds, and the median of the rounds' ratios."""
    assert share([10.0, 20.0, 10.0], [6.0, 8.0, 9.0]) == pytest.approx(0.6)
    assert share([10.0, 12.0, 14.0], [8.0, 6.0, 7.0]) == pytest.approx(0.6)
    assert share([10.0, 40.0, 40.0], [8.0, 8.0, 8.0]) == pytest.approx(0.8)


def test_auto_takes_the_fastest_of_several() -> None:
    """At the original's best batch."""
    found = chosen(one("fp16", {1: 1.0, 8: 9.0}), one("int8", FAST))

    assert found.chosen == "int8"
    assert found.why_not["fp16"] == "int8 is faster"


def test_a_candidate_that_runs_alone_is_compared_with_joined_runs() -> None:
    """Dynamic INT8 halves the time of a single row, but cannot be joined: 5 ms against 2 ms."""
    alone = one("int8-dynamic", FASTER_ALONE, batchable=False)

    assert chosen(alone).chosen == "original"
    assert "a row takes 5 ms, with the original 2 ms" in chosen(alone).why_not["int8-dynamic"]
    single = one("original", {1: 10.0, 8: 80.0}, agreement=None, batchable=False)
    assert chosen(alone, original=single).chosen == "int8-dynamic"


def test_the_originals_best_batch_counts() -> None:
    """Larger batches that gain the original nothing are shown, but not compared."""
    flat = one("original", {1: 1.0, 8: 8.0}, agreement=None)

    assert chosen(one("int8", {1: 0.95, 8: 1.0}), original=flat).chosen == "original"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"why_not": "making it took too long"}, "making it took too long"),
        ({"agreement": None}, "it was not compared"),
        ({"agreement": Agreement(3, broken="output y has NaN")}, "output y has NaN"),
        (
            {"agreement": Agreement(100, 0.9899, "y", 2.5, 1.0)},
            "output y: its cosine similarity to the original is 0.9899, at least 0.99 is needed;"
            " the largest difference is 2.5",
        ),
        (
            # A rounded figure would contradict the refusal.
            {"agreement": Agreement(100, 0.98999998, "y", 2.5, 1.0)},
            "output y: its cosine similarity to the original is 0.98999998, at least 0.99 is"
            " needed; the largest difference is 2.5",
        ),
        (
            {"agreement": Agreement(100, 0.9999999, "y", 0.5, 1.0, column=COLUMN)},
            "output y column 3: expected an error of at most 2 % of the column's spread, got 31 %"
            " (spread 0.23, bias +0.1, gain 0.45)",
        ),
        (
            {"agreement": Agreement(100, 0.9999999, "y", 0.5, 1.0, column=CONSTANT)},
            "output y: expected an error of at most 0.1 % of the magnitude of the constant column,"
            " got 0.2 % (bias -0.01)",
        ),
        (
            {"agreement": Agreement(200, 0.9999, "y", 2.5, 0.985)},
            "3 of 200 samples get another label, at most 2.0 may",
        ),
    ],
)
def test_a_candidate_outside_the_tolerance_is_not_taken(
    fields: dict[str, Any], reason: str
) -> None:
    """ "auto" falls back to the original, a demanded precision is refused with the figures."""
    broken = one("int8", FAST, **fields)

    assert chosen(broken) == Choice("original", {"int8": reason, "original": ""})
    assert chosen(broken, precision="int8") == Choice(
        None, {"int8": reason}, f'precision = "int8": int8: {reason}'
    )


@pytest.mark.parametrize(
    ("cosine", "tolerance", "text"),
    [
        (0.9, 0.009999998, "is 0.9, at least 0.99 is needed"),
        (0.99999, 1e-6, "is 0.99999, at least 0.999999 is needed"),
        (0.9999999, 1e-8, "is 0.9999999, at least 0.99999999 is needed"),
        (0.9999999, 0.0, "is 0.9999999, at least 1 is needed"),
    ],
)
def test_a_refusal_shows_as_many_places_as_it_needs(
    cosine: float, tolerance: float, text: str
) -> None:
    """And no remainder of binary fractions."""
    assert text in why_outside(one("fp16", agreement=Agreement(9, cosine, "y", 0.1)), tolerance)


def test_the_tolerance_is_included() -> None:
    """Exactly at all limits."""
    limits = Agreement(100, 0.99, "y", 1.0, 0.99)
    for column in (replace(COLUMN, error=0.02), replace(CONSTANT, error=0.001)):
        found = chosen(one("int8", FAST, agreement=replace(limits, column=column)))

        assert found.chosen == "int8"


def test_models_without_floats_or_labels_can_agree() -> None:
    """Only what is there is compared."""
    labels = one("int8", FAST, agreement=Agreement(100, same_label=1.0))
    floats = one("int8", FAST, agreement=Agreement(100, 0.9999, "y", 0.1))

    assert (chosen(labels).chosen, chosen(floats).chosen) == ("int8", "int8")


def test_a_demanded_precision_may_be_slower() -> None:
    """The owner may want less memory; of two candidates within the tolerance the faster one is
    taken."""
    slower = {1: 20.0, 8: 40.0}
    taken = chosen(one("fp16", slower), precision="fp16")
    assert taken.chosen == "fp16"
    assert taken.why_not["original"].startswith('precision = "fp16" in function.toml: fp16 takes')
    assert chosen(one("fp16", {1: 0.1})).why_not["original"].startswith("fp16 takes")

    both = [one("int8", slower), one("int8-dynamic", {1: 4.0}, batchable=False)]
    found = chosen(*both, precision="int8")
    assert found.chosen == "int8-dynamic"
    assert found.why_not["int8"] == "int8-dynamic is faster"


def test_a_refusal_names_every_candidate() -> None:
    """Both ways to INT8 failed, each for its reason."""
    failed = [one("int8", why_not="no samples"), one("int8-dynamic", why_not="quantised already")]

    found = chosen(*failed, precision="int8")

    assert found.chosen is None
    assert found.refused == (
        'precision = "int8": int8: no samples; int8-dynamic: quantised already'
    )


def test_required_batching_is_kept() -> None:
    """With mode = "always" a candidate that runs alone would refuse the deploy later."""
    alone = one("int8-dynamic", {1: 0.1}, batchable=False)

    assert chosen(alone).chosen == "int8-dynamic"
    found = chosen(alone, must_join=True)
    assert found.chosen == "original"
    assert "cannot be joined" in found.why_not["int8-dynamic"]
    single = one("original", batchable=False, agreement=None)
    assert chosen(alone, must_join=True, original=single).chosen == "int8-dynamic"


def test_an_original_that_was_never_run_is_served() -> None:
    """No input is known that it accepts, so nothing could be judged."""
    unrun = Measured("original", file_bytes=5)

    found = chosen(Measured("fp16", "no input is known"), original=unrun)

    assert found.chosen == "original"
    assert row_of(unrun, "", 0.01) == {"name": "original", "why_not": "", "file_bytes": 5}


@pytest.mark.parametrize(
    ("name", "source", "calibrated", "judged", "reason"),
    [
        ("fp16", "synthetic", 0, 1, ""),
        (
            *("fp16", "synthetic", 0, 0),
            "no input is known that the model accepts: give a [sample] or optimise.samples",
        ),
        ("int8", "samples", 32, 64, ""),
        ("int8-dynamic", "samples", 0, 64, ""),
        (
            "int8-dynamic",
            "synthetic",
            0,
            64,
            "INT8 is judged with the owner's inputs only: give optimise.samples",
        ),
        (
            "int8-dynamic",
            "samples",
            0,
            63,
            "expected at least 64 different samples that judge, got 63",
        ),
        (
            "int8",
            "samples",
            0,
            95,
            "expected at least 96 different samples, 32 to calibrate and 64 to judge, got 95",
        ),
    ],
)
def test_int8_needs_samples(
    name: CandidateName, source: str, calibrated: int, judged: int, reason: str
) -> None:
    """FP16 keeps eleven bits of every number, so synthetic inputs judge it; INT8 depends on the
    values that really occur."""
    assert why_not_offered(name, source, calibrated, judged) == reason


def test_a_row_of_the_table_has_the_figures_that_there_are() -> None:
    """Batch sizes are in order; what was not measured is left out. A cosine that a small tolerance
    refuses is not rounded to 1."""
    measured = one(
        "int8",
        {8: 8.0, 1: 5.0},
        memory_mib=60.5,
        file_bytes=10,
        agreement=Agreement(100, 0.99999949, "y", 0.01, 0.75, column=COLUMN),
    )

    assert row_of(measured, "why", 0.01) == {
        "name": "int8",
        "why_not": "why",
        "latency_ms": {"1": 5.0, "8": 8.0},
        "memory_mib": 60.5,
        "file_bytes": 10,
        "batchable": True,
        "cosine": 0.99999949,
        "largest_difference": 0.01,
        "same_label": 0.75,
        "column": {
            "output": "y",
            "part": "column 3",
            "error": 0.31,
            "error_max": 0.02,
            "spread": 0.23,
            "bias": 0.1,
            "gain": 0.45,
        },
    }
    assert list(row_of(measured, "", 0.01)["latency_ms"]) == ["1", "8"]
    assert row_of(Measured("int8", "why"), "why", 0.01) == {"name": "int8", "why_not": "why"}
