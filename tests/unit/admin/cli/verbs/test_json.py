"""`--json` prints what a server sends: all members, also those that this fnctl does not know, in
their order."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from tests.support.admin_api import AdminApi, Canned

A = "/admin/v1"
F = f"{A}/functions/f"
NEW: dict[str, Any] = {"zeta": [{"b": 1, "a": 2.50}], "name": "f", "alpha": None}
"""Members of a later release, not in the order of the alphabet."""
DONE = {"new": 1, "id": "o1", "state": "done", "kind": "deploy"}
"""An operation."""

LISTS = {
    "ls": f"{A}/functions",
    "logs f": f"{F}/logs",
    "key ls": f"{A}/keys",
    "secret ls": f"{A}/secrets",
    "host ls": f"{A}/hosts",
    "env ls": f"{A}/environments",
    "alias ls": f"{A}/aliases",
}
ANSWERS = {
    "scale f --max 1": ("PATCH", F),
    "rm f --yes": ("DELETE", F),
    "warm f": ("POST", f"{F}/warm"),
    "unpark f": ("POST", f"{F}/unpark"),
    "sleep f": ("POST", f"{F}/sleep"),
    "advise f": ("GET", f"{F}/advice"),
    "alias add f a": ("POST", f"{A}/aliases"),
    "alias rm a": ("DELETE", f"{A}/aliases"),
    "usage": ("GET", f"{A}/usage"),
    "cost": ("GET", f"{A}/cost"),
    "key rm k": ("DELETE", f"{A}/keys/k"),
    "access status": ("GET", f"{A}/access"),
    "access open": ("PATCH", f"{A}/access"),
    "access rotate-admin": ("POST", f"{A}/access/token"),
    "secret rm s": ("DELETE", f"{A}/secrets/s"),
    "host add me@gpu2": ("POST", f"{A}/hosts"),
    "host show h": ("GET", f"{A}/hosts/h"),
    "host set h --gpus all": ("PATCH", f"{A}/hosts/h"),
    "host drain h": ("PATCH", f"{A}/hosts/h"),
    "host label h a=b": ("PATCH", f"{A}/hosts/h"),
    "host rm h --no-wait": ("DELETE", f"{A}/hosts/h"),
    "env show e": ("GET", f"{A}/environments/e"),
    "env rm e": ("DELETE", f"{A}/environments/e"),
    "env rm --unused": ("POST", f"{A}/environments/prune"),
    "image prune": ("POST", f"{A}/images/prune"),
}


def printed(body: object) -> str:
    return json.dumps(body, indent=2) + "\n"


@pytest.mark.parametrize("words", LISTS)
def test_a_list_is_printed_as_it_was_sent(
    api: AdminApi, fnctl: Callable[..., Result], words: str
) -> None:
    """The items of all pages."""
    sent = [NEW, {**NEW, "more": True}]
    pages = ({"items": sent[:1], "next": "c"}, {"items": sent[1:], "next": None})
    api.on("GET", LISTS[words], *(Canned(json.dumps(page).encode()) for page in pages))

    result = fnctl(*words.split(), "--json")

    assert (result.exit_code, result.stdout, result.stderr) == (0, printed({"items": sent}), "")


@pytest.mark.parametrize("words", ANSWERS)
def test_an_answer_is_printed_as_it_was_sent(
    api: AdminApi, fnctl: Callable[..., Result], words: str
) -> None:
    """Nothing of it needs to be known."""
    api.on("GET", F, Canned(json.dumps(NEW).encode(), headers={"ETag": '"t"'}))
    api.on(*ANSWERS[words], Canned(json.dumps(NEW).encode()))

    result = fnctl(*words.split(), "--json")

    assert (result.exit_code, result.stdout, result.stderr) == (0, printed(NEW), "")


@pytest.mark.parametrize("verb", ["show", "why"])
def test_the_latest_errors_come_last(
    api: AdminApi, fnctl: Callable[..., Result], verb: str
) -> None:
    """Of a function and its state."""
    path = F if verb == "show" else f"{F}/why"
    api.on("GET", path, Canned(json.dumps(NEW).encode()))
    api.on("GET", f"{F}/errors", Canned(json.dumps({"items": [NEW]}).encode()))

    assert fnctl(verb, "f", "--json").stdout == printed({**NEW, "errors": [NEW]})


def test_operations_are_printed_as_they_were_sent(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """In lists, and where one is watched; whether one has ended is read, so that it is known."""
    api.on("GET", f"{A}/operations", Canned({"items": [DONE]}))
    api.on("GET", f"{A}/operations/o1", Canned(DONE))

    listed = fnctl("operation", "ls", "--json").stdout
    assert listed == printed({"items": api.body("GET", f"{A}/operations")["items"]})
    one = api.body("GET", f"{A}/operations/o1")
    assert next(iter(one)) == "new"
    assert fnctl("operation", "watch", "o1", "--json").stdout == printed(one)
