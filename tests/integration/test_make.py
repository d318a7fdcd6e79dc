"""Tests of what `make` does to the data folder, and of what `make run` prints."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from registry.files import DataDirectory
from tests.support.package_index import package_index

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LAST = "ui --open"
"""Text in the last line that `make run` prints once it only serves."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Create a project with its Makefile, a virtual environment and the data of `make run`."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in (".venv", ".fngate"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    return tmp_path


def make(project: Path, *words: str, answer: str = "") -> tuple[int, str]:
    command = ["make", "--no-print-directory", *words]
    ended = subprocess.run(
        command, cwd=project, input=answer, capture_output=True, text=True, check=False, timeout=60
    )
    return ended.returncode, ended.stdout


def test_clean_keeps_functions_and_keys(project: Path) -> None:
    """make clean keeps the data folder, which make cannot rebuild, and removes the rest."""
    assert make(project, "clean")[0] == 0

    assert (project / ".fngate" / "file").exists()
    assert not (project / ".venv").exists()


def test_clean_data_asks_first(project: Path) -> None:
    """make clean-data deletes only after "yes"; the end of the input is a no."""
    for answer in ("n\n", "", "\n"):
        code, text = make(project, "clean-data", answer=answer)
        assert (code != 0, ".fngate is kept" in text) == (True, True)
        assert (project / ".fngate" / "file").exists()

    assert make(project, "clean-data", answer="y\n")[0] == 0
    assert not (project / ".fngate").exists()
    assert make(project, "clean-data") == (0, "there is no .fngate here\n")


def test_clean_data_leaves_a_running_servers_alone(project: Path) -> None:
    """make clean-data respects the lock of a running server, whatever the answer."""
    with DataDirectory.open(project / ".fngate"):
        code, text = make(project, "clean-data", answer="y\n")

    assert code != 0
    assert "a server runs on .fngate: stop it first" in text
    assert (project / ".fngate" / "file").exists()


@pytest.mark.parametrize(
    ("target", "needs", "stamp"),
    [
        ("run", "fngate[cpu,python]", "echo 'cpu,python' >.venv/.run-ready"),
        ("check", "fngate[dev]", "touch .venv/.run-ready .venv/.ready"),
    ],
)
@pytest.mark.parametrize("uv", ["", "/opt/uv"])
def test_each_target_installs_what_it_needs(
    project: Path, target: str, needs: str, stamp: str, uv: str
) -> None:
    """`make run` installs no development tools, other targets do; with uv if it is present, else
    with pip. Packages need a hash of the lock; fngate itself brings none and is built by a locked
    package."""
    (project / "runtime_image").mkdir()
    for name in ("pyproject.toml", "requirements.lock", "runtime_image/lock.py"):
        (project / name).touch()

    text = make(project, "--dry-run", target, f"UV={uv}")[1].replace("\\\n", "")
    lines = [line for line in text.splitlines() if "locked.txt || " not in line]

    *_, locked = [line for line in lines if "--require-hashes" in line]
    [own] = [line for line in lines if " -e " in line]
    tool = (
        f"{uv} pip install --python .venv/bin/python" if uv else ".venv/bin/python -m pip install"
    )
    assert f"lock.py '{needs}' >.venv/locked.txt && {tool} " in " ".join(locked.split())
    assert {"--no-deps", "--only-binary"} < {*locked.split()}
    assert own.startswith(tool)
    assert own.endswith("--no-deps -e .")
    assert "--no-build-isolation" in own
    assert not [
        line
        for line in lines
        if "pip install" in line and line not in (own, locked) and "--require-hashes" not in line
    ]
    assert stamp in lines
    (project / ".venv/bin").mkdir()
    for name in ("bin/pip", ".run-ready", ".ready"):
        (project / ".venv" / name).touch()
    assert " -e " not in make(project, "--dry-run", target)[1]


def test_an_environment_gets_the_engine_and_the_extras_that_are_named(project: Path) -> None:
    """Those that were not named before are installed, in place of the earlier engine; without any
    named, an environment is left as it is."""
    (project / "runtime_image").mkdir()
    for name in ("pyproject.toml", "requirements.lock", "runtime_image/lock.py"):
        (project / name).touch()
    (project / ".venv/bin").mkdir()
    (project / ".venv/bin/pip").touch()
    (project / ".venv/.run-ready").write_text("cpu,python\n")

    def installed(*words: str) -> str:
        return make(project, "--dry-run", "install", "UV=", *words)[1]

    text = installed("ENGINE=gpu", "EXTRAS=grpc,audio")
    assert "fngate[gpu,python,grpc,audio]" in text
    assert "pip uninstall" in text
    assert "fngate[python,grpc]" in installed("ENGINE=", "EXTRAS=grpc")
    assert "-e ." not in installed() + installed("ENGINE=cpu")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_commands_that_make_run_prints_work_elsewhere(tmp_path: Path) -> None:
    """The commands printed by `make run` work from another folder without any fngate variable."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    data = tmp_path / "my data"
    here = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
    here |= {"FN_DATA": str(data), "FN_PORT": str(port)}
    there = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "BROWSER": "true"}
    with package_index() as index:
        index.add_installed("msgspec")
        here["FN_UV_CONFIG"] = str(index.config(tmp_path))
        server = subprocess.Popen(
            ["sh", "functions/serve.sh"],
            cwd=ROOT,
            env=here,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            assert server.stdout is not None
            printed: list[str] = []
            for line in server.stdout:
                printed.append(line)
                if LAST in line:
                    break
            commands = [line.strip() for line in printed[printed.index(serving(printed)) + 1 :]]
            commands = [line for line in commands if not line.startswith("For fnctl there")]
            export, last = commands[-2:]
            runs = [*commands[:-2], f"{export}; fnctl ls", last]

            answers = [shell(command, tmp_path, there) for command in runs]
        finally:
            os.killpg(server.pid, signal.SIGINT)
            server.communicate(timeout=60)

    assert len(answers) == 6
    digit, kind, word, text, listed, opened = answers
    assert ('"label":"2"' in digit, '"top"' in kind, '"label":"left"' in word) == (True, True, True)
    assert len(text) == 200
    assert "digits@1" in listed
    assert f"http://127.0.0.1:{port}/ui/#key=" in opened


def serving(printed: list[str]) -> str:
    """Return the line after which the commands stand."""
    return next(line for line in printed if line.startswith("Serving on "))


def shell(command: str, folder: Path, environment: dict[str, str]) -> str:
    """Return the output of a command, which must succeed."""
    ended = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
