from __future__ import annotations

import json
from collections.abc import Callable

from typer.testing import Result

from admin.cli.verbs.key import render
from admin.documents.server import KeyRow
from tests.support.admin_api import AdminApi, Canned
from tests.support.admin_documents import all_made

KEYS = "/admin/v1/keys"
KEY = {
    "id": "k1",
    "scopes": ["read", "invoke:digits"],
    "note": "shop",
    "created_s": 1000.0,
    "priority": "high",
}


def test_the_secret_is_printed_alone(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """stdout has only the secret, so that a script can store it."""
    api.on("POST", KEYS, Canned({**KEY, "secret": "fn_abc"}, 201))

    result = fnctl("key", "add", "--scope", "read", "--scope", "invoke:digits", "--note", "shop")

    assert result.stdout == "fn_abc\n"
    assert "key k1 (read, invoke:digits); the secret is shown only now" in result.stderr
    assert api.requests[0].json == {"scopes": ["read", "invoke:digits"], "note": "shop"}


def test_the_secret_of_an_older_server_is_not_lost(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """It is in one answer only, whatever else that answer lacks."""
    api.on("POST", KEYS, Canned({**KEY, "secret": "fn_abc"}, 201))
    del api.body("POST", KEYS)["priority"]

    result = fnctl("key", "add", "--scope", "read")

    assert (result.exit_code, result.stdout) == (0, "fn_abc\n")


def test_a_key_needs_a_scope(fnctl: Callable[..., Result]) -> None:
    """A key without scopes is wrong usage."""
    assert fnctl("key", "add").exit_code == 2


def test_keys_are_listed_without_secrets(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """The list has id, scopes, age and note, and no secrets."""
    api.on("GET", KEYS, Canned({"items": [KEY]}))

    assert render(all_made(KeyRow, [KEY]), 1120.0).split("\n") == [
        "ID  SCOPES               PRIORITY  MADE       NOTE",
        "k1  read, invoke:digits  high      2 min ago  shop",
    ]
    assert "k1  read, invoke:digits" in fnctl("key", "ls").stdout
    assert json.loads(fnctl("key", "ls", "--json").stdout) == {"items": [KEY]}


def test_no_keys_are_said(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Without keys the output says how to create one."""
    api.on("GET", KEYS, Canned({"items": []}))

    result = fnctl("key", "ls")

    assert (result.stdout, result.stderr) == ("no keys\n", "next: fnctl key add --scope invoke\n")


def test_a_key_is_revoked(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """`key rm` revokes by id."""
    api.on("DELETE", f"{KEYS}/k1", Canned({"removed": "k1"}))

    assert fnctl("key", "rm", "k1").stdout == "key k1 is revoked\n"
    assert json.loads(fnctl("key", "rm", "k1", "--json").stdout) == {"removed": "k1"}
