"""`python -m runtime_image`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_folder_without_a_record_is_refused(tmp_path: Path) -> None:
    """The process names the missing file and exits with code 1."""
    command = [sys.executable, "-I", "-m", "runtime_image", str(tmp_path)]

    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)

    assert ended.returncode == 1
    assert ended.stdout.startswith("fngate replica: ")
    assert str(tmp_path / "replica.json") in ended.stdout
    assert ended.stderr == ""
