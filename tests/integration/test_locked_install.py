"""Tests of installs from a lock with the options of the Makefile, with pip and with uv."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runtime_image.lock import locked
from tests.support.runtime_images import light_wheel

ROOT = Path(__file__).resolve().parents[2]
UV = shutil.which("uv")
TOOLS = [
    pytest.param([sys.executable, "-m", "pip", "install", "--disable-pip-version-check"], id="pip"),
    pytest.param(
        [UV, "pip", "install", "--offline", "--python", sys.executable],
        id="uv",
        marks=pytest.mark.skipif(UV is None, reason="there is no uv"),
    ),
]


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """Create a folder with the wheels of a package and of one that it does not name."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in ("light", "other"):
        (folder / f"{name}-1.0-py3-none-any.whl").write_bytes(light_wheel(name, "1.0"))
    return folder


def options() -> list[str]:
    """Return the options with which the Makefile installs what is locked."""
    [line] = re.findall(r"\$\(INSTALL\) (--require-hashes .*) -r", (ROOT / "Makefile").read_text())
    return str(line).split()


def install(tool: list[str], wheels: Path, lock: str) -> tuple[int, str, set[str]]:
    """Install the cut of a lock from a folder of wheels; return the exit code, what was said and
    the files that are there."""
    target, listed = wheels.parent / "site", wheels.parent / "locked.txt"
    listed.write_text(lock)
    where = ["--no-index", "--find-links", str(wheels), "--target", str(target)]
    done = subprocess.run(
        [*tool, *options(), *where, "-r", str(listed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout, {path.name for path in target.glob("*/__init__.py")}


@pytest.mark.parametrize("tool", TOOLS)
def test_the_locked_file_is_installed(tool: list[str], wheels: Path) -> None:
    """A file with a locked hash is installed, and nothing else."""
    digest = hashlib.sha256(light_wheel("light", "1.0")).hexdigest()
    lock = f"light==1.0 \\\n    --hash=sha256:{'0' * 64} \\\n    --hash=sha256:{digest}\n"

    code, said, found = install(tool, wheels, locked(["light"], lock))

    assert (code, found) == (0, {"__init__.py"}), said
    assert {path.name for path in (wheels.parent / "site").glob("*.dist-info")} == {
        "light-1.0.dist-info"
    }


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    "lock",
    [
        f"light==1.0 --hash=sha256:{'0' * 64}\n",
        "light==1.0\n",
    ],
    ids=["another file", "no hash"],
)
def test_another_file_is_refused(tool: list[str], wheels: Path, lock: str) -> None:
    """pip and uv install nothing if the file's hash is another one, or there is none."""
    code, said, found = install(tool, wheels, lock)

    assert (code != 0, found) == (True, set())
    assert re.search(r"hash", said, re.IGNORECASE)
