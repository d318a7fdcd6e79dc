"""Tests of the prices of devices."""

from __future__ import annotations

import pytest

from admin.prices import PRICES_MAX, Prices, parse_prices

H200 = "NVIDIA H200"
SLICE = "NVIDIA H200 MIG 1g.18gb"


@pytest.mark.parametrize(
    ("text", "default", "by_name"),
    [
        ("", None, {}),
        (" 2.50 ", 2.5, {}),
        (
            "cuda=2.50,cpu=0.04, NVIDIA H200 = 3.9",
            None,
            {"cuda": 2.5, "cpu": 0.04, "nvidia h200": 3.9},
        ),
        ("0.1,cpu=0", 0.1, {"cpu": 0.0}),
    ],
)
def test_prices_are_pairs(text: str, default: float | None, by_name: dict[str, float]) -> None:
    """One price is for all devices, others are by kind or by the name of a GPU."""
    assert parse_prices(text) == (default, by_name)


@pytest.mark.parametrize(
    "text",
    [
        "cuda", "cuda=", "=2", "cuda=-1", "cuda=nan", "cuda=inf", "cuda=1e3", "2;3",
        ",", "cuda=2,", "cuda=12345678", "cuda=1000001", "2.", "\u0662",
    ],
)  # fmt: skip
def test_a_bad_price_is_refused(text: str) -> None:
    """The text says what is expected."""
    with pytest.raises(ValueError, match=r"expected prices per hour of 0 or more.*; got "):
        parse_prices(text)


@pytest.mark.parametrize("text", ["1,2", "cuda=1,CUDA=2"])
def test_two_prices_for_the_same_are_refused(text: str) -> None:
    """Which of them counted would be a guess."""
    with pytest.raises(ValueError, match="expected each price once"):
        parse_prices(text)


def test_a_decimal_comma_is_refused() -> None:
    """It would be a price of 2, and one of 50 for all other devices."""
    with pytest.raises(ValueError, match="expected the price for all devices first, got '50'"):
        parse_prices("cuda=2,50")


def test_the_number_of_prices_is_limited() -> None:
    """No list is endless."""
    with pytest.raises(ValueError, match="at most 64 prices"):
        parse_prices(",".join(f"n{number}=1" for number in range(PRICES_MAX + 1)))


@pytest.mark.parametrize(
    ("text", "price"),
    [
        ("1", 1.0),
        ("1,cuda=2", 2.0),
        ("1,cuda=2,nvidia h200=3", 3.0),
        ("cpu=2", None),
        ("", None),
    ],
)
def test_the_most_special_price_counts(text: str, price: float | None) -> None:
    """The name comes before the kind, the kind before the price for all."""
    assert Prices("EUR", 0.0, *parse_prices(text)).device_hour("cuda", H200, 1.0) == price


@pytest.mark.parametrize(
    ("text", "price"),
    [
        ("4", 0.5),
        ("cuda=4", 0.5),
        ("4,NVIDIA H200=8", 1.0),
        ("NVIDIA H200=8,NVIDIA H200 MIG 1g.18gb=3", 3.0),
    ],
)
def test_a_slice_has_its_part_of_the_price(text: str, price: float) -> None:
    """A price is that of a whole GPU, unless it is by the name of the slice."""
    assert Prices("EUR", 0.0, *parse_prices(text)).device_hour("cuda", SLICE, 0.125) == price


def test_a_device_may_be_free_of_charge() -> None:
    """A price of 0 is a price; none is not."""
    assert Prices("EUR", 0.0, 0.0).device_hour("cpu", "", 1.0) == 0.0
    assert [bool(one) for one in (Prices(), Prices("EUR", 0.0, 0.0), Prices("EUR", 0.3))] == [
        False,
        True,
        True,
    ]
