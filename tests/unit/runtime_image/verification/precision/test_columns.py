"""Columns of float outputs: what a cosine does not see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from runtime_image.codecs import bfloat16
from runtime_image.contract.signature import DYNAMIC
from runtime_image.verification.precision.agreement import PIECE, Agreement, Comparison
from runtime_image.verification.precision.columns import (
    COLUMNS_MAX,
    ERROR_MAX,
    Column,
    axes_of,
)

SAMPLES = 100
SLACK = 1 + 1 / SAMPLES**0.5
RANDOM = np.random.default_rng(5)
NORMAL = RANDOM.normal(size=(SAMPLES, 4))


def compared(wanted: Any, got: Any, shape: tuple[int, ...] = (), labels: str = "z") -> Agreement:
    """Compare one output, one row for each sample."""
    comparison = Comparison(labels, {"y": shape})
    for number in range(len(wanted)):
        rows = slice(number, number + 1)
        comparison.add({"y": wanted[rows]}, {"y": got[rows]})
    return comparison.agreement()


def worst(wanted: Any, got: Any, shape: tuple[int, ...] = ()) -> Column:
    found = compared(wanted, got, shape).column
    assert found is not None
    return found


def test_a_constant_does_not_agree_with_what_varies() -> None:
    """A regression of 290 +- 0.23 has a cosine of 1.000000 with the number 290."""
    wanted = (290 + 0.23 * NORMAL[:, :1]).astype(np.float32)

    found = compared(wanted, np.full_like(wanted, 290))

    assert found.cosine is not None
    assert found.cosine > 0.999999
    column = found.column
    assert column is not None
    assert (column.output, column.part) == ("y", "")
    assert column.error == pytest.approx(SLACK, rel=0.05)
    assert column.gain == pytest.approx(0, abs=1e-6)
    assert column.spread == pytest.approx(float(wanted.std()), rel=1e-4)


def test_rounding_beside_an_offset_is_seen() -> None:
    """FP16 has steps of 0.25 at 290: about 31 % of the spread, although nothing is biased."""
    wanted = (290 + 0.23 * NORMAL).astype(np.float32)

    column = worst(wanted, wanted.astype(np.float16).astype(np.float32))

    assert 0.2 < column.error < 0.5


@pytest.mark.parametrize(
    ("change", "bias", "gain"),
    [(lambda y: y + 0.5, 0.5, 1.0), (lambda y: y * 0.8, None, 0.8), (lambda y: -y, None, -1.0)],
)
def test_bias_and_gain_say_what_is_wrong(change: Any, bias: float | None, gain: float) -> None:
    """The mean error and the slope, exact beside an offset of a hundred million."""
    wanted = 1e8 + NORMAL[:, :1]
    mean = wanted.mean()

    column = worst(wanted, mean + change(wanted - mean))

    assert column.gain == pytest.approx(gain, rel=1e-3)
    if bias is not None:
        assert column.bias == pytest.approx(bias, rel=1e-3)


def test_a_small_column_counts_by_its_own_spread() -> None:
    """Beside columns of a thousand, one of a thousandth has no share in any figure over all."""
    wanted = NORMAL * np.array([1e3, 1.0, 1e-3, 1.0])
    got = wanted.copy()
    got[:, 2] = 0.0

    found = compared(wanted, got)

    assert found.cosine == pytest.approx(1.0)
    assert found.column is not None
    assert found.column.part == "column 2"
    assert found.column.error == pytest.approx(1.0, rel=0.2)


def test_a_channel_of_a_map_counts_by_its_own_spread() -> None:
    """A detector [n, 6, 300] has four boxes' numbers of hundreds and two scores below 1."""
    wanted = RANDOM.normal(size=(SAMPLES, 6, 30)) * np.array([300.0] * 4 + [0.1] * 2)[:, None]
    got = wanted.copy()
    got[:, 5] = 0.0

    column = worst(wanted, got, (DYNAMIC, 6, 30))

    assert column.part == "channel 5"
    assert column.error == pytest.approx(SLACK, rel=0.05)


@pytest.mark.parametrize(
    ("value", "got", "error"),
    [
        (5.0, 5.0, 0.0),
        (5.0, 5.05, 0.01 * SLACK),
        (-5.0, -4.95, 0.01 * SLACK),
        (0.0, 0.0, 0.0),
        (0.0, 1e-9, ERROR_MAX),
    ],
)
def test_a_constant_column_counts_by_its_magnitude(value: float, got: float, error: float) -> None:
    """It has no spread. A constant of zero must stay zero."""
    wanted = np.column_stack([NORMAL[:, 0], np.full(SAMPLES, value)])
    other = np.column_stack([NORMAL[:, 0], np.full(SAMPLES, got)])

    column = worst(wanted, other)

    assert column.error == pytest.approx(error)
    if error:
        assert (column.part, column.spread, column.gain) == ("column 1", 0.0, None)


def test_rounding_is_no_spread() -> None:
    """A sum of probabilities is 1 but for the last place of FP32."""
    wanted = (1 + 1e-7 * np.sign(NORMAL[:, :1])).astype(np.float32)

    column = worst(wanted, np.ones_like(wanted))

    assert column.gain is None
    assert column.error < 1e-6


def test_the_error_of_a_constant_weighs_more() -> None:
    """A tolerance of 0.01 permits 2 % of a spread and 0.1 % of a constant."""
    spread = Column("y", "", 0.02, 1.0, 0.0, 1.0)
    constant = Column("y", "", 0.001, 0.0, 0.0, None)

    assert spread.disagreement == pytest.approx(0.01)
    assert constant.disagreement == pytest.approx(0.01)

    wanted = np.column_stack([NORMAL[:, 0], np.ones(SAMPLES)])
    column = worst(wanted, wanted + np.array([0.01, 0.005]))
    assert (column.part, column.error) == ("column 1", pytest.approx(0.005 * SLACK))


@pytest.mark.parametrize(
    ("shape", "declared", "axes"),
    [
        ((), (), (-1,)),
        ((1,), (DYNAMIC,), (-1,)),
        ((5,), (5,), (0,)),
        ((1,), (1,), (-1,)),
        ((1, 1), (DYNAMIC, 1), (-1,)),
        ((1, 5), (DYNAMIC, 5), (1,)),
        ((1, 5), (DYNAMIC, DYNAMIC), (1,)),
        ((4, 5), (4, 5), (0, 1)),
        ((1, 7, 5), (DYNAMIC, DYNAMIC, 5), (2,)),
        ((1, 84, 8400), (1, 84, 8400), (1, 2)),
        ((1, 3, 9, 9), (DYNAMIC, 3, DYNAMIC, DYNAMIC), (1,)),
        ((1, 9, 9, 3), (DYNAMIC, DYNAMIC, DYNAMIC, DYNAMIC), (3,)),
        ((3, 9, 9), (3, 9, 9), (0, 1, 2)),
        ((1, 5), (), (1,)),
        ((1, 0), (DYNAMIC, 0), (-1,)),
    ],
)
def test_columns_are_features_and_channels(
    shape: tuple[int, ...], declared: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    """Axes of any size hold rows and positions, unless there is no other."""
    assert axes_of(shape, declared) == axes


def test_many_columns_are_taken_with_their_neighbours() -> None:
    """Memory does not grow with the output; the column's name says how many there are."""
    wanted = np.zeros((1, COLUMNS_MAX + 1), np.float32)
    wanted[0, ::2] = 1
    got = wanted.copy()
    got[0, COLUMNS_MAX] = 3

    column = worst(np.repeat(wanted, 9, axis=0), np.repeat(got, 9, axis=0))

    assert column.part == f"columns {COLUMNS_MAX} to {COLUMNS_MAX}"


def test_a_large_output_is_summed_up_in_pieces() -> None:
    """The figures are those of the whole, whatever the place of its columns."""
    wanted = RANDOM.normal(size=(2, 3, 401, PIECE // 800)) * np.array([1, 10, 100])[:, None, None]
    got = wanted + RANDOM.normal(size=wanted.shape)
    assert wanted[0].size > PIECE

    column = worst(wanted, got, (DYNAMIC, 3, DYNAMIC, DYNAMIC))

    one, other = wanted[:, 0], got[:, 0]
    error = np.sqrt(np.mean((other - one) ** 2)) / one.std()
    assert column.part == "channel 0"
    assert column.error == pytest.approx(error * (1 + 0.5**0.5))
    assert column.bias == pytest.approx((other - one).mean())
    assert column.gain == pytest.approx(np.polyfit(one.ravel(), other.ravel(), 1)[0])


def test_few_samples_have_one_column() -> None:
    """The spread of one value is unknown: columns are judged together, as the cosine is."""
    wanted = np.array([[1.0, 2.0, 3.0, 4.0]])

    column = worst(wanted, wanted + 0.1)

    assert (column.part, column.gain) == ("", pytest.approx(1.0))
    assert column.error == pytest.approx(2 * 0.1 / wanted.std())

    wanted, got = NORMAL[:5], NORMAL[:5] + 0.1 * NORMAL[5:10]
    several = worst(wanted, got)
    assert (several.part, several.spread) == ("", pytest.approx(wanted.std()))
    assert several.gain == pytest.approx(np.polyfit(wanted.ravel(), got.ravel(), 1)[0])


def test_outputs_of_changing_size_have_one_column() -> None:
    """Detections of a picture are as many as there are, so their number names no column."""
    comparison = Comparison("z", {"y": (DYNAMIC,) * 2})
    samples = [RANDOM.normal(size=(1, 3 + number % 4)) for number in range(40)]
    for one in samples:
        comparison.add({"y": one}, {"y": one + 0.5})

    column = comparison.agreement().column

    values = np.concatenate([one.ravel() for one in samples])
    assert column is not None
    assert (column.part, column.bias) == ("", pytest.approx(0.5))
    assert column.spread == pytest.approx(values.std())


def test_what_is_not_finite_is_left_out() -> None:
    """Equal NaN and infinities count in no column; a column of them is none."""
    wanted = NORMAL.copy()
    wanted[::3, 1] = np.nan
    wanted[:, 2] = -np.inf

    column = worst(wanted, wanted + 0.1 * np.arange(4))

    assert column.part == "column 3"
    assert column.bias == pytest.approx(0.3)
    assert compared(wanted[:, 2:3], wanted[:, 2:3]).broken.startswith("nothing could be compared")


@pytest.mark.parametrize("scale", [1e200, 1e308])
def test_overflowing_figures_refuse_a_candidate(scale: float) -> None:
    """Squares of huge FP64 values are infinite: such a column has no measured error, so none is
    claimed. Equal values have none."""
    wanted = NORMAL / 10 * scale

    assert worst(wanted, wanted * 0.5).error == ERROR_MAX
    assert worst(wanted, wanted).error == 0.0


def test_bf16_is_compared_as_numbers() -> None:
    """NumPy has no such type, and equality would refuse every candidate."""
    upper = (NORMAL.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    wanted = bfloat16.from_bits(upper)

    column = worst(wanted, bfloat16.from_bits(upper ^ np.uint16(1)))

    assert 0 < column.error < 0.02


@pytest.mark.parametrize("value", [[1, 2], ["a", "b"], [True, False]])
def test_integers_flags_and_texts_have_no_column(value: Sequence[Any]) -> None:
    """They are equal or not."""
    array = np.array([value] * 3)

    assert compared(array, array) == Agreement(3, same_label=1.0)


def test_an_output_that_is_no_tensor_is_not_compared() -> None:
    """Sequences and maps have no figures."""
    comparison = Comparison("")

    comparison.add({"y": [np.ones(2)]}, {"y": [np.ones(2)]})

    assert comparison.agreement().broken == "output y is no tensor, and cannot be compared"


def test_probabilities_have_labels_without_being_told() -> None:
    """Rows that add up to 1 are classes. Without a name for them, other scores are not."""
    scores = np.exp(NORMAL)
    shares = scores / scores.sum(axis=1, keepdims=True)
    flipped = shares[:, ::-1]

    assert compared(shares, flipped, labels="").same_label is not None
    assert compared(shares, shares, labels="").same_label == 1.0
    assert compared(scores, scores, labels="").same_label is None
    signed = np.column_stack([shares, -shares, np.ones(SAMPLES)])
    assert compared(signed, signed, labels="").same_label is None
    assert compared(shares, flipped, labels="other").same_label is None
    assert compared(shares[:, :0], shares[:, :0], labels="").same_label is None
