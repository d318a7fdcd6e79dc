"""Fixtures: a server with canned answers, and fnctl in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from admin.cli.main import app
from tests.support.admin_api import AdminApi

KEY = "secret-token"


@pytest.fixture
def api(leaks: object) -> Iterator[AdminApi]:
    server = AdminApi()
    yield server
    server.close()


@pytest.fixture
def fnctl(api: AdminApi, tmp_path: Path) -> Callable[..., Result]:
    """Run fnctl against `api` with a key."""
    env = {"FN_URL": api.url, "FN_KEY": KEY, "FN_DATA": str(tmp_path / "data"), "COLUMNS": "100"}
    env["FN_DOCKER_HOST"] = f"unix://{tmp_path}/none"

    def run(*words: str, input: str | None = None) -> Result:
        return CliRunner().invoke(app, list(words), env=env, input=input, prog_name="fnctl")

    return run
