"""Settings of MLServer as a reference, and its message in gRPC."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.references import mlserver


def test_its_folder_has_the_settings_and_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLServer gets its ports, a process count, and a model that names the file to run."""
    monkeypatch.setattr(mlserver, "ENVIRONMENT", tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mlserver").touch()

    words = mlserver.command(tmp_path, Path("/models/a.onnx"), 8001, 8002, workers=1)

    assert words == [str(tmp_path / "bin" / "mlserver"), "start", str(tmp_path)]
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert (settings["http_port"], settings["grpc_port"]) == (8001, 8002)
    assert settings["parallel_workers"] == 1
    model = json.loads((tmp_path / mlserver.MODEL / "model-settings.json").read_text())
    assert model["parameters"] == {"uri": "/models/a.onnx"}
    assert (tmp_path / mlserver.MODEL / "mlserver_model.py").is_file()
    assert model["implementation"] == "mlserver_model.Session"
