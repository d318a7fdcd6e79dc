"""Processes that make the load, pinned to separate cores."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Set
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from admin.cli.bench.load import LoadPlan, LoadResult
from admin.cli.bench.points import CALLS_MAX, Limits
from benchmarks.loading import bench_load, wrk
from benchmarks.loading.call import Call, Load, Loaded
from benchmarks.measuring.record import percentile

P = TypeVar("P")
# The affinity is set before the process starts its threads, which inherit it.
ON_CORES = "import os, sys; os.sched_setaffinity(0, {cores}); os.execvp(sys.argv[1], sys.argv[1:])"
GRACE_S = 120.0
WRK = "wrk"


class Refused(Exception):
    """The server answered with errors; the message gives details."""


def run(load: Load, cores: Set[int], *, detailed: bool = False, own: bool = False) -> Loaded:
    """Run a load to its end; every answer must be successful. `detailed` keeps every answer's time
    and needs the built-in generator, as does a number of calls; `own` selects it in any case."""
    with running(load, cores, detailed=detailed, own=own) as process:
        return figures(process, load)


@contextmanager
def running(
    load: Load, cores: Set[int], *, detailed: bool = False, own: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """Run a load in the background until the block ends."""
    with tempfile.TemporaryDirectory(prefix="fn-load-") as name:
        folder = Path(name)
        words = _command(load, folder, detailed=detailed, own=own)
        with pinned(words, cores) as process:
            yield process


@contextmanager
def pinned(words: list[str], cores: Set[int]) -> Iterator[subprocess.Popen[str]]:
    """Run a command on these cores in the background; kill it at the end of the block."""
    launch = [sys.executable, "-I", "-S", "-c", ON_CORES.format(cores=sorted(cores)), *words]
    process = subprocess.Popen(launch, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@contextmanager
def planned(plan: Any, cores: Set[int]) -> Iterator[subprocess.Popen[str]]:
    """Run a load in a process of its own until the block ends: the module of the plan, a dataclass,
    which calls `execute`."""
    with tempfile.TemporaryDirectory(prefix="fn-plan-") as name:
        file = Path(name) / "plan.json"
        file.write_text(json.dumps(asdict(plan)))
        words = [sys.executable, "-m", type(plan).__module__, str(file)]
        with pinned(words, cores) as process:
            yield process


def execute(
    file: Path, kind: Callable[..., P], load: Callable[[P], Coroutine[Any, Any, Any]]
) -> None:
    """Run a load by the plan in a file, with all descriptors it may have; print its figures."""
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    plan = kind(**json.loads(file.read_text()))
    print(json.dumps(asdict(uvloop.run(load(plan)))))


def figures(process: subprocess.Popen[str], load: Load) -> Loaded:
    """Wait for the end of a load. Raises Refused if an answer was not successful."""
    output, complaint = process.communicate(timeout=load.seconds + GRACE_S)
    if process.returncode:
        raise Refused(f"the load ended with {process.returncode}: {complaint[-500:]}")
    loaded = wrk.parse(output) if "figures " in output else _parsed(output)
    if loaded.errors:
        raise Refused(
            f"{loaded.errors} errors beside {loaded.requests} answers of {load.call.path}"
        )
    if not loaded.requests:
        raise Refused(f"no answer of {load.call.path} within {load.seconds} s")
    return loaded


def everywhere() -> set[int]:
    """Return all cores, for measurements that must not pin: processes that a server starts under
    load would inherit its core."""
    return set(os.sched_getaffinity(0))


def has_wrk() -> bool:
    """Return whether loads are made by wrk; else by the generator of `fnctl bench`."""
    return shutil.which(WRK) is not None


def _command(load: Load, folder: Path, *, detailed: bool, own: bool) -> list[str]:
    path = shutil.which(WRK)
    if path and not (detailed or own or load.each):
        body, script = folder / "body", folder / "script.lua"
        body.write_bytes(load.call.body)
        script.write_text(wrk.script(load.call, body))
        return wrk.command(path, load, script)
    limits = Limits(
        GRACE_S if load.each else load.seconds,
        warmup_s=0.0,
        calls_max=load.connections * load.each or CALLS_MAX,
        timeout_s=GRACE_S,
    )
    plan, file = LoadPlan(load.connections, limits, is_detailed=detailed), folder / "plan"
    file.write_bytes(bench_load.encode(load.call.port, plan, load.call.request()))
    return [sys.executable, "-m", bench_load.__name__, str(file)]


def _parsed(output: str) -> Loaded:
    """Parse the last line of the built-in generator. Raises ValueError."""
    try:
        result = LoadResult(**json.loads(output.splitlines()[-1]))
    except (IndexError, TypeError, ValueError) as error:
        raise ValueError(f"load: expected a result, got {output[-500:]!r}") from error
    taken_ms = [one * 1e3 for one in result.taken_s]
    return Loaded(
        len(taken_ms),
        max(result.elapsed_s, 1e-9),
        percentile(taken_ms, 0.5),
        percentile(taken_ms, 0.99),
        result.failed + result.cut,
        result.elapsed_s * 1e3,
        tuple(zip(result.ended_s, taken_ms, strict=True)) if result.ended_s else (),
    )


def once(call: Call, cores: Set[int]) -> Loaded:
    """Make one call over one connection."""
    return run(Load(call, 1, each=1), cores)
