"""Build an environment in a process of its own, which a test may kill:
`python -m tests.support.environment_build ROOT CONFIG`, the lock on stdin. It says each step."""

from __future__ import annotations

import sys
from pathlib import Path

from environments import bytecode, records
from environments.folders import Environments, EnvironmentSettings
from environments.interpreters import find_interpreters
from environments.lock import read_lock
from environments.programs import Progress, Work


def say(step: Progress) -> None:
    """Write a step as a line."""
    sys.stdout.write(f"{step.phase} {step.done}\n")
    sys.stdout.flush()


def main(root: str, config: str) -> None:
    """Build, in many small steps."""
    records.STEP = 16  # type: ignore[misc]
    bytecode.PART = 16  # type: ignore[misc]
    lock = read_lock(sys.stdin.read())
    environments = Environments(Path(root), EnvironmentSettings(Path(config)))
    built = environments.ensure(lock, find_interpreters().found[0], Work(say))
    sys.stdout.write(f"built {built.name}\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
