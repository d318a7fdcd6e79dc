"""Tests of what each part brings with it when it is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = ("numpy", "onnx", "onnxruntime", "PIL", "google")

IMPORT = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def imported_by(module: str) -> set[str]:
    """The top-level packages in a fresh interpreter that has imported `module`."""
    # Measured, it would have loaded what measures it.
    environment = {name: os.environ[name] for name in os.environ if "COVERAGE" not in name}
    process = subprocess.run(
        [sys.executable, "-c", IMPORT, module],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return set(process.stdout.split())


CODECS_WITHOUT_NUMPY = [
    f"runtime_image.codecs.{name}" for name in ("request", "plain_json", "pictures", "multipart")
]


@pytest.mark.parametrize("module", ["python_runner.program", *CODECS_WITHOUT_NUMPY])
def test_functions_of_json_bring_no_numpy(module: str) -> None:
    """Nor Pillow and pydantic: only a handler that imports them has them."""
    assert imported_by(module) & {*HEAVY, "pydantic", "aiohttp"} == set()


@pytest.mark.parametrize("module", ["gateway.http.app", "pool_manager.manager", "admin.compose"])
def test_the_server_brings_no_engine(module: str) -> None:
    """A server loads neither numpy nor an engine nor a picture library, whatever it imports."""
    assert imported_by(module) & set(HEAVY) == set()


@pytest.mark.parametrize("module", ["admin.serve", "admin.workers.worker"])
def test_a_server_without_other_hosts_brings_no_ssh(module: str) -> None:
    """asyncssh, a fifth of a server's start, is loaded with the first other host."""
    assert "asyncssh" not in imported_by(module)


@pytest.mark.parametrize("module", ["gateway.http.app", "gateway.delivery"])
def test_the_gateway_does_not_know_the_manager(module: str) -> None:
    """Gateway and pool manager meet in the wiring only."""
    assert imported_by(module) & {"pool_manager", "admin", "pydantic"} == set()


@pytest.mark.parametrize(
    "module",
    [
        "runtime_image.replica.main",
        "runtime_image.engines.loading",
        "runtime_image.verification.child",
    ],
)
def test_a_replica_parses_no_graph(module: str) -> None:
    """The row analysis runs in a child: replicas and standbys never load what it needs."""
    assert imported_by(module) & {"onnx", "google"} == set()


def test_the_contract_is_the_standard_librarys_alone() -> None:
    """What both sides of a link share needs nothing installed."""
    modules = imported_by("runtime_image.contract.model") - set(sys.stdlib_module_names)

    assert {name for name in modules if not name.startswith("_")} <= {"runtime_image"}
