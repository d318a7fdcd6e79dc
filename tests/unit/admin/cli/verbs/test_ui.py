"""Tests of fnctl ui."""

from __future__ import annotations

import json
import stat
import webbrowser
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from admin.cli.verbs.ui import address_of, write_page
from tests.support.admin_api import AdminApi, Canned

SESSION = {"scopes": ["admin"], "version": "0.1.0", "driver": "process", "workers": 1}


def test_the_address_has_the_key_where_no_server_sees_it(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """The printed address has the key, checked first, in the fragment, which browsers send to no
    server."""
    api.on("GET", "/admin/v1/session", Canned(SESSION))

    result = fnctl("ui")

    assert result.stdout == f"{api.url}/ui/#key=secret-token\n"
    assert api.requests[0].headers["Authorization"] == "Bearer secret-token"


def test_json_tells_the_scopes_too(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """--json prints the address and the key's scopes."""
    api.on("GET", "/admin/v1/session", Canned(SESSION))

    told = json.loads(fnctl("ui", "--json").stdout)

    assert told == {"url": f"{api.url}/ui/#key=secret-token", "scopes": ["admin"]}


def test_a_refused_key_makes_no_address(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """A refused key is reported with the server's reason and without an address."""
    refusal_text = {"title": "No key", "code": "no_key", "detail": "the key is unknown"}
    api.on("GET", "/admin/v1/session", Canned(refusal_text, 401))

    result = fnctl("ui")

    assert result.exit_code != 0
    assert "the key is unknown" in result.stderr
    assert "#key" not in result.stdout


def test_the_browser_gets_a_file_and_not_the_key(
    api: AdminApi,
    fnctl: Callable[..., Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """--open passes the browser a private file: every user of the machine can read a command
    line."""
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) is None)
    api.on("GET", "/admin/v1/session", Canned(SESSION))

    result = fnctl("ui", "--open")

    path = tmp_path / "data/ui.html"
    assert (result.exit_code, opened) == (0, [path.as_uri()])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert f"{api.url}/ui/#key=secret-token" in path.read_text()


def test_without_a_browser_the_address_is_enough(
    api: AdminApi, fnctl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no browser opens, the user is asked to open the address."""
    monkeypatch.setattr(webbrowser, "open", lambda _url: False)
    api.on("GET", "/admin/v1/session", Canned(SESSION))

    assert "open the address yourself" in fnctl("ui", "--open").stderr


def test_an_existing_page_is_replaced(tmp_path: Path) -> None:
    """An existing page is replaced; a symbolic link in its place is not followed."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    (tmp_path / "ui.html").symlink_to(elsewhere)

    path = write_page(tmp_path, 'http://x/ui/#key="><script>')

    assert elsewhere.read_text() == "kept"
    assert "<script>" not in path.read_text()


def test_a_key_is_quoted_and_may_be_missing() -> None:
    """The key is percent-encoded; without a key the page asks for one."""
    assert address_of("http://x/", "a&b#c") == "http://x/ui/#key=a%26b%23c"
    assert address_of("http://x", None) == "http://x/ui/"
