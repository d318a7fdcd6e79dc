"""Tests of limits that a process sets itself."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import resource
from runtime_image.verification.limits import lower_limit
for most in (2000, 1000, 3000):
    lower_limit(resource.RLIMIT_CPU, most)
    print(*resource.getrlimit(resource.RLIMIT_CPU))
"""


def test_a_limit_is_lowered_and_never_raised() -> None:
    """Both the soft and the hard limit are lowered; a lower one is kept."""
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)

    assert ran.stdout.split("\n") == ["2000 2000", "1000 1000", "1000 1000", ""]
