from __future__ import annotations

import json
from collections.abc import Callable

from typer.testing import Result

from tests.support.admin_api import AdminApi, Canned

ERROR = {"at_s": 1.0, "code": "function_failing", "detail": "cannot be loaded", "count": 1}


def test_why_hints_at_the_logs_of_a_failing_function(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """why of a failing function suggests its logs."""
    answer = {"state": "failing", "reason": "no such file", "decisions": [], "cold_starts": []}
    api.on("GET", "/admin/v1/functions/digits/why", Canned(answer))
    api.on("GET", "/admin/v1/functions/digits/errors", Canned({"items": [ERROR]}))

    result = fnctl("why", "digits")

    assert result.stdout.startswith("failing: no such file\n\nerrors\n")
    assert result.stdout.endswith("function_failing: cannot be loaded\n")
    assert result.stderr == "next: fnctl logs digits\n"
    assert json.loads(fnctl("why", "digits", "--json").stdout) == {**answer, "errors": [ERROR]}
