"""MLServer: the Python server of the Open Inference Protocol, with a model of its own kind.

It gets a virtual environment of its own, because it pins versions of packages that fngate uses.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.references import environments

ENVIRONMENT = environments.environment("mlserver")
PACKAGES = ("mlserver==1.7.1", "uvloop==0.21.0")
"""Processes for models do not start with a newer uvloop."""
MODEL = "digits"
SOURCE = Path(__file__).with_name("mlserver_model.py")


def program() -> Path:
    """Return the path of MLServer, installed if it is missing.

    Raises RuntimeError if it cannot be installed.
    """
    packages = [*PACKAGES, f"onnxruntime=={version('onnxruntime')}"]
    return environments.program(ENVIRONMENT, "mlserver", packages, sys.executable)


def command(folder: Path, model: Path, rest: int, grpc: int, *, workers: int) -> list[str]:
    """Write the settings and the model; return the command. Raises RuntimeError without MLServer.

    `workers`: processes for models, 1 by default; with 0, models run in the server's process, which
    costs less for small ones. There is no access log and no page of metrics.
    """
    path = program()
    here = folder / MODEL
    here.mkdir()
    (here / SOURCE.name).write_text(SOURCE.read_text())
    about = {"implementation": f"{SOURCE.stem}.Session", "parameters": {"uri": str(model)}}
    (here / "model-settings.json").write_text(json.dumps({"name": MODEL, **about}))
    settings = {
        "debug": False,
        "host": "127.0.0.1",
        "http_port": rest,
        "grpc_port": grpc,
        "metrics_endpoint": None,
        "parallel_workers": workers,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    return [str(path), "start", str(folder)]
