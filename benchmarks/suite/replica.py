"""A replica without a gateway, over its data link: CPU time per request, engine utilisation."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnxruntime as ort

from benchmarks.alone.cases import Case, bare_session, convnets, small_cases
from benchmarks.alone.process import ReplicaProcess, replica_process
from benchmarks.measuring.record import Figures, interleaved
from benchmarks.measuring.report import Part, compare
from benchmarks.measuring.setting import Setting

BARE = "bare engine"


def measure(setting: Setting) -> list[Part]:
    """Small requests of several forms; then models of some milliseconds, compared with ONNX Runtime
    in this process, with one thread each."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        small = small_cases(Path(folder))
        calls = {}
        for title, case in small.items():
            replica = stack.enter_context(replica_process(case.folder, case.spec))
            replica.call(case.body, case.content_type, case.in_flight, 0.3)
            calls[title] = partial(per_request, replica, case, setting.load_s)
        parts: list[Part] = [*compare(interleaved(calls, setting.rounds), next(iter(small)))]
        if not setting.quick:
            for title, case in convnets(Path(folder)).items():
                parts += against_engine(title, case, setting)
        return parts


def per_request(replica: ReplicaProcess, case: Case, seconds: float) -> Figures:
    """Return the replica's CPU time per request."""
    before = replica.cpu_s()
    count = replica.call(case.body, case.content_type, case.in_flight, seconds)
    return {"us of CPU per request": (replica.cpu_s() - before) / count * 1e6}


def against_engine(title: str, case: Case, setting: Setting) -> list[Part]:
    """Compare rows per second with the engine alone, and measure the engine's share of time."""
    session = bare_session(case.folder / case.spec.model)
    joined = np.concatenate([case.row] * case.spec.batch_max)
    seconds = 2.0 * setting.load_s
    with replica_process(case.folder, case.spec) as replica:
        runs = {
            BARE: partial(bare, session, joined, seconds),
            "replica": partial(served, replica, case, seconds),
        }
        record = interleaved(runs, setting.rounds)
    targets = {"rows per second": {"replica": "ratio >= 0.95"}}
    return [*compare(record, BARE, targets=targets, title=title)]


def bare(session: ort.InferenceSession, joined: np.ndarray, seconds: float) -> Figures:
    """Measure the engine alone."""
    began_s, rows = time.monotonic(), 0
    while time.monotonic() < began_s + seconds:
        session.run(None, {"x": joined})
        rows += len(joined)
    return {"rows per second": rows / (time.monotonic() - began_s)}


def served(replica: ReplicaProcess, case: Case, seconds: float) -> Figures:
    """Measure the same model over a data link."""
    began_s = time.monotonic()
    count = replica.call(case.body, case.content_type, case.in_flight, seconds)
    taken_s = time.monotonic() - began_s
    return {"rows per second": count / taken_s, "engine busy": replica.engine_s / taken_s}
