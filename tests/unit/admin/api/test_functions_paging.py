"""Lists in pages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from admin.api.functions import CURSOR_MAX, PAGE_MAX, Page, page_of, whole_number
from registry.errors import BadRequest

NAMES = ["a", "b", "c", "d", "e"]


def answered(page: Page) -> Any:
    """The page of NAMES."""
    rows = (name for name in NAMES if name >= page.start)
    answer = page.answer(rows, str, lambda name: {"name": name})
    assert isinstance(answer.body, bytes)
    return json.loads(answer.body)


def test_pages_follow_each_other() -> None:
    """Whoever goes on at `next` meets every item once; the last page has no `next`."""
    first = answered(page_of({"limit": "2"}))
    second = answered(page_of({"limit": "2", "next": first["next"]}))
    third = answered(page_of({"limit": "2", "next": second["next"]}))

    pages = [[item["name"] for item in page["items"]] for page in (first, second, third)]
    assert pages == [["a", "b"], ["c", "d"], ["e"]]
    assert third["next"] is None


def test_a_page_that_just_fits_is_the_last() -> None:
    """No empty page follows."""
    assert answered(Page(5, ""))["next"] is None


def test_no_more_rows_are_made_than_shown() -> None:
    """What is not on the page costs nothing but a look at the next one."""
    made = []
    rows = (made.append(name) or name for name in NAMES)

    Page(2, "").answer(rows, str, lambda name: {"name": name})

    assert made == ["a", "b", "c"]


def test_a_page_nobody_measured_has_the_largest_length() -> None:
    """Lists are bounded also for those who do not ask for it."""
    assert page_of({}) == Page(PAGE_MAX, "")


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "0"},
        {"limit": str(PAGE_MAX + 1)},
        {"limit": "-1"},
        {"limit": "1" * 10},
        {"limit": "²"},
        {"limit": "x"},
        {"next": "x" * (CURSOR_MAX + 1)},
    ],
)
def test_what_is_no_page_is_refused(query: dict[str, str]) -> None:
    """The error says what was expected."""
    with pytest.raises(BadRequest, match="expected"):
        page_of(query)


def test_a_number_has_a_default() -> None:
    """A query need not say what it does not care about."""
    assert whole_number({}, "lines", 7, 9) == 7
    assert whole_number({"lines": "9"}, "lines", 7, 9) == 9
