"""The routes that fnctl calls are those of the server, with the same types."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from admin.client import routes
from admin.client.routes import BodyRoute, ListRoute, Route
from admin.documents.functions import Items
from admin.documents.routes import ROUTES

KNOWN = {re.sub(r"{\w+}", "{}", name): route for name, route in ROUTES.items()}
CALLED = {name: one for name, one in vars(routes).items() if isinstance(one, Route | ListRoute)}


@pytest.mark.parametrize("name", CALLED)
def test_a_route_has_the_types_of_the_document(name: str) -> None:
    """Of its answer and of its body."""
    called = CALLED[name]
    known = KNOWN[f"{called.method} {called.path}"]

    if isinstance(called, ListRoute):
        assert known.answer == Items[called.item()]  # type: ignore[misc] # a type at run time
    else:
        assert known.answer is called.answer()
    if isinstance(called, BodyRoute):
        assert called.body() in (get_args(known.request) or (known.request,))
    else:
        assert known.request is None
