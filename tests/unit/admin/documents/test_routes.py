"""Tests of what the document says of the admin API's routes, against their handlers."""

from __future__ import annotations

import inspect
import re
import typing

import pytest

from admin.api.answers import page_of
from admin.api.table import Handlers, Row, table
from admin.documents.routes import PREFIX, ROUTES
from tests.support.described import described_routes

CALL = re.compile(r"""query(?:\.get\(|, )"(\w+)\"""")
HEADER = re.compile(r"""headers\.get\("(If-Match|Last-Event-ID)\"""")
STATUS = {"ACCEPTED": 202, "CREATED": 201}


def rows() -> list[Row]:
    """The rows with unbound handlers, for their source."""
    return table(Handlers(*typing.get_type_hints(Handlers).values()))


def source(row: Row) -> str:
    """The source of a handler with what it calls to read the query."""
    handler = row.handler
    text = inspect.getsource(handler)
    if "page_of(" in text:
        text += inspect.getsource(page_of)
    if "self._span(" in text:
        owner = handler.__globals__[handler.__qualname__.partition(".")[0]]  # type: ignore[attr-defined]
        text += inspect.getsource(owner._span)
    return text


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.method} {row.path}")
def test_parameters_are_those_that_the_handler_reads(row: Row) -> None:
    """The parameters of the query and the headers are those that the handler reads, and each part
    of the path that varies is described."""
    text = source(row)
    found = described_routes()[f"{row.method} {PREFIX}{row.path}"].parameters

    named = {one.name for one in found if one.place == "query"}
    assert named == set(CALL.findall(text))
    sent = {one.name for one in found if one.place == "header"}
    assert sent == set(HEADER.findall(text))
    assert {one.name for one in found if one.place == "path"} == set(
        re.findall(r"\{(\w+)\}", row.path)
    )


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.method} {row.path}")
def test_statuses_are_those_that_the_handler_gives(row: Row) -> None:
    """A handler that answers 201 or 202 is described so."""
    text = source(row)
    given = {number for name, number in STATUS.items() if name in text}

    assert set(ROUTES[f"{row.method} {row.path}"].statuses) - {200} == given
