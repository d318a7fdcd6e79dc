"""Tests of what all routes of the admin API share: answers, pages and numbers of queries."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

import admin.api
from admin.api.answers import Page, flag, json_answer, page_of, whole_number
from admin.documents.requests import CURSOR_MAX, PAGE_MAX
from admin.documents.server import Removed
from registry.errors import BadRequest

HANDLERS = sorted(Path(admin.api.__path__[0]).glob("*.py"))
RESPONSES = {"json_response", "json_answer"}
"""Functions that make a JSON answer of anything."""


@pytest.mark.parametrize("path", HANDLERS, ids=lambda path: path.name)
def test_an_answer_is_made_of_a_struct(path: Path) -> None:
    """No handler makes a JSON answer in another way than by `json_answer` of this package, whose
    argument is a Struct: none of aiohttp's or the gateway's, and none from an encoder."""
    tree = ast.parse(path.read_text())
    imported = [one for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)]
    foreign = {
        f"{one.module}.{name.name}"
        for one in imported
        for name in one.names
        if name.name in RESPONSES and one.module != "admin.api.answers"
    }
    used = {one.attr for one in ast.walk(tree) if isinstance(one, ast.Attribute)}

    assert not foreign
    assert used & RESPONSES == ({"json_answer"} if path.name == "answers.py" else set())


@pytest.mark.parametrize("path", HANDLERS, ids=lambda path: path.name)
def test_no_answer_is_a_literal(path: Path) -> None:
    """What `json_answer` gets is no dictionary and no list, which mypy would refuse as well."""
    calls = [one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.Call)]
    answers = [one.args[0] for one in calls if getattr(one.func, "id", "") == "json_answer"]

    assert not [one for one in answers if isinstance(one, ast.Dict | ast.List | ast.DictComp)]


def test_an_answer_without_utf_8_has_escapes() -> None:
    """Bytes of a client that are not UTF-8 are sent as escapes of lone surrogates."""
    assert json_answer(Removed("\udc80")).body == b'{"removed": "\\udc80"}'


@pytest.mark.parametrize(("query", "says"), [({}, False), ({"force": "true"}, True)])
def test_a_flag_is_true_or_left_out(query: dict[str, str], says: bool) -> None:
    """Any other value is refused."""
    assert flag(query, "force") is says
    with pytest.raises(BadRequest, match="force: expected true, got 'yes'"):
        flag({"force": "yes"}, "force")


NAMES = ["a", "b", "c", "d", "e"]


def answered(page: Page) -> Any:
    """Return the page of NAMES that a query selects."""
    answer = page.answer((name, Removed(name)) for name in NAMES if name >= page.start)
    assert isinstance(answer.body, bytes)
    return json.loads(answer.body)


def test_pages_follow_each_other() -> None:
    """Following `next` yields every item once; the last page has no `next`."""
    first = answered(page_of({"limit": "2"}))
    second = answered(page_of({"limit": "2", "next": first["next"]}))
    third = answered(page_of({"limit": "2", "next": second["next"]}))

    pages = [[item["removed"] for item in page["items"]] for page in (first, second, third)]
    assert pages == [["a", "b"], ["c", "d"], ["e"]]
    assert third["next"] is None


def test_a_page_that_just_fits_is_the_last() -> None:
    """A page that ends with the last item has no `next`."""
    assert answered(Page(5, ""))["next"] is None


def test_no_more_rows_are_made_than_shown() -> None:
    """A page reads no row beyond its own and the next one, which shows that there are more."""
    made = []

    def row(name: str) -> Removed:
        made.append(name)
        return Removed(name)

    Page(2, "").answer((name, row(name)) for name in NAMES)

    assert made == ["a", "b", "c"]


def test_a_page_without_a_limit_has_the_largest_length() -> None:
    """Without a limit in the query a page has the maximum length."""
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
def test_a_bad_page_is_refused(query: dict[str, str]) -> None:
    """A bad limit or cursor is refused with what was expected."""
    with pytest.raises(BadRequest, match="expected"):
        page_of(query)


def test_a_number_has_a_default() -> None:
    """A number that the query leaves out has its default."""
    assert whole_number({}, "lines", 7, 9) == 7
    assert whole_number({"lines": "9"}, "lines", 7, 9) == 9
