"""Checks of an engine that sleeps in place of being stopped."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

from tests.gpu import bundles
from tests.gpu.box import Box
from tests.gpu.checks import SLACK_MIB
from tests.gpu.outcome import Check, NotTried
from tests.support.chat import answers

CYCLES = int(os.environ.get("FN_TEST_PARK_CYCLES", "20"))
FREED_MIB = 1024
"""MiB that a sleep gives back at least: weights and cache of `park_server.py`."""
TOKENS = 8


def cycles(box: Box) -> str:
    """An idle engine sleeps, and holds nothing but its residue by NVML; a call wakes it, and is
    answered right by the same replica. CYCLES times."""
    idle_mib = _resting(box)
    name = box.deploy(bundles.parked(box.folder, "sleeper"))
    park = box.function(name)["revisions"][-1]["profile"]["park"]
    assert park["works"], park
    _answered(box, name, "first")
    [replica] = box.replicas(name)
    awake_mib = box.machine.used_mib() - idle_mib
    residues, wakes = [], []
    for number in range(CYCLES):
        box.until(lambda: bool(box.replicas(name, "parked")), "the engine is parked")
        residues.append(box.machine.used_mib() - idle_mib)
        wakes.append(_answered(box, name, f"call {number}"))
        assert box.replicas(name)[0]["id"] == replica["id"], "it was started anew"
    assert awake_mib - max(residues) >= FREED_MIB - SLACK_MIB, (awake_mib, residues)
    assert max(residues) <= park["residue_mib"] + SLACK_MIB, (park, residues)
    return (
        f"{CYCLES} times: {awake_mib:.0f} MiB awake, {min(residues):.0f} to {max(residues):.0f}"
        f" asleep; answers after {statistics.median(wakes):.2f} s, {max(wakes):.2f} at most"
    )


def frees_nothing(box: Box) -> str:
    """An engine that says it sleeps, and holds its memory, is ended; the next call starts it."""
    idle_mib = _resting(box)
    fault = box.folder / "nothing.fault"
    name = box.deploy(bundles.parked(box.folder, "nothing", fault))
    _answered(box, name, "first")
    [replica] = box.replicas(name)
    _order(fault, "frees-nothing")
    ended_s = box.until(lambda: not _lives(box, replica["id"]), "the engine is ended")
    box.until_used(idle_mib + SLACK_MIB)
    fault.unlink()
    again_s = _answered(box, name, "again")
    return f"ended after {ended_s:.1f} s, its memory is back; the next answer after {again_s:.1f} s"


def garbage(box: Box) -> str:
    """An engine whose weights come back damaged serves nobody; its call is answered right by a new
    one."""
    _resting(box)
    fault = box.folder / "garbage.fault"
    name = box.deploy(bundles.parked(box.folder, "garbage", fault))
    _answered(box, name, "first")
    _order(fault, "garbage")
    box.until(lambda: bool(box.replicas(name, "parked")), "the engine is parked")
    [parked] = box.replicas(name, "parked")
    again_s = _answered(box, name, "again")
    fault.unlink()
    assert not _lives(box, parked["id"]), "the engine with damaged weights still lives"
    return f"the call was answered right after {again_s:.1f} s, by a new engine"


def _resting(box: Box) -> float:
    """Stop all functions; return the MiB that others have of the GPU. Raises NotTried if the driver
    does not tell whose memory it is: then nothing proves a sleep."""
    if box.machine.now().processes is None:
        raise NotTried("the driver does not list the processes on the GPU")
    box.sleep_all()
    return box.machine.used_mib()


def _lives(box: Box, id: str) -> bool:
    return any(item["id"] == id for item in box.items("replicas"))


def _answered(box: Box, name: str, text: str) -> float:
    """Call a function; return the seconds until its answer, which must be right."""
    said, seconds = box.complete(name, f"{text} [tokens={TOKENS}]")
    wanted = "".join(answers.words_of(f"{text} [tokens={TOKENS}]", TOKENS))
    assert said == wanted, f"expected {wanted!r}, got {said!r}"
    return seconds


def _order(file: Path, fault: str) -> None:
    """Have an engine get a fault; it never reads a part of the file."""
    beside = file.with_suffix(".new")
    beside.write_text(fault)
    beside.rename(file)


CHECKS = (
    Check("park", "An engine that sleeps frees the GPU, and wakes right", cycles),
    Check("park-nothing", "An engine that frees nothing is not parked", frees_nothing),
    Check("park-garbage", "An engine that wakes wrong serves nobody", garbage),
)
