"""Bytecode of all files of an environment: without it half of a start is compiling."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

from environments.interpreters import Interpreter
from environments.programs import Limits, Program, Progress, Work, run
from registry.errors import EnvironmentRefused, StoreUnavailable

SCRIPT: Final = Path(__file__).with_name("compile_files.py")
PART: Final = 300
"""Files that one process compiles: some seconds."""
PART_S: Final = 600.0
WRITTEN_MAX: Final = 4 << 30
PROCESSES_MAX: Final = 16


def compile_all(
    interpreter: Interpreter, folders: tuple[Path, Path, Path], files: Sequence[str], work: Work,
    held: tuple[int, ...] = (),
) -> None:  # fmt: skip
    """Compile the Python files among `files`; `folders` are theirs, the later name of that folder,
    and one for lists. Files that are no Python of this version have no bytecode.

    Raises EnvironmentRefused, StoreUnavailable, WorkCancelled.
    """
    sources = [file for file in files if file.endswith(".py") and "\n" not in file]
    folder, final, lists = folders
    parts = [sources[at : at + PART] for at in range(0, len(sources), PART)]

    def one(number: int) -> int:
        path = lists / f"part-{number}"
        path.write_text("\n".join(parts[number]), "utf-8", "surrogateescape")
        command: list[str | Path] = [interpreter.path, "-I", "-S", "-W", "ignore"]
        command += [SCRIPT, folder, final, path]
        ended = run(Program(command, lists, held=held), Limits(PART_S, WRITTEN_MAX), work)
        if ended.code:
            said = (ended.text.strip().splitlines() or ["no text"])[-1][:300]
            if "No space left" in said:
                raise StoreUnavailable(f"disk full: compiling bytecode: {said}")
            raise EnvironmentRefused(f"compiling bytecode: exit code {ended.code}: {said}")
        return len(parts[number])

    processes = min(len(os.sched_getaffinity(0)), PROCESSES_MAX)
    done = 0
    work.told(Progress("compile", 0, len(sources)))
    with ThreadPoolExecutor(processes, "bytecode") as pool:
        waiting = [pool.submit(one, number) for number in range(len(parts))]
        try:
            for each in as_completed(waiting):
                done += each.result()
                work.told(Progress("compile", done, len(sources)))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
