"""Warm calls of the digits (JSON), by `fnctl bench` and by the load of these benchmarks."""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.gateway import Gateway, gateway
from benchmarks.loaded import P50, P99, RATE, answers
from benchmarks.loading import generator
from benchmarks.loading.call import Load
from benchmarks.measuring.record import Case, Figures, interleaved
from benchmarks.measuring.report import Part, compare
from benchmarks.measuring.setting import LeftOut, Setting
from benchmarks.models import subjects
from benchmarks.models.subjects import Subject
from tests.support.process_server import FNCTL

CONNECTIONS = (1, 8, 64)
OURS = "fnctl bench"
THEIRS = "load of the benchmarks"
WANTED = {metric: {OURS: "ratio 0.9 to 1.1"} for metric in (RATE, P50)}


def measure(setting: Setting) -> list[Part]:
    """Rate and latency at 1, 8 and 64 connections, by both, in turns. Raises LeftOut without wrk:
    the built-in load is that of `fnctl bench` itself."""
    if not generator.has_wrk():
        raise LeftOut("wrk is not installed, and fnctl bench would be compared with itself")
    subject = subjects.digits()
    parts: list[Part] = []
    with (
        tempfile.TemporaryDirectory(prefix="fn-bench-") as folder,
        gateway(environment={"FN_STANDBYS": "0"}) as ours,
    ):
        body = Path(folder) / "body.json"
        body.write_bytes(subject.body)
        ours.deploy(subject)
        ours.call_ms(subject)
        ours.pin(setting)
        for connections in CONNECTIONS:
            load = Load(ours.call(subject), connections, setting.load_s)
            cases: dict[str, Case] = {
                THEIRS: lambda load=load: answers(generator.run(load, setting.cores[1])),
                OURS: partial(_by_fnctl, ours, subject, body, load, setting),
            }
            record = interleaved(cases, setting.rounds).only(RATE, P50, P99)
            parts += compare(record, THEIRS, targets=WANTED, title=f"c={connections}")
    return parts


def _by_fnctl(ours: Gateway, subject: Subject, body: Path, load: Load, setting: Setting) -> Figures:
    words = [FNCTL, "bench", subject.name, "--json", "--input", str(body)]
    words += ["-c", str(load.connections), "--seconds", str(load.seconds), "--warmup", "0.2"]
    words += ["--url", ours.server.url, "--key", ours.key]
    with generator.pinned(words, setting.cores[1]) as process:
        output, complaint = process.communicate(timeout=generator.GRACE_S)
    if process.returncode:
        raise generator.Refused(f"fnctl bench ended with {process.returncode}: {complaint[-500:]}")
    [point] = json.loads(output)["points"]
    if point["errors"]:
        raise generator.Refused(f"fnctl bench: {point['errors']}")
    latency = point["latency_ms"]
    return {RATE: point["calls_per_s"], P50: latency["p50"], P99: latency["p99"]}
