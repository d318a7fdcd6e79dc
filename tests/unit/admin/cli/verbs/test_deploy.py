from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import Result

from admin.cli.verbs.deploy import batch_max
from tests.support import models
from tests.support.admin_api import AdminApi, Canned

REVISIONS = "/admin/v1/functions/adder/revisions"
OPERATION = "/admin/v1/operations/o1"
RUNNING = {"id": "o1", "state": "running", "phase": "upload"}
DONE: dict[str, Any] = {
    "id": "o1",
    "state": "done",
    "phase": "switch",
    "result": {"revision": "adder@1", "created": True, "switch": "calls go to adder@1"},
}


@pytest.fixture
def model(api: AdminApi, tmp_path: Path) -> Path:
    """Serve a deploy of a model that the server does not have yet."""
    path = models.add_one(tmp_path)
    api.on("POST", REVISIONS, Canned(RUNNING, 202))
    api.on("GET", OPERATION, Canned(DONE))
    api.takes_blobs = True
    return path


def ctrl_c() -> None:
    """Send SIGINT while the answer is awaited, as a terminal does at Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


def test_a_deploy_goes_from_files_to_summary(
    api: AdminApi, fnctl: Callable[..., Result], model: Path
) -> None:
    """A deploy uploads the missing blobs, starts the operation and prints its end with the next
    command."""
    result = fnctl("deploy", str(model), "--name", "adder")

    assert result.exit_code == 0
    assert result.stdout.startswith("adder@1 deployed (1 file, ")
    assert "1 of 1 files uploaded" in result.stderr
    assert result.stderr.endswith("next: fnctl show adder\n")
    assert [request.method for request in api.requests] == ["HEAD", "PUT", "POST", "GET"]
    assert api.sent("PUT")[0].body == model.read_bytes()


SHOWN = {"example": 'curl http://here/fn/adder -d \'{"inputs": {"x": [[0.0]]}}\''}


@pytest.mark.parametrize(
    ("functions", "line"),
    [
        (Canned(SHOWN), SHOWN["example"]),
        (Canned({"example": "curl http://here/fn/adder --data-binary @picture.png"}), None),
        (Canned({"example": 'curl http://here/fn/adder -d \'{"x": "<FP32 [1, 999]>"}\''}), None),
        (Canned({"title": "A key is needed"}, 401), None),
    ],
)
def test_a_deploy_ends_with_a_curl_line_that_works(
    api: AdminApi, fnctl: Callable[..., Result], model: Path, functions: Canned, line: str | None
) -> None:
    """The curl line calls with the trial's zeros and has no placeholders; it names the key if
    callers need one."""
    profile = {"profiled": True, "load_ms": 1, "memory_mib": 1}
    api.on("GET", OPERATION, Canned({**DONE, "result": {**DONE["result"], "profile": profile}}))
    api.on("GET", "/admin/v1/functions/adder", functions)
    api.on("GET", "/fn/adder", Canned({}), Canned({"title": "A key is needed"}, 401))

    first = fnctl("deploy", str(model), "--name", "adder").stderr.splitlines()[-1]
    second = fnctl("deploy", str(model), "--name", "adder").stderr.splitlines()[-1]

    next_line = "next: fnctl show adder"
    assert first == (f"  or: {line}" if line else next_line)
    assert second == (f'{first} -H "Authorization: Bearer $FN_KEY"' if line else next_line)
    assert all("Authorization" not in one.headers for one in api.sent("GET", "/fn/adder"))


def test_options_are_overrides(api: AdminApi, fnctl: Callable[..., Result], model: Path) -> None:
    """Only the given options are sent, under the API's names."""
    words = "--min 1 --max 2 --idle 5 --memory 64 --device cpu --batch off --timeout 3 --trust"
    words += " --breaking"

    fnctl("deploy", str(model), "--name", "adder", *words.split())
    fnctl("deploy", str(model), "--name", "adder")

    first, second = (request.json for request in api.sent("POST"))
    assert first["overrides"] == {
        "min": 1,
        "max": 2,
        "idle_s": 5.0,
        "memory_mib": 64,
        "device": "cpu",
        "batch_max": 1,
        "timeout_s": 3.0,
    }
    assert (first["trust"], first["derived_name"], first["model"]) == (True, False, "add_one.onnx")
    assert first["breaking"]
    assert (second["overrides"], second["trust"], second["breaking"]) == ({}, False, False)


def test_json_is_the_operation(api: AdminApi, fnctl: Callable[..., Result], model: Path) -> None:
    """--json prints the ended operation and no remarks."""
    result = fnctl("deploy", str(model), "--name", "adder", "--json")

    assert json.loads(result.stdout) == DONE
    assert result.stderr == ""


def test_no_wait_returns_at_once(api: AdminApi, fnctl: Callable[..., Result], model: Path) -> None:
    """--no-wait returns when the server has accepted the deploy."""
    result = fnctl("deploy", str(model), "--name", "adder", "--no-wait")

    assert result.stdout == "operation o1 is running\n"
    assert api.sent("GET") == []


def test_a_failed_deploy_is_a_refusal(
    api: AdminApi, fnctl: Callable[..., Result], model: Path
) -> None:
    """A failed operation is reported with its reason and exit code 1."""
    problem = {"title": "The model was refused", "detail": "no opset", "status": 422}
    api.on("GET", OPERATION, Canned({**RUNNING, "state": "failed", "error": problem}))

    result = fnctl("deploy", str(model), "--name", "adder")

    assert result.exit_code == 1
    assert "error: The model was refused: no opset\n" in result.stderr


def test_a_taken_name_says_how_to_mean_it(
    api: AdminApi, fnctl: Callable[..., Result], model: Path
) -> None:
    """A derived name that exists already is refused with the command that replaces the function."""
    problem = {"title": "Conflict", "detail": "it exists", "code": "conflict"}
    api.on("POST", "/admin/v1/functions/add-one/revisions", Canned(problem, 409))

    result = fnctl("deploy", str(model))

    assert result.exit_code == 1
    assert result.stderr.endswith(f"next: fnctl deploy {model} --name add-one\n")


def test_ctrl_c_cancels(api: AdminApi, fnctl: Callable[..., Result], model: Path) -> None:
    """Ctrl-C cancels the operation and reports that nothing changed."""
    api.on("GET", OPERATION, Canned(RUNNING, before=ctrl_c))
    api.on("DELETE", OPERATION, Canned({**RUNNING, "state": "cancelled"}))

    result = fnctl("deploy", str(model), "--name", "adder")

    assert result.exit_code == 130
    assert result.stdout == "cancelled: nothing changed\n"
    assert len(api.sent("DELETE", OPERATION)) == 1


def test_ctrl_c_may_come_too_late(api: AdminApi, fnctl: Callable[..., Result], model: Path) -> None:
    """If the operation has ended before the cancellation, its result is printed."""
    api.on("GET", OPERATION, Canned(RUNNING, before=ctrl_c))
    api.on("DELETE", OPERATION, Canned(DONE))

    result = fnctl("deploy", str(model), "--name", "adder")

    assert result.exit_code == 0
    assert result.stdout.startswith("adder@1 deployed")


@pytest.mark.parametrize(("text", "rows"), [(None, None), ("off", 1), ("8", 8), ("always", None)])
def test_batch_is_a_number_or_off(text: str | None, rows: int | None) -> None:
    """--batch off means a batch of one row."""
    assert batch_max(text) == rows


@pytest.mark.parametrize("text", ["0", "-1", "many", "", "9" * 5000])
def test_another_batch_is_wrong_usage(text: str) -> None:
    """A --batch that is neither a number nor off is wrong usage and quoted."""
    with pytest.raises(
        typer.BadParameter, match="expected a number from 1 to 65536, off or always"
    ):
        batch_max(text)


def test_a_broken_bundle_is_refused_before_anything_is_sent(
    api: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """A folder without a manifest is exit code 1 without any request."""
    result = fnctl("deploy", str(tmp_path))

    assert result.exit_code == 1
    assert "expected function.toml" in result.stderr
    assert api.requests == []
