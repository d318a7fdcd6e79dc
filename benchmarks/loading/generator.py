"""Processes that make the load, on cores of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from benchmarks.loading import wrk
from benchmarks.loading.call import Call, Load, Loaded

# A process has its cores before it makes its threads.
ON_CORES = "import os, sys; os.sched_setaffinity(0, {cores}); os.execvp(sys.argv[1], sys.argv[1:])"
GRACE_S = 120.0


class Refused(Exception):
    """What was called answered with errors; the message says how."""


def run(load: Load, cores: Set[int], *, detailed: bool = False, own: bool = False) -> Loaded:
    """Call until it is over; every answer must be good. `detailed` keeps every answer's time,
    which only our own loader can, as it alone can count calls; `own` asks for it anyway."""
    with running(load, cores, detailed=detailed, own=own) as process:
        return figures(process, load)


@contextmanager
def running(
    load: Load, cores: Set[int], *, detailed: bool = False, own: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """The same in the background, until the block ends."""
    with tempfile.TemporaryDirectory(prefix="fn-load-") as name:
        folder = Path(name)
        words = _command(load, folder, detailed=detailed, own=own)
        launch = [sys.executable, "-I", "-S", "-c", ON_CORES.format(cores=sorted(cores)), *words]
        process = subprocess.Popen(
            launch, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()


def figures(process: subprocess.Popen[str], load: Load) -> Loaded:
    """Wait for the end of a load. Raises Refused where an answer was not good."""
    output, complaint = process.communicate(timeout=load.seconds + GRACE_S)
    if process.returncode:
        raise Refused(f"the load ended with {process.returncode}: {complaint[-500:]}")
    loaded = wrk.parse(output) if "figures " in output else Loaded.from_json(output)
    if loaded.errors:
        raise Refused(
            f"{loaded.errors} errors beside {loaded.requests} answers of {load.call.path}"
        )
    if not loaded.requests:
        raise Refused(f"no answer of {load.call.path} within {load.seconds} s")
    return loaded


def everywhere() -> set[int]:
    """All cores, where what is measured must not be pinned: what a server starts under load would
    inherit its core."""
    return set(os.sched_getaffinity(0))


def _command(load: Load, folder: Path, *, detailed: bool, own: bool) -> list[str]:
    path = shutil.which("wrk")
    if path and not (detailed or own or load.each):
        body, script = folder / "body", folder / "script.lua"
        body.write_bytes(load.call.body)
        script.write_text(wrk.script(load.call, body))
        return wrk.command(path, load, script)
    request, plan = folder / "request", folder / "plan.json"
    request.write_bytes(load.call.request())
    plan.write_text(
        json.dumps(
            {
                "port": load.call.port,
                "request": str(request),
                "connections": load.connections,
                "seconds": load.seconds,
                "each": load.each,
                "detailed": detailed,
            }
        )
    )
    return [sys.executable, "-m", "benchmarks.load", str(plan)]


def once(call: Call, cores: Set[int]) -> Loaded:
    """One call over one connection."""
    return run(Load(call, 1, each=1), cores)
