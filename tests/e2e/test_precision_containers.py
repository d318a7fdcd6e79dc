"""Tests of candidates made by trials in containers and served by containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime_image.contract.precision import FOLDER, MODEL_FILE
from tests.support.container_server import ContainerServer, container_server
from tests.support.layered import WIDTH, layered

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(240)]

MIB = 60
CAP_MIB = 420
"""Enough to load and run the model, but not to convert it."""
MANIFEST = """schema = 1
name = "layered"
model = "layered.onnx"

[optimise]
precision = "{precision}"
tolerance = 0.05
samples = "samples.npz"
"""


def bundle(folder: Path, mib: int, precision: str) -> Path:
    folder.mkdir()
    layered(folder, mib)
    rows = np.random.default_rng(4).normal(size=(96, WIDTH)).astype(np.float32)
    np.savez(folder / "samples.npz", x=rows)
    (folder / "function.toml").write_text(MANIFEST.format(precision=precision))
    return folder


def table(server: ContainerServer) -> dict[str, Any]:
    found: dict[str, Any] = server.fnctl_json("show", "layered")["precision"]
    return found


def test_a_container_makes_a_candidate_and_another_serves_it(
    engine: str, runtime_image: str, tmp_path: Path
) -> None:
    """The image has all that the tools need. Their files stay in the trial's memory, the chosen one
    leaves it and is in the next container's model folder. Where the memory does not suffice, the
    table says so and the original is served."""
    with container_server(tmp_path / "data", engine, runtime_image) as server:
        done = server.fnctl("deploy", str(bundle(tmp_path / "small", 1, "int8")))
        assert done.returncode == 0, done.stderr + done.stdout
        assert table(server)["chosen"] in ("int8", "int8-dynamic")
        row = tmp_path / "row.npy"
        np.save(row, np.ones((1, WIDTH), np.float32))
        answered = server.fnctl("invoke", "layered", "-i", f"x=@{row}")
        assert answered.returncode == 0, answered.stderr
        running = [one for one in server.containers().values() if one["State"]["Running"]]
        listed = [server.run(one, "ls", f"/model/{FOLDER}") for one in running]
        assert MODEL_FILE in {text.strip() for text in listed}

        large = bundle(tmp_path / "large", MIB, "auto")
        done = server.fnctl("deploy", str(large), "--memory", str(CAP_MIB))

        assert done.returncode == 0, done.stderr + done.stdout
        found = table(server)
        reasons = {row["name"]: row["why_not"] for row in found["candidates"]}
        assert found["chosen"] == "original"
        assert "memory" in reasons["int8"] or "signal 9" in reasons["int8"]
