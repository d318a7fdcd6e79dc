"""`fnctl deploy` of a repository against canned answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.support.admin_api import AdminApi, Canned
from tests.support.repositories import put_version

FUNCTIONS = "/admin/v1/functions"
ALL = "version_policy { all { } }"


def operation(id: str, **fields: Any) -> dict[str, Any]:
    """Return an operation that runs."""
    return {"id": id, "state": "running", "phase": "upload", **fields}


def done(id: str, revision: str, **result: Any) -> Canned:
    """Return the end of an operation."""
    found = {"revision": revision, "created": True, "switch": "calls go on", **result}
    return Canned(operation(id, state="done", result=found))


@pytest.fixture
def deploys(api: AdminApi) -> AdminApi:
    """Serve deploys of the functions a and b, on a server without functions."""
    api.takes_blobs = True
    api.on("GET", FUNCTIONS, Canned({"items": [], "next": None}))
    for name in ("a", "b"):
        api.on("POST", f"{FUNCTIONS}/{name}/revisions", Canned(operation(f"o{name}"), 202))
        api.on("GET", f"/admin/v1/operations/o{name}", done(f"o{name}", f"{name}@1"))
    return api


def test_every_model_and_version_is_deployed(
    deploys: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """The highest version takes the traffic, and comes before the others."""
    put_version(tmp_path, "a", 1, config=ALL)
    put_version(tmp_path, "a", 3)
    put_version(tmp_path, "b")
    result = fnctl("deploy", str(tmp_path), "--max", "2")

    assert result.exit_code == 0, result.output
    sent = [request.json for request in deploys.sent("POST")]
    assert [one.get("traffic", True) for one in sent] == [True, False, True]
    assert all(one["derived_name"] and one["overrides"] == {"max": 2} for one in sent)
    versions = [one["manifest"].partition("version = ")[2][0] for one in sent]
    assert versions == ["3", "1", "1"]
    assert result.stdout.splitlines() == [
        "MODEL  FUNCTION  VERSION  REVISION  RESULT    DETAIL",
        "a      a         3        a@1       deployed  calls go on",
        "                 1        a@1       deployed  calls go on",
        "b      b         1        b@1       deployed  calls go on",
    ]
    assert "a as a (1 of 2)\n  version 3: 1 of 1 files uploaded" in result.stderr


def test_the_others_are_deployed_after_one_fails(
    deploys: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """A trial that fails, and a model that is refused before anything is sent."""
    problem = {"title": "The model was refused", "detail": "no opset", "status": 422}
    failed = operation("oa", state="failed", error=problem)
    deploys.on("GET", "/admin/v1/operations/oa", Canned(failed))
    put_version(tmp_path, "a")
    put_version(tmp_path, "b")
    put_version(tmp_path, "old", config='platform: "tensorrt_plan"')
    (tmp_path / "docs").mkdir()
    result = fnctl("deploy", str(tmp_path))

    assert result.exit_code == 1
    rows = [line.split()[:5] for line in result.stdout.splitlines()[1:]]
    assert rows == [
        ["a", "a", "1", "-", "failed"],
        ["b", "b", "1", "b@1", "deployed"],
        ["old", "old", "-", "-", "refused"],
    ]
    lines = result.stderr.splitlines()
    assert lines[0].startswith("docs: no model: it has neither config.pbtxt")
    assert lines[1].startswith("old/config.pbtxt:1: platform: refused: expected onnxruntime_onnx")
    assert "error: a version 1: The model was refused: no opset" in lines
    assert lines[-1] == "error: 2 of 3 models are not deployed as they are: a, old"


def test_json_has_all_of_it(
    deploys: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """One object on stdout with what was said, and the problem on stderr."""
    deploys.on("GET", "/admin/v1/operations/oa", done("oa", "a@4", created=False))
    deploys.on(
        "GET",
        "/admin/v1/operations/ob",
        done("ob", "b@4", created=False, changed=["scaling.max"]),
    )
    put_version(tmp_path, "a", config="response_cache { enable: true }")
    put_version(tmp_path, "b")
    put_version(tmp_path, "c", config="unknown: 1")
    result = fnctl("deploy", str(tmp_path), "--json")

    assert result.exit_code == 1
    found = json.loads(result.stdout)["models"]
    assert [(one["model"], one["state"]) for one in found] == [
        ("a", "unchanged"),
        ("b", "changed"),
        ("c", "refused"),
    ]
    assert "response_cache.enable: ignored" in found[0]["config"][0]
    version = found[1]["versions"][0]
    assert (version["version"], version["revision"]) == ("1", "b@4")
    assert version["detail"] == "scaling.max"
    assert found[2]["versions"] == []
    assert "1 of 3 models" in json.loads(result.stderr)["detail"]


def test_one_models_folder_takes_a_name(
    deploys: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """A repository of several does not: wrong usage, and nothing is sent."""
    put_version(tmp_path, "a")
    put_version(tmp_path, "2nd")
    result = fnctl("deploy", str(tmp_path), "--name", "b")
    assert result.exit_code == 2
    assert "expected the folder of one model, got a repository of 2" in result.stderr
    assert deploys.requests == []

    result = fnctl("deploy", str(tmp_path / "2nd"), "--name", "b", "--no-wait")
    assert result.exit_code == 0, result.output
    (sent,) = [request.json for request in deploys.sent("POST")]
    assert "derived_name" not in sent
    assert 'name = "2nd"' in sent["manifest"]
    assert result.stdout.splitlines()[1].split() == [
        "2nd",
        "b",
        "1",
        "-",
        "running",
        *["operation", "ob"],
    ]


def test_a_key_that_may_not_read_still_deploys(
    deploys: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """The server checks the names by itself."""
    deploys.on("GET", FUNCTIONS, Canned({"code": "wrong_scope", "title": "No"}, 403))
    put_version(tmp_path, "a")
    assert fnctl("deploy", str(tmp_path)).exit_code == 0


def test_a_deployed_model_goes_to_its_function(
    deploys: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """Its name need not be the one that the folder would give."""
    items = [{"name": "a", "oip_name": "Net"}]
    deploys.on("GET", FUNCTIONS, Canned({"items": items, "next": None}))
    put_version(tmp_path, "Net")
    assert fnctl("deploy", str(tmp_path)).exit_code == 0
    assert len(deploys.sent("POST", f"{FUNCTIONS}/a/revisions")) == 1
