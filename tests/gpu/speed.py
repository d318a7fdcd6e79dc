"""Throughput of a function relative to the same model in a bare loop on the same GPU."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path

from tests.gpu.box import Box

SECONDS = 4.0
CALLERS = 16
BARE_S = 90.0


def beside_bare(
    box: Box,
    name: str,
    bare: tuple[str, Path],
    body: bytes,
    kind: str = "application/json",
    least: float = 0.0,
) -> str:
    """Return calls per second with 1 and 16 callers, relative to the loop's runs per second.

    `bare`: kind of loop and its file, as `bare.py` takes them. Raises AssertionError if 16 callers
    get less than `least` of the loop.
    """
    box.post(name, body, kind)
    one = _rate(box, name, body, kind, 1)
    many = _rate(box, name, body, kind, CALLERS)
    box.sleep_all()
    alone = _bare(box, *bare)
    assert many >= least * alone, f"bare {alone:.0f}/s, by {CALLERS} callers {many:.0f}/s"
    return (
        f"bare {alone:.0f}/s; called one by one {one:.0f}/s ({one / alone:.2f}), "
        f"by {CALLERS} callers {many:.0f}/s ({many / alone:.2f})"
    )


def _rate(box: Box, name: str, body: bytes, kind: str, callers: int) -> float:
    """Return answers per second."""
    counts = [0] * callers
    failures: list[str] = []
    began = time.monotonic()

    def call(index: int) -> None:
        while time.monotonic() - began < SECONDS and not failures:
            try:
                box.post(name, body, kind)
            except Exception as error:  # noqa: BLE001 - reported as the check's failure
                failures.append(repr(error))
            counts[index] += 1

    threads = [threading.Thread(target=call, args=(index,)) for index in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    return sum(counts) / (time.monotonic() - began)


def _bare(box: Box, kind: str, path: Path) -> float:
    """Return runs per second of the loop in a separate process. Raises RuntimeError."""
    script = str(Path(__file__).with_name("bare.py"))
    done = subprocess.run(
        [str(box.machine.python), "-I", script, kind, str(path), str(SECONDS)],
        capture_output=True,
        text=True,
        timeout=BARE_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the bare loop failed: {done.stderr[-500:]}")
    return float(json.loads(done.stdout)["runs_per_s"])
