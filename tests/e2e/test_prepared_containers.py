"""Tests of models prepared by trials in containers and loaded by containers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime_image.contract.model import FOLDER, GRAPH_FILE, WEIGHTS_FILE
from tests.support.container_server import ContainerServer, container_server
from tests.support.layered import WIDTH, layered

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(120)]

MIB = 80
"""Size of the model in MiB, above the 64 MiB that once bounded /tmp."""
CAP_MIB = 700
GLUTTON = """
from runtime_image.verification import transfer

def eat():
    eaten = []
    while True:
        eaten.append(bytes(b"x") * 2**20)

assert transfer.trim_memory
transfer.trim_memory = eat

def predict(inputs, ctx):
    return ctx.run(inputs)
"""


@pytest.fixture
def server(engine: str, runtime_image: str, tmp_path: Path) -> Iterator[ContainerServer]:
    """A server over containers without functions."""
    with container_server(tmp_path / "data", engine, runtime_image) as server:
        yield server


def deployed(server: ContainerServer, path: Path, *options: str) -> dict[str, Any]:
    """Return the profile of a deploy that must succeed."""
    done = server.fnctl("deploy", str(path), *options)
    assert done.returncode == 0, done.stderr + done.stdout
    [revision] = server.fnctl_json("show", "layered")["revisions"]
    profile: dict[str, Any] = revision["profile"]
    return profile


def serving(server: ContainerServer) -> dict[str, Any]:
    """Return the container whose record is that of a serving replica; its name may still be a
    standby's."""
    found = []
    for container in server.containers().values():
        id = container["Config"]["Labels"]["fngate.replica"]
        records = [json.loads(path.read_text()) for path in server.data.rglob(f"{id}/replica.json")]
        found += [container for record in records if record["role"] == "serve"]
    [container] = found
    return container


def test_a_container_prepares_and_another_loads_it(server: ContainerServer, tmp_path: Path) -> None:
    """The prepared files leave a container that can write only to its memory, and are read-only in
    the next one's model folder, which answers from them."""
    profile = deployed(server, layered(tmp_path, MIB), "--name", "layered")
    assert profile["prepared"], profile["why_not_prepared"]

    row = tmp_path / "row.npy"
    np.save(row, np.ones((1, WIDTH), np.float32))
    answered = server.fnctl("invoke", "layered", "-i", f"x=@{row}")

    assert answered.returncode == 0, answered.stderr
    files = server.run(serving(server), "ls", "-l", f"/model/{FOLDER}")
    assert GRAPH_FILE in files
    assert WEIGHTS_FILE in files
    assert "original file" not in json.dumps(server.fnctl_json("logs", "layered"))
    assert not list((server.data / "blobs" / "incoming").iterdir())


def test_a_container_makes_a_candidate_and_another_serves_it(
    server: ContainerServer, tmp_path: Path
) -> None:
    """The chosen candidate leaves its trial like prepared files, below the trial's memory cap, and
    is what the next container loads."""
    folder = tmp_path / "layered"
    folder.mkdir()
    layered(folder, 20)
    manifest = 'schema = 1\nname = "layered"\nmodel = "layered.onnx"\n'
    (folder / "function.toml").write_text(f'{manifest}[optimise]\nprecision = "fp16"\n')

    profile = deployed(server, folder)
    row = tmp_path / "row.npy"
    np.save(row, np.ones((1, WIDTH), np.float32))
    answered = server.fnctl("invoke", "layered", "-i", f"x=@{row}")

    assert profile["optimised"]["table"]["chosen"] == "fp16"
    assert answered.returncode == 0, answered.stderr
    path = f"/model/{profile['optimised']['file']['path']}"
    size = server.run(serving(server), "stat", "-c", "%s %a", path).split()
    assert size == [str(profile["optimised"]["file"]["size"]), "444"]


def test_a_trial_that_runs_out_of_memory_preparing_is_deployed(
    server: ContainerServer, tmp_path: Path
) -> None:
    """A trial that runs out of memory while preparing is deployed with its measurements, and with
    the reason for the missing preparation."""
    folder = tmp_path / "layered"
    folder.mkdir()
    layered(folder, 2)
    (folder / "handler.py").write_text(GLUTTON)
    (folder / "function.toml").write_text('schema = 1\nname = "layered"\nmodel = "layered.onnx"\n')

    profile = deployed(server, folder, "--trust", "--memory", str(CAP_MIB))

    assert profile["prepared"] is None
    assert "its trial ended while it was prepared" in profile["why_not_prepared"]
    assert profile["profiled"]
