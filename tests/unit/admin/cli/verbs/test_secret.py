"""Tests of fnctl secret."""

from __future__ import annotations

import getpass
import io
import json
import sys
from collections.abc import Callable

import pytest
from typer.testing import Result

from admin.cli.verbs.secret import VALUE_MAX, read_value, render
from admin.documents.server import SecretRow
from tests.support.admin_api import AdminApi, Canned
from tests.support.admin_documents import all_made

SECRETS = "/admin/v1/secrets"
SET = {"name": "hf", "set_s": 1.0, "created": True, "changed": True, "stale": [], "unreadable": []}
ITEM = {"name": "hf", "set_s": 1000.0, "problem": "", "functions": ["qwen"]}


def test_the_value_comes_from_standard_input(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """One newline at the end is cut, which is said; no output has the value."""
    api.on("POST", SECRETS, Canned(SET, 201))

    result = fnctl("secret", "set", "hf", input="s3cret\n\n")

    assert api.requests[0].json == {"name": "hf", "value": "s3cret\n"}
    assert result.stdout == "secret hf is set\n"
    assert "a newline at the end of the value was cut" in result.stderr
    assert "s3cret" not in result.output
    assert "next: fnctl deploy ... --secret VARIABLE=hf" in result.stderr


@pytest.mark.parametrize("value", ["", "\n", "x" * (VALUE_MAX + 1), "x" * (VALUE_MAX * 2)])
def test_bad_sizes_are_wrong_usage(fnctl: Callable[..., Result], value: str) -> None:
    """Nothing, and more than the limit, is refused without a request."""
    result = fnctl("secret", "set", "hf", input=value)

    assert result.exit_code == 2
    assert "xxx" not in result.output


@pytest.mark.parametrize(
    ("data", "read"),
    [
        (b"a", ("a", False)),
        (b"a\r\n", ("a", True)),
        (b"a\r", ("a\r", False)),
        (b"x" * VALUE_MAX + b"\r\n", ("x" * VALUE_MAX, True)),
    ],
)
def test_one_line_end_is_cut(
    monkeypatch: pytest.MonkeyPatch, data: bytes, read: tuple[str, bool]
) -> None:
    """LF and CR LF are line ends; a value of the largest size may have one."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert read_value() == read


def test_bytes_that_are_no_text_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable has text; the bytes are not quoted."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"s3cret\xff")))
    with pytest.raises(Exception, match="UTF-8") as caught:
        read_value()
    assert "s3cret" not in str(caught.value)


def test_a_terminal_is_asked_without_an_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the value is typed unseen."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(getpass, "getpass", lambda prompt: f"typed after {prompt}")
    assert read_value() == ("typed after value: ", False)


def test_functions_with_the_old_value_are_named(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """The output names them and how to start them anew, and secrets without their key."""
    api.on("POST", SECRETS, Canned({**SET, "stale": ["qwen"], "unreadable": ["other"]}))

    result = fnctl("secret", "set", "hf", input="x")

    assert "running replicas keep the old value until they stop: qwen" in result.stdout
    assert "their key is missing: other" in result.stdout
    assert "next: fnctl sleep qwen" in result.stderr


def test_an_equal_value_is_said(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """A value that was set before changes nothing."""
    api.on("POST", SECRETS, Canned({**SET, "created": False, "changed": False}))

    assert fnctl("secret", "set", "hf", input="x").stdout == "secret hf has this value already\n"


def test_secrets_are_listed(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """The list has name, age and functions; problems are below it."""
    api.on("GET", SECRETS, Canned({"items": [ITEM]}))
    assert json.loads(fnctl("secret", "ls", "--json").stdout) == {"items": [ITEM]}

    broken = {**ITEM, "problem": "secret hf: its key is missing"}
    assert render(all_made(SecretRow, [ITEM, broken]), 1120.0).split("\n") == [
        "NAME  SET        NEEDED BY  STATE",
        "hf    2 min ago  qwen",
        "hf    2 min ago  qwen       unreadable",
        "secret hf: its key is missing",
    ]


def test_no_secrets_are_said(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Without secrets the output says how to set one."""
    api.on("GET", SECRETS, Canned({"items": []}))

    result = fnctl("secret", "ls")

    assert (result.stdout, result.stderr) == ("no secrets\n", "next: fnctl secret set NAME\n")


def test_a_removal_names_what_needed_it(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """`--force` is passed on; revisions that cannot be called are named."""
    api.on("DELETE", f"{SECRETS}/hf", Canned({"removed": "hf", "needed_by": ["qwen@1"]}))

    result = fnctl("secret", "rm", "hf", "--force")

    assert api.requests[0].query == {"force": "true"}
    assert result.stdout == "secret hf is removed\n  without it these cannot be called: qwen@1\n"
