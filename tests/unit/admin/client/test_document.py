"""Answers of servers of other releases."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version

import pytest
from typer.testing import Result

from admin.client import routes
from admin.client.client import ApiError, Client
from tests.support.admin_api import AdminApi, Canned

LS = "/admin/v1/functions"


@pytest.fixture
def older(api: AdminApi) -> AdminApi:
    """A server whose functions have no `park`."""
    api.on("GET", LS, Canned({"items": [{"name": "digits"}]}))
    del api.body("GET", LS)["items"][0]["park"]
    api.on("GET", "/admin/v1/session", Canned({"version": "0.1.7"}))
    return api


def test_what_an_older_server_leaves_out_is_named(older: AdminApi) -> None:
    """With both versions."""
    with pytest.raises(ApiError) as error:
        _ = Client(older.url).items(routes.FUNCTIONS).value

    assert str(error.value) == (
        f"Other release: GET {LS}: object missing required field `park`; the server is fngate"
        f" 0.1.7, this fnctl is {version('fngate')}"
    )
    assert error.value.code == "other_release"


def test_a_server_that_does_not_say_its_version(api: AdminApi) -> None:
    """It is unknown then."""
    api.on("GET", LS, Canned({"items": [{"name": 5}]}))

    with pytest.raises(ApiError, match=r"`str`, got `int` - at `\$\.name`; .* an unknown version"):
        _ = Client(api.url).items(routes.FUNCTIONS).value


def test_fnctl_says_what_to_do_about_an_older_server(
    older: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """No traceback; --json prints what was sent."""
    result = fnctl("ls")

    assert (result.exit_code, result.stdout) == (1, "")
    assert "missing required field `park`" in result.stderr
    assert "\nnext: use the fnctl of the server's release, or --json" in result.stderr
    told = fnctl("ls", "--json")
    assert (told.exit_code, told.stderr) == (0, "")
    assert json.loads(told.stdout)["items"] == older.body("GET", LS)["items"]


def test_what_a_newer_server_adds_is_ignored(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """In texts."""
    api.on("GET", LS, Canned({"items": [{"name": "digits", "colour": "red"}], "more": 1}))

    assert fnctl("ls").stdout.splitlines()[1].startswith("digits ")
