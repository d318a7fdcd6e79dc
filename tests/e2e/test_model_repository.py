"""A model repository in Triton's layout, deployed by fnctl to a real server and called at /v2."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import models
from tests.support.process_server import END_S, FNCTL, ServerProcess, server_process
from tests.support.repositories import put_version

CONFIG = """
name: "Affine.v2"
platform: "onnxruntime_onnx"
max_batch_size: 16
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt" } ]
version_policy { all { } }
dynamic_batching { max_queue_delay_microseconds: 100 }
instance_group [ { count: 2 kind: KIND_CPU } ]
model_warmup [ { batch_size: 2 inputs {
  key: "x" value { data_type: TYPE_FP32 dims: [ 4 ] random_data: true } } } ]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests of this file, each with models of its own."""
    with server_process(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


def request(server: ServerProcess, path: str, body: Any = None) -> tuple[int, Any]:
    """Send a request; return status and document."""
    data = None if body is None else json.dumps(body).encode()
    wanted = urllib.request.Request(f"{server.url}{path}", data, server.headers)
    try:
        with urllib.request.urlopen(wanted, timeout=END_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def infer(server: ServerProcess, model: str, *names: str) -> tuple[str, dict[str, list[float]]]:
    """Call a model, or one of its versions, with ones; return the version and the outputs."""
    tensors = [
        {"name": name, "shape": [1, 4], "datatype": "FP32", "data": [1, 1, 1, 1]}
        for name in names or ("x",)
    ]
    status, answer = request(server, f"/v2/models/{model}/infer", {"inputs": tensors})
    assert status == 200, answer
    assert answer["model_name"] == model.partition("/")[0]
    return answer["model_version"], {one["name"]: one["data"] for one in answer["outputs"]}


def states(server: ServerProcess, repository: Path) -> dict[str, list[tuple[str, str]]]:
    """Deploy a repository; return version and state of each model."""
    found = json.loads(server.fnctl("deploy", str(repository), "--json").stdout)
    return {
        one["model"]: [(each["version"], each["state"]) for each in one["versions"]]
        for one in found["models"]
    }


def test_a_repository_is_deployed_and_called(server: ServerProcess, tmp_path: Path) -> None:
    """Three models, one with two versions: right answers under the names of their folders, nothing
    changed by a second run, and a new version takes the calls that name none."""
    for version, offset in ((1, 10), (2, 20)):
        make = partial(models.affine, offset=offset)
        folder = put_version(tmp_path, "Affine.v2", version, make, CONFIG)
    (folder / "labels.txt").write_text("a\nb\nc\nd\n")
    put_version(tmp_path, "two_inputs", make=models.two_inputs)
    put_version(tmp_path, "fixed", make=models.fixed_batch, config="max_batch_size: 0")

    assert states(server, tmp_path) == {
        "Affine.v2": [("2", "deployed"), ("1", "deployed")],
        "fixed": [("1", "deployed")],
        "two_inputs": [("1", "deployed")],
    }
    assert infer(server, "Affine.v2") == ("2", {"y": [21.0] * 4})
    assert infer(server, "Affine.v2/versions/1") == ("1", {"y": [11.0] * 4})
    assert infer(server, "two_inputs", "a", "b")[1]["sum"] == [2.0] * 4
    assert infer(server, "fixed") == ("1", {"y": [2.0] * 4})
    assert request(server, "/v2/models/affine-v2/infer", {"inputs": []})[0] == 404

    before = server.fnctl_json("show", "affine-v2")
    assert (before["max"], before["device"]["kind"]) == (2, "cpu")
    assert before["output"]["labels"] == ["a", "b", "c", "d"]
    assert before["batching"] == {"mode": "auto", "max_size": 16, "wait_ms": 0.1}
    again = states(server, tmp_path)
    assert {state for each in again.values() for _, state in each} == {"unchanged"}
    assert server.fnctl_json("show", "affine-v2")["revisions"] == before["revisions"]

    put_version(tmp_path, "Affine.v2", 5, partial(models.affine, offset=50))
    assert states(server, tmp_path)["Affine.v2"] == [
        ("5", "deployed"),
        ("2", "unchanged"),
        ("1", "unchanged"),
    ]
    assert infer(server, "Affine.v2") == ("5", {"y": [51.0] * 4})
    assert infer(server, "Affine.v2/versions/2") == ("2", {"y": [21.0] * 4})


def test_an_older_version_never_gets_the_traffic(server: ServerProcess, tmp_path: Path) -> None:
    """Changed content of version 1 is found by its number, and by it alone."""
    config = "version_policy { all { } }"
    for version in (1, 2):
        put_version(tmp_path, "older", version, partial(models.affine, offset=version), config)
    states(server, tmp_path)
    (tmp_path / "older" / "1" / "model.onnx").unlink()
    models.affine(tmp_path / "older" / "1", offset=7).rename(
        tmp_path / "older" / "1" / "model.onnx"
    )
    assert states(server, tmp_path) == {"older": [("2", "unchanged"), ("1", "deployed")]}
    assert infer(server, "older") == ("2", {"y": [3.0] * 4})
    assert infer(server, "older/versions/1") == ("1", {"y": [8.0] * 4})


def test_a_failing_model_leaves_the_others(server: ServerProcess, tmp_path: Path) -> None:
    """One is refused by its configuration and one by its trial; the third answers."""
    put_version(tmp_path, "good")
    put_version(tmp_path, "refused", config="sequence_batching { }")
    put_version(tmp_path, "untrue", config="max_batch_size: 0")
    (tmp_path / "untrue" / "1" / "model.onnx").write_bytes(b"\x3a\x00")
    done = server.fnctl("deploy", str(tmp_path))
    assert done.returncode == 1
    assert "refused/config.pbtxt:1: sequence_batching: refused" in done.stderr
    assert "error: untrue version 1: " in done.stderr
    assert done.stderr.endswith(
        "error: 2 of 3 models are not deployed as they are: refused, untrue\n"
    )
    assert infer(server, "good") == ("1", {"y": [2.0] * 4})
    assert request(server, "/v2/models/refused/infer", {"inputs": []})[0] == 404


def test_a_name_at_v2_is_one_models(server: ServerProcess, tmp_path: Path) -> None:
    """Neither another function nor another folder takes it; a deploy without it keeps it."""
    put_version(tmp_path / "a", "Shared_Name", config="max_batch_size: 4")
    states(server, tmp_path / "a")
    done = server.fnctl("deploy", str(tmp_path / "a" / "Shared_Name"), "--name", "elsewhere")
    assert "belongs to the function shared-name: --name shared-name" in done.stderr
    put_version(tmp_path / "b", "shared.name")
    done = server.fnctl("deploy", str(tmp_path / "b"))
    assert "its function would be shared-name, which is another's" in done.stderr

    other = models.affine(tmp_path, offset=1)
    assert server.fnctl("deploy", str(other), "--name", "shared-name").returncode == 0
    assert infer(server, "Shared_Name") == ("2", {"y": [2.0] * 4})


def test_a_run_that_is_killed_is_made_good_by_the_next(
    server: ServerProcess, tmp_path: Path
) -> None:
    """kill -9 of fnctl while it deploys: the next run does what is left, and no more."""
    config = "version_policy { all { } }"
    names = [f"killed_{number}" for number in range(3)]
    for name in names:
        for version in (1, 2):
            make = partial(models.affine, scale=1 + names.index(name), offset=version)
            put_version(tmp_path, name, version, make, config)
    environment = {**os.environ, "FN_URL": server.url, "FN_DATA": str(server.data)}
    command = [FNCTL, "deploy", str(tmp_path)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("killed_1 as"):
                process.send_signal(signal.SIGKILL)
                break
    found = states(server, tmp_path)
    assert found["killed_0"] == [("2", "unchanged"), ("1", "unchanged")]
    assert {state for each in found.values() for _, state in each} <= {"unchanged", "deployed"}
    for name in names:
        scale = 1 + names.index(name)
        assert infer(server, name) == ("2", {"y": [scale + 2.0] * 4})
        assert infer(server, f"{name}/versions/1") == ("1", {"y": [scale + 1.0] * 4})
        assert len(server.fnctl_json("show", name.replace("_", "-"))["revisions"]) == 2
    again = states(server, tmp_path)
    assert {state for each in again.values() for _, state in each} == {"unchanged"}
