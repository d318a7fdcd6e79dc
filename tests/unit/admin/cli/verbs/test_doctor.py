from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from tests.support.admin_api import AdminApi, Canned

pytestmark = pytest.mark.slow

NAMES = [
    "python",
    "data folder",
    "disk",
    "admin token",
    "socket path",
    "onnxruntime",
    "server",
    "access",
]


def test_a_healthy_machine_passes(
    api: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """With folder, token and server in place every check is ok or a warning."""
    token = tmp_path / "data" / "admin.token"
    token.parent.mkdir()
    token.touch(0o600)
    token.write_text("t")
    api.on("GET", "/readyz", Canned({"status": "ok", "reasons": []}))
    api.on("GET", "/admin/v1/functions", Canned({"items": []}))

    result = fnctl("doctor", "--json")

    found = {each["name"]: each["level"] for each in json.loads(result.stdout)["items"]}
    assert list(found) == NAMES
    assert set(found.values()) <= {"ok", "warn"}
    assert result.exit_code == 0


def test_what_is_missing_is_exit_code_1(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """A failed check ends with exit code 1 and says what to do."""
    api.close()

    result = fnctl("doctor")

    assert result.exit_code == 1
    assert "-> start it: fnctl serve" in result.stdout
