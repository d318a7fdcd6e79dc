"""PyTriton: Triton's own binary as the front of a callable of Python.

It gets a virtual environment of its own, because it pins versions of packages that fngate uses. Its
binary links the shared library of the system's Python, so the environment is made by that one.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from benchmarks.references import environments

ENVIRONMENT = environments.environment("pytriton")
PACKAGE = "nvidia-pytriton==0.7.0"
PYTHON = "/usr/bin/python3"
APPLICATION = Path(__file__).with_name("pytriton_app.py")


def command(model: Path, rest: int, grpc: int, metrics: int) -> list[str]:
    """Return the command, installed if it is missing. Raises RuntimeError without PyTriton."""
    packages = [PACKAGE, f"onnxruntime=={version('onnxruntime')}"]
    programs = environments.program(ENVIRONMENT, "pytriton", packages, PYTHON).parent
    ports = map(str, (rest, grpc, metrics))
    return [str(programs / "python"), "-I", str(APPLICATION), str(model), *ports]
