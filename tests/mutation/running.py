"""Runner of a folder's tests against a mutant, in a fork of a process with imported libraries.

The checkout is only read: the fork imports the mutated module from a syntax tree in memory, and
bytecode and examples go to a scratch folder. The parent never imports product modules.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import hypothesis
import pytest

from tests.mutation.mutants import Mutant, mutated

TESTS = {
    "pool_manager/core": ("tests/unit/pool_manager/core", "tests/property/test_machine.py"),
    "gateway/dispatch": ("tests/unit/gateway/dispatch", "tests/property/test_dispatcher.py"),
}
"""The tests of each folder's mutants, in the order in which they run."""
OPTIONS = ("-x", "-s", "--tb=no", "--assert=plain", "--noconftest", "-p", "no:cacheprovider")
"""No conftest: it imports a server and checks for leaks, which pure decisions cannot have."""
NO_LIMIT = ("-o", "timeout=0")
"""No wall-clock limit per test, which a busy machine would exceed; the fork has its own limits."""
MEMORY_MAX = 4 << 30
"""Bytes of address space of a fork."""
CPU_FACTOR, CPU_SPARE_S = 4.0, 5.0
"""CPU limit of a mutant: a multiple of the unchanged source's time, plus some seconds."""
NO_ANSWER = {"code": -1, "by": "", "modules": []}
"""Answer of a fork that was ended by a signal."""
WALL_FACTOR = 20.0
"""Wall-clock limit as a multiple of the CPU limit, for mutants that block."""


@dataclass(frozen=True)
class Outcome:
    """Result of a run ("survived", "killed" or "timeout") and the first test that failed."""

    result: str
    by: str
    cpu_s: float
    wall_s: float
    modules: Sequence[str] = ()


class FirstFailure:
    """Pytest plugin that records the first test or file that fails."""

    def __init__(self) -> None:
        self.name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._record(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._record(report)

    def _record(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid


class Loader(SourceFileLoader):
    """Loader of one module from a syntax tree."""

    def __init__(self, name: str, path: str, tree: Any) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._tree, self.path, "exec", dont_inherit=True)


class Finder(MetaPathFinder):
    """Import finder that returns the mutated tree of one file; other modules are left to the next
    finder."""

    def __init__(self, path: Path, tree: Any) -> None:
        self._path = path
        self._tree = tree

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.rpartition(".")[2] not in (self._path.stem, self._path.parent.name):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin != str(self._path):
            return None
        spec.loader = Loader(name, str(self._path), self._tree)
        return spec


class Runner:
    """Runner of one checkout's tests in forks of this process."""

    def __init__(self, checkout: Path, scratch: Path) -> None:
        self._checkout = checkout
        self._scratch = scratch
        self._cpu_s = dict.fromkeys(TESTS, 600.0)
        self._since: dict[int, float] = {}
        sys.pycache_prefix = str(scratch / "bytecode")
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(scratch / "hypothesis")
        hypothesis.settings.register_profile(
            "mutation",
            database=None,
            deadline=None,
            derandomize=True,
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        )
        hypothesis.settings.load_profile("mutation")

    def warm_up(self, folder: str) -> Outcome:
        """Import the libraries of a folder's tests, and measure the tests without a change.

        Raises RuntimeError if a test fails.
        """
        for _ in range(2):
            self.start(folder)
            _, outcome = self.wait()
            if outcome.result != "survived":
                raise RuntimeError(f"{folder}: {outcome.result} without a change: {outcome.by}")
            for name in outcome.modules:
                with contextlib.suppress(ImportError):  # a name that a library made up
                    importlib.import_module(name)
        self._cpu_s[folder] = CPU_SPARE_S + CPU_FACTOR * outcome.cpu_s
        return outcome

    def start(self, folder: str, mutant: Mutant | None = None) -> int:
        """Run the tests of `folder` against `mutant` in a fork; return its process id."""
        pid = os.fork()
        if not pid:
            try:
                answer = json.dumps(self._test(folder, mutant))
                self._answer(os.getpid()).write_text(answer)
            finally:
                os._exit(0)
        self._since[pid] = time.monotonic()
        return pid

    def wait(self) -> tuple[int, Outcome]:
        """Wait for the next fork to end; return its process id and its outcome."""
        pid, status, usage = os.wait4(-1, 0)
        wall_s = time.monotonic() - self._since.pop(pid)
        answer: dict[str, Any] = NO_ANSWER
        if (file := self._answer(pid)).exists():
            answer = json.loads(file.read_text())
            file.unlink()
        ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if ended_by in (signal.SIGXCPU, signal.SIGALRM):
            result = "timeout"
        else:
            result = "survived" if answer["code"] == pytest.ExitCode.OK else "killed"
        by = answer["by"] or (f"signal {ended_by}" if ended_by else "")
        cpu_s = usage.ru_utime + usage.ru_stime
        return pid, Outcome(result, by, cpu_s, wall_s, answer["modules"])

    def _answer(self, pid: int) -> Path:
        return self._scratch / f"{pid}.json"

    def _test(self, folder: str, mutant: Mutant | None) -> dict[str, Any]:
        """Run pytest in the fork; return its answer for `wait`."""
        self._confine(self._cpu_s[folder])
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        here = {str(Path(__file__).parents[2]), ""}
        sys.path[:] = [str(self._checkout), *(path for path in sys.path if path not in here)]
        os.chdir(self._checkout)
        if mutant is not None:
            path = self._checkout / mutant.file
            tree = mutated(path.read_text("utf-8"), mutant.number)
            sys.meta_path.insert(0, Finder(path, tree))
        failure = FirstFailure()
        files = [str(path) for path in files_of(self._checkout, folder, mutant)]
        code = int(pytest.main([*OPTIONS, *NO_LIMIT, *files], plugins=[failure]))
        return {"code": code, "by": failure.name, "modules": [] if mutant else self._libraries()}

    def _confine(self, cpu_s: float) -> None:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nowhere, descriptor)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(cpu_s), math.ceil(cpu_s) + 5))
        signal.alarm(math.ceil(cpu_s * WALL_FACTOR))

    def _libraries(self) -> list[str]:
        """List the loaded modules of the standard library and of installed packages."""
        installed = str(Path(pytest.__file__).parents[1]), str(Path(os.__file__).parent)
        return [
            name
            for name, module in sys.modules.items()
            if (getattr(module, "__file__", None) or "").startswith(installed)
        ]


def files_of(checkout: Path, folder: str, mutant: Mutant | None = None) -> Iterator[Path]:
    """Yield the test files of `folder`, unit tests named after the mutant's file first."""
    for place in TESTS[folder]:
        path = checkout / place
        found = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        stem = Path(mutant.file).stem if mutant else ""
        yield from sorted(found, key=lambda file: file.stem != f"test_{stem}")
